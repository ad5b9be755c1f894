"""Numbers that a flag or an argument may have; all others are refused before a run begins."""

import functools
import math

import numpy as np
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

import fedjax_pfl as pfl
from experiments import run
from fedjax_pfl.federation.participation_options import ParticipationOptions
from fedjax_pfl.models.networks import make_model
from fedjax_pfl.testing.toys import toy_federation
from fedjax_pfl.utils.conversions import (
    LARGEST,
    LIMIT,
    SMALLEST,
    convert,
    decimal,
    defined_at,
    number,
)

HUGE = (10**30, 10**400, -(10**400), 10**5000)
NO_FLOATS = (math.nan, math.inf, -math.inf, 1e39, -1e39, 1e-40, 10**39, 10**400, "9" * 5000, "nan",
             "1e400", "1e-60", True, None, "x", b"1", np.array([1.0, 2.0]), 1j)  # fmt: skip
NO_INTS = (*HUGE, 2**31, -(2**31), 2.5, math.nan, math.inf, "9" * 20, "9" * 400, "9" * 5000, "2.5",
           "nan", True, None, np.array([1, 2]), 1e12)  # fmt: skip


def refuse(call, match=" must be "):
    """One sentence, not a long one."""
    with pytest.raises(pfl.InputError, match=match) as caught:
        call()
    text = str(caught.value)
    assert len(text) < 400 and "\n" not in text, text


@pytest.mark.parametrize("value", NO_FLOATS, ids=lambda v: str(type(v)))
def test_no_float(value):
    refuse(lambda: convert("x", value, float), "^x must be ")


@pytest.mark.parametrize("value", NO_INTS, ids=lambda v: str(type(v)))
def test_no_int(value):
    refuse(lambda: convert("x", value, int), "^x must be a whole number")


def test_what_is_taken():
    for value in (0, -0.0, 3, "1e-3", SMALLEST, LARGEST, np.float32(0.1), np.int64(5), " 2 "):
        assert convert("x", value, float) == float(value)
    for value in (0, -7, 5.0, "12", "-3", LIMIT - 1, np.int64(5), np.float64(6)):
        assert convert("x", value, int) == int(value)
    assert [decimal(word) for word in ("7", " 007 ", "2147483647")] == [7, 7, 2147483647]
    for value in (None, "none", "None"):
        assert convert("x", value, int | None) is None
    assert convert("x", "3", int | None) == 3
    bad = ("", "-1", "+1", "1.0", "2147483648", "9" * 20, "9" * 5000, "\u0663", "\u00b2")
    assert [decimal(word) for word in bad] == [None] * len(bad)


ANYTHING = (
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=30) | st.binary()
    | st.integers(min_value=10**300) | st.fractions() | st.decimals() | st.complex_numbers()
    | st.lists(st.floats(), max_size=3) | st.dictionaries(st.text(), st.none(), max_size=2)
)  # fmt: skip


@pytest.mark.costly
@settings(max_examples=400, deadline=None)
@given(ANYTHING, st.sampled_from([int, float, bool]))
@example("9" * 5000, int)
@example(10**5000, float)
def test_anything_is_taken_or_refused_in_one_sentence(value, kind):
    try:
        made = convert("x", value, kind)
    except pfl.InputError as error:
        assert len(str(error)) < 400
    else:
        assert type(made) is kind
        if kind is float:
            assert np.isfinite(np.float32(made)) and (made == 0) == (np.float32(made) == 0)
        assert kind is not int or abs(made) < LIMIT


def test_ranges():
    assert number("x", 0.5, "in [0, 1]", high=1) == 0.5
    refuse(lambda: number("x", -1, "at least 0"), "x must be at least 0, got -1")
    refuse(lambda: number("x", [(1,), 2], "at least 0"), "x must be a number, got")
    refuse(lambda: number("x", "0.5", "at least 0"), "x must be a number, got '0.5'")


@functools.cache
def plain():
    return toy_federation(dtype="float32")


def fields(kind):
    from typing import get_type_hints

    for name, algorithm in sorted(pfl.core.ALGORITHMS.items()):
        for field in algorithm.__dataclass_fields__:
            if get_type_hints(algorithm)[field] in (kind, kind | None):
                yield name, field


