"""Two trainings, the second from the first one's models, by one step that is compiled once."""

from dataclasses import replace

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from fedjax_pfl.testing.toys import assert_close, toy_federation
from tests.training.five import context

SIZES = (6,) * 3


@pytest.mark.parametrize("execution", ["map", "vmap"])
def test_training_on_is_training_twice(execution):
    federation = toy_federation(
        SIZES, SIZES, validation_size=0, dtype="float32", diverging=1, client_execution=execution
    )
    then = replace(federation.schedule, epochs=2)

    @jax.jit
    def both(federation):
        ctx = context(federation)
        models = ctx.replicate(ctx.initial_model())
        at_once = ctx.train_on(models, then, "further")
        first = ctx.train(models)
        second = ctx.train(first.models, first.cohort, "further", schedule=then)
        return at_once, (first, second)

    at_once, in_turn = both(federation)
    for found, wanted in zip(at_once, in_turn, strict=True):
        assert_close(found.models, wanted.models, "models", 1e-6)
        assert_close(found.loss, wanted.loss, "losses", 1e-6)
        for name in ("mask", "diverged", "steps"):
            np.testing.assert_array_equal(
                *(getattr(t.cohort, name) for t in (found, wanted)), name, strict=True
            )
    first, second = at_once
    assert list(first.cohort.mask) == [True, False, True]
    assert list(second.cohort.steps) == [2 + 4, 2, 2 + 4]  # a client that diverged takes no more
    before, after = (t.models["params"]["head"]["kernel"] for t in (first, second))
    assert list(jnp.any(before != after, axis=(1, 2))) == [True, False, True]


def test_trainings_of_one_step_have_the_same_batches():
    ctx = context(toy_federation(SIZES, dtype="float32"))
    other = replace(ctx.federation.schedule, batch_size=3)
    with pytest.raises(ValueError, match="same batches"):
        ctx.train_on(ctx.replicate(ctx.initial_model()), other, "further")
