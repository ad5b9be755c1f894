"""Tasks and objectives of a user's own, and swept values: nothing given is dropped in silence."""

from dataclasses import dataclass, replace

import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np
import pytest

import fedjax_pfl as pfl
from fedjax_pfl.data.federated import Batch
from fedjax_pfl.models.frozen_backbone import FrozenBackbone
from fedjax_pfl.models.normalization import BatchNorm
from fedjax_pfl.models.task import as_task
from fedjax_pfl.models.wrapped_task import WrappedTask
from fedjax_pfl.testing.toys import assert_close, toy_federation
from tests.models.small import small_federation, trained

DIGITS = pfl.load_dataset("digits")
PARTITION = pfl.make_partition("iid", DIGITS, num_clients=4, seed=0)


class Net(nn.Module):
    @nn.compact
    def __call__(self, x):
        return nn.Dense(10, name="head")(x.reshape(len(x), -1))


@dataclass(frozen=True)
class Careless(pfl.models.LinenTask):
    """Has an `__init__` of its own, and a mean loss of zero."""

    def __init__(self, dtype="float32"):
        super().__init__(Net(), dtype=dtype)

    def mean_loss(self, logits, batch):
        return jnp.zeros(()) * jnp.sum(logits)


def made(model, **options):
    return pfl.federate(DIGITS, PARTITION, model, **options)


@pytest.mark.parametrize(
    ("model", "options", "said"),
    [
        (pfl.models.LinenTask(Net()), {"dtype": "float16"}, "dtype must be 'float32', the model's"),
        (Net(), {"initializer": "flax"}, "initializer must be 'torch', as the model draws its own"),
    ],
)
def test_options_that_a_model_does_not_take(model, options, said):
    with pytest.raises(pfl.InputError, match=said):
        made(model, **options)
    assert made(pfl.models.LinenTask(Net(), dtype="bfloat16")).task.dtype == "bfloat16"


@pytest.mark.parametrize("options", [{"compute_dtype": "bfloat16"}, {"convolutions": "xla"}])
def test_a_task_with_an_init_of_its_own(options):
    task = made(Careless(), **options).task
    assert isinstance(task, Careless)
    assert [getattr(task, name) for name in options] == [*options.values()]


@pytest.mark.costly
def test_a_mean_loss_of_its_own_is_used_inside_of_wrappers():
    """The models stay the initial ones, as the gradient is zero."""
    plain, wrapped = made(Careless()), FrozenBackbone.around(Careless(), (), None)
    for federation in (plain, replace(plain, network=wrapped)):
        result = pfl.simulate(pfl.make_algorithm("local"), federation, 3)
        assert len(set(result.curve()[0, 0].tolist())) == 1


def test_a_wrappers_own_losses_win():
    class Own(WrappedTask):
        def losses(self, logits, labels):
            return jnp.full(labels.shape, 2.0)

    labels, valid = jnp.array([0, 1]), jnp.array([True, False])
    batch = Batch(jnp.zeros((2, 64)), labels, valid)
    assert Own.around(Careless()).mean_loss(jnp.zeros((2, 10)), batch) == 2


def test_none_among_swept_numbers_is_refused():
    simulation = pfl.Simulation(
        pfl.make_algorithm("fedavgm"), toy_federation(dtype="float32"),
        settings={"learning_rate": [None, 0.1]},
    )  # fmt: skip
    with pytest.raises(pfl.InputError, match="without None: simulate that setting by itself"):
        simulation.check()


@pytest.mark.costly
def test_classes_of_an_objective_of_its_own():
    """Its main metric is not the accuracy, and its predictions are classes all the same."""

    federation = made("softmax")
    objective = federation.network.objective
    assert objective.classes
    result = pfl.simulate(pfl.make_algorithm("local"), federation, 1)
    renamed = replace(result, measures=(pfl.models.Measure("other", "higher"),), scores={})
    assert renamed.predict(0, DIGITS.train_x[:4]).shape == (4,)
    np.testing.assert_array_equal(
        renamed.predict(0, DIGITS.train_x[:4]), result.predict(0, DIGITS.train_x[:4])
    )


class Normed(nn.Module):
    norm: type

    @nn.compact
    def __call__(self, x, train: bool = False, valid=None):
        if self.norm is BatchNorm:
            x = BatchNorm(name="bn")(x, train, valid)
        else:
            x = self.norm(use_running_average=not train, momentum=0.9, name="bn")(x)
        return nn.Dense(3, name="head")(x.reshape(len(x), -1))


@pytest.mark.usefixtures("double_precision")
def test_padding_does_not_count_in_layers_of_flax():
    """Clients of 5, 2 and 3 samples take a step on minibatches of 4."""
    options = {"batch_size": 4, "local_steps": 1}
    ours, flax = (
        trained(small_federation(Normed(norm), **options)) for norm in (BatchNorm, nn.BatchNorm)
    )
    means = [model["batch_stats"]["bn"]["mean"] for model in (ours, flax)]
    np.testing.assert_allclose(means[1], means[0], 1e-9)
    assert_close(flax["params"], ours["params"], "parameters", 1e-6)


@pytest.mark.parametrize("norm", [nn.BatchNorm, nn.jit(nn.BatchNorm)])
def test_statistics_of_a_minibatch_without_samples_are_finite(norm):
    task, x = as_task(Normed(norm)), jnp.ones((2, 4))
    model = task.initial_model(jax.random.key(0), x)
    for _ in range(2):  # a mask that `nn.jit` kept would be of the first trace
        forward = jax.jit(lambda valid: task.outputs(model, x, True, None, valid).statistics)
        assert np.isfinite(forward(jnp.zeros(2, bool))["batch_stats"]["bn"]["mean"]).all()
