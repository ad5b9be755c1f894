"""Limits in which two reference algorithms coincide.

An algorithm whose reference has the right limits, and which equals that reference in
tests/algorithms, has them too.
"""

import ast
from pathlib import Path

import numpy as np
import pytest

from tests.references import (
    apfl,
    apple,
    cfl,
    ditto,
    fedala,
    fedamp,
    fedasync,
    fedavg,
    fedavg_async,
    fedavg_ft,
    fedavgm,
    fedbabu,
    feddwa,
    fedfomo,
    fedopt,
    fedproto,
    fedprox,
    fedprox_ft,
    fedrep,
    fedupdate,
    ifca,
    l2c,
    l2c_encoder,
    lga,
    local,
    moon,
    network,
    perfedavg,
    perfedavg_spfl,
    pfedla,
    pfedme,
    scaffold,
    sfl,
    spfl,
    waffle,
    weight_erosion,
)
from tests.references.local_sgd import sgd
from tests.references.small import (
    COUNT,
    EVERYBODY,
    PARTIAL,
    RATES,
    ROUNDS,
    assert_same,
    flat,
    further_batches,
    identical,
    stack,
)

NOTHING = [[[]] * COUNT] * ROUNDS
EVEN = np.full((ROUNDS, COUNT), 1 / COUNT)
ALONE = np.eye(COUNT)


def test_no_file_imports_the_library_or_jax():
    for path in Path(__file__).parent.glob("*.py"):
        for node in ast.walk(ast.parse(path.read_text())):
            names = [a.name for a in node.names] if isinstance(node, ast.Import) else []
            if isinstance(node, ast.ImportFrom):
                names = [node.module or ""]
            roots = {name.split(".")[0] for name in names}
            assert not roots & {"jax", "jaxlib", "flax", "optax", "fedjax_pfl"}, path.name


def punctual(s):
    """The setting for references of late clients, none of whom is late."""
    rest = {name: value for name, value in s.items() if name != "cohorts"}
    return {**rest, "starts": s["cohorts"], "arrivals": s["cohorts"]}


def uniform(s):
    """All clients count as much, whatever their size."""
    return {**s, "sizes": [1] * COUNT}


def drawn(s):
    """Arguments of pFedLA: hypernetworks that weigh all clients alike."""
    rng = np.random.default_rng(5)
    pairs = [
        pfedla.random_hypernetwork(
            rng, embedding=4, hidden=6, blocks=2, clients=COUNT, weighting="softmax"
        )
        for _ in range(COUNT)
    ]
    embeddings, hypernetworks = map(list, zip(*pairs, strict=True))
    blocks = {"blocks": ("hidden", "head")}
    return {**s, **blocks, "embeddings": embeddings, "hypernetworks": hypernetworks}


def attention(s, factor):
    """Arguments of L2C with an attention whose parameters are multiplied by a factor."""
    encoder = l2c_encoder.random_encoder(np.random.default_rng(3), s["initial"], (3, 2))
    numbers = l2c_encoder.numbers(encoder)
    encoder = l2c_encoder.rebuilt(factor * numbers, encoder)
    return {**s, "validation_batches": further_batches(s), "encoder": encoder}


def fedavg_of(s):
    return [models["global"] for models in fedavg.run(**s)]


def local_of(s):
    return [models["personalized"] for models in local.run(**s)]


def initial_of(s):
    return [s["initial"]] * ROUNDS


