"""The models after the last round, and those of new clients."""

from dataclasses import replace

import jax
import jax.numpy as jnp
import numpy as np
import pandas as pd
import pytest

import fedjax_pfl as pfl
from fedjax_pfl import InputError
from fedjax_pfl.testing.toys import toy_federation

pytestmark = [pytest.mark.costly, pytest.mark.usefixtures("double_precision")]


@pytest.fixture(scope="module")
def two_rates():
    with jax.enable_x64(True):
        settings = {"learning_rate": (0.0, 0.3)}
        return pfl.simulate(
            pfl.make_algorithm("fedavg"),
            toy_federation(validation_size=0),
            2,
            settings=settings,
            chunk=8,
        )


def test_final_models_of_some_clients(two_rates):
    final = two_rates.final
    with pytest.raises(InputError, match=r"rows must be clients in 0\.\.4, got \[5\]"):
        final.models([5])
    models = final.models([1, 3])
    assert isinstance(models["global"], pfl.Broadcast)
    assert models["global"].model["params"]["head"]["bias"].shape == (2, 3)


def new_clients(ids):
    federation = toy_federation((4, 6, 2), seed=7)
    return replace(federation, data=replace(federation.data, ids=jnp.array(ids)))


def test_new_clients_of_another_federation(two_rates):
    final = two_rates.final
    made = final.personalize(new_clients((100, 101, 102)))["params"]
    server = final.models()["global"].model["params"]
    for new, old in zip(jax.tree.leaves(made), jax.tree.leaves(server), strict=True):
        assert new.shape == (2, 3, *old.shape[1:])  # runs, new_clients
        np.testing.assert_array_equal(new[0], np.broadcast_to(old[0], new[0].shape))  # rate 0
        assert np.isfinite(new).all()
    kernels = np.asarray(made["head"]["kernel"][1])
    assert len(np.unique(kernels.round(6), axis=0)) == 3
    again = final.personalize(new_clients((100, 999, 102)))["params"]["head"]["kernel"][1]
    np.testing.assert_array_equal(again[0], kernels[0])
    np.testing.assert_array_equal(again[2], kernels[2])  # the others' ids do not matter
    assert (np.asarray(again[1]) != kernels[1]).any()  # six samples: batches in another order


@pytest.mark.parametrize("name", ["feddwa", "fedrod"])
def test_predictions_of_a_client_are_those_that_were_scored(name):
    """Each seed's, setting's and client's model, on samples as the data set has them."""
    dataset = pfl.load_dataset("digits")
    partition = pfl.make_partition(
        "dirichlet", dataset, 3, seed=0, train_samples=40, test_samples=20
    )
    federation = pfl.federate(dataset, partition, "softmax")
    result = pfl.simulate(
        pfl.make_algorithm(name),
        federation,
        2,
        seeds=(0, 4),
        settings={"learning_rate": (0.01, 0.3)},
    )
    samples, labels = dataset.pool()
    accuracy = result.accuracy()
    for s, h, n in np.ndindex(2, 2, 3):
        rows = partition.client("test", n)
        classes = result.predict(n, samples[rows], seed=result.seeds[s], setting=h)
        assert np.mean(classes == labels[rows]) == pytest.approx(accuracy[s, h, -1, n])
    outputs = result.predict(2, samples[:5], outputs=True)
    assert outputs.shape == (5, 10)
    np.testing.assert_array_equal(outputs.argmax(-1), result.predict(2, samples[:5]))


@pytest.mark.parametrize("drift", [False, True])
def test_predictions_on_images_that_a_client_has_turned(drift):
    dataset = pfl.load_dataset("digits")
    partition = pfl.make_partition("iid", dataset, 4, seed=0)
    options = {"drift": "rotate", "drift_rounds": [3]} if drift else {}
    if not drift:
        partition = replace(partition, turns=np.arange(4))
    federation = pfl.federate(dataset, partition, "softmax", **options)
    result = pfl.simulate(pfl.make_algorithm("local"), federation, 3)
    samples, labels = dataset.pool()
    for n, scored in enumerate(result.accuracy()[0, 0, -1]):
        rows = partition.client("test", n)
        right = np.mean(result.predict(n, samples[rows]) == labels[rows])
        assert right == pytest.approx(scored)


def test_predictions_of_a_frame_with_another_order_of_columns():
    frame = pd.DataFrame(np.eye(4, 2), columns=["age", "cost"])
    dataset = pfl.dataset_from_arrays("a", frame, [0, 1, 0, 1])
    federation = pfl.federate(dataset, pfl.make_partition("iid", dataset, 1, seed=0), "softmax")
    result = pfl.simulate(pfl.make_algorithm("local"), federation, 1)
    np.testing.assert_array_equal(result.predict(0, frame), result.predict(0, frame.to_numpy()))
    with pytest.raises(InputError, match=r"Columns of the samples .* got \('cost', 'age'\)"):
        result.predict(0, frame[["cost", "age"]])


def test_predictions_that_cannot_be_made(two_rates):
    x = np.zeros((3, 4), np.float32)
    assert two_rates.predict(0, x).shape == (3,)
    assert two_rates.predict(0, x[:0]).shape == (0,)
    assert two_rates.predict(0, x[:0], outputs=True).shape == (0, 3)
    for words, said in [
        ((7, x), r"client must be one of \[0, 1, .*\], got 7"),
        (("north", x), r"client must be one of \[0, 1, .*\], got 'north'"),
        ((0, x[:, :2]), r"Shape of the samples must be \[n, 4\], got \(3, 2\)"),
        ((0, np.array([["a"] * 4])), "Samples must be numbers"),
        ((0, [[1], [2, 3]]), r"samples must be an array \[n, 4\], got"),
    ]:
        with pytest.raises(InputError, match=said):
            two_rates.predict(*words)
    best = np.argmax([0.1, 0.2])  # a whole number of NumPy
    np.testing.assert_array_equal(
        two_rates.predict(0, x, setting=best, outputs=True),
        two_rates.predict(0, x, setting=1, outputs=True),
    )
    for more, said in [
        ({"seed": 3}, r"seed must be one of \[0\]"),
        ({"setting": 2}, r"setting must be in 0\.\.1, got 2"),
        ({"setting": 0.5}, r"setting must be a whole number, got 0\.5"),
    ]:
        with pytest.raises(InputError, match=said):
            two_rates.predict(0, x, **more)
    for at, said in [
        ((2, 0), r"run must be a whole number in 0\.\.1, got 2"),
        ((0, 99), r"row must be a whole number in 0\.\.4, got 99"),
        ((0, 1.5), r"row must be a whole number, got 1\.5"),
    ]:
        with pytest.raises(InputError, match=said):
            two_rates.final.predict(*at, x)
    with pytest.raises(InputError, match=r"has no models\. If it was selected"):
        replace(two_rates, final=None).predict(0, x)
    federation = toy_federation(test_sizes=(0,) * 5, validation_size=0)  # a smaller program
    one = pfl.simulate(pfl.make_algorithm("waffle", {"alice": 1}), federation, 1)
    with pytest.raises(InputError, match=r"waffle makes no model for client 0; it has .*\[1\]"):
        one.predict(0, x)
