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
    fedala,
    fedamp,
    fedasync,
    fedavg,
    fedavg_async,
    feddwa,
    fedopt,
    ifca,
    l2c,
    lga,
    perfedavg,
    pfedla,
    pfedsim,
)
from tests.references.limits import (
    check,
    drawn,
    fedavg_of,
    local_of,
    punctual,
    uniform,
)
from tests.references.local_sgd import sgd
from tests.references.small import (
    COUNT,
    EVERYBODY,
    PARTIAL,
    RATES,
    ROUNDS,
    assert_same,
    further_batches,
)

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
    **{
        f"fedopt-{rule}-large-tau": (
            lambda s, rule=rule: fedopt.run(
                s, rule=rule, server_rate=1e14, tau=1e14, v0=0.0, b1=0.0
            ), "global", fedavg_of,
        )
        for rule in fedopt.RULES
    },
    **{
        f"apfl-{form}-global": (
            lambda s, form=form: apfl.run(s, form=form, alpha=0.4), "global", fedavg_of,
        )
        for form in apfl.FORMS
    },
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
    "cfl-loose": (
        lambda s: cfl.run(uniform(s), mean_below=0.0, first_split=0), "personalized",
        lambda s: fedavg_of(uniform(s)),
    ),
    "cfl-early": (
        lambda s: cfl.run(s, mean_below=np.inf, largest_above=0.0), "personalized",
        lambda s: fedavg_of(uniform(s)),
    ),
    "cfl-one-cluster": (
        lambda s: cfl.run(
            s, mean_below=np.inf, largest_above=0.0, first_split=0, max_clusters=1
        ), "personalized", lambda s: fedavg_of(uniform(s)),
    ),
    "fedala-weights-of-one": (
        lambda s: fedala.run(s, adaptation_batches=further_batches(s), weight_rate=0.0),
        "personalized", fedavg_of,
    ),
    "heurfedamp-own-weight": (
        lambda s: fedamp.run(s, heuristic=True, self_weight=1.0, proximal_weight=0.0),
        "personalized", local_of,
    ),
    "perfedavg-no-inner-step": (
        lambda s: perfedavg.run(
            s.but(batches=[[[[b[:0], b] for b in own] for own in t] for t in s.batches]),
            inner_rate=[0.0] * ROUNDS, outer_rate=RATES,
        ), "global", fedavg_of,
    ),
    "ifca-one-model": (
        lambda s: ifca.run(s.but(initial=[s.initial])), "personalized", fedavg_of,
    ),
    "l2c-one-hot": (
        lambda s: l2c.run(
            s, validation_batches=further_batches(s), logits=1e4 * ALONE, logit_rate=0.0
        ), "personalized", local_of,
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
}  # fmt: skip


@pytest.mark.parametrize("cohorts", [EVERYBODY, PARTIAL], ids=["full", "partial"])
@pytest.mark.parametrize("limit", LIMITS.values(), ids=LIMITS)
def test_limits(setting, limit, cohorts):
    check(limit, setting.but(cohorts=cohorts))


@pytest.mark.parametrize("cohort", [[0, 1, 2, 3], [1, 3], [3]])
def test_one_step_of_fedavg_on_all_samples_follows_the_pooled_gradient(setting, cohort):
    whole = [[client["samples"]] for client in setting.clients]
    common = setting.but(cohorts=[cohort] * ROUNDS, batches=[whole] * ROUNDS)
    pooled = np.concatenate([setting.clients[i]["samples"] for i in cohort])
    model = setting.initial
    for models, rate in zip(fedavg.run(common), RATES, strict=True):
        model = sgd(model, [pooled], setting.x, setting.y, rate)
        assert_same(models["global"], model)
