"""Personalized federated learning: local training plus a mixing matrix, as one JAX program."""

from fedjax_pfl import algorithms
from fedjax_pfl._version import __version__
from fedjax_pfl.algorithm import Algorithm, Context, Record
from fedjax_pfl.clients import Client, Shared
from fedjax_pfl.data import partition_rules  # noqa: F401 - registers the rules
from fedjax_pfl.data.federated import Batch
from fedjax_pfl.data.partition import Partition
from fedjax_pfl.data.partitions import make_partition
from fedjax_pfl.data.sources import Dataset, load_dataset
from fedjax_pfl.errors import InputError
from fedjax_pfl.evaluation import Adaptation
from fedjax_pfl.federation import Federation, federate
from fedjax_pfl.registry import METHODS, make_method, method
from fedjax_pfl.results import Result
from fedjax_pfl.schedules import Schedule, batch_indices
from fedjax_pfl.simulation import Progress, simulate
from fedjax_pfl.structs import per_client, per_pair, shared, static, struct

__all__ = [
    "METHODS",
    "Adaptation",
    "Algorithm",
    "Batch",
    "Client",
    "Context",
    "Dataset",
    "Federation",
    "InputError",
    "Partition",
    "Progress",
    "Record",
    "Result",
    "Schedule",
    "Shared",
    "__version__",
    "algorithms",
    "batch_indices",
    "federate",
    "load_dataset",
    "make_method",
    "make_partition",
    "method",
    "per_client",
    "per_pair",
    "shared",
    "simulate",
    "static",
    "struct",
]
