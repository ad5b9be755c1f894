"""SFL against its reference, its graphs, and the models of new clients."""

from dataclasses import replace

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import fedjax_pfl as pfl
from fedjax_pfl.algorithms import sfl as sfl_graphs
from fedjax_pfl.algorithms.sfl import slope, squares
from fedjax_pfl.engine.new_clients import split_new_clients
from fedjax_pfl.testing.toys import assert_close, states_of, toy_federation
from fedjax_pfl.utils import keys
from tests.algorithms.comparison import Variant, comparison
from tests.algorithms.harness import Case, assert_models, maker
from tests.engine.finals import final_in
from tests.references import sfl, sfl_graph
from tests.references.local_sgd import sgd
from tests.references.network import combine, random_parameters

# Edges of clients by permanent id; the last one has none.
RING = np.array([[2, 1, 0, 0, 0], [0, 1, 1, 0, 0], [0, 0, 1, 3, 0], [1, 0, 0, 1, 0], [0] * 5])


def ring(ids):
    return jnp.asarray(RING)[ids[:, None], ids]


algorithm = maker("sfl")


def graph_and_generators(one):
    ids = np.asarray(one.case.federation.data.ids)
    isolated = (RING + np.diag([0, 0, 0, 0, 1]))[np.ix_(ids, ids)]
    rounds = [keys.of_round(one.case.key, "sfl", t) for t in range(one.case.rounds)]
    return {
        "neighbours": {"ids": ids},
        "given": {"graph": sfl_graph.row_normalized(isolated)},
        "learned": {
            "generators": [
                jax.tree.map(np.asarray, sfl_graphs.first_generator(key, ids, float))
                for key in rounds
            ]
        },
    }.get(one.variant, {})


def check_copies(now):
    now.assert_copies(now.present, (1 if now.settings.get("detached") else 2) * now.present)


test_reference, test_contract = comparison(
    "sfl",
    sfl.run,
    settings={"server_alpha": 0.8, "graph_weight": 0.7, "global_weight": 0.3},
    variants={
        "labels": {},
        "neighbours": {"graph": "neighbours", "neighbours": 3, "layers": 1},
        # One of two clients has no edge in the learned graph.
        "learned": Variant(
            {"graph": "learned", "learned_share": 0.4}, options={"train_sizes": (5, 4)}
        ),
        "given": {"relation": ring, "layers": 2, "detached": True, "graph_weight": 0.3},
    },
    options={"seed": 1},  # not everybody shares a label with all
    ours=("relation",),
    given=graph_and_generators,
    states={"models": "personalized", "server": "global"},
    scores={"global": "global", "personalized": "personalized"},
    matrices={"mixing": "weights"},
    copies=None,
    check=check_copies,
)


@pytest.mark.costly
def test_new_clients_in_the_graph_of_labels():
    case = Case(seed=1)
    left, new = split_new_clients(case.federation, 2)
    states = states_of(algorithm(), left, 2)
    new = new.with_training(local_steps=2)
    made = final_in(states[-1], algorithm(), left, 2).personalize(new)
    server = jax.tree.map(np.asarray, states[-1].server["params"])
    models = [jax.tree.map(lambda x, i=i: x[i], states[-1].models["params"]) for i in range(3)]
    labels = [set(case.y[case.samples(i)].tolist()) for i in range(5)]
    key, wanted = keys.of_round(case.key, "personalize", 1), []
    for row, client in enumerate((3, 4)):
        near = [float(bool(labels[j] & labels[client])) for j in range(3)]
        mean = combine([x / max(sum(near), 1) for x in near], models) if any(near) else server
        batches = pfl.training.batch_indices(new.schedule, new.data.train, key, client, row)
        batches = [np.asarray(batch) for (batch,) in batches]

        def pull(params, mean=mean):
            return sfl.norms_gradient(params, [(0.3, mean), (0.3, server)])

        wanted.append(sgd(server, batches, case.x, case.y, case.rates[1], extra_gradient=pull))
    assert_models(jax.tree.map(lambda leaf: leaf[0], made), wanted, "new clients")


@pytest.mark.costly
@pytest.mark.parametrize("settings", [{"relation": ring}, {"graph": "neighbours"}])
def test_new_clients_in_another_graph(settings):
    """They have no place there: it makes no difference what the others' models are."""
    left, new = split_new_clients(toy_federation(), 2)
    chooser, key = algorithm(**settings), jax.random.key(0)

    @jax.jit
    def personalized(shift):
        ctx, others = (
            pfl.Context(federation, key, jnp.int32(0), jnp.int32(1), None)
            for federation in map(chooser.prepare, (left, new))
        )
        state = chooser.init(ctx)
        state = replace(state, models=jax.tree.map(lambda leaf: leaf + shift, state.models))
        return chooser.personalize(ctx, state, others.of_new_clients())

    assert_close(personalized(0.5), personalized(0.0), "new clients", 0)


@pytest.mark.costly
@pytest.mark.parametrize("count", [5, 80])
def test_learned_graph(count):
    """Of 80 clients rows have more than 30 edges; equal ones stay with lower ids."""
    rng = np.random.default_rng(count)
    models = [random_parameters(rng, 4, 5, 3) for _ in range(count)]
    generator = sfl_graphs.first_generator(jax.random.key(count), jnp.arange(count), float)
    wanted = sfl_graph.learned_graph(models, jax.tree.map(np.asarray, generator))
    stacked = jax.tree.map(lambda *leaves: jnp.stack(leaves), *models)
    made = jax.jit(sfl_graphs.fitted_graph)(generator, stacked, jnp.arange(count))
    np.testing.assert_allclose(made, wanted, 1e-9, 1e-12)
    edges = np.count_nonzero(wanted, axis=1)
    assert edges.max() == min(count - 1, 30) or (count == 5 and (edges < 4).any())


@jax.jit
def pull(params, target):
    return slope(params, target, squares(target), 0.5)


def test_slope_of_a_norm_where_only_rounding_is_left():
    target = {"w": jnp.array([300.0, -400.0])}
    for factor, length in ((1, 0), (1 + 2e-16, 0), (1 + 1e-12, 0.5), (0, 0.5)):
        params = {"w": factor * target["w"]}
        result = pull(params, target)["w"]
        np.testing.assert_allclose(jnp.linalg.norm(result), length, 1e-3, 1e-9)


def test_ties_of_neighbours():
    scores = jnp.array([[0.0, 1.0, 0.0, 0.0]])
    ids = jnp.array([7, 3, 2, 5])
    assert sfl_graphs.largest(scores, ids, 3).tolist() == [[False, True, True, True]]
    assert sfl_graphs.largest(scores, ids, 2).tolist() == [[False, True, True, False]]