@pytest.mark.parametrize(("name", "field"), [*fields(float), *fields(int)])
def test_every_hyperparameter(name, field):
    """In Python and as --set gives them; also where the class itself is made."""
    algorithm = pfl.core.ALGORITHMS[name]
    for value in (math.nan, 1e300, -1e300, 10**400, "9" * 400, "9" * 5000, -1, "nan"):
        if value == -1 and (field == "shift" or by_default(algorithm, field) == -1):
            continue
        refuse(lambda value=value: pfl.make_algorithm(name, {field: value}))
    for value in (math.nan, math.inf, 10**400):
        refuse(lambda value=value: pfl.Simulation(algorithm(**{field: value}), plain()).check())


def by_default(algorithm, field):
    return algorithm.__dataclass_fields__[field].default


def test_values_of_a_sweep():
    federation = plain()
    algorithm = pfl.make_algorithm("scaffold")
    for name in ("server_rate", "learning_rate", "learning_rate_decay"):
        for value in (math.nan, math.inf, 1e300, -1, 10**400, "x", 1e-60):
            refuse(
                lambda name=name, value=value: pfl.Simulation(
                    algorithm, federation, settings={name: [0.5, value]}
                ).check()
            )
    for values in (0.5, "0.5", [], None, range(10**6)):
        refuse(
            lambda values=values: pfl.Simulation(
                algorithm, federation, settings={"server_rate": values}
            ).check()
        )


@pytest.mark.parametrize(
    "name",
    ["learning_rate", "learning_rate_decay", "momentum", "weight_decay", "participation"],
)
def test_federate(name):
    for value in (math.nan, math.inf, -1, 1e300, 1e-60, 10**400, "0.1", None, True, [0.1]):
        refuse(lambda value=value: toy_federation(dtype="float32", **{name: value}), "must be")


@pytest.mark.parametrize("name", ["batch_size", "local_epochs", "local_steps", "eval_batch_size"])
def test_federate_counts(name):
    for value in (-1, 1.5, 10**20, 10**400, 10**5000, math.nan, "3", True, np.array([1, 2])):
        refuse(lambda value=value: toy_federation(dtype="float32", **{name: value}), "must be")


def test_federate_others():
    for value in HUGE[1:]:
        for options in (
            {"stragglers": {0: value}},
            {"extra_loss": pfl.training.WeightDistribution(value)},
            {"client_execution": value},
            {"devices": value},
            {"client_execution": "9" * 5000},
        ):
            refuse(lambda options=options: toy_federation(dtype="float32", **options))
        refuse(lambda value=value: ParticipationOptions(1.0, {value: 1}).checked().build(4))
    for value in ("x", None, math.nan, 1.5):
        refuse(lambda value=value: ParticipationOptions(1.0, {0: value}).checked().build(4))
    for weight in (math.nan, math.inf, -1, 1e300, "1"):
        loss = pfl.training.WeightDistribution(weight)
        refuse(lambda loss=loss: toy_federation(dtype="float32", extra_loss=loss))


@pytest.mark.parametrize(
    ("name", "values"),
    [
        ("rounds", (0, 10**20, 10**400, 1.5, "3")),
        ("eval_every", (0, 10**20, math.nan)),
        ("chunk", (0, 10**20)),
        ("chunk_seconds", (math.nan, -1, 10**400, "x")),
        ("seeds", (3, (), (-1,), (2**31,), (10**400,), range(2**31 - 1), ("0",))),
        ("matrix_rounds", ((10**400,), (0,), ("1",))),
        ("score_clients", ((10**400,), (10**30,), ("0",))),
    ],
)
def test_simulate(name, values):
    federation = plain()
    algorithm = pfl.make_algorithm("local")
    for value in values:
        arguments = {"rounds": 2} | {name: value}
        refuse(lambda a=arguments: pfl.simulate(algorithm, federation, **a))


def test_checkpoints(tmp_path):
    for value in (math.nan, -1, 10**400, "60"):
        refuse(lambda value=value: pfl.Checkpoints(tmp_path, value), "every_seconds")


