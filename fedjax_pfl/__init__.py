"""Simulator of personalized federated learning: clients, rounds and seeds in one JAX program."""

from contextlib import suppress
from importlib import import_module
from typing import TYPE_CHECKING, Any

from fedjax_pfl._version import __version__
from fedjax_pfl.aggregation import mixing, similarity
from fedjax_pfl.utils import trees
from fedjax_pfl.utils.boundary import name_arguments
from fedjax_pfl.utils.errors import InputError, OutputError

# isort: split
# Each package after those that it imports; the algorithms import the names above from here.
from fedjax_pfl import core, data, engine, models, results, training
from fedjax_pfl.core import Algorithm, Broadcast, Context, Record, make_algorithm
from fedjax_pfl.data import (
    Dataset,
    Partition,
    dataset_from_arrays,
    load_dataset,
    make_partition,
    read_partition,
)
from fedjax_pfl.engine import Callback, Checkpoints, LiveCurves, Progress, Simulation
from fedjax_pfl.engine.new_clients import score_new_clients, split_new_clients
from fedjax_pfl.engine.simulate import compile_all, simulate
from fedjax_pfl.federation import options
from fedjax_pfl.federation.build import federate
from fedjax_pfl.federation.federation import Federation
from fedjax_pfl.models import Task
from fedjax_pfl.results import Result, load_models, save_models
from fedjax_pfl.training import Adaptation, LocalTraining

# isort: split
from fedjax_pfl import _guesses, algorithms

if TYPE_CHECKING:
    from fedjax_pfl import testing

__all__ = [
    "Adaptation",
    "Algorithm",
    "Broadcast",
    "Callback",
    "Checkpoints",
    "Context",
    "Dataset",
    "Federation",
    "InputError",
    "LiveCurves",
    "LocalTraining",
    "OutputError",
    "Partition",
    "Progress",
    "Record",
    "Result",
    "Simulation",
    "Task",
    "__version__",
    "algorithms",
    "compile_all",
    "core",
    "data",
    "dataset_from_arrays",
    "engine",
    "federate",
    "load_dataset",
    "load_models",
    "make_algorithm",
    "make_partition",
    "mixing",
    "models",
    "options",
    "read_partition",
    "results",
    "save_models",
    "score_new_clients",
    "similarity",
    "simulate",
    "split_new_clients",
    "testing",
    "training",
    "trees",
]


for _class in (Algorithm, Dataset, Federation, Partition, Result, Simulation):
    _guesses.answer_guesses(_class)
for _part in (core, data, engine, models, options, results, training):
    for _class in map(vars(_part).__getitem__, _part.__all__):
        if hasattr(_class, "__dataclass_fields__") and "__init__" in vars(_class):  # its own
            _class.__init__ = name_arguments(_class.__init__)


def __getattr__(name: str) -> Any:
    """Import `testing` where it is used, as SciPy and chex take a third of a second.

    Raises:
      AttributeError: an unknown name; the message says what to write instead.
    """
    if name == "testing":
        return import_module("fedjax_pfl.testing")
    what = f"module 'fedjax_pfl' has no attribute {name!r}"
    if name.startswith("_"):
        raise AttributeError(what)
    parts = algorithms, core, data, engine, models, results, training
    ours = [f"{part.__name__}.{name}".replace("fedjax_pfl", "pfl")
            for part in parts if name in part.__all__]  # fmt: skip
    with suppress(InputError):
        ours.insert(0, f"pfl.make_algorithm({core.algorithm_name(name)!r})")
    raise AttributeError(what + _guesses.hint(__name__, name, __all__, ours), name=name)
