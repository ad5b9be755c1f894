"""Federations, and the options that they refuse."""

import flax.linen as nn
import jax
import numpy as np
import optax
import pytest

import fedjax_pfl as pfl
from fedjax_pfl import InputError
from fedjax_pfl.data.dataset import dataset_from_arrays
from fedjax_pfl.federation.build import WHOLE_BATCHES
from fedjax_pfl.models.task import LinenTask
from fedjax_pfl.testing.toys import TanhNetwork, toy_federation

pytestmark = pytest.mark.usefixtures("double_precision")


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"momentum": 1.0}, r"momentum must be in \[0, 1\), got 1\.0"),
        ({"input_scaling": "halve"}, "Unknown input scaling 'halve'. Did you mean 'half'"),
        ({"client_execution": "maps"}, "client_execution must be one of"),
        ({"model": "mpl", "initializer": "torch"}, "Unknown model 'mpl'. Did you mean 'mlp'"),
        ({"model": "mlp", "initializer": "touch"}, "Unknown initializer 'touch'. Did you mean"),
    ],
)
def test_federations_that_are_refused(options, message):
    with pytest.raises(InputError, match=message):
        toy_federation(**options)


SIX = dataset_from_arrays("six", np.zeros((6, 4), np.float32), np.arange(6) % 3)


def halves(**fields):
    """Two clients with two samples each."""
    return pfl.Partition.from_lists([[0, 1], [2, 3]], [[4], [5]], **fields)


def federate(**options):
    return pfl.federate(SIX, halves(), "softmax", dtype="float64", **options)


def test_a_partitions_label_map_is_that_of_the_data():
    swap = np.array([[0, 1, 2], [2, 1, 0]])
    data = pfl.federate(SIX, halves(label_map=swap), "softmax").data
    np.testing.assert_array_equal(data.label_map, swap)
    assert data.class_counts.tolist() == [[1, 1, 0], [1, 0, 1]]


def test_incomplete_minibatches_of_pfllibs_clients_are_noted():
    partition = halves(rule="pfllib")
    assert pfl.federate(SIX, partition, "softmax").notes == (WHOLE_BATCHES,)
    assert pfl.federate(SIX, partition, "softmax", batch_size=2, drop_last=True).notes == ()


@pytest.mark.parametrize("ids", [(1, 1), (1,), (1, 2, 3), (0.2, 0.7), (0, 2**32)])
def test_client_ids_are_distinct_integers_of_32_bits(ids):
    with pytest.raises(InputError, match="client_ids must be"):
        federate(client_ids=np.array(ids))


def test_an_optax_optimizer_in_place_of_its_factory():
    with pytest.raises(InputError, match="optimizer must be"):
        federate(optimizer=optax.sgd(0.1))
    with pytest.raises(InputError, match=r"optimizer must be .*, got 'ndarray'"):
        federate(optimizer=np.zeros(3))


@pytest.mark.parametrize("given", [[0.5], "hidden=2", 1, {0: 1}])
def test_options_of_a_model_that_are_no_dict(given):
    with pytest.raises(InputError, match="model_options must be a dict such as"):
        toy_federation(model="mlp", model_options=given)


def test_a_network_is_asked_for_its_shapes_every_time():
    """It may read what has changed meanwhile, as in a notebook."""
    width = [5]

    def init(key, inputs):
        return {
            "w": jax.numpy.zeros((inputs.shape[1], width[0])),
            "v": jax.numpy.zeros((width[0], 3)),
        }

    pair = (init, lambda params, inputs: inputs @ params["w"] @ params["v"])
    assert toy_federation(model=pair).plan.num_parameters == 35
    width[0] = 50
    assert toy_federation(model=pair).plan.num_parameters == 350


def test_a_task_with_a_first_model_of_its_own():
    class More(LinenTask):
        def initial_model(self, key, inputs):
            model = super().initial_model(key, inputs)
            return {**model, "params": {**model["params"], "extra": jax.numpy.zeros(7)}}

    federation = toy_federation(model=More(TanhNetwork(), dtype="float64"))
    assert federation.plan.num_parameters == 43 + 7 and "extra" in federation.plan.blocks


@pytest.mark.costly
def test_a_tpus_samples_fill_its_lanes():
    """Where they do not, every call of a program copies them all."""
    pool = np.random.default_rng(0).normal(size=(6, 5, 20)).astype(np.float32)
    dataset = dataset_from_arrays("six", pool, np.arange(6) % 3)
    partition = pfl.Partition.from_lists([[0, 1], [2, 3]], [[4], [5]])
    result = {}
    for platform in ("cpu", "tpu"):
        federation = pfl.federate(
            dataset, partition, "softmax", dtype="float64", platform=platform, input_scaling="raw"
        )
        data = federation.data
        batch = data.fetch(data.train, 1, np.arange(2), np.ones(2, bool), "float64")
        result[platform] = data.samples.shape, batch.inputs
    assert result["cpu"][0] == (6, 100) and result["tpu"][0] == (6, 128)
    np.testing.assert_array_equal(result["tpu"][1], result["cpu"][1])
    np.testing.assert_array_equal(result["tpu"][1].ravel(), pool[2:4].ravel())


def test_a_federation_prints_in_a_line():
    text = "Federation(5 clients: 25 train, 10 test, samples (4,), 3 outputs, 43 parameters)"
    assert repr(toy_federation(validation_size=0)) == text
    assert "10 test, 10 validation" in repr(toy_federation())


class Normed(nn.Module):
    """Linen's batch normalization computes its statistics in float32."""

    @nn.compact
    def __call__(self, x, train: bool = False):
        return nn.Dense(3, name="head")(nn.BatchNorm(use_running_average=not train)(x))


def test_statistics_that_half_precision_can_not_hold():
    with pytest.raises(InputError, match=r"dtype='bfloat16' can't hold .*mean.* compute_dtype"):
        toy_federation(model=Normed(), dtype="bfloat16")
    toy_federation(model=Normed(), dtype="float32", compute_dtype="bfloat16")


@pytest.mark.parametrize(
    ("flag", "value"),
    [
        ("jax_numpy_rank_promotion", "raise"),
        ("jax_numpy_dtype_promotion", "strict"),
        ("jax_transfer_guard", "disallow"),
    ],
)
def test_flags_of_jax_that_no_simulation_can_have(flag, value):
    federation, usual = toy_federation(), getattr(jax.config, flag)
    jax.config.update(flag, value)
    try:
        for fails in (federate, pfl.Simulation(pfl.make_algorithm("local"), federation).check):
            with pytest.raises(InputError, match=f"JAX's flag {flag} must be .*, got '{value}'"):
                fails()
    finally:
        jax.config.update(flag, usual)


@pytest.mark.costly
def test_leaked_tracers_are_none_of_the_librarys():
    with jax.checking_leaks():
        federation = toy_federation(optimizer=optax.adam)
        pfl.Simulation(pfl.make_algorithm("fedavg"), federation).check()


def test_partitions_and_labels_are_told_apart():
    base, other = toy_federation(), toy_federation(seed=1)  # other labels, the same partition
    assert np.array_equal(base.partition_hash, toy_federation(local_steps=2).partition_hash)
    assert not np.array_equal(base.partition_hash, other.partition_hash)
    moved = toy_federation(order=(1, 0, 2, 3, 4))
    assert not np.array_equal(base.partition_hash, moved.partition_hash)
