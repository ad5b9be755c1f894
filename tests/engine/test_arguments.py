"""The arguments of a simulation, and what they refuse."""

import numpy as np
import pytest

import fedjax_pfl as pfl
from fedjax_pfl import Adaptation, InputError
from fedjax_pfl.engine.arguments import checked_program
from fedjax_pfl.engine.runs import make_runs, swept_values
from fedjax_pfl.testing.toys import toy_federation
from tests.algorithms.field import ValidationLosses
from tests.engine.simulated import simulate

pytestmark = pytest.mark.usefixtures("double_precision")


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"rounds": 0}, "rounds must be a whole number of at least 1, got 0"),
        ({"rounds": 2.0}, r"rounds must be a whole number, got 2\.0"),
        ({"eval_every": 0}, r"eval_every must be .*at least 1, got 0"),
        ({"chunk": 0}, r"chunk must be .*at least 1, got 0"),
        ({"seeds": (0, -1)}, "seeds must be one or more whole numbers"),
        ({"seeds": (3, 0, 3)}, r"seeds must be different numbers, got \(3, 0, 3\)"),
        (
            {"stop": lambda progress: np.zeros(2)},
            "callback returns must be True, False or None",
        ),
        ({"stop": lambda: True}, "stop must be .* got one that can't take an argument"),
        ({"matrix_rounds": (0, 1)}, r"matrix_rounds must be rounds in 1\.\.3, got \[0\]"),
        ({"matrix_rounds": (4,)}, r"matrix_rounds must be rounds in 1\.\.3, got \[4\]"),
        ({"adapt": Adaptation(steps=-1)}, r"adapt_steps must be .*at least 0"),
    ],
)
def test_arguments_that_are_refused(options, message):
    with pytest.raises(InputError, match=message) as error:
        simulate(**{"rounds": 3} | options)
    assert "\n" not in str(error.value)


def test_a_hyperparameter_that_is_refused_has_its_algorithms_name():
    with pytest.raises(InputError, match=r"^ditto\.proximal_weight must be at least 0, got -1"):
        pfl.make_algorithm("ditto", {"proximal_weight": -1})


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"topk": (1,)}, "Unknown setting of 'feddwa' 'topk'. Did you mean 'top_k'"),
        ({"guidance": ("last",)}, "'guidance' of 'feddwa' is part of the program's structure"),
        ([{"top_k": 1}, {"mu": 2}], r"names in settings must be the same in each, as \['top_k'\]"),
        ({"top_k": range(300), "learning_rate": [0.1] * 300}, "Number of settings must be at most"),
        ({"top_k": ()}, "setting 'top_k' must be at least one value"),
        ({"top_k": (1, 0)}, "top_k must be at least 1, got 0"),
    ],
)
def test_settings_that_are_refused(settings, message):
    with pytest.raises(InputError, match=message):
        pfl.simulate(pfl.make_algorithm("feddwa"), toy_federation(), 1, settings=settings)


def test_settings_of_two_names_are_a_grid():
    grid = {"top_k": [1, 3], "learning_rate": np.array([0.1, 0.2, 0.4])}
    wanted = {"top_k": [1, 1, 1, 3, 3, 3], "learning_rate": [0.1, 0.2, 0.4] * 2}
    assert swept_values(grid) == wanted
    assert swept_values([{"top_k": 1, "mu": 2}, {"mu": 4, "top_k": 3}]) == {
        "top_k": [1, 3],
        "mu": [2, 4],
    }
    feddwa, federation = pfl.make_algorithm("feddwa"), toy_federation()
    made = make_runs(
        feddwa, federation, (0, 7), pfl.Simulation(feddwa, federation, settings=grid).settings
    )
    assert made.algorithm.top_k.tolist() == wanted["top_k"] * 2
    np.testing.assert_array_equal(made.numbers["learning_rate"], wanted["learning_rate"] * 2)


def runs(algorithm, **settings):
    return make_runs(algorithm, toy_federation(), (0,), settings)


def test_swept_floats_given_as_whole_numbers_are_floats():
    assert runs(pfl.make_algorithm("apfl"), alpha=(0, 1)).algorithm.alpha.dtype == np.float64


@pytest.mark.parametrize(
    ("algorithm", "clients", "message"),
    [
        ("fedavg", (0, 7), r"score_clients must be clients in 0\.\.4, got \[7\]"),
        ("fedavg", (), "score_clients must be at least one client"),
        ("fedavg", (4,), r"score_clients must be clients with test samples, got \[4\]"),
        ("waffle", (0, 3), r"clients that the algorithm makes a model for, got \[3\]"),
    ],
)
def test_clients_that_can_not_be_scored(algorithm, clients, message):
    with pytest.raises(InputError, match=message) as error:
        simulate(algorithm, score_clients=clients)
    assert "\n" not in str(error.value)


def test_scored_clients_are_named_by_their_permanent_ids():
    federation = toy_federation(order=np.array([3, 0, 4, 1, 2]))
    pfl.Simulation(
        pfl.make_algorithm("waffle", {"alice": 1}), federation, score_clients=(1,)
    ).check()
    with pytest.raises(InputError, match=r"with test samples, got \[4\]"):
        pfl.Simulation(pfl.make_algorithm("fedavg"), federation, score_clients=(3, 4)).check()


def test_swept_values_are_checked_against_the_federation():
    with pytest.raises(InputError, match=r"alice must be a client in 0\.\.4, got 9"):
        pfl.Simulation(
            pfl.make_algorithm("waffle"), toy_federation(), settings={"alice": (0, 9)}
        ).check()


@pytest.mark.parametrize("name", ["steps", "epochs", "batch_size"])
def test_an_adaptation_counts_in_numbers_of_python(name):
    """One of NumPy would give a loop another type than its counter has."""
    how = Adaptation(**{name: np.int64(2)})
    program = checked_program(pfl.make_algorithm("local"), toy_federation(), adapt=how)
    assert type(getattr(program.adapt, name)) is int


def test_an_adaptation_is_part_of_the_program():
    with pytest.raises(pfl.InputError, match="adapt must be hashable"):
        how = Adaptation(proximal_weight=np.array(0.5))
        pfl.Simulation(pfl.make_algorithm("local"), toy_federation(), adapt=how).check()


def test_an_algorithm_that_validates_needs_validation_samples():
    pfl.Simulation(ValidationLosses(), toy_federation(validation_size=1)).check()
    text = "ValidationLosses uses validation samples, and no client has any: partition.split_valida"
    with pytest.raises(InputError, match=text):
        pfl.Simulation(ValidationLosses(), toy_federation(validation_size=0)).check()
