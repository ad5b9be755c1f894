"""FML against its reference, its teachers, and its new clients."""

import pytest

import fedjax_pfl as pfl
from fedjax_pfl.testing.toys import TanhNetwork, assert_close, states_of, toy_federation
from tests.algorithms.comparison import Round, comparison
from tests.algorithms.harness import Case, assert_models
from tests.algorithms.newcomers import personalized
from tests.references import fml


def algorithm(**settings):
    return pfl.make_algorithm("fml", settings)


test_reference, test_contract = comparison(
    "fml",
    fml.run,
    variants={"unequal": {"alpha": 0.7, "beta": 0.2}, "uniform": {"weighting": "uniform"}},
    states={"server": "global", "own": "personalized"},
    scores={"global": "global", "personalized": "personalized"},
    steps=("batches", "batches"),
    check=Round.assert_mean,
)


def test_remark_on_alpha_one():
    federation = toy_federation()
    assert algorithm().remarks(federation) == []
    (said,) = algorithm(alpha=1).remarks(federation)
    assert said == "alpha is 1: what is scored was trained locally"


class TrainedOnly(TanhNetwork):
    """A network that predicts nothing in evaluation mode."""

    def __call__(self, x, train: bool = False):
        return super().__call__(x) * (1.0 if train else 0.0)


@pytest.mark.costly
def test_teachers_are_in_training_mode():
    """Equal models have nothing to teach each other."""
    federation = toy_federation(model=TrainedOnly(), validation_size=0)
    start, end = states_of(algorithm(alpha=0, beta=0), federation, 1)
    assert_close(end.own, start.own, "own", 1e-12)
    assert_close(end.server, start.server, "server", 1e-12)


@pytest.mark.costly
def test_new_clients_train_both_from_the_servers_model():
    case = Case(1, scored=False)
    start = case.initial("server")
    (batches,) = case.batches("personalize")
    wanted = [
        fml.train(start, start, batches[i], case.x, case.y, case.rates[0], 0.7, 0.5)[0]
        for i in range(case.num_clients)
    ]
    assert_models(personalized(algorithm(alpha=0.7), case), wanted, "new clients")
