"""NNX modules as tasks, against the linen module of the same network."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import nnx

import fedjax_pfl as pfl
from fedjax_pfl.federation.build import PADDED
from fedjax_pfl.models.task import EVALUATION, as_task
from fedjax_pfl.testing.toys import toy_federation
from tests.models.twin import INPUTS, Twin, federation


class Net(nnx.Module):
    def __init__(self, hidden=5, dropout=0.0, *, rngs):
        self.fc = nnx.Linear(4, hidden, rngs=rngs)
        self.bn = nnx.BatchNorm(hidden, momentum=0.9, rngs=rngs)
        self.drop = nnx.Dropout(dropout, rngs=rngs)
        self.after = nnx.List([nnx.Linear(hidden, hidden, rngs=rngs)])
        self.head = nnx.Linear(hidden, 3, rngs=rngs)

    def features(self, x):
        x = self.drop(nnx.relu(self.bn(self.fc(x))))
        for layer in self.after:
            x = nnx.relu(layer(x))
        return x

    def __call__(self, x):
        return self.head(self.features(x))


def of_twin(model):
    """The twin's model under the twin's names."""
    params = dict(model["params"])
    params["after"] = params["after"]["0"]
    return model | {"params": params}


@pytest.mark.costly
def test_a_forward_pass_is_the_twins():
    task, twin = as_task(Net(rngs=nnx.Rngs(3))), as_task(Twin())
    model = task.initial_model(jax.random.key(0), INPUTS)
    made = task.init(jax.random.key(0), INPUTS)
    assert list(made["params"]) == ["fc", "bn", "after", "head"]
    for mode in (EVALUATION, (True, jax.random.key(1), None)):
        ours, theirs = (
            task.outputs(model, INPUTS, *mode),
            twin.outputs(of_twin(model), INPUTS, *mode),
        )
        np.testing.assert_allclose(ours.logits, theirs.logits, atol=1e-6)
        jax.tree.map(
            lambda a, b: np.testing.assert_allclose(a, b, atol=1e-6),
            ours.statistics,
            theirs.statistics,
        )
    assert ours.statistics["batch_stats"]["bn"]["mean"].shape == (5,)
    np.testing.assert_allclose(task.classify(model, ours.features), ours.logits, atol=1e-6)
    embedded, statistics = task.embed(model, INPUTS, *mode)
    np.testing.assert_array_equal(embedded, ours.features)
    assert jax.tree.structure(statistics) == jax.tree.structure(ours.statistics)


@pytest.mark.costly
def test_a_module_begins_as_it_is_and_a_class_with_each_seed():
    module = Net(rngs=nnx.Rngs(3))
    task, key, other = as_task(module), jax.random.key(0), jax.random.key(1)
    begun = task.initial_model(key, INPUTS)
    np.testing.assert_array_equal(begun["params"]["fc"]["kernel"], module.fc.kernel.get_value())
    module.fc.kernel.set_value(module.fc.kernel.get_value() + 1)  # after it was given
    for each in (key, other):
        again = task.initial_model(each, INPUTS)
        jax.tree.map(np.testing.assert_array_equal, begun, again)
    drawn = as_task(functools.partial(Net, hidden=2))
    one, two = (drawn.initial_model(each, INPUTS)["params"] for each in (key, other))
    assert one["fc"]["kernel"].shape == (4, 2)
    assert not np.array_equal(one["fc"]["kernel"], two["fc"]["kernel"])
    assert as_task(Net) == as_task(Net)


@pytest.mark.costly
def test_dropout_draws_in_training_alone():
    task = as_task(functools.partial(Net, 40, 0.5))
    model = task.initial_model(jax.random.key(0), INPUTS)

    def logits(*mode):
        return task.outputs(model, INPUTS, *mode, None).logits

    one, two = jax.random.key(1), jax.random.key(2)
    np.testing.assert_array_equal(logits(True, one), logits(True, one))
    assert not np.array_equal(logits(True, one), logits(True, two))
    np.testing.assert_array_equal(logits(False, one), logits(False, None))


@pytest.mark.costly
def test_two_rounds_are_the_twins():
    """Local training, batch statistics and averaging, from the same parameters."""
    module = Net(rngs=nnx.Rngs(3))
    ours = federation(module)
    start = of_twin(ours.initial_model(jax.random.key(0)))
    flat = {
        f"{name}/{'/'.join(k.key for k in path)}": leaf
        for name, part in start.items()
        for path, leaf in jax.tree_util.tree_leaves_with_path(part)
    }
    twin = federation(Twin(), initial_model=flat)
    assert [name.partition("/")[0] for name in ours.plan.blocks] == list(twin.plan.blocks)
    assert ours.plan.head == "head"
    assert {name.partition("/")[0] for name in ours.plan.normalized} == {"bn"}
    algorithm = pfl.make_algorithm("fedavg")
    losses = [
        pfl.simulate(algorithm, one, rounds=2, seeds=(0,)).scores["personalized/test/loss"]
        for one in (ours, twin)
    ]
    np.testing.assert_allclose(losses[0], losses[1], rtol=1e-5)


class Masked(Net):
    def __call__(self, x, valid=None):
        return self.head(self.bn(self.fc(x), mask=None if valid is None else valid[:, None]))


def test_batch_statistics_that_count_padding_are_noted():
    def notes(model, **options):
        return toy_federation(model=model, dtype="float32", **options).notes

    assert PADDED in notes(Net)
    assert PADDED in notes(Net, batch_order="poisson", drop_last=True)
    assert PADDED not in notes(Net, drop_last=True) + notes(Masked) + federation(Net).notes


class Switched(Net):
    def __call__(self, x, deterministic: bool):
        return super().__call__(x)


def test_a_flag_that_nothing_sets_is_refused():
    with pytest.raises(pfl.InputError, match=r"^__call__ takes 'deterministic', .* it 'train'"):
        federation(Switched)


class Counting(nnx.Module):
    def __init__(self, rngs):
        self.head = nnx.Linear(4, 3, rngs=rngs)
        self.calls = nnx.Cache(jnp.zeros(()))

    def __call__(self, x):
        return self.head(x)


def test_other_variables_are_refused():
    with pytest.raises(pfl.InputError, match=r"keeps 'calls' as Cache: .* as a pfl.Task with init"):
        federation(Counting)
    with pytest.raises(pfl.InputError, match=r"can't take samples of .* missing 2 required"):
        federation(nnx.Linear)
    with pytest.raises(pfl.InputError, match=r"a flax.linen, NNX or Equinox module, a Task or a"):
        federation(3)
