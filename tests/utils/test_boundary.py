"""Arguments of public functions: what is refused in a sentence, and what is converted."""

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import NewType

import flax.linen as nn
import jax.numpy as jnp
import numpy as np
import pytest

import fedjax_pfl as pfl
from fedjax_pfl.models.task import as_task
from fedjax_pfl.testing.toys import toy_federation
from fedjax_pfl.utils import boundary
from fedjax_pfl.utils.boundary import checked

ALGORITHM = pfl.make_algorithm("fedavg")
FEDERATION = toy_federation(dtype="float32")


class Unregistered(pfl.Algorithm):
    pass


class Net(nn.Module):
    pass


@checked
def public(
    rate: float = 1.0,
    count: int = 1,
    several: Sequence[int] = (),
    swept: Mapping[str, Sequence[float]] | None = None,
    call: Callable[[int], int] | None = None,
    path: str | Path = "",
    **more: object,
):
    return rate, count, several, swept, more


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({"rate": "a"}, "rate must be a number, got 'a'."),
        ({"count": 1.5}, "count must be a whole number, got 1.5."),
        ({"several": 3}, "several must be a list (each value a whole number), got 3."),
        ({"several": "3"}, "several must be a list (each value a whole number), got '3'."),
        (
            {"swept": {"a": 1.0}},
            "swept must be a dict (each value a list (each value a number)) or None, got "
            "{'a': 1.0}.",
        ),
        ({"call": 3}, "call must be a function or None, got 3."),
        ({"path": Path}, "path must be text or a path, got the class Path: write Path(...)."),
        ({"path": None}, "path must be text or a path, got None."),
        ({"rate": np.zeros((9, 9))}, "rate must be a number, got an array [9, 9] of float64."),
    ],
)
def test_another_type_is_refused(given, message):
    with pytest.raises(pfl.InputError) as error:
        public(**given)
    assert str(error.value) == message


def test_arrays_are_taken_for_numbers_and_lists():
    rate, count, several, swept, more = public(
        np.array(0.5), jnp.int32(2), np.arange(2), {"a": jnp.ones(2)}, more=np.int64(3)
    )
    assert [rate, count, several, swept, more] == [0.5, 2, [0, 1], {"a": [1, 1]}, {"more": 3}]
    assert [type(v) for v in (rate, count, *several, more["more"])] == [float, int, int, int, int]
    assert type(public(rate=1)[0]) is int  # a whole number is a number


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda: pfl.make_algorithm("fedprox", [3]), "hyperparameters must be a dict or None"),
        (lambda: pfl.make_algorithm("fedprox", hyperparams={}), "Did you mean 'hyperparameters'"),
        (
            lambda: pfl.make_algorithm("feddwa", top_k=3),
            "entry of hyperparameters={'top_k': VALUE}",
        ),
        (lambda: pfl.Partition.from_lists([[0]]), r"from_lists\(\): missing .*'test'"),
        (lambda: pfl.Partition.from_lists({0: [0]}, []), "train must be a list or an array, got"),
        (
            lambda: pfl.simulate(Unregistered(), FEDERATION, 1),
            "below @core.algorithm.NAME., got 'Unregistered'",
        ),
        (lambda: as_task(Net), r"got the class Net: write Net\(...\)"),
        (lambda: pfl.models.register_model("net")(Net), "must be a function .* got 'a class'"),
        (lambda: pfl.make_partition("iid", 3, 4, 0), r"dataset .* load_dataset\('digits'\) gives"),
        (lambda: pfl.make_partition("iid"), r"make_partition\(\): missing .* 'dataset'. It takes"),
        (lambda: pfl.models.make_model("cnn", 28, 10), r"input_shape must be a list .*, got 28"),
        (lambda: pfl.save_models(3, {}), "path must be text or a path, got 3"),
        (lambda: pfl.save_models("m.npz", 3), "models must be a dict or a Result, such as"),
        (
            lambda: pfl.dataset_from_arrays("a", [[1.0]], [0], columns="c"),
            r"columns must be a dict \(each value an array\) or None, got 'c'",
        ),
        (lambda: pfl.simulate("fedavg", 3, 1), r"algorithm .* make_algorithm\('fedavg'\) gives"),
        (lambda: pfl.simulate(FEDERATION, ALGORITHM, 1), "order is algorithm, federation., got"),
        (lambda: pfl.core.algorithm(Unregistered), "as in @core.algorithm.'its_name'., got"),
        (lambda: pfl.simulate(ALGORITHM, 3, 1), r"federation must be a Federation, .* got 3"),
        (lambda: pfl.simulate(ALGORITHM, FEDERATION, 1, lr=1), "'lr'. Options of .*pfl.federate"),
        (lambda: pfl.compile_all(3), r"simulations must be a list \(each value a Simulation\)"),
        (lambda: pfl.Adaptation(lr=0.1), r"argument of Adaptation\(\) 'lr'.* 'learning_rate'\?"),
        (lambda: pfl.training.Schedule(step=1), r"Schedule\(\) 'step'. Did you mean 'steps'"),
        (lambda: pfl.models.Metric("auc"), r"^Metric\(\): missing .* 'fn'. It takes name, fn"),
        (lambda: pfl.algorithms.FedProx(mu=0.1), "of 'fedprox' 'mu'. Did you mean 'proximal_w"),
        (lambda: pfl.algorithms.FedProx(lr=0.1), "learning_rate is an option of local training"),
        (lambda: pfl.LiveCurves(seconds=3), r"argument of LiveCurves\(\) 'seconds'. Valid: every"),
        (lambda: pfl.Simulation(ALGORITHM), r"^Simulation\(\): missing .*'federation'"),
        (lambda: pfl.Result.compare([]), r"dict \(each value a dict \(each value a Result"),
        (lambda: pfl.testing.check_algorithm(ALGORITHM, only=["a"]), "only must be text or None"),
    ],
)
def test_public_functions_say_what_they_take(call, message):
    with pytest.raises(pfl.InputError, match=message):
        call()


def test_arguments_are_checked_where_numpy_gives_its_arrays_a_name(monkeypatch):
    alias = NewType("ArrayLike", object)  # without parts, as NumPy's from 2.5 on
    monkeypatch.setattr(boundary, "ArrayLike", alias)

    @checked
    def mean(values: alias, bins: alias | None = None, parts: int | None = None):
        return values, bins

    assert mean("a", 3) == ("a", 3)
    with pytest.raises(pfl.InputError, match="parts must be a whole number or None, got 'a'"):
        mean([0.0], parts="a")


@pytest.mark.parametrize(
    ("option", "message"),
    [
        ({"adapt": 1}, "adapt must be an Adaptation or None, got 1"),
        ({"checkpoints": "here"}, "checkpoints must be a Checkpoints or None"),
        ({"callbacks": [print]}, r"callbacks must be a list \(each value a Callback\)"),
        ({"stop": True}, "stop must be a function or None, got True"),
        ({"progress": lambda: 0}, "progress must be .* got one that can't take an argument"),
        ({"seeds": 0}, r"seeds must be a list \(each value a whole number\), got 0"),
    ],
)
def test_simulate_says_what_it_takes(option, message):
    with pytest.raises(pfl.InputError, match=message):
        pfl.simulate(ALGORITHM, FEDERATION, 1, **option)
