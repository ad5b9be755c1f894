"""Losses are the same in the form of every platform."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from fedjax_pfl.models.kernels import forms
from fedjax_pfl.models.objectives import OBJECTIVES


@pytest.mark.parametrize(("name", "lead"), [("classification", (6,)), ("next_token", (3, 4))])
def test_a_tpu_picks_the_label_without_a_gather(name, lead):
    rng = np.random.default_rng(0)
    logits = jnp.asarray(rng.normal(size=(*lead, 5)), jnp.float32)
    labels = jnp.asarray(rng.integers(0, 5, size=lead), jnp.int32)
    if name == "next_token":
        labels = labels.at[0, 1:].set(-1)

    def loss(logits):
        return jnp.sum(OBJECTIVES[name].losses(logits, labels) ** 2)

    found, texts = {}, {}
    for platform in ("cpu", "tpu"):
        with forms.made_for(platform):
            graded = jax.value_and_grad(loss)
            texts[platform] = str(jax.make_jaxpr(graded)(logits))
            found[platform] = graded(logits)
    assert "gather" in texts["cpu"]
    assert "gather" not in texts["tpu"]
    assert "scatter" not in texts["tpu"]
    for one, other in zip(found["cpu"], found["tpu"], strict=True):
        np.testing.assert_allclose(one, other, rtol=1e-6, atol=1e-7)


@pytest.mark.parametrize(
    ("name", "lower"), [("regression", ("mse", "mae")), ("next_token", ("perplexity",))]
)
def test_outputs_that_are_no_numbers_have_an_infinite_error(name, lower):
    """They were scored: NaN would mean that they were not."""
    objective = OBJECTIVES[name]
    if name == "regression":
        marks = objective.marks(jnp.array([[jnp.nan, 1.0], [0.0, 1.0]]), jnp.ones((2, 2)))
    else:
        marks = objective.marks(jnp.full((2, 3, 4), jnp.nan), jnp.zeros((2, 3), jnp.int32))
    values = objective.values(jnp.sum(marks, axis=0), 2)
    assert all(values[one] == np.inf for one in lower)
