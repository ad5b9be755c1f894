"""Floco against its reference: random points, points of clients, new clients."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from fedjax_pfl.algorithms.floco import projected
from fedjax_pfl.federation.batching import step_key
from fedjax_pfl.testing.toys import assert_close, states_of, toy_federation
from fedjax_pfl.utils import keys
from tests.algorithms.comparison import comparison
from tests.algorithms.harness import assert_losses, maker, sampled_federation
from tests.references import floco

CORNERS = 3


algorithm = maker("floco", {"corners": CORNERS})


def draws_of(case, batches, purpose="train"):
    """What each step draws, as the library does: [t][i][k] (exponential, direction, share)."""

    @jax.jit
    def of_step(key, i, k):
        key = jax.random.fold_in(step_key(key, i, k), 1)
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
        ids = np.asarray(case.federation.data.ids)
        walked = [
            [jax.device_get(of_step(key, ids[i], np.int32(k))) for k in range(len(own))]
            for i, own in enumerate(of_round)
        ]
        drawn.append(walked)
    return drawn


def simplex_of(params):
    """The reference's model: all kernels in the head."""
    params = jax.tree.map(np.asarray, dict(params))
    kernels = np.concatenate([params["head"]["kernel"][None], params["corners"]])
    return {"hidden": params["hidden"], "head": {**params["head"], "kernel": kernels}}


BEGIN = 1  # the round of three, from 0, before which clients get their points


def first_model_and_draws(one):
    case = one.case
    every = case.batches("projection", starts=case.everyone)
    return {
        "initial": simplex_of(one.states[0].server["params"]),
        "first_batches": every[BEGIN],
        "first_draws": draws_of(case, every, "projection")[BEGIN],
        "draws": draws_of(case, one.setting.batches),
    }


def assert_record(now):
    case, models = now.case, now.wanted
    assert_close(simplex_of(now.state.server["params"]), models["global"], "global")
    plain = [floco.at(models["global"], point) for point in models["points"]]
    assert_losses(now.record, case, "personalized", plain)
    due = int(now.t == BEGIN)
    first = now.compared.options["first_batches"]
    more = [own * due for own in first]
    walks = [[*b, *m] for b, m in zip(now.batches(), more, strict=True)]
    steps = [len(w if p else m) for w, m, p in zip(walks, more, now.present, strict=True)]
    np.testing.assert_array_equal(now.clients["local_steps"], steps)
    now.assert_copies(now.present, now.present + due)
    numbers = {"numbers_up": CORNERS * 5 * 3 * due, "numbers_down": CORNERS * due}
    for name, value in numbers.items():
        np.testing.assert_array_equal(now.clients[name], np.full(5, value))


def assert_run(one):
    case, first = one.case, one.setting.initial["head"]["kernel"]
    np.testing.assert_array_equal(first[0], case.initial()["head"]["kernel"])
    assert len({float(kernel.sum()) for kernel in first}) == CORNERS
    assert np.ptp(one.wanted[-1]["points"], axis=0).max() > 0.1


def check_new_clients(one, made):
    """They train near the centre of the simplex."""
    made, (batches, given) = made["params"], one.newcomers()
    np.testing.assert_allclose(made["point"], 1 / CORNERS, 1e-12)
    draws = draws_of(one.case, [batches] * one.case.rounds, "personalize")[-1]
    start, centre = one.wanted[-1]["global"], np.full(CORNERS, 1 / CORNERS)
    for i, own in enumerate(batches):
        points = [floco.near(centre, way, share, 0.4) for _, way, share in draws[i]]
        wanted = floco.train(start, own, *given, points)
        assert_close(simplex_of(jax.tree.map(lambda x, i=i: x[i], made)), wanted, f"client {i}")


test_reference, test_contract = comparison(
    "floco",
    floco.run,
    settings={"corners": CORNERS, "rho": 0.4},
    ours=("corners",),
    given=first_model_and_draws,
    states={"private.params.point": "points"},
    steps=(),
    copies=None,
    check=assert_record,
    finish=assert_run,
    new_clients=check_new_clients,
)


def test_one_corner():
    federation = algorithm(corners=1).prepare(toy_federation())
    params = jax.eval_shape(federation.initial_model, jax.random.key(0))["params"]
    assert params["corners"].shape == (0, 5, 3)


@pytest.mark.costly
@pytest.mark.parametrize(("clients", "count"), [(1, 3), (2, 4), (7, 2)])
def test_projected_points_of_few_and_many_clients(clients, count):
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


@pytest.mark.costly
def test_points_do_not_decay():
    federation = sampled_federation(weight_decay=0.3, momentum=0.5)
    states = states_of(algorithm(warmup_fraction=1.0), federation, 2)
    np.testing.assert_array_equal(states[-1].private["params"]["point"], 1 / CORNERS)
