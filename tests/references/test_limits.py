"""Limits in which two reference algorithms coincide, under full and partial participation.

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
    fedavg_async,
    fedavg_ft,
    fedavgm,
    fedbabu,
    feddwa,
    fedfomo,
    fedproto,
    fedprox,
    fedprox_ft,
    fedrep,
    ifca,
    l2c,
    lga,
    moon,
    mrmtl,
    perfedavg,
    perfedavg_spfl,
    pfedla,
    pfedme,
    pfedsim,
)
from tests.references.limits import check, drawn, fedavg_of, initial_of, local_of, punctual, uniform
from tests.references.small import COUNT, EVERYBODY, PARTIAL, RATES, ROUNDS, further_batches

NOTHING = [[[]] * COUNT] * ROUNDS
ALONE = np.eye(COUNT)


def test_no_file_imports_the_library_or_jax():
    for path in Path(__file__).parent.glob("*.py"):
        for node in ast.walk(ast.parse(path.read_text())):
            names = [a.name for a in node.names] if isinstance(node, ast.Import) else []
            if isinstance(node, ast.ImportFrom):
                names = [node.module or ""]
            roots = {name.split(".")[0] for name in names}
            assert not roots & {"jax", "jaxlib", "flax", "optax", "fedjax_pfl"}, path.name


# name: (run, the models compared, what they equal)
LIMITS = {
    "fedprox-no-term": (lambda s: fedprox.run(s, proximal_weight=0.0), "global", fedavg_of),
    "moon-no-term": (lambda s: moon.run(s, mu=0.0), "global", fedavg_of),
    "fedavgm": (
        lambda s: fedavgm.run(s, server_momentum=0.0, nesterov=False), "global", fedavg_of,
    ),
    "apfl-own": (
        lambda s: apfl.run(s, alpha=1.0, adapt="never"), "personalized", local_of,
    ),
    "apfl-shared": (
        lambda s: apfl.run(s, alpha=0.0, adapt="never"), "personalized", fedavg_of,
    ),
    "apple-own-core": (
        lambda s: apple.run(s, relations=ALONE, relation_rate=0.0, momentum=0.0),
        "personalized", local_of,
    ),
    "cfl-one-cluster": (
        lambda s: cfl.run(
            s, mean_below=np.inf, largest_above=0.0, first_split=0, max_clusters=1
        ), "personalized", lambda s: fedavg_of(uniform(s)),
    ),
    "ditto-global": (
        lambda s: ditto.run(s, personal_batches=further_batches(s), proximal_weight=0.7),
        "global", fedavg_of,
    ),
    "mrmtl-no-pull": (
        lambda s: mrmtl.run(s, proximal_weight=0.0), "personalized", local_of,
    ),
    "ditto-no-pull": (
        lambda s: ditto.run(s, personal_batches=further_batches(s), proximal_weight=0.0),
        "personalized",
        lambda s: local_of(s.but(batches=further_batches(s))),
    ),
    "fedala-weights-of-one": (
        lambda s: fedala.run(s, adaptation_batches=further_batches(s), weight_rate=0.0),
        "personalized", fedavg_of,
    ),
    "fedala-weights-of-zero": (
        lambda s: fedala.run(
            s, adaptation_batches=further_batches(s), top=("hidden", "head"), weight_rate=0.0,
            first_weight=0.0,
        ), "personalized", local_of,
    ),
    "fedamp-no-pull": (lambda s: fedamp.run(s, proximal_weight=0.0), "personalized", local_of),
    "perfedavg_spfl-one-step": (
        lambda s: perfedavg_spfl.run(s, steps=1), "global", fedavg_of,
    ),
    "perfedavg-no-inner-step": (
        lambda s: perfedavg.run(
            s.but(batches=[[[[b[:0], b] for b in own] for own in t] for t in s.batches]),
            inner_rate=[0.0] * ROUNDS, outer_rate=RATES,
        ), "global", fedavg_of,
    ),
    "fedrep-no-head-steps": (
        lambda s: fedrep.run(s, head_batches=NOTHING), "personalized",
        lambda s: [models["global"] for models in fedbabu.run(s)],
    ),
    "fedproto-no-term": (lambda s: fedproto.run(s, weight=0.0), "personalized", local_of),
    "fedfomo-nothing-downloaded": (lambda s: fedfomo.run(s, downloads=0), "trained", local_of),
    "fedfomo-no-validation": (lambda s: fedfomo.run(s), "trained", local_of),
    "ifca-one-model": (
        lambda s: ifca.run(s.but(initial=[s.initial])), "personalized", fedavg_of,
    ),
    "l2c-no-neighbours": (
        lambda s: l2c.run(
            s, validation_batches=further_batches(s), prune_after=0, neighbours=0
        ), "personalized", local_of,
    ),
    "lga-punctual": (lambda s: lga.run(punctual(s)), "global", fedavg_of),
    "fedasync-punctual": (
        lambda s: fedasync.run(punctual(s), alpha=0.3), "global", fedavg_of,
    ),
    "fedavg_async-punctual": (lambda s: fedavg_async.run(punctual(s)), "global", fedavg_of),
    "fedavg_sync-punctual": (
        lambda s: fedavg_async.run(punctual(s), synchronous=True), "global", fedavg_of,
    ),
    "fedprox_ft-no-term": (
        lambda s: fedprox_ft.run(
            s, proximal_weight=0.0, tuning_batches=further_batches(s)
        ), "personalized",
        lambda s: [
            models["personalized"]
            for models in fedavg_ft.run(s, tuning_batches=further_batches(s))
        ],
    ),
    "feddwa-small-steps": (
        lambda s: feddwa.run(
            s.but(learning_rate=[1e-3] * ROUNDS), top_k=1,
            guidance_batches=further_batches(s),
        ), "personalized", lambda s: local_of(s.but(learning_rate=[1e-3] * ROUNDS)),
    ),
    "pfedsim-warm-up": (lambda s: pfedsim.run(s, warm=ROUNDS), "global", fedavg_of),
    "pfedla-retained": (
        lambda s: pfedla.run(s, **drawn(), retained=2), "personalized", local_of,
    ),
    "pfedme-no-pull": (
        lambda s: pfedme.run(s, personal_rate=RATES, proximal_weight=0.0), "global", initial_of,
    ),
    "pfedme-no-server-rate": (
        lambda s: pfedme.run(s, personal_rate=[0.05] * ROUNDS, server_rate=0.0), "global",
        initial_of,
    ),
}  # fmt: skip


@pytest.mark.parametrize("cohorts", [EVERYBODY, PARTIAL], ids=["full", "partial"])
@pytest.mark.parametrize("limit", LIMITS.values(), ids=LIMITS)
def test_limits(setting, limit, cohorts):
    check(limit, setting.but(cohorts=cohorts))
