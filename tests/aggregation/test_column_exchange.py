"""The server's part where devices share the clients: each takes some columns of all models."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import fedjax_pfl as pfl
from fedjax_pfl import mixing, similarity
from fedjax_pfl.aggregation import column_exchange
from fedjax_pfl.aggregation.leaf_plan_of_model import leaf_plan
from fedjax_pfl.execution.mesh import CLIENTS, mesh_of, place, rows_of, sharing
from fedjax_pfl.execution.strategy import Execution
from fedjax_pfl.testing.toys import assert_close, states_of, toy_for

ON_TPU = Execution(0, "map", 2, platform="tpu")


def stack(rows, seed):
    """Models with wide leaves, an odd one, small ones and a counter."""
    rng = np.random.default_rng(seed)
    sizes = {"a": {"kernel": (6, 7), "bias": (7,)}, "head": {"kernel": (7, 3), "bias": (3,)}}
    params = jax.tree.map(lambda s: rng.normal(size=(rows, *s)), sizes, is_leaf=_is_shape)
    count = np.arange(rows * 2, dtype=np.int32).reshape(rows, 2)
    return {"batch_stats": {"bn": {"count": count}}, "params": params}


def _is_shape(node):
    return isinstance(node, tuple)


def servers_part(near, models, partners, weights, by_block):
    plan = leaf_plan(jax.tree.map(lambda leaf: leaf[0], models))
    few = models["params"] | {"head": None}
    return {
        "distances": similarity.squared_distances(near["params"], models["params"]),
        "partners": similarity.squared_distances(near["params"], models["params"], partners),
        "cosines": similarity.cosines(few, few),
        "mixed": mixing.apply(weights, models, near, plan),
        "one sender's": mixing.apply(weights.at[:, 1:].set(0), models, near, plan),
        "by block": mixing.apply(by_block, models, near, plan),
        "odd receivers": mixing.apply(weights[:3], models, jax.tree.map(lambda x: x[:3], near),
                                      plan, blockwise=True),
    }  # fmt: skip


@pytest.mark.costly
@pytest.mark.parametrize("rows", [4, 5])
def test_columns_give_the_numbers_of_whole_models(rows, monkeypatch):
    """Two devices share four clients, or five, which they do not divide."""
    monkeypatch.setattr(column_exchange, "WIDE", 40)
    with jax.enable_x64(True):
        near, models = stack(rows, 0), stack(rows, 1)
        models["params"] = jax.tree.map(
            lambda x, y: np.concatenate([y[:2], x[2:3] + 1e-6, y[3:]]), near["params"],
            models["params"],
        )  # fmt: skip
        plan = leaf_plan(jax.tree.map(lambda leaf: leaf[0], models))
        rng = np.random.default_rng(2)
        weights = jnp.asarray(rng.dirichlet(np.ones(rows), rows)).at[1].set(0)
        by_block = jnp.asarray(rng.dirichlet(np.ones(rows), (plan.num_blocks, rows)))
        operands = (near, models, jnp.arange(rows)[::-1], weights, by_block)
        wanted = jax.jit(servers_part)(*operands)
        assert 0 < wanted["distances"][2, 2] < 1e-9  # so near that pairs are summed one by one
        sharded = [place(tree, mesh_of(2), CLIENTS) for tree in operands[:2]]

        def part(near, models, *others):
            return servers_part(*rows_of((near, models), mesh_of(2), rows, CLIENTS), *others)

        with sharing(ON_TPU):
            compiled = jax.jit(part).lower(*sharded, *operands[2:]).compile()
        result = compiled(*sharded, *operands[2:])
        assert_close(result, wanted, "by columns", 1e-12)
        np.testing.assert_allclose(result["distances"], wanted["distances"], 1e-9)
        for moved in (" all-to-all(", " reduce-scatter("):  # a matrix: each device has its rows
            assert moved in compiled.as_text()


def test_stacks_are_sent_once():
    near, models = (stack(4, k)["params"] for k in (0, 1))

    def products(a, b, factor):
        return sum(factor * x.reshape(len(x), -1) @ y.reshape(len(y), -1).T
                   for x, y in zip(*map(jax.tree.leaves, (a, b)), strict=True))  # fmt: skip

    def traced(*stacks):
        program = jax.jit(
            lambda factor: column_exchange.sum_over_columns(products, *stacks, others=(factor,))
        )
        with sharing(ON_TPU):
            np.testing.assert_allclose(program(2.0), products(*stacks, 2.0), 1e-4, 1e-4)
            return str(program.trace(2.0).jaxpr).count("all_to_all[")

    assert 0 < 2 * traced(models, models) == traced(near, models)


def test_devices_of_one_cpu_exchange_no_columns():
    with sharing(Execution(1, "map", 2)):
        assert column_exchange.shared_clients() is None
    with sharing(ON_TPU):
        assert column_exchange.shared_clients() == mesh_of(2)
        assert [column_exchange.is_shared(stack(rows, 0)) for rows in (1, 2, 3)] == [
            False,
            True,
            True,
        ]
    assert not column_exchange.is_shared(stack(4, 0))


def test_leaves_go_alone_or_together():
    shapes = [(8, 6, 10), (8, 3, 5), (8, 5, 4), (8, 2)]
    leaves = [jax.ShapeDtypeStruct(shape, "float32") for shape in shapes]
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(column_exchange, "WIDE", 15)
        parts = column_exchange._parts(leaves, [0, 0, 0, 1], 4)
    assert parts == [((2,), 2), ((0, 1), None), ((3,), None)]


@pytest.mark.costly
@pytest.mark.parametrize("name", ["feddwa", "cfl", "pfedla"])
@pytest.mark.parametrize(("seeds", "clients"), [("map", 5), ("vmap", 4)])
def test_algorithms_that_compare_clients(name, seeds, clients, monkeypatch):
    """A round on two devices; runs one by one, and as lanes of both devices."""
    monkeypatch.setattr(column_exchange, "WIDE", 12)
    with jax.enable_x64(True):
        algorithm = pfl.make_algorithm(name)
        options = {"client_execution": "map", "seed_execution": seeds}
        federations = [
            toy_for(algorithm, (7, 3, 1, 10, 4)[:clients], **options, **more)
            for more in ({}, {"mesh": "clients:2", "platform": "tpu"})
        ]
        one, two = (states_of(algorithm, federation, 2) for federation in federations)
        for t, (state, wanted) in enumerate(zip(two, one, strict=True)):
            assert_close(state, wanted, f"after {t} rounds", 1e-9)
