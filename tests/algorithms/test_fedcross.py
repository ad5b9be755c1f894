"""FedCross against its reference: dealing, partners, late members; its limits."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import fedjax_pfl as pfl
from fedjax_pfl.testing.toys import assert_close, run_rounds, states_of, toy_federation
from fedjax_pfl.utils import keys
from tests.algorithms.harness import PATTERNS, Case, assert_models, assert_steps, over
from tests.references import fedcross

VARIANTS = {
    "lowest": {},
    "in_order": {"partner": "in_order", "alpha": 0.6, "warmup_rounds": 1},
    "highest": {"partner": "highest", "alpha": 0.8},
}


def algorithm(**settings):
    return pfl.make_algorithm("fedcross", settings)


def dealt(case):
    """Per round, the member of each middleware model, as the library draws it."""
    rounds = []
    for t in range(case.rounds):
        cohort = case.cohort(t)
        order = cohort.order(keys.of_round(case.key, "dispatch", jnp.int32(t)))
        rounds.append(np.asarray(cohort.rows)[np.asarray(order)].tolist())
    return rounds


def compare(case, settings):
    common = case.common()
    wanted = fedcross.run(
        case.initial(), case.clients(), case.rounds, **common, dealt=dealt(case), **settings
    )
    states, records = case.run_rounds(algorithm(**settings))
    for t, (state, record, models) in enumerate(zip(states[1:], records, wanted, strict=True)):
        assert_models(state.models, models["models"], f"middleware models in round {t}")
        case.assert_one_model(record, models["global"])
        assert_steps(record, case.cohorts[t], common["batches"][t])
        matrix = np.eye(case.num_clients)
        alpha = settings.get("alpha", 0.99)
        for i, j in models["partners"].items():
            matrix[i, i] = alpha
            matrix[i, j] += 1 - alpha
        if t < settings.get("warmup_rounds", 0):
            present = case.present(t)
            matrix[present] = present / present.sum()
        np.testing.assert_allclose(record["matrices"]["mixing"], matrix, 1e-9)


@over(PATTERNS, [("partial-map", "lowest"), ("full-vmap", "in_order")], VARIANTS)
def test_reference(pattern, variant):
    compare(Case(**PATTERNS[pattern]), VARIANTS[variant])


@pytest.mark.thorough
@pytest.mark.parametrize(
    ("late", "settings"),
    [
        ({1: 1, 3: 2}, {"partner": "in_order", "alpha": 0.7}),
        ({0: 1, 1: 1, 3: 2, 4: 1}, {"alpha": 0.7, "warmup_rounds": 2}),
    ],
    ids=["in_order", "lowest"],
)
def test_models_of_late_members_wait(late, settings):
    case = Case(rounds=7, scored=False, stragglers=late)
    sizes = {len(cohort) for cohort in case.cohorts}
    assert len(sizes) > 1 and (min(sizes) == 1) == (len(late) == 4), sizes
    compare(case, settings)


@pytest.mark.thorough
def test_averaged_rounds_of_equal_clients_are_fedavg():
    federation = toy_federation((4, 4, 4), (2, 2, 2), validation_size=0)
    ours = states_of(algorithm(warmup_rounds=9), federation, 3)[-1].models
    plain = states_of(pfl.make_algorithm("fedavg"), federation, 3)[-1].server
    for k in range(3):
        assert_close(jax.tree.map(lambda leaf, k=k: leaf[k], ours), plain, f"model {k}")


@pytest.mark.thorough
def test_partners_follow_from_what_the_server_received():
    """The uploads of clients 0 and 3 become what they received, which has other neighbours."""
    for who, changed in ((0, True), (1, False), (3, True)):
        federations = (toy_federation(validation_size=0, withheld=one) for one in ((), (who,)))
        found = [run_rounds(algorithm(), one, 1, scored=())[1][0] for one in federations]
        mixing = [record["matrices"]["mixing"] for record in found]
        assert np.array_equal(*mixing) != changed


@pytest.mark.thorough
@pytest.mark.parametrize("options", [{"participation": 0.5, "sampling": "poisson"},
                                     {"arrivals": {0: 2}}])  # fmt: skip
def test_rounds_of_other_sizes_are_refused(options):
    federation = toy_federation(dtype="float32", **options)
    with pytest.raises(pfl.InputError, match="as many server models as a round has clients"):
        pfl.Simulation(pfl.make_algorithm("fedcross"), federation).check(1)


def test_one_member_trains_one_model():
    federation = toy_federation((6,), (3,), validation_size=0)
    ours = states_of(algorithm(alpha=0.3), federation, 2)[-1].models
    plain = states_of(pfl.make_algorithm("fedavg"), federation, 2)[-1].server
    assert_close(jax.tree.map(lambda leaf: leaf[0], ours), plain, "model", 1e-12)
