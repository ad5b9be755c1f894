"""What a round under sampling makes of all clients' models: nothing but their next rows."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.extend import core

import fedjax_pfl as pfl
from fedjax_pfl.core import traced_checks
from fedjax_pfl.engine import arguments
from fedjax_pfl.testing.toys import toy_federation

pytestmark = pytest.mark.costly

COUNT = 200  # clients, with models of leaves of 15 and 20 numbers


def made(jaxpr):
    """(primitive, shape) of every array that a program makes, of its loops and branches too."""
    for equation in jaxpr.eqns:
        params = jax.tree.leaves(list(equation.params.values()))
        inner = [getattr(value, "jaxpr", value) for value in params]
        inner = [one for one in inner if isinstance(one, core.Jaxpr)]
        for one in inner:
            yield from made(one)
        if not inner:
            yield from ((equation.primitive.name, v.aval.shape) for v in equation.outvars)


@pytest.mark.parametrize("name", ["feddwa", "fedfomo"])
def test_all_clients_models_are_written_in_place_alone(name):
    federation = toy_federation(
        train_sizes=[4] * COUNT,
        test_sizes=[1] * COUNT,
        participation=0.05,
        dtype="float32",
        validation_size=int(name == "fedfomo"),
    )
    runs = arguments.checked_program(pfl.make_algorithm(name), federation).runs
    run = jax.tree.map(lambda leaf: leaf[0], runs)

    def after(state, t):
        ctx = run.context(federation, t, jnp.int32(4))
        return traced_checks.checked_round(run.algorithm, ctx, state)[0]

    first = run.context(federation, jnp.int32(0), jnp.int32(4))
    state = jax.eval_shape(lambda: traced_checks.checked_init(run.algorithm, first))
    jaxpr = jax.make_jaxpr(after)(state, jnp.int32(1)).jaxpr
    models = [
        op
        for op, shape in made(jaxpr)
        if shape[:1] == (COUNT,) and shape[1:] != (COUNT,) and np.prod(shape[1:]) >= 15
    ]
    assert set(models) == {"scatter"}
