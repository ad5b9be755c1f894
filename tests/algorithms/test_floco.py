"""Floco against its reference: random points, the clients' own, new clients; a corner: FedAvg."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import fedjax_pfl as pfl
from fedjax_pfl.algorithms.common.simplex import projected
from fedjax_pfl.federation.batching import client_key
from fedjax_pfl.testing.toys import TanhNetwork, assert_close, run_rounds, states_of, toy_federation
from fedjax_pfl.utils import keys
from tests.algorithms.harness import (
    PATTERNS,
    Case,
    assert_losses,
    assert_steps,
    over,
    sampled_federation,
)
from tests.engine.finals import final_in
from tests.references import floco

CORNERS = 3
VARIANTS = {
    "default": {},
    "late-wide": {"warmup_fraction": 0.7, "rho": 0.8},
    "at-once": {"warmup_fraction": 0.0},
}
QUICK = [("partial-map", "default"), ("full-vmap", "late-wide"), ("partial-map", "at-once")]


def algorithm(**settings):
    return pfl.make_algorithm("floco", {"corners": CORNERS} | settings)


def draws_of(case, batches, purpose="train"):
    """What each step draws, as the library does: [t][i][k] (exponential, direction, share)."""

    @jax.jit
    def of_step(key, k):
        key = jax.random.fold_in(jax.random.fold_in(key, k), 1)
        way, radius = jax.random.split(key)
        shape, dtype = (CORNERS,), jnp.float64
        return (
            jax.random.exponential(key, shape, dtype),
            jax.random.uniform(way, shape, dtype, -1, 1),
            jax.random.uniform(radius, (), dtype),
        )

    drawn = []
    for t, of_round in enumerate(batches):
        key = keys.of_round(case.key, purpose, t)
        steps = [client_key(key, int(i))[1] for i in case.federation.data.ids]
        walked = [
            [jax.device_get(of_step(steps[i], np.int32(k))) for k in range(len(own))]
            for i, own in enumerate(of_round)
        ]
        drawn.append(walked)
    return drawn


def simplex_of(params):
    """The reference's model: all kernels in the head."""
    params = jax.tree.map(np.asarray, dict(params))
    kernels = np.concatenate([params["head"]["kernel"][None], params["corners"]])
    return {"hidden": params["hidden"], "head": {**params["head"], "kernel": kernels}}


@over(PATTERNS, QUICK, VARIANTS)
def test_reference(pattern, variant):
    case, settings = Case(**PATTERNS[pattern]), VARIANTS[variant]
    begin = int(np.floor(settings.get("warmup_fraction", 0.5) * 3))
    common = case.common()
    every = case.batches("projection", starts=case.everyone)
    first_draws = draws_of(case, every, "projection")[begin]
    ours = algorithm(**settings)
    states, records = case.run_rounds(ours)
    initial = simplex_of(states[0].server["params"])
    assert_close(initial["head"]["kernel"][0], case.initial()["head"]["kernel"], "first corner", 0)
    assert len({float(kernel.sum()) for kernel in initial["head"]["kernel"]}) == CORNERS
    wanted = floco.run(
        initial, case.clients(), 3, **common, first_batches=every[begin],
        draws=draws_of(case, common["batches"]), first_draws=first_draws, **settings,
    )  # fmt: skip
    for t, (state, record, models) in enumerate(zip(states[1:], records, wanted, strict=True)):
        points = state.private["params"]["point"]
        np.testing.assert_allclose(points, models["points"], 1e-8, 1e-9)
        assert_close(simplex_of(state.server["params"]), models["global"], "global")
        plain = [floco.at(models["global"], point) for point in models["points"]]
        assert_losses(record, case, "personalized", plain)
        now, steps = int(t == begin), record["clients"]["local_steps"]
        if now:
            record["clients"]["local_steps"] = steps - [len(own) for own in every[begin]]
        assert_steps(record, case.cohorts[t], common["batches"][t])
        present = case.present(t)[:, None]
        blocks = record["down"].shape[1]
        np.testing.assert_array_equal(record["down"], np.repeat(present + now, blocks, 1))
        numbers = {"numbers_up": CORNERS * 5 * 3 * now, "numbers_down": CORNERS * now}
        for name, value in numbers.items():
            np.testing.assert_array_equal(record["clients"][name], np.full(5, value))
    assert np.ptp(wanted[-1]["points"], axis=0).max() > 0.1
    if pattern == "full-vmap":
        prepared = ours.prepare(case.federation)
        taken = sum(record["clients"]["local_steps"].sum() for record in records)
        assert ours.max_gradients(prepared, 3).sum() == taken + sum(map(len, every[begin]))
    if variant == "default" and pattern == "partial-map":
        assert_new_clients(case, states, ours)


