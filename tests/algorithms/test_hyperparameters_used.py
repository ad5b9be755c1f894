"""A hyperparameter that a program does not use is refused or noted, not silently ignored."""

from collections.abc import Iterator
from contextlib import suppress
from dataclasses import fields
from typing import get_args, get_type_hints

import jax
import jax.numpy as jnp
import pytest
from jax.interpreters import partial_eval

import fedjax_pfl as pfl
from fedjax_pfl.core import traced_checks
from fedjax_pfl.core.extended_state import algorithm_state
from fedjax_pfl.engine.arguments import checked_program
from fedjax_pfl.engine.evaluation import evaluate
from fedjax_pfl.testing.toys import toy_for

# Used only in what the toys lack, which a run's remarks say.
NOTED = {
    "feddpa": ("local_weight", "max_weight"),  # adapters
    "hetlora": ("gamma", "tail_weight", "min_rank"),
}
OURS = [name for name, cls in sorted(pfl.core.ALGORITHMS.items())
        if cls.__module__.startswith("fedjax_pfl.")]  # fmt: skip


def variants(name: str) -> Iterator[pfl.Algorithm]:
    """Yield an algorithm with each value of each of its words and booleans, one at a time."""
    yield pfl.make_algorithm(name)
    cls = pfl.core.ALGORITHMS[name]
    hints = get_type_hints(cls)
    for field in fields(cls):
        values = (False, True) if hints[field.name] is bool else get_args(hints[field.name])
        others = [one for one in values if isinstance(one, str | bool) and one != field.default]
        for one in others if field.metadata.get("static") else ():
            with suppress(pfl.InputError):  # SPFL-w lacks a weighting that SPFL's options need
                yield pfl.make_algorithm(name, met(cls, field.name) | {field.name: one})


def met(cls: type, name: str) -> dict[str, str]:
    """Return the words that a word or boolean needs of other hyperparameters."""
    need = cls.__dataclass_fields__[name].metadata.get("needs") or ""
    key, _, value = need.partition("=")
    return {key: value.strip("'")} if need else {}


def unused(algorithm: pfl.Algorithm) -> set[str]:
    """Return the traced hyperparameters that neither a round nor scoring uses."""
    federation = toy_for(algorithm, dtype="float32", validation_size=2)
    program = checked_program(algorithm, federation, rounds=4)

    def whole(run, federation, t, total):
        run = run.with_backbone(federation)
        state = traced_checks.checked_init(run.algorithm, run.context(federation, t - 1, total))
        ctx = run.context(federation, t, total)
        state, record = traced_checks.checked_round(run.algorithm, ctx, state)
        own = algorithm_state(state)
        return own, evaluate(run.algorithm, ctx, own), record

    run = jax.tree.map(lambda leaf: leaf[0], program.runs)
    fixed = (program.federation, jnp.int32(1), jnp.int32(4))
    traced = jax.make_jaxpr(whole)(run, *fixed).jaxpr
    _, used = partial_eval.dce_jaxpr(traced, [True] * len(traced.outvars), instantiate=False)
    paths = [path for path, _ in jax.tree_util.tree_leaves_with_path(run)]
    names = [jax.tree_util.keystr(path, simple=True, separator=".") for path in paths]
    named = {name for name, one in zip(names, used, strict=False) if one}
    own = [one.name for one in fields(algorithm) if not one.metadata.get("static")]
    return {name for name in own if f"algorithm.{name}" not in named}


@pytest.mark.costly
@pytest.mark.parametrize("name", OURS)
def test_what_is_given_is_used(name):
    for algorithm in variants(name):
        for key in unused(algorithm) - set(NOTED.get(name, ())):
            value = getattr(algorithm, key)
            other = value + 1 if isinstance(value, int) else 0.7 * value + 0.07
            with pytest.raises(pfl.InputError, match=rf"{name}\.{key} must be (absent|1, as)"):
                pfl.make_algorithm(name, {**vars(algorithm), key: other})
