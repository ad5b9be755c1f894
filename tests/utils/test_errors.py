"""Messages show what was given, and stay short whatever that was."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import fedjax_pfl as pfl
from fedjax_pfl.utils.errors import (
    LONGEST,
    InputError,
    require,
    require_name,
    require_whole,
    shown,
    unknown_name,
)

SMALL = {
    "5": 5,
    "0.1": 0.1,
    "'word'": "word",
    "None": None,
    "[1, 2]": [1, 2],
    "(2, 3)": (2, 3),
    "{'a': 1}": {"a": 1},
    "b'PK'": b"PK",
    "nan": float("nan"),
}
LARGE = {
    "NumPy array": np.arange(10_000.0).reshape(100, 100),
    "array of texts": np.array(["word" * 100] * 1000),
    "JAX array": jnp.zeros((30, 40)),
    "keys": jax.random.split(jax.random.key(0), 50),
    "list": list(range(100_000)),
    "list of lists": [[list(range(50))] * 50] * 50,
    "list of arrays": [np.zeros(1000)] * 50,
    "dict": {k: np.zeros(50) for k in range(5000)},
    "set": set(range(5000)),
    "text": "x" * 100_000,
    "bytes": bytes(100_000),
    "integer": 10**5000,
    "range": range(10**9),
}


@pytest.mark.parametrize("text", SMALL)
def test_small_values_are_shown_whole(text):
    assert shown(SMALL[text]) == text


def test_numbers_of_arrays_are_shown_as_numbers():
    assert shown(np.float32(0.5)) == "0.5"
    assert shown(jnp.int32(3)) == "3"
    assert shown(np.array([1, 2])) == "[1, 2]"
    assert shown(np.zeros((3, 4))) == "an array [3, 4] of float64"
    assert shown([np.zeros(50)]) == "[an array [50] of float64]"
    assert shown(10**5000) == "an integer of about 5001 digits"


@pytest.mark.parametrize("kind", LARGE)
def test_large_values_are_cut(kind):
    assert 5 < len(shown(LARGE[kind])) < 600
    assert len(str(unknown_name("algorithm", LARGE[kind], ["fedavg"]))) < 700
    with pytest.raises(InputError) as caught:
        require(False, "rounds", LARGE[kind], "at least 1")
    assert len(str(caught.value)) < 700
    text = str(InputError(f"Nothing is called {'x' * 100_000}: choose another name."))
    assert len(text) <= LONGEST
    assert text.startswith("Nothing") and text.endswith("another name.")


def test_a_tracer_is_told_by_its_type():
    messages = []
    jax.eval_shape(lambda x: messages.append(shown(x)), jnp.zeros((2, 3)))
    jax.eval_shape(lambda x: messages.append(shown(x)), jnp.zeros(()))
    assert messages == ["an array [2, 3] of float32", "an array [] of float32"]


def test_what_has_no_repr_of_its_own():
    class Odd:
        def __repr__(self):
            raise RuntimeError

    assert "Odd" in shown(Odd()) and "Odd" in shown([Odd()])


@pytest.mark.parametrize("kind", LARGE)
def test_what_the_library_refuses_is_not_printed_whole(kind):
    value = LARGE[kind]
    calls = [
        lambda: pfl.training.Schedule(batch_size=value).validate(),
        lambda: pfl.dataset_from_arrays("d", np.zeros((4, 2)), np.zeros(4, int), vocab_size=value),
        lambda: pfl.Partition.from_lists([[0]], [[1]]).split(str(type(value)) * 1000),
    ]
    for call in calls:
        with pytest.raises(InputError) as caught:
            call()
        assert len(str(caught.value)) < 700


@pytest.mark.parametrize(
    ("said", "line"),
    [
        ("a\nb\r\n  c", "a b c"),
        ("a\u2028b\x0bc", "a b c"),
        ("NUL \0 and \x1b[31m", r"NUL \x00 and \x1b[31m"),
        ("a name of bytes \udcff", r"a name of bytes \udcff"),
        ("x can't be read: [Errno 22] Invalid argument", "x can't be read: Invalid argument"),
        ("no image: <_io.BytesIO object at 0x7f0a1b2c3d4e>", "no image: <_io.BytesIO object>"),
    ],
)
def test_a_message_is_one_line_that_every_terminal_prints(said, line):
    assert str(InputError(said)) == line
    assert str(InputError(said, script="import os\nos")) == f"{line}\nimport os\nos"


@pytest.mark.parametrize("given", [np.array(1), jnp.int32(1), True, 1.0, "1", None, [1]])
def test_what_is_no_whole_number(given):
    with pytest.raises(InputError, match="rounds must be a whole number of at least 1, got "):
        require_whole("rounds", given, 1)
    require_whole("rounds", np.int64(1), 1)


@pytest.mark.parametrize(
    ("number", "limits", "allowed"),
    [(4, (1, 3), "in 1..3"), (0, (1, 3), "in 1..3"), (2**31, (1,), "below 2^31"),
     (2**63, (0, None, 63), "below 2^63")],
)  # fmt: skip
def test_ranges_of_whole_numbers(number, limits, allowed):
    with pytest.raises(InputError) as error:
        require_whole("seed", number, *limits)
    assert str(error.value) == f"seed must be a whole number {allowed}, got {number}."
    assert require_whole("seed", number // 2 + 1, *limits) == number // 2 + 1


@pytest.mark.parametrize("given", [["a"], {"a": 1}, np.array(["a"]), None, 1.0, b"a"])
def test_what_is_no_text_is_no_name(given):
    calls = [
        lambda: require_name("form", given, {"a": 1}),
        lambda: pfl.Adaptation(leaves=given).checked(),
        lambda: pfl.Adaptation(when=given).checked(),
    ]
    for call in calls:
        with pytest.raises(InputError, match=r"^Unknown .* Valid: "):
            call()
