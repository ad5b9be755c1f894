"""Networks that compute in half precision around models that stay in single precision."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import fedjax_pfl as pfl
from fedjax_pfl.models.mlp import MLP
from fedjax_pfl.testing.toys import toy_federation


def test_models_stay_in_single_precision_and_products_do_not():
    model = MLP(3, (5,))
    federation = toy_federation(dtype="float32", model=model, compute_dtype="bfloat16")
    task = federation.task
    params = jax.eval_shape(federation.initial_model, jax.random.key(0))
    inputs = np.ones((2, 4), np.float32)
    jaxpr = str(jax.make_jaxpr(task.predict)(params, inputs))
    assert "bf16[2,5] = dot_general" in jaxpr
    assert "f32[2,5] = dot_general" not in jaxpr
    assert jax.eval_shape(task.predict, params, inputs).dtype == jnp.float32
    batch = pfl.training.Batch(inputs, np.zeros(2, np.int32), np.ones(2, bool))
    slope = jax.grad(lambda p: task.loss({"params": p}, batch)[0])
    gradient = jax.eval_shape(slope, params["params"])
    assert {leaf.dtype for leaf in jax.tree.leaves(gradient)} == {jnp.dtype("float32")}


@pytest.mark.costly
def test_small_updates_are_not_lost():
    """A step of 1e-4 of a weight: bfloat16 has 8 bits and would round it away."""
    options = {"dtype": "float32", "model": MLP(3, (5,)), "learning_rate": 1e-3}
    options["validation_size"] = 0
    algorithm = pfl.make_algorithm("local")
    runs = {
        dtype: pfl.simulate(algorithm, toy_federation(compute_dtype=dtype, **options), 20)
        for dtype in (None, "bfloat16")
    }
    loss = "personalized/test/loss"
    exact, low = (runs[dtype].scores[loss][0, 0, :, 0] for dtype in (None, "bfloat16"))
    moved = exact[0] - exact[-1]
    assert abs(moved) > 1e-4
    np.testing.assert_allclose(low[0] - low[-1], moved, rtol=0.3)


def test_an_unknown_type_is_refused():
    with pytest.raises(pfl.InputError, match="Unknown compute dtype 'bfloat61'"):
        toy_federation(dtype="float32", compute_dtype="bfloat61")
