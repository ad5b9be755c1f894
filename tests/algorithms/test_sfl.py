"""SFL against its reference, in its limits, its graphs, and the models of new clients."""

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
from tests.algorithms.harness import PATTERNS, Case, assert_models, over
from tests.engine.finals import final_in
from tests.references import sfl, sfl_graph
from tests.references.local_sgd import sgd
from tests.references.network import combine, random_parameters

# Edges of clients by permanent id; the last one has none.
RING = np.array([[2, 1, 0, 0, 0], [0, 1, 1, 0, 0], [0, 0, 1, 3, 0], [1, 0, 0, 1, 0], [0] * 5])


def ring(ids):
    return jnp.asarray(RING)[ids[:, None], ids]


VARIANTS = {
    "labels": {},
    "neighbours": {"graph": "neighbours", "neighbours": 3, "layers": 1, "server_alpha": 0.8},
    "learned": {"graph": "learned", "learned_share": 0.4, "graph_weight": 0.7},
    "given-detached": {"relation": ring, "layers": 2, "server_alpha": 0.7, "detached": True},
}
QUICK = [
    ("partial-map", "labels"),
    ("full-vmap", "neighbours"),
    ("full-vmap", "learned"),
    ("partial-map", "given-detached"),
]


def algorithm(**settings):
    return pfl.make_algorithm("sfl", settings)


@over(PATTERNS, QUICK, VARIANTS)
def test_reference(pattern, variant):
    settings = VARIANTS[variant]
    two = {"train_sizes": (5, 4)} if variant == "learned" else {}  # one of two has no edge then
    case = Case(seed=1, **PATTERNS[pattern], **two)  # not everybody shares a label with all
    known, common = dict(settings), case.common()
    if "relation" in known:
        isolated = RING + np.diag([0, 0, 0, 0, 1])
        known["graph"] = sfl_graph.row_normalized(isolated)
        del known["relation"]
    if variant == "learned":
        rounds = (keys.of_round(case.key, "sfl", t) for t in range(case.rounds))
        known["generators"] = [
            jax.tree.map(
                np.asarray, sfl_graphs.first_generator(key, case.federation.data.ids, float)
            )
            for key in rounds
        ]
    wanted = sfl.run(case.initial(), case.clients(), 3, **common, **known)
    states, records = case.run_rounds(algorithm(**settings))
    for t, (state, record, models) in enumerate(zip(states[1:], records, wanted, strict=True)):
        assert_models(state.models, models["personalized"], f"models of round {t}")
        assert_close(state.server["params"], models["global"], f"mean of round {t}")
        case.assert_two_models(record, models)
        np.testing.assert_allclose(record["matrices"]["mixing"], models["weights"], 1e-9, 1e-12)
        present = case.present(t)
        assert (record["up"] == present[:, None]).all()
        copies = 1 if settings.get("detached") else 2
        assert (record["down"] == copies * present[:, None]).all()
        steps = [len(batches) for batches in common["batches"][t]]
        np.testing.assert_array_equal(record["clients"]["local_steps"], present * steps)


def test_without_an_upload_nothing_is_spread():
    """All clients are late: in rounds 1, 2 and 4 nobody takes part."""
    federation = toy_federation(stragglers=dict.fromkeys(range(5), 1))
    states = states_of(algorithm(relation=ring), federation, 4)
    assert_close(states[2], states[0], "before the first upload", 0)
    assert_close(states[4], states[3], "after it", 0)
    kernels = states[3].models["params"]["head"]["kernel"]
    assert np.abs(kernels - kernels[0]).max() > 1e-3


@pytest.mark.thorough
def test_a_new_client_is_held_near_those_that_share_its_labels():
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


@pytest.mark.parametrize("settings", [{"relation": ring}, {"graph": "neighbours"}])
def test_a_new_client_has_no_place_in_another_graph(settings):
    """Then it makes no difference what the others' models are."""
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
        return chooser.personalize(ctx, state, others)

    assert_close(personalized(0.5), personalized(0.0), "new clients", 0)


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


def test_the_slope_of_a_norm_by_automatic_differentiation():
    target = {"v": jnp.array([[3.0, -4.0], [0.5, 0.0]]), "w": jnp.array([1.0])}

    def norm(params):
        apart = jax.tree.map(jnp.subtract, params, target)
        return 0.7 * jnp.sqrt(sum(jnp.sum(leaf**2) for leaf in jax.tree.leaves(apart)))

    params = jax.tree.map(lambda leaf: jnp.cos(leaf) - 2, target)
    result = jax.jit(slope)(params, target, squares(target), 0.7)
    assert_close(result, jax.grad(norm)(params), "slope", 1e-14)


def test_the_norm_is_flat_where_only_rounding_is_left():
    target = {"w": jnp.array([300.0, -400.0])}
    for factor, length in ((1, 0), (1 + 2e-16, 0), (1 + 1e-12, 0.5), (0, 0.5)):
        params = {"w": factor * target["w"]}
        result = slope(params, target, squares(target), 0.5)["w"]
        np.testing.assert_allclose(jnp.linalg.norm(result), length, 1e-3, 1e-9)


def test_ties_of_neighbours_go_to_the_lower_permanent_id():
    scores = jnp.array([[0.0, 1.0, 0.0, 0.0]])
    ids = jnp.array([7, 3, 2, 5])
    assert sfl_graphs.largest(scores, ids, 3).tolist() == [[False, True, True, True]]
    assert sfl_graphs.largest(scores, ids, 2).tolist() == [[False, True, True, False]]


def uneven(ids):
    return jnp.ones((len(ids), 2))


def endless(ids):
    return jnp.full((len(ids), len(ids)), jnp.inf)


def negative(ids):
    return -jnp.ones((len(ids), len(ids)))


@pytest.mark.parametrize(
    ("settings", "options", "said"),
    [
        ({"graph": "label"}, {}, "Unknown value of sfl.graph 'label'. Did you mean 'labels'"),
        ({"neighbours": 0}, {}, "neighbours must be at least 1, got 0"),
        ({"layers": 0}, {}, "layers must be at least 1, got 0"),
        ({"server_alpha": 1.5}, {}, r"server_alpha must be in \[0, 1\], got 1.5"),
        ({"learned_share": 1}, {}, r"learned_share must be in \[0, 1\), got 1"),
        ({"graph_weight": -1}, {}, "graph_weight must be at least 0, got -1"),
        ({"global_weight": -1}, {}, "global_weight must be at least 0, got -1"),
        ({"relation": "ring"}, {}, "relation must be a function of the clients' ids"),
        ({"relation": uneven}, {}, r"must be edges \[5, 5\] of at least 0, all.*array \[5, 2\]"),
        ({"relation": negative}, {}, r"must be edges \[5, 5\] of at least 0"),
        ({"relation": endless}, {}, r"must be edges \[5, 5\] of at least 0, all finite"),
        ({"relation": ring, "graph": "neighbours"}, {}, "relation or graph=neighbours, not both"),
        ({}, {"share": "body"}, "sfl averages whole models"),
    ],
)
def test_what_can_not_be(settings, options, said):
    with pytest.raises(pfl.InputError, match=said):
        pfl.Simulation(algorithm(**settings), toy_federation(**options)).check()


def test_remarks():
    def said(**settings):
        return algorithm(**settings).remarks(toy_federation())

    labels = "its graph joins clients that share a label"
    assert said() == said(graph="learned") == [labels]
    assert said(graph="neighbours") == said(relation=ring) == []
    detached = "its norms have no gradient, as in the published code"
    assert said(detached=True) == [labels, detached]
