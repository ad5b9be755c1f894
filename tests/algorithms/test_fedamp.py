"""FedAMP and HeurFedAMP against their reference, their limits, and models of new clients."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import fedjax_pfl as pfl
from fedjax_pfl import Context
from fedjax_pfl.algorithms.fedamp import State
from fedjax_pfl.engine.new_clients import split_new_clients
from fedjax_pfl.testing.toys import assert_close, run_rounds, states_of, toy_federation
from tests.algorithms.harness import (
    PATTERNS,
    Case,
    assert_losses,
    assert_models,
    assert_steps,
    over,
)
from tests.references import fedamp

# The algorithm, its settings, and the reference's where they differ.
VARIANTS = {
    "fedamp": ("fedamp", {"sigma": 3.0, "proximal_weight": 0.7}, {}),
    "smaller-alpha-from-the-cloud": ("fedamp", {"sigma": 2.0, "alpha": 0.3, "start": "cloud"}, {}),
    "heurfedamp": ("heurfedamp", {"sigma": 9.0, "proximal_weight": 0.25}, {}),
    "heurfedamp-own-weight": ("heurfedamp", {"self_weight": 0.6, "start": "own"}, {}),
}


@over(PATTERNS, [("partial-map", "fedamp"), ("full-vmap", "heurfedamp")], VARIANTS)
def test_reference(pattern, variant):
    name, settings, options = VARIANTS[variant]
    case = Case(**PATTERNS[pattern])
    common, heuristic = case.common(), name == "heurfedamp"
    wanted = fedamp.run(
        case.initial(), case.clients(), 3, **common, heuristic=heuristic, **settings | options
    )
    states, records = case.run_rounds(pfl.make_algorithm(name, settings))
    for t, (state, record, models) in enumerate(zip(states[1:], records, wanted, strict=True)):
        assert_models(state.models, models["personalized"], f"round {t}")
        assert_losses(record, case, "personalized", models["personalized"])
        assert_steps(record, case.cohorts[t], common["batches"][t])
        np.testing.assert_allclose(record["matrices"]["attention"], models["weights"], 1e-9, 1e-9)
        present = case.present(t)
        case.assert_whole_models(record, t)
        own = record["clients"]["self_weight"]
        np.testing.assert_allclose(own[present], np.diag(models["weights"])[present], 1e-9, 1e-9)
        assert np.isnan(own[~present]).all()


@pytest.mark.thorough
def test_one_client_is_drawn_to_what_it_held_as_by_fedprox():
    """By its shared layers alone: a private one has no mixture to be near to."""
    alone = toy_federation((6,), (3,), validation_size=0, share="head")
    drawn = states_of(pfl.make_algorithm("fedamp", {"sigma": 2, "proximal_weight": 0.7}), alone, 2)[
        -1
    ]
    held = states_of(pfl.make_algorithm("fedprox", {"proximal_weight": 0.7}), alone, 2)[-1]
    ours, head, body = drawn.models["params"], held.server["params"], held.private["params"]
    assert_close(jax.tree.map(lambda leaf: leaf[0], ours["head"]), head["head"], "head")
    assert_close(ours["fc_0"], body["fc_0"], "body")


@pytest.mark.thorough
def test_private_layers_are_not_compared():
    algorithm = pfl.make_algorithm("fedamp", {"sigma": 3})
    federation = toy_federation(validation_size=0, share="head")
    states, records = run_rounds(algorithm, federation, 2, scored=())
    heads = states[1].models["params"]["head"]
    known = [{"head": jax.tree.map(lambda leaf, i=i: leaf[i], heads)} for i in range(5)]
    wanted = fedamp.attention(known, 3.0, fedamp.largest_alpha(3.0, 5))
    np.testing.assert_allclose(records[1]["matrices"]["attention"], wanted, 1e-9, 1e-9)


@pytest.mark.thorough
@pytest.mark.parametrize("name", ["fedamp", pytest.param("heurfedamp", marks=pytest.mark.thorough)])
def test_new_clients_are_mixed_once(name):
    """Each as one more client beside those that were there, and with no larger alpha."""
    federation, new = split_new_clients(toy_federation(validation_size=0), 2)
    settings = {"sigma": 2.0}
    if name == "fedamp":
        settings["alpha"] = 1.0  # the largest for three clients, not for four
    algorithm = pfl.make_algorithm(name, settings)

    @jax.jit
    def personalize(federation, new):
        key, t, total = jax.random.key(0), jnp.int32(1), jnp.int32(2)
        ctx, theirs = (
            Context(fed, key, t, total, fed.participation.cohort(key, t, fed.data.ids))
            for fed in (algorithm.prepare(federation), algorithm.prepare(new))
        )
        first = [ctx.initial_model(f"client {i}") for i in range(3)]
        state = State(jax.tree.map(lambda *leaves: jnp.stack(leaves), *first))
        alone = pfl.Algorithm.personalize(algorithm, ctx, state, theirs)
        return state.models, alone, algorithm.personalize(ctx, state, theirs)

    known, alone, made = (
        [jax.tree.map(lambda leaf, i=i: np.asarray(leaf)[i], models["params"]) for i in range(n)]
        for models, n in zip(personalize(federation, new), (3, 2, 2), strict=True)
    )
    for own, model in zip(alone, made, strict=True):
        wanted = fedamp.newcomer(own, known, **settings, heuristic=name == "heurfedamp")
        assert_close(model, wanted, "newcomer")


def test_what_can_not_be_in_a_sweep():
    sweep = {"sigma": [4.0, 1.0], "alpha": [1.0, 1.0]}
    with pytest.raises(pfl.InputError, match="alpha must be at most"):
        pfl.simulate(pfl.make_algorithm("fedamp"), toy_federation(), 1, settings=sweep)


def remarks(name, settings, **options):
    algorithm = pfl.make_algorithm(name, settings)
    return algorithm.remarks(algorithm.prepare(toy_federation(**options)))


def test_a_pull_that_overshoots_is_told():
    assert (
        remarks("fedamp", {}) == remarks("fedamp", {"proximal_weight": 7}, learning_rate=0.1) == []
    )
    (told,) = remarks("fedamp", {"proximal_weight": 8})
    assert told.startswith("a local step overshoots the mixture: rate x proximal_weight is 2.4")


def test_a_factor_of_cosines_that_tells_nobody_apart_is_told():
    (told,) = remarks("heurfedamp", {})
    assert told.startswith("weighs all other clients nearly alike: sigma is 1, and cosines")
    assert remarks("heurfedamp", {"sigma": 5}) == []