# name: (run, the models compared, what they equal)
LIMITS = {
    "fedprox-no-term": (lambda s: fedprox.run(**s, mu=0.0), "global", fedavg_of),
    "moon-no-term": (lambda s: moon.run(**s, mu=0.0), "global", fedavg_of),
    "fedavgm-nesterov": (lambda s: fedavgm.run(**s, server_momentum=0.0), "global", fedavg_of),
    "fedavgm": (
        lambda s: fedavgm.run(**s, server_momentum=0.0, nesterov=False), "global", fedavg_of,
    ),
    **{
        f"fedopt-{rule}-large-tau": (
            lambda s, rule=rule: fedopt.run(
                **s, rule=rule, server_rate=1e14, tau=1e14, v0=0.0, b1=0.0
            ), "global", fedavg_of,
        )
        for rule in fedopt.RULES
    },
    **{
        f"apfl-{form}-global": (
            lambda s, form=form: apfl.run(**s, form=form, alpha=0.4), "global", fedavg_of,
        )
        for form in apfl.FORMS
    },
    "apfl-own": (
        lambda s: apfl.run(**s, alpha=1.0, adapt="never"), "personalized", local_of,
    ),
    "apfl-shared": (
        lambda s: apfl.run(**s, alpha=0.0, adapt="never"), "personalized", fedavg_of,
    ),
    "apple-own-core": (
        lambda s: apple.run(**s, relations=ALONE, relation_rate=0.0, momentum=0.0),
        "personalized", local_of,
    ),
    "cfl-loose": (
        lambda s: cfl.run(**uniform(s), mean_below=0.0, first_split=0), "personalized",
        lambda s: fedavg_of(uniform(s)),
    ),
    "cfl-early": (
        lambda s: cfl.run(**s, mean_below=np.inf, largest_above=0.0), "personalized",
        lambda s: fedavg_of(uniform(s)),
    ),
    "cfl-one-cluster": (
        lambda s: cfl.run(
            **s, mean_below=np.inf, largest_above=0.0, first_split=0, max_clusters=1
        ), "personalized", lambda s: fedavg_of(uniform(s)),
    ),
    "ditto-global": (
        lambda s: ditto.run(**s, personal_batches=further_batches(s), pull=0.7),
        "global", fedavg_of,
    ),
    "ditto-no-pull": (
        lambda s: ditto.run(**s, personal_batches=further_batches(s), pull=0.0), "personalized",
        lambda s: local_of({**s, "batches": further_batches(s)}),
    ),
    "fedala-weights-of-one": (
        lambda s: fedala.run(**s, adaptation_batches=further_batches(s), weight_rate=0.0),
        "personalized", fedavg_of,
    ),
    "fedala-weights-of-zero": (
        lambda s: fedala.run(
            **s, adaptation_batches=further_batches(s), top=("hidden", "head"), weight_rate=0.0,
            first_weight=0.0,
        ), "personalized", local_of,
    ),
    "fedamp-no-pull": (lambda s: fedamp.run(**s, pull=0.0), "personalized", local_of),
    "heurfedamp-own-weight": (
        lambda s: fedamp.run(**s, heuristic=True, self_weight=1.0, pull=0.0),
        "personalized", local_of,
    ),
    "fedupdate-no-steps": (
        lambda s: fedupdate.run(
            **s, update_batches=further_batches(s), steps=0, discard_fine_tuned=True
        ), "global", fedavg_of,
    ),
    "perfedavg_spfl-one-step": (
        lambda s: perfedavg_spfl.run(**s, steps=1), "global", fedavg_of,
    ),
    "perfedavg-no-inner-step": (
        lambda s: perfedavg.run(
            **{**s, "batches": [[[[b[:0], b] for b in own] for own in t] for t in s["batches"]]},
            inner_rate=[0.0] * ROUNDS, outer_rate=RATES,
        ), "global", fedavg_of,
    ),
    "fedrep-no-head-steps": (
        lambda s: fedrep.run(**s, head_batches=NOTHING), "personalized",
        lambda s: [models["global"] for models in fedbabu.run(**s)],
    ),
    "fedproto-no-term": (lambda s: fedproto.run(**s, weight=0.0), "personalized", local_of),
    "fedfomo-nothing-downloaded": (lambda s: fedfomo.run(**s, downloads=0), "trained", local_of),
    "fedfomo-no-validation": (lambda s: fedfomo.run(**s), "trained", local_of),
    "ifca-one-model": (
        lambda s: ifca.run(**{**s, "initial": [s["initial"]]}), "personalized", fedavg_of,
    ),
    "l2c-one-hot": (
        lambda s: l2c.run(
            **s, validation_batches=further_batches(s), logits=1e4 * ALONE, logit_rate=0.0
        ), "personalized", local_of,
    ),
    "l2c-no-neighbours": (
        lambda s: l2c.run(
            **s, validation_batches=further_batches(s), prune_after=0, neighbours=0
        ), "personalized", local_of,
    ),
    "lga-punctual": (lambda s: lga.run(**punctual(s)), "global", fedavg_of),
    "fedasync-punctual": (
        lambda s: fedasync.run(**punctual(s), alpha=0.3), "global", fedavg_of,
    ),
    "fedavg_async-punctual": (lambda s: fedavg_async.run(**punctual(s)), "global", fedavg_of),
    "fedavg_sync-punctual": (
        lambda s: fedavg_async.run(**punctual(s), synchronous=True), "global", fedavg_of,
    ),
    "fedprox_ft-no-term": (
        lambda s: fedprox_ft.run(**s, mu=0.0, tuning_batches=further_batches(s)), "personalized",
        lambda s: [
            models["personalized"]
            for models in fedavg_ft.run(**s, tuning_batches=further_batches(s))
        ],
    ),
    "feddwa-small-steps": (
        lambda s: feddwa.run(
            **{**s, "learning_rate": [1e-3] * ROUNDS}, top_k=1,
            guidance_batches=further_batches(s),
        ), "personalized", lambda s: local_of({**s, "learning_rate": [1e-3] * ROUNDS}),
    ),
    "pfedla-retained": (
        lambda s: pfedla.run(**drawn(s), retained=2), "personalized", local_of,
    ),
    "pfedme-no-pull": (
        lambda s: pfedme.run(**s, personal_rate=RATES, pull=0.0), "global", initial_of,
    ),
    "pfedme-no-server-rate": (
        lambda s: pfedme.run(**s, personal_rate=[0.05] * ROUNDS, server_rate=0.0), "global",
        initial_of,
    ),
}  # fmt: skip


