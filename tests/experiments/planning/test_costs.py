"""Cycles and transfers of a round are added up, bodies of loops as often as they run."""

import jax
import pytest

import fedjax_pfl as pfl
from experiments.planning import costs, hlo
from fedjax_pfl.testing.toys import toy_federation
from tests.experiments.planning.programs import PROGRAM


def test_costs_of_a_round():
    result = costs.count(hlo.parse(PROGRAM))
    step = 7 + 4 * 5
    assert (result.step, result.steps) == (step, 2 * 3)
    assert result.rest == 23 + 2 * 11 + 6 * 13 + 17 + 1  # the last: the cheaper of what is seldom
    assert result.evaluation == 5 * 19  # what the last round alone scores is left out
    assert [name for name in result.unknown if "strange" in name] == result.unknown != []
    assert result.transfers == {"all-reduce": [6, 6 * 80], "all-gather": [1, 80]}
    assert result.cycles() == 6 * step + result.rest + 95
    assert result.cycles(eval_every=5) == 6 * step + result.rest + 19


@pytest.mark.parametrize(
    ("scope", "count"),
    [
        ("jit(f)/vmap(rounds[1])/while", ("rounds", 1)),
        ("jit(f)/a/vmap(vmap(steps[4.5]))/while", ("steps", 4.5)),
        ("jit(f)/turns[1e+06]/while", ("turns", 1e6)),
        ("jit(f)/segments[1]/while/body/batches[2]/while", ("batches", 2)),
        ("jit(f)/steps[45]/while/body/while", None),
        ("jit(f)/while", None),
    ],
)
def test_counts_of_scopes(scope, count):
    assert costs.counted(scope) == count


@pytest.mark.costly
@pytest.mark.parametrize(
    ("name", "ways"), [("fedavg", "vmap"), ("fedavg", "map"), ("fedavg", "2"), ("ifca", "vmap")]
)
def test_local_steps_of_a_real_program(name, ways):
    """As many as the schedule has, of both seeds, found by the names of the loops alone.

    Clients of IFCA score candidates in a round: batches of these are not local steps.
    """
    federation = toy_federation(
        dtype="float32", local_epochs=3, client_execution=ways, validation_size=0
    )
    lowered = pfl.Simulation(pfl.make_algorithm(name), federation, seeds=(0, 1)).lower(
        devices=jax.local_devices()[:1]
    )
    result = costs.count(hlo.parse(lowered.rounds.compile().as_text()))
    (one,) = result.loops
    assert "/evaluation/" not in one[0]
    lanes = lowered.federation.execution.lanes(federation.num_clients)
    steps = federation.steps()
    # Sizes are not known to the program: it takes all clients for as large as the mean.
    bound = 2 * max(steps.max(), steps.sum() / lanes)
    assert 0.8 * bound <= result.steps <= 1.4 * bound
    assert result.transfers == {} and not result.evaluation