def assert_new_clients(case, states, ours):
    """They train near the centre of the server's simplex, where they stay."""
    final = final_in(states[-1], ours, case.federation, case.rounds)
    made = jax.tree.map(lambda leaf: leaf[0], final.personalize(case.federation))["params"]
    np.testing.assert_allclose(made["point"], 1 / CORNERS, 1e-12)
    batches = case.batches("personalize", starts=case.everyone)
    draws, start = (
        draws_of(case, batches, "personalize")[-1],
        simplex_of(states[-1].server["params"]),
    )
    centre = np.full(CORNERS, 1 / CORNERS)
    for i, own in enumerate(batches[-1]):
        points = [floco.near(centre, way, share, 0.1) for _, way, share in draws[i]]
        wanted = floco.train(start, own, case.x, case.y, case.rates[-1], points)
        assert_close(simplex_of(jax.tree.map(lambda x, i=i: x[i], made)), wanted, f"client {i}")


@pytest.mark.thorough
def test_who_is_late_neither_trains_for_the_projection_nor_sends_kernels():
    federation = toy_federation(stragglers={3: 1}, model=TanhNetwork(), validation_size=0)
    _, (record,) = run_rounds(algorithm(warmup_fraction=0.0), federation, 1, scored=())
    asked = np.array([1, 1, 1, 0, 1])
    for name in ("local_steps", "numbers_up"):
        np.testing.assert_array_equal(record["clients"][name] > 0, asked)
    np.testing.assert_array_equal(record["clients"]["numbers_down"], CORNERS * asked)
    np.testing.assert_array_equal(record["down"][:, 0], 2 * asked)


@pytest.mark.thorough
def test_one_corner_is_fedavg():
    federation = sampled_federation()
    ours = states_of(algorithm(corners=1, warmup_fraction=1.0), federation)[-1]
    plain = states_of(pfl.make_algorithm("fedavg"), federation)[-1]
    assert_close(ours.server["params"]["head"], plain.server["params"]["head"], "head")
    assert_close(ours.server["params"]["hidden"], plain.server["params"]["hidden"], "body")


@pytest.mark.thorough
@pytest.mark.parametrize(("clients", "count"), [(1, 3), (2, 4), (7, 2)])
def test_points_of_few_and_many_clients(clients, count):
    """With fewer clients than corners; one client is at the centre; like clients are together."""
    rows = np.random.default_rng(clients).normal(size=(clients, 9))
    rows[-1] = rows[0]
    with jax.enable_x64(True):
        found = np.asarray(projected(jnp.asarray(rows), count))
    np.testing.assert_allclose(found.sum(axis=1), 1, 1e-12)
    assert (found >= 0).all()
    np.testing.assert_allclose(found[-1], found[0], atol=1e-9)
    if clients <= 2:
        np.testing.assert_allclose(found, 1 / count, 1e-9)
    else:
        wanted = floco.clients_points(rows, count)
        np.testing.assert_allclose(found, wanted, 1e-9, 1e-9)
        with jax.enable_x64(False):
            single = projected(jnp.asarray(rows, "float32"), count)
        np.testing.assert_allclose(single, wanted, atol=1e-3)


@pytest.mark.thorough
def test_points_do_not_decay():
    federation = sampled_federation(weight_decay=0.3, momentum=0.5)
    states = states_of(algorithm(warmup_fraction=1.0), federation, 2)
    np.testing.assert_array_equal(states[-1].private["params"]["point"], 1 / CORNERS)
