"""Guessed names are answered with what to write; all else about attributes stays as it was."""

import copy
import pickle
import re

import pytest

import fedjax_pfl as pfl
from fedjax_pfl._guesses import INSTEAD
from fedjax_pfl.testing.toys import toy_federation

OWNERS = {
    "pfl": pfl, "result": pfl.Result, "dataset": pfl.Dataset, "federation": pfl.Federation,
    "partition": pfl.Partition, "simulation": pfl.Simulation,
}  # fmt: skip
THINGS = {
    "pfl": pfl,
    "result": object.__new__(pfl.Result),
    "federation": toy_federation(dtype="float32"),
    "fedavg": pfl.make_algorithm("fedavg"),
}


@pytest.mark.parametrize(
    ("guess", "end"),
    [
        ("pfl.FedAvg", ": write pfl.make_algorithm('fedavg') or pfl.algorithms.FedAvg."),
        ("pfl.register_model", ": write pfl.models.register_model."),
        ("pfl.load_data", ": did you mean load_dataset?"),
        ("result.toCSV", ": write result.to_pandas().to_csv(FILE)."),
        ("result.worst_clients", ": write result.worst_decile()."),
        ("pfl.from_pandas", ": write pfl.dataset_from_arrays(NAME, X, Y)."),
        ("result.sumary", ": did you mean summary?"),
        ("result['accuracy']", ": write result.summary()['accuracy']."),
        ("[*result]", "object is not iterable"),
        ("fedavg.train", ": write pfl.simulate(algorithm, federation, rounds=20)."),
        ("federation.colour", "'Federation' object has no attribute 'colour'."),
        ("federation.__colour__", "'Federation' object has no attribute '__colour__'"),
    ],
)
def test_a_guess_is_answered(guess, end):
    with pytest.raises((AttributeError, TypeError)) as caught:
        eval(guess, THINGS)
    assert str(caught.value).endswith(end)
    assert getattr(caught.value, "obj", None) is None  # else Python adds a guess of its own


def test_answers_name_what_is_there():
    for answer in (answer for table in INSTEAD.values() for answer in table):
        owner, path = re.search(r"(\w+)\.([\w.]+)", answer).groups()
        thing = OWNERS[owner]
        for name in path.split(".") if owner == "pfl" else [path.partition(".")[0]]:
            known = name in getattr(thing, "__annotations__", ()) or hasattr(thing, name)
            known = known or name in getattr(thing, "__dataclass_fields__", ())
            assert known, answer
            thing = getattr(thing, name, None)


def test_objects_are_copied_and_a_failing_property_says_why():
    class Own(pfl.Algorithm):
        @property
        def rate(self):
            return self.colour

    algorithm = pickle.loads(pickle.dumps(THINGS["fedavg"]))
    assert algorithm == copy.deepcopy(algorithm) == THINGS["fedavg"]
    assert not hasattr(algorithm, "train")
    with pytest.raises(AttributeError, match="no attribute 'colour'"):
        _ = Own().rate
