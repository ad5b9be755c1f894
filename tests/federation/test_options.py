"""Options of `federate`: declared once, documented from there, and changed in a federation."""

import dataclasses
import inspect
import re

import jax
import numpy as np
import optax
import pytest

import fedjax_pfl as pfl
from fedjax_pfl.federation.optimizers import SGD
from fedjax_pfl.testing.toys import toy_federation

KNOWN = {
    name: one for group in pfl.options.GROUPS for name, one in pfl.options.declared(group).items()
}


def federation(**options):
    return toy_federation(dtype="float32", learning_rate=0.1, **options)


def adam(learning_rate):
    return optax.adam(learning_rate)


def halved(t, total):
    return 0.5


def test_no_two_groups_have_one_name():
    assert len(KNOWN) == sum(len(pfl.options.declared(group)) for group in pfl.options.GROUPS)


def test_help_names_every_option():
    signature = inspect.signature(pfl.federate)
    assert list(signature.parameters) == ["dataset", "partition", "model", *KNOWN]
    said = re.findall(r"^ +(\w+): ", pfl.federate.__doc__.partition("Raises:")[0], re.MULTILINE)
    assert said == list(signature.parameters)
    for name, one in KNOWN.items():
        assert signature.parameters[name].default == one.default
        assert one.meaning and "{" not in one.text().replace("{'", "").replace("{0", "")
    assert "'shuffled', 'fresh', 'poisson', 'partition' or 'by_class'" in pfl.federate.__doc__


def test_defaults_are_allowed():
    for one in KNOWN.values():
        assert one.check(one.default) == one.default


@pytest.mark.parametrize(
    "name",
    [
        one.name
        for group in pfl.options.GROUPS
        for one in dataclasses.fields(group)
        if one.metadata.get("needs")
    ],
)
def test_an_option_without_effect_is_refused(name):
    one = KNOWN[name]
    values = {bool: True, int: one.low + 3, float: 0.5, str: "conv*", None: {"a": "b"}}
    others = [choice for choice in one.choices if choice != one.default]
    with pytest.raises(pfl.InputError, match=f"^{name} must be absent without .*, got .*"):
        federation(**{name: others[0] if others else values[one.kind]})


def test_needs_are_options_of_the_group():
    """Spellings of names do not matter."""
    made = federation(dp="Client", dp_clip=1.0, dp_placement="Distributed")
    assert made.uploads.privacy.placement == "distributed"


def test_an_unknown_option_is_told_the_nearest():
    text = r"^Unknown option of federate 'participation_fraction'. Did you mean 'participation'\?"
    with pytest.raises(pfl.InputError, match=text):
        federation(participation_fraction=0.5)
    with pytest.raises(pfl.InputError, match=r"an entry of model_options=\{'hidden': VALUE\}\?"):
        federation(hidden=32)
    with pytest.raises(pfl.InputError, match="Did you mean 'input_scaling'"):
        federation(standardize=True)


def test_a_federation_remembers_its_local_training():
    given = {"batch_size": 3, "local_steps": 2, "learning_rate_decay": 0.9, "momentum": 0.5}
    made = federation(
        drop_last=True,
        extra_loss=pfl.training.WeightDistribution(2.0),
        lr_schedule=halved,
        **given,
    )
    training = made.training
    assert training.numbers() == given | {
        "local_epochs": 1, "drop_last": True, "learning_rate": 0.1, "weight_decay": 0.0,
        "clip_norm": None, "keep_optimizer_state": False, "lr_schedule": "halved",
    }  # fmt: skip
    assert training.extra_loss.weight == 2 and training.optimizer == "sgd"
    assert training.lr_schedule is halved
    assert made.with_training(batch_size=2).training.lr_schedule is halved
    assert federation(optimizer=adam).training.optimizer is adam
    ahead = SGD(0.5, nesterov=True)
    assert federation(optimizer=ahead).training.optimizer == ahead


