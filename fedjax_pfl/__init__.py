"""Personalized federated learning: local training plus a mixing matrix, as one JAX program."""

from fedjax_pfl import algorithms, trees
from fedjax_pfl._version import __version__
from fedjax_pfl.aggregation import mixing, similarity
from fedjax_pfl.aggregation.sharing import SharedLayers
from fedjax_pfl.contract.algorithm import Algorithm
from fedjax_pfl.contract.context import Context, Record
from fedjax_pfl.contract.registry import ALGORITHMS, algorithm, make_algorithm
from fedjax_pfl.data.federated import Batch
from fedjax_pfl.data.partitions import rules  # noqa: F401 - registers the rules
from fedjax_pfl.data.partitions.partition import Partition
from fedjax_pfl.data.partitions.registry import (
    COMMON_OPTIONS,
    RULES,
    make_partition,
    parse_options,
    rule_options,
)
from fedjax_pfl.data.scaling import SCALINGS
from fedjax_pfl.data.sources.registry import DATASETS, Dataset, dataset_from_arrays, load_dataset
from fedjax_pfl.errors import InputError, OutputError, unknown_name
from fedjax_pfl.execution.packing import padding_efficiency
from fedjax_pfl.federation import options
from fedjax_pfl.federation.adaptation import Adaptation
from fedjax_pfl.federation.build import federate
from fedjax_pfl.federation.client import Client
from fedjax_pfl.federation.extra_losses import ExtraLoss, WeightDistribution, proximal
from fedjax_pfl.federation.federation import Federation
from fedjax_pfl.federation.local_training import LocalTraining
from fedjax_pfl.federation.schedules import Schedule, batch_indices
from fedjax_pfl.models.heads import TwoHeads
from fedjax_pfl.models.networks import MODELS
from fedjax_pfl.models.task import ForwardedBatch, FunctionTask, LinenTask, Outputs, Task
from fedjax_pfl.results.model_files import load_models, model_axes, save_models
from fedjax_pfl.results.result import Result
from fedjax_pfl.simulation.checkpoints import Checkpoints
from fedjax_pfl.simulation.chunks import Interrupted, Progress
from fedjax_pfl.simulation.memory import Memory
from fedjax_pfl.simulation.simulate import (
    check_memory,
    check_simulation,
    estimate_memory,
    simulate,
)
from fedjax_pfl.structs import Broadcast, per_client, per_pair, per_server, static, struct

__all__ = [
    "ALGORITHMS",
    "COMMON_OPTIONS",
    "DATASETS",
    "MODELS",
    "RULES",
    "SCALINGS",
    "Adaptation",
    "Algorithm",
    "Batch",
    "Broadcast",
    "Checkpoints",
    "Client",
    "Context",
    "Dataset",
    "ExtraLoss",
    "Federation",
    "ForwardedBatch",
    "FunctionTask",
    "InputError",
    "Interrupted",
    "LinenTask",
    "LocalTraining",
    "Memory",
    "OutputError",
    "Outputs",
    "Partition",
    "Progress",
    "Record",
    "Result",
    "Schedule",
    "SharedLayers",
    "Task",
    "TwoHeads",
    "WeightDistribution",
    "__version__",
    "algorithm",
    "algorithms",
    "batch_indices",
    "check_memory",
    "check_simulation",
    "dataset_from_arrays",
    "estimate_memory",
    "federate",
    "load_dataset",
    "load_models",
    "make_algorithm",
    "make_partition",
    "mixing",
    "model_axes",
    "options",
    "padding_efficiency",
    "parse_options",
    "per_client",
    "per_pair",
    "per_server",
    "proximal",
    "rule_options",
    "save_models",
    "similarity",
    "simulate",
    "static",
    "struct",
    "trees",
    "unknown_name",
]