def check(limit, setting):
    run, name, wanted = limit
    for models, expected in zip(run(setting), wanted(setting), strict=True):
        ours = [models[name]] if isinstance(models[name], dict) else models[name]
        theirs = [expected] * len(ours) if isinstance(expected, dict) else expected
        np.testing.assert_allclose(stack(ours), stack(theirs), rtol=1e-9, atol=1e-11)


@pytest.mark.parametrize("cohorts", [EVERYBODY, PARTIAL], ids=["full", "partial"])
@pytest.mark.parametrize("limit", LIMITS.values(), ids=LIMITS)
def test_limits(setting, limit, cohorts):
    check(limit, {**setting, "cohorts": cohorts})


# Those in which all clients take part.
FULL = {
    "feddwa-trained-guidance": (
        lambda s: feddwa.run(**s, guidance="trained", top_k=4), "personalized", local_of,
    ),
    "fedupdate-no-steps": (
        lambda s: fedupdate.run(**s, update_batches=further_batches(s), steps=0),
        "personalized", fedavg_of,
    ),
    "l2c-even": (
        lambda s: l2c.run(**s, validation_batches=further_batches(s), logit_rate=0.0),
        "personalized", lambda s: fedavg_of(uniform(s)),
    ),
    "l2c-encoder-of-zeros": (
        lambda s: l2c.run(**attention(s, 0.0), logit_rate=0.0),
        "personalized", lambda s: fedavg_of(uniform(s)),
    ),
    "pfedla-even": (
        lambda s: pfedla.run(**drawn(s), hypernetwork_rate=0.0), "personalized",
        lambda s: fedavg_of(uniform(s)),
    ),
    "scaffold-without-controls": (
        lambda s: scaffold.run(**{**s, "rounds": 1}), "global",
        lambda s: fedavg_of(uniform(s))[:1],
    ),
    **{
        f"sfl-even-{layers}": (
            lambda s, layers=layers: sfl.run(
                **s, graph=np.full((COUNT, COUNT), 1 / COUNT), layers=layers, graph_weight=0.0,
                global_weight=0.0,
            ), "personalized", lambda s: fedavg_of(uniform(s)),
        )
        for layers in (1, 3)
    },
    "sfl-detached": (
        lambda s: sfl.run(**s, graph=np.full((COUNT, COUNT), 1 / COUNT), detached=True),
        "personalized", lambda s: fedavg_of(uniform(s)),
    ),
    "spfl_w-even-one-step": (
        lambda s: spfl.run_weights(
            **s, routine_batches=further_batches(s), body=("hidden",), one_step=True,
            weights=(0.0, 0.0),
        ), "personalized", lambda s: fedavg_of(uniform(s)),
    ),
    "spfl_w-even": (
        lambda s: spfl.run_weights(
            **s, routine_batches=further_batches(s), body=("hidden",), weights=(0.0, 0.0)
        ), "personalized",
        lambda s: [models["global"] for models in perfedavg_spfl.run(**uniform(s))],
    ),
    **{
        f"waffle-{rule}-{update}-even": (
            lambda s, rule=rule, update=update: waffle.run(
                **s, forced=EVEN, control_rule=rule, control_update=update
            ), "alice",
            lambda s, update=update: [
                models["global"] for models in scaffold.run(**s, control_update=update)
            ],
        )
        for rule in waffle.CONTROL_RULES for update in scaffold.CONTROL_UPDATES
    },
    **{
        f"waffle-{rule}-alone": (
            lambda s, rule=rule: waffle.run(
                **s, alice=2, control_rule=rule, forced=[ALONE[2]] * ROUNDS
            ), "alice", lambda s: [models[2] for models in local_of(s)],
        )
        for rule in waffle.CONTROL_RULES
    },
    "weight_erosion-no-penalty": (
        lambda s: weight_erosion.run(**s, distance_penalty=0.0), "alice",
        lambda s: fedavg_of(uniform(s)),
    ),
    "weight_erosion-large-penalty": (
        lambda s: weight_erosion.run(**s, distance_penalty=1e3, alice=1), "alice",
        lambda s: [models[1] for models in local_of(s)],
    ),
}  # fmt: skip


