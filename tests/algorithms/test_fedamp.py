"""FedAMP and HeurFedAMP against their reference, private layers, and models of new clients."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import fedjax_pfl as pfl
from fedjax_pfl import Context
from fedjax_pfl.algorithms.fedamp import State
from fedjax_pfl.engine.new_clients import split_new_clients
from fedjax_pfl.testing.toys import assert_close, run_rounds, states_of, toy_federation
from tests.algorithms.comparison import Variant, comparison
from tests.algorithms.harness import unstack
from tests.references import fedamp


def check_self_weight(now):
    own = np.where(now.present, np.diag(now.wanted["weights"]), np.nan)
    np.testing.assert_allclose(now.clients["self_weight"], own, 1e-9, 1e-9)


test_reference, test_contract = comparison(
    "fedamp",
    fedamp.run,
    variants={
        "fedamp": {"sigma": 3.0, "alpha": 0.5, "proximal_weight": 0.7},
        "largest-alpha-from-the-cloud": {"sigma": 2.0, "start": "cloud"},
        "heurfedamp": Variant({"sigma": 9.0, "proximal_weight": 0.25}, algorithm="heurfedamp"),
        "own-weight": Variant({"self_weight": 0.6, "start": "own"}, algorithm="heurfedamp"),
    },
    given=lambda one: {"heuristic": one.algorithm.name == "heurfedamp"},
    states={"models": "personalized"},
    scores={"personalized": "personalized"},
    matrices={"attention": "weights"},
    check=check_self_weight,
)


@pytest.mark.costly
def test_private_layers_are_not_pulled():
    """One client is drawn to what it held, as by FedProx, by its shared layers alone."""
    alone = toy_federation((6,), (3,), validation_size=0, share="head")
    pull = {"proximal_weight": 0.7}
    drawn, held = (
        states_of(pfl.make_algorithm(name, pull), alone, 2)[-1] for name in ("fedamp", "fedprox")
    )
    ours, head, body = drawn.models["params"], held.server["params"], held.private["params"]
    assert_close(jax.tree.map(lambda leaf: leaf[0], ours["head"]), head["head"], "head")
    assert_close(ours["fc_0"], body["fc_0"], "body")


@pytest.mark.costly
def test_attention_does_not_compare_private_layers():
    algorithm = pfl.make_algorithm("fedamp", {"sigma": 3})
    federation = toy_federation(validation_size=0, share="head")
    states, records = run_rounds(algorithm, federation, 2, scored=())
    known = unstack({"head": states[1].models["params"]["head"]})
    wanted = fedamp.attention(known, 3.0, fedamp.largest_alpha(3.0, 5))
    np.testing.assert_allclose(records[1]["matrices"]["attention"], wanted, 1e-9, 1e-9)


@pytest.mark.costly
@pytest.mark.parametrize("name", ["fedamp", "heurfedamp"])
def test_personalize_mixes_each_new_client_once(name):
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
        theirs = theirs.of_new_clients()
        first = [ctx.initial_model(f"client {i}") for i in range(3)]
        state = State(jax.tree.map(lambda *leaves: jnp.stack(leaves), *first))
        alone = pfl.Algorithm.personalize(algorithm, ctx, state, theirs)
        return state.models, alone, algorithm.personalize(ctx, state, theirs)

    known, alone, made = (unstack(models["params"]) for models in personalize(federation, new))
    for own, model in zip(alone, made, strict=True):
        wanted = fedamp.newcomer(own, known, **settings, heuristic=name == "heurfedamp")
        assert_close(model, wanted, "newcomer")


def test_alpha_above_its_bound_in_a_sweep():
    sweep = {"sigma": [4.0, 1.0], "alpha": [1.0]}
    with pytest.raises(pfl.InputError, match="alpha must be at most"):
        pfl.simulate(pfl.make_algorithm("fedamp"), toy_federation(), 1, settings=sweep)
