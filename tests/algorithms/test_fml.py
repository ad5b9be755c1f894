"""FML against its reference, its teachers, and its new clients."""

import pytest

from fedjax_pfl.testing.toys import TanhNetwork, assert_close, states_of, toy_federation
from tests.algorithms.comparison import Round, comparison
from tests.algorithms.harness import maker
from tests.references import fml

algorithm = maker("fml")


def new_clients(one, made):
    """They train both models from the server's."""
    start, (batches, given) = one.wanted[-1]["global"], one.newcomers()
    return [fml.train(start, start, own, *given, 0.7, 0.2)[0] for own in batches]


test_reference, test_contract = comparison(
    "fml",
    fml.run,
    variants={"unequal": {"alpha": 0.7, "beta": 0.2}, "uniform": {"weighting": "uniform"}},
    states={"server": "global", "own": "personalized"},
    scores={"global": "global", "personalized": "personalized"},
    steps=("batches", "batches"),
    check=Round.assert_mean,
    new_clients=new_clients,
)


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
