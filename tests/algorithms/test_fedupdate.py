"""FedUpdate against its reference."""

from dataclasses import replace

import fedjax_pfl as pfl
from fedjax_pfl.testing.toys import assert_close
from tests.algorithms.harness import PATTERNS, Case, assert_models, assert_steps, over
from tests.references import fedupdate

VARIANTS = {
    "published": {},
    "three-steps": {"fine_tune_steps": 3},
    "three-steps-discarding": {"fine_tune_steps": 3, "discard_fine_tuned": True},
}


@over(PATTERNS, [("partial-map", "published"), ("full-vmap", "three-steps-discarding")], VARIANTS)
def test_reference(pattern, variant):
    case, settings = Case(**PATTERNS[pattern]), VARIANTS[variant]
    steps = settings.get("fine_tune_steps", 1)
    update = replace(case.federation.schedule, epochs=3, steps=steps)
    common, updates = case.common(), case.batches("update", update)
    wanted = fedupdate.run(
        case.initial(),
        case.clients(),
        3,
        **common,
        update_batches=updates,
        steps=steps,
        discard_fine_tuned=settings.get("discard_fine_tuned", False),
    )
    states, records = case.run_rounds(pfl.make_algorithm("fedupdate", settings))
    for t, (models, record) in enumerate(zip(wanted, records, strict=True)):
        assert_close(states[t + 1].server["params"], models["global"], "global")
        assert_models(states[t + 1].models, models["personalized"], "personalized")
        case.assert_two_models(record, models)
        case.assert_mean(record, t)
        case.assert_whole_models(record, t)
        assert_steps(record, case.cohorts[t], common["batches"][t], updates[t])