def test_partitions():
    digits = pfl.load_dataset("digits")
    for value in (10**400, math.nan, math.inf, -1, -(10**400)):
        refuse(lambda value=value: pfl.make_partition("dirichlet", digits, 4, 0, alpha=value))
    sizes = pfl.make_partition("dirichlet", digits, 4, 0, alpha=10**30).sizes()
    np.testing.assert_array_equal(
        sizes, pfl.make_partition("dirichlet", digits, 4, 0, alpha=1e30).sizes()
    )
    for value in (2**31, 10**400, 10**5000):
        refuse(lambda v=value: pfl.make_partition("shards", digits, 4, 0, shards_per_client=v))
        refuse(lambda v=value: pfl.make_partition("iid", digits, 4, 0, train_samples=v))
        refuse(lambda v=value: pfl.make_partition("iid", digits, v, 0))
    refuse(lambda: pfl.make_partition("iid", digits, 4, 10**400))


def test_models():
    for value in (0, 2**31, 10**400, 10**5000, 1.5, True, "7", math.inf):
        refuse(lambda v=value: make_model("mlp", (4,), 3, hidden=v), "hidden")
    for value in (-1, 1, math.nan, 10**400, "x", None):
        options = {"vocab_size": 9, "dropout": value}
        refuse(lambda o=options: make_model("textcnn", (9,), 3, **o), "dropout")


LONG = ("9" * 20, "9" * 400, "9" * 5000)
FLOATS = ("learning_rate", "learning_rate_decay", "momentum", "weight_decay", "wdr_weight", "alpha",
          "participation", "validation_fraction", "checkpoint_seconds")  # fmt: skip
INTS = ("rounds", "eval_every", "num_seeds", "seed", "num_clients", "partition_seed", "batch_size",
        "local_epochs", "local_steps", "adapt_epochs", "adapt_steps", "eval_batch_size", "min_size",
        "new_clients", "devices", "client_execution", "matrix_rounds", "score_clients",
        "test_samples", "max_retries")  # fmt: skip
WORDS = (
    *(f"--{name}={value}" for name in INTS for value in LONG),
    *(f"--{name}={value}" for name in FLOATS for value in ("nan", "inf", "-1", "1e300", LONG[2])),
    *(f"--set=feddwa.top_k={value}" for value in LONG),
    *(f"--set=fedasync.proximal_weight={value}" for value in (*LONG[1:], "nan", "1e39", "1e-50")),
    *(f"--model_option=hidden={value}" for value in (*LONG, "nan")),
    *(f"--data_option=image_size={value}" for value in LONG),
    *(f"--stragglers={value}:1" for value in LONG),
    *(f"--stragglers=1:{value}" for value in LONG),
    "--num_seeds=2147483647",
    "--seed=2147483647",
)


@pytest.mark.parametrize("word", WORDS, ids=lambda word: word[:40])
def test_flags(word, tmp_path, capsys):
    words = ["run", "--dataset=digits", "--model=mlp", "--algorithms=feddwa,fedasync"]
    assert run.main([*words, f"--output_dir={tmp_path / 'o'}", word]) == 2
    text = capsys.readouterr().err
    assert text.startswith("error: ") and text.count("\n") == 1 and len(text) < 2100
    assert "Traceback" not in text and "9" * 300 not in text, text
    assert not (tmp_path / "o").exists()


@pytest.mark.parametrize("word", [*LONG, "2147483648"])
def test_flags_of_new_clients(word, tmp_path, capsys):
    words = ["run", "--dataset=digits", "--algorithms=local", "--new_clients=2"]
    words += [f"--new_client_steps={word}", f"--output_dir={tmp_path / 'o'}"]
    assert run.main(words) == 2
    assert "whole numbers such as" in capsys.readouterr().err
    assert not (tmp_path / "o").exists()


@pytest.mark.parametrize("given", [1, None, ["auto"], np.zeros(3)])
def test_text_of_another_type(given):
    refuse(lambda: convert("x", given, str), "^x must be text, got")
    refuse(lambda: pfl.make_algorithm("spfl", {"layer_weights": given}), "must be text, got")


def test_partial_functions_have_a_place_too():
    """They have no name of their own."""
    half, third = (functools.partial(math.pow, 2, y) for y in (1 / 2, 1 / 3))
    assert defined_at(math.pow) == ("math", "pow")
    assert (
        defined_at(half) == defined_at(functools.partial(math.pow, 2, 1 / 2)) != defined_at(third)
    )
    places = {defined_at(one) for one in (half, third, math.pow, np.random.default_rng())}
    assert len(places) == 4