@pytest.mark.parametrize("limit", FULL.values(), ids=FULL)
def test_limits_of_full_participation(setting, limit):
    check(limit, setting)


# With clients of the same samples and batches.
IDENTICAL = {
    "fedamp": (
        lambda s: fedamp.run(**s, sigma=2.0, alpha=0.5, pull=1.2), "personalized",
        lambda s: [models["global"] for models in fedprox.run(**s, mu=1.2)],
    ),
    "scaffold": (lambda s: scaffold.run(**s), "global", fedavg_of),
    "waffle": (lambda s: waffle.run(**s, total_rounds=100), "alice", fedavg_of),
    **{
        name: (
            lambda s, run=run: run(
                **s, routine_batches=[[t[0]] * COUNT for t in further_batches(s)],
                body=("hidden",), gamma=2,
            ), "personalized",
            lambda s: [models["global"] for models in perfedavg_spfl.run(**s)],
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
    whole = [[client["samples"]] for client in setting["clients"]]
    common = {**setting, "cohorts": [cohort] * ROUNDS, "batches": [whole] * ROUNDS}
    pooled = np.concatenate([setting["clients"][i]["samples"] for i in cohort])
    model = setting["initial"]
    for models, rate in zip(fedavg.run(**common), RATES, strict=True):
        model = sgd(model, [pooled], setting["x"], setting["y"], rate)
        assert_same(models["global"], model)


def test_heurfedamp_of_even_weights_without_a_pull_is_uniform_fedavg(setting):
    """All clients begin a round at the mean of all models."""
    even = fedamp.run(**setting, heuristic=True, sigma=0.0, pull=0.0)
    for models, expected in zip(even, fedavg_of(uniform(setting)), strict=True):
        mean = stack(models["personalized"]).mean(axis=0)
        np.testing.assert_allclose(mean, flat(expected), rtol=1e-11, atol=1e-13)


def test_perfedavg_is_not_two_steps_on_the_same_minibatch(setting):
    """The SPFL paper's Per-FedAvg differs from it even where both minibatches are the same."""
    batch = setting["clients"][3]["samples"]
    common = {**setting, "rounds": 1, "cohorts": [[3]]}
    (mine,) = perfedavg.run(**{**common, "batches": [[[[batch, batch]]] * COUNT]})
    (theirs,) = perfedavg_spfl.run(**{**common, "batches": [[[batch]] * COUNT]})
    gap = flat(mine["global"]) - flat(theirs["global"])
    _, g = network.loss_and_gradient(setting["initial"], setting["x"][batch], setting["y"][batch])
    np.testing.assert_allclose(gap, RATES[0] * flat(g), rtol=1e-10, atol=1e-15)
