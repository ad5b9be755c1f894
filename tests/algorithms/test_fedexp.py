"""FedExP against its reference, and its limits."""

import numpy as np
import pytest

import fedjax_pfl as pfl
from fedjax_pfl.testing.toys import assert_close, run_rounds, states_of, toy_federation
from tests.algorithms.harness import PATTERNS, Case, assert_steps, over, sampled_federation
from tests.models.test_normalization import NormNet
from tests.references import fedexp

VARIANTS = {
    "average": {"epsilon": 1e-4},
    "last": {"epsilon": 0.0, "average_last": False, "weighting": "uniform"},
}


def algorithm(**settings):
    return pfl.make_algorithm("fedexp", settings)


@over(PATTERNS, [("partial-map", "average"), ("full-vmap", "last")], VARIANTS)
def test_reference(pattern, variant):
    case, settings = Case(**PATTERNS[pattern]), VARIANTS[variant]
    common = case.common()
    known = {name: value for name, value in settings.items() if name != "average_last"}
    wanted = fedexp.run(case.initial(), case.clients(), 3, **common, **known)
    states, records = case.run_rounds(algorithm(**settings))
    scored = "global" if variant == "last" else "average"
    for t, (record, models) in enumerate(zip(records, wanted, strict=True)):
        assert_close(states[t + 1].server["params"], models["global"], "global")
        np.testing.assert_allclose(record["scalars"]["server_rate"], models["rate"], 1e-9)
        case.assert_one_model(record, models[scored])
        assert_steps(record, case.cohorts[t], common["batches"][t])
        case.assert_whole_models(record, t)
        case.assert_mean(record, t, 1 if variant == "last" else None)
    if len(case.cohorts[0]) > 1:
        assert max(models["rate"] for models in wanted) > 1.01


@pytest.mark.thorough
def test_a_large_epsilon_is_fedavg():
    federation = sampled_federation()
    states, _ = run_rounds(algorithm(epsilon=1e9, average_last=False), federation)
    wanted, _ = run_rounds(pfl.make_algorithm("fedavg"), federation)
    for state, other in zip(states, wanted, strict=True):
        assert_close(state.server, other.server, "server")


@pytest.mark.thorough
def test_rounds_in_which_nobody_arrives_leave_both_models():
    late = dict.fromkeys(range(5), 1)  # on time in every third round alone
    states = states_of(algorithm(), toy_federation(stragglers=late), 5)
    assert_close(states[2].server, states[0].server, "before")
    assert_close(states[5].server, states[3].server, "after")
    assert_close(states[5].previous, states[2].server["params"], "the model before the last step")
    assert states[5].rate == 1


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"secure_bits": 32}, "server needs single models"),
        ({"aggregator": "median"}, "that an aggregator could"),
    ],
)
def test_sums_and_robust_rules_are_refused(options, message):
    """The step size needs the updates' squared norms, and would remain that of a plain mean."""
    with pytest.raises(pfl.InputError, match=message):
        pfl.Simulation(algorithm(), toy_federation(validation_size=0, **options)).check()


@pytest.mark.thorough
def test_running_statistics_are_averaged():
    federation = toy_federation(model=NormNet(), batch_norm="shared")
    ours, plain = (
        states_of(one, federation, 1)[-1].server["batch_stats"]
        for one in (algorithm(epsilon=0.0), pfl.make_algorithm("fedavg"))
    )
    assert_close(ours, plain, "statistics")
