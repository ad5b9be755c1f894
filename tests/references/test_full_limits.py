"""Limits under full participation, of identical clients, and of FedAvg itself."""

import numpy as np
import pytest

from tests.references import (
    fedamp,
    fedavg,
    feddwa,
    fedprox,
    fedupdate,
    l2c,
    network,
    perfedavg,
    perfedavg_spfl,
    pfedla,
    scaffold,
    sfl,
    spfl,
    waffle,
    weight_erosion,
)
from tests.references.limits import attention, check, drawn, fedavg_of, local_of, uniform
from tests.references.local_sgd import sgd
from tests.references.small import (
    COUNT,
    RATES,
    ROUNDS,
    assert_same,
    flat,
    further_batches,
    identical,
    stack,
)

EVEN = np.full((ROUNDS, COUNT), 1 / COUNT)
ALONE = np.eye(COUNT)

# Those in which all clients take part.
FULL = {
    "fedupdate-no-steps": (
        lambda s: fedupdate.run(s, update_batches=further_batches(s), steps=0), "global", fedavg_of,
    ),
    "feddwa-trained-guidance": (
        lambda s: feddwa.run(s, guidance="trained", top_k=4), "personalized", local_of,
    ),
    "l2c-even": (
        lambda s: l2c.run(s, validation_batches=further_batches(s), logit_rate=0.0),
        "personalized", lambda s: fedavg_of(uniform(s)),
    ),
    "l2c-encoder-of-zeros": (
        lambda s: l2c.run(s, **attention(s, 0.0), logit_rate=0.0),
        "personalized", lambda s: fedavg_of(uniform(s)),
    ),
    "pfedla-even": (
        lambda s: pfedla.run(s, **drawn(), hypernetwork_rate=0.0), "personalized",
        lambda s: fedavg_of(uniform(s)),
    ),
    "scaffold-without-controls": (
        lambda s: scaffold.run(s.but(rounds=1)), "global",
        lambda s: fedavg_of(uniform(s))[:1],
    ),
    "sfl-even": (
        lambda s: sfl.run(
            s, graph=np.full((COUNT, COUNT), 1 / COUNT), layers=3, graph_weight=0.0,
            global_weight=0.0,
        ), "personalized", lambda s: fedavg_of(uniform(s)),
    ),
    "sfl-detached": (
        lambda s: sfl.run(s, graph=np.full((COUNT, COUNT), 1 / COUNT), detached=True),
        "personalized", lambda s: fedavg_of(uniform(s)),
    ),
    "spfl_w-even": (
        lambda s: spfl.run_weights(
            s, routine_batches=further_batches(s), body=("hidden",), weights=(0.0, 0.0)
        ), "personalized",
        lambda s: [models["global"] for models in perfedavg_spfl.run(uniform(s))],
    ),
    **{
        f"waffle-{rule}-{update}-even": (
            lambda s, rule=rule, update=update: waffle.run(
                s, forced=EVEN, control_rule=rule, control_update=update
            ), "alice",
            lambda s, update=update: [
                models["global"] for models in scaffold.run(s, control_update=update)
            ],
        )
        for rule in waffle.CONTROL_RULES for update in scaffold.CONTROL_UPDATES
    },
    **{
        f"waffle-{rule}-alone": (
            lambda s, rule=rule: waffle.run(
                s, alice=2, control_rule=rule, forced=[ALONE[2]] * ROUNDS
            ), "alice", lambda s: [models[2] for models in local_of(s)],
        )
        for rule in waffle.CONTROL_RULES
    },
    "weight_erosion-no-penalty": (
        lambda s: weight_erosion.run(s, distance_penalty=0.0), "alice",
        lambda s: fedavg_of(uniform(s)),
    ),
    "weight_erosion-large-penalty": (
        lambda s: weight_erosion.run(s, distance_penalty=1e3, alice=1), "alice",
        lambda s: [models[1] for models in local_of(s)],
    ),
}  # fmt: skip


@pytest.mark.parametrize("limit", FULL.values(), ids=FULL)
def test_limits_of_full_participation(setting, limit):
    check(limit, setting)


# With clients of the same samples and batches.
IDENTICAL = {
    "fedamp": (
        lambda s: fedamp.run(s, sigma=2.0, alpha=0.5, proximal_weight=1.2), "personalized",
        lambda s: [models["global"] for models in fedprox.run(s, proximal_weight=1.2)],
    ),
    "scaffold": (lambda s: scaffold.run(s), "global", fedavg_of),
    "waffle": (lambda s: waffle.run(s, total_rounds=100), "alice", fedavg_of),
    **{
        name: (
            lambda s, run=run: run(
                s, routine_batches=[[t[0]] * COUNT for t in further_batches(s)],
                body=("hidden",), gamma=2,
            ), "personalized",
            lambda s: [models["global"] for models in perfedavg_spfl.run(s)],
        )
        for name, run in (
            ("spfl", spfl.run), ("spfl-paper", spfl.run_paper), ("spfl_w", spfl.run_weights)
        )
    },
}  # fmt: skip


@pytest.mark.parametrize("limit", IDENTICAL.values(), ids=IDENTICAL)
def test_limits_of_identical_clients(setting, limit):
    check(limit, identical(setting))


@pytest.mark.parametrize("cohort", [[0, 1, 2, 3], [1, 3], [3]])
def test_one_step_of_fedavg_on_all_samples_follows_the_pooled_gradient(setting, cohort):
    whole = [[client["samples"]] for client in setting.clients]
    common = setting.but(cohorts=[cohort] * ROUNDS, batches=[whole] * ROUNDS)
    pooled = np.concatenate([setting.clients[i]["samples"] for i in cohort])
    model = setting.initial
    for models, rate in zip(fedavg.run(common), RATES, strict=True):
        model = sgd(model, [pooled], setting.x, setting.y, rate)
        assert_same(models["global"], model)


def test_heurfedamp_of_even_weights_without_a_pull_is_uniform_fedavg(setting):
    """All clients begin a round at the mean of all models."""
    even = fedamp.run(setting, heuristic=True, sigma=0.0, proximal_weight=0.0)
    for models, expected in zip(even, fedavg_of(uniform(setting)), strict=True):
        mean = stack(models["personalized"]).mean(axis=0)
        np.testing.assert_allclose(mean, flat(expected), rtol=1e-11, atol=1e-13)


def test_perfedavg_is_not_two_steps_on_the_same_minibatch(setting):
    """The SPFL paper's Per-FedAvg differs from it even where both minibatches are the same."""
    batch = setting.clients[3]["samples"]
    common = setting.but(rounds=1, cohorts=[[3]])
    (mine,) = perfedavg.run(common.but(batches=[[[[batch, batch]]] * COUNT]))
    (theirs,) = perfedavg_spfl.run(common.but(batches=[[[batch]] * COUNT]))
    gap = flat(mine["global"]) - flat(theirs["global"])
    _, g = network.loss_and_gradient(setting.initial, setting.x[batch], setting.y[batch])
    np.testing.assert_allclose(gap, RATES[0] * flat(g), rtol=1e-10, atol=1e-15)
