"""pFedMe against its reference, and in its limits."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import fedjax_pfl as pfl
from fedjax_pfl.engine.program import Program
from fedjax_pfl.engine.runs import make_runs
from fedjax_pfl.testing.toys import SEEDS, assert_close, run_rounds, states_of, toy_federation
from tests.algorithms.harness import PATTERNS, Case, assert_models, assert_steps, over
from tests.algorithms.newcomers import personalized
from tests.algorithms.noisy import Noisy, batches_of_a_step
from tests.references import pfedme

VARIANTS = {
    "defaults": {},
    "published": {
        "proximal_weight": 4.0,
        "inner_steps": 2,
        "personal_rate": 0.1,
        "server_rate": 2.0,
        "decay": 0.2,
        "weighting": "uniform",
    },
    "drawn": {"inner_steps": 2, "server_rate": 0.7, "participants": "sampled"},
}


def algorithm(**settings):
    return pfl.make_algorithm("pfedme", settings)


def reference(initial, case, rounds, settings, **changes):
    """The reference with the defaults of the page where `settings` say nothing."""
    own = {"personal_rate": 0.05, **settings}
    own["personal_rate"] = [own["personal_rate"]] * rounds
    return pfedme.run(initial, case.clients(), rounds, **case.common(**changes), **own)


def largest(one, other):
    return max(abs(a - b).max() for a, b in zip(*map(jax.tree.leaves, (one, other)), strict=True))


@over(
    PATTERNS,
    [("partial-map", "defaults"), ("full-vmap", "published"), ("partial-map", "drawn")],
    VARIANTS,
)
def test_reference(pattern, variant):
    settings = VARIANTS[variant]
    case, everyone = Case(**PATTERNS[pattern]), settings.get("participants") != "sampled"
    wanted = reference(case.initial(), case, 3, settings)
    states, records = case.run_rounds(algorithm(**settings))
    batches = case.batches()
    for t, (state, record, models) in enumerate(zip(states[1:], records, wanted, strict=True)):
        assert_close(state.server["params"], models["global"], "global")
        assert_models(state.personal, models["personalized"], f"personal, round {t}")
        case.assert_two_models(record, models)
        trained = range(case.num_clients) if everyone else case.cohorts[t]
        inner = settings.get("inner_steps", 5)
        assert_steps(record, trained, *[batches[t]] * inner)
        drawn, down = (np.isin(range(case.num_clients), who) for who in (case.cohorts[t], trained))
        np.testing.assert_array_equal(record["up"], np.repeat(drawn[:, None], 2, axis=1))
        np.testing.assert_array_equal(record["down"], np.repeat(down[:, None], 2, axis=1))
        share = drawn * (1 if settings.get("weighting") == "uniform" else case.sizes)
        np.testing.assert_allclose(record["matrices"]["mixing"], [share / share.sum()], 1e-9)
        # Public codes' personal models are aliases of w_i, or of the model that was received.
        for i in trained:
            if not len(batches[t][i]):
                continue
            theta = jax.tree.map(lambda leaf, i=i: leaf[i], state.personal["params"])
            for other in (models["trained"][i], models["global"], wanted[t - 1]["global"]):
                assert largest(theta, jax.tree.map(np.asarray, other)) > 1e-5


def test_new_clients_take_one_rounds_local_work():
    settings = {"proximal_weight": 4.0, "inner_steps": 2}
    case = Case(1, scored=False)
    (wanted,) = reference(
        case.initial("server"), case, 1, settings, batches=case.batches("personalize")
    )
    made = personalized(algorithm(**settings), case)
    assert_models(made, wanted["personalized"], "new clients")


def test_limits():
    """Of one client: no pull, no server rate, and a pull that leaves theta at the local model."""
    settings = {
        "proximal_weight": [0.0, 4.0, 4.0, 1e4],
        "server_rate": [1.0, 1e-30, 1.0, 1.0],
        "personal_rate": [0.05, 0.05, 0.05, 1e-4],
        "learning_rate": [0.3, 0.3, 0.3, 1e-4],
    }
    ours = algorithm(decay=0.0)
    federation = ours.prepare(toy_federation((6,), (3,)))
    runs = make_runs(ours, federation, SEEDS[:1], settings)
    program = Program(runs, federation, 2, capacity=2, scored=())
    first = jax.device_get(program.start())  # before it is donated
    last, _, _ = program.advance(program.start(), 0, 2)
    still, moved = slice(0, 2), slice(2, 4)

    def part(tree, rows):
        return jax.tree.map(lambda leaf: np.asarray(leaf)[rows], tree)

    assert_close(part(last.server, still), part(first.server, still), "server", 1e-12)
    assert largest(part(last.server, moved), part(first.server, moved)) > 1e-3
    gap = [
        largest(part(last.server, r), jax.tree.map(lambda x: x[0], part(last.personal, r)))
        for r in (2, 3)
    ]
    assert gap[1] < 1e-3 < 1e-2 < gap[0]


@pytest.mark.thorough
def test_statistics_momentum_and_noise_of_the_inner_steps():
    """One minibatch by hand: each inner step draws anew; theta's statistics travel."""
    federation = toy_federation(
        (6,), (3,), model=Noisy(), batch_size=6, local_steps=1, momentum=0.5
    )
    settings = {"proximal_weight": 4.0, "inner_steps": 2, "personal_rate": 0.1, "decay": 0.2}
    (start, end), (record,) = run_rounds(algorithm(**settings), federation, 1, scored=())
    (batch,), rng = batches_of_a_step(federation)

    def loss(params, model, k):
        noise = jax.random.fold_in(rng, k)
        return federation.task.loss({**model, "params": params}, batch, noise)

    @jax.jit
    def by_hand(w):
        theta, velocity, total = w, jax.tree.map(jnp.zeros_like, w["params"]), 0
        for k in range(2):
            value_and_grad = jax.value_and_grad(loss, has_aux=True)
            (found, after), g = value_and_grad(theta["params"], theta, k)
            total += found
            g = jax.tree.map(
                lambda g, p, w: g + 4 * (p - w) + 0.2 * p, g, theta["params"], w["params"]
            )
            velocity = jax.tree.map(lambda v, g: 0.5 * v + g, velocity, g)
            params = jax.tree.map(lambda p, v: p - 0.1 * v, theta["params"], velocity)
            theta = {**after, "params": params}
        moved = jax.tree.map(lambda w, p: w - 0.3 * 4 * (w - p), w["params"], theta["params"])
        return theta, {**theta, "params": moved}, total / 2

    theta, w, mean_loss = by_hand(start.server)
    np.testing.assert_allclose(record["clients"]["train_loss"], [mean_loss], 1e-9)
    assert_close(jax.tree.map(lambda leaf: leaf[0], end.personal), theta, "theta")
    assert_close(end.server, w, "w")
    assert largest(end.server["batch_stats"], start.server["batch_stats"]) > 1e-3


@pytest.mark.slow
def test_statistics_may_stay_with_their_clients():
    """With one client this changes nothing but where they are."""
    ours = algorithm()
    federation, apart = (
        toy_federation((6,), (3,), model=Noisy(), batch_norm=norms)
        for norms in ("shared", "affine_shared")
    )
    together, private = (states_of(ours, fed, 2)[-1] for fed in (federation, apart))
    assert_close(private.server["params"], together.server["params"], "server", 1e-12)
    assert_close(private.personal, together.personal, "personal", 1e-12)
    held = jax.tree.map(lambda leaf: leaf[0], private.private["batch_stats"])
    assert_close(held, together.server["batch_stats"], "statistics", 1e-12)
    result = pfl.simulate(ours, apart, 1)
    assert "global/test/loss" not in result.scores


def test_remarks():
    sampled = toy_federation(participation=0.6)
    told = ["all clients train in every round, drawn or not"]
    assert algorithm().remarks(sampled) == told
    assert (
        algorithm(participants="sampled").remarks(sampled)
        == algorithm().remarks(toy_federation())
        == []
    )