def test_other_local_training_is_as_if_federated_with_it():
    other = {"batch_size": 3, "learning_rate": 0.5, "momentum": 0.5, "drop_last": True}
    changed, made = federation(client_execution="vmap"), None
    data = changed.data
    changed = changed.with_training(**other)
    made = toy_federation(dtype="float32", client_execution="vmap", **other)
    assert changed.data.samples is data.samples
    for name in ("execution", "plan", "task"):
        assert getattr(changed, name) == getattr(made, name)
    assert changed.execution.fill == made.execution.fill
    assert jax.tree.structure(changed.training) == jax.tree.structure(made.training)
    leaves = (jax.tree.leaves(fed.training) for fed in (changed, made))
    for one, two in zip(*leaves, strict=True):
        assert one.dtype == two.dtype and np.array_equal(one, two)


def test_what_is_given_takes_the_place_of_what_excludes_it():
    stepping = federation(local_steps=4, momentum=0.5)
    assert stepping.with_training(local_epochs=2).training.local_steps is None
    assert stepping.with_training(batch_size=2).training.local_steps == 4
    assert federation(local_epochs=3).with_training(local_steps=4).training.local_epochs == 1
    other = stepping.with_training(optimizer=adam)
    assert other.training.optimizer is adam and other.training.momentum == 0
    again = other.with_training(optimizer="sgd", momentum=0.2).training
    assert again.make_optimizer() == SGD(0.2)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"learning_rat": 1}, "option of local training 'learning_rat'. Did you mean 'learning_ra"),
        ({"learning_rate": -1}, "learning_rate must be a finite number of at least 0, got -1"),
        ({"batch_size": 0}, "batch_size must be a whole number of at least 1, got 0"),
        ({"batch_order": "by_class"}, "batch_order must be 'shuffled', as it is, got 'by_class'"),
        ({"participation": 0.5}, "Unknown option of local training 'participation'"),
        ({"extra_loss": 3}, "extra_loss must be an ExtraLoss .*, got 'int'"),
        ({"local_epochs": 10**8}, "would take .* local steps in a round"),
    ],
)
def test_other_local_training_that_can_not_be(options, message):
    with pytest.raises(pfl.InputError, match=message):
        federation().with_training(**options)


def test_epochs_and_steps_exclude_each_other():
    for make in (federation, federation().with_training):
        with pytest.raises(pfl.InputError, match="local_epochs and local_steps can't both be giv"):
            make(local_epochs=2, local_steps=3)
    with pytest.raises(pfl.InputError, match="epochs or steps, not both"):
        pfl.Adaptation(epochs=2, steps=3).checked()


@pytest.mark.parametrize(
    ("optimizer", "message"),
    [
        (lambda: adam(0.1), "learning_rate -> optax optimizer: .* takes 0 positional arguments"),
        (lambda rate: 3, "learning_rate -> optax optimizer, got 'one that makes int'"),
        (lambda rate: adam(float(rate)), "learning_rate -> optax optimizer: .*"),
    ],
)
def test_functions_that_make_no_optimizer(optimizer, message):
    with pytest.raises(pfl.InputError, match=message):
        federation(optimizer=optimizer)


def test_an_optimizer_has_its_own_momentum():
    with pytest.raises(pfl.InputError, match="momentum can't be given with the optimizer adam"):
        federation(optimizer=adam, momentum=0.5)
    with pytest.raises(pfl.InputError, match="weight_decay can't be given with the optimizer adam"):
        federation(optimizer=adam).with_training(weight_decay=0.1)


def test_no_hyperparameter_is_called_like_local_training():
    with pytest.raises(pfl.InputError, match="can't call a hyperparameter 'learning_rate': that"):

        @pfl.core.algorithm("own_rate")
        class OwnRate(pfl.Algorithm):
            learning_rate: float = 0.1

    assert "own_rate" not in pfl.core.ALGORITHMS
