"""Personalized federated learning: local training plus a mixing matrix, as one JAX program."""

from fedjax_pfl import algorithms
from fedjax_pfl._version import __version__
from fedjax_pfl.aggregation import mixing, similarity
from fedjax_pfl.aggregation.leaf_plan import LeafPlan
from fedjax_pfl.aggregation.sharing import SharedLayers
from fedjax_pfl.core.algorithm import Algorithm
from fedjax_pfl.core.algorithm_registry import ALGORITHMS, algorithm, algorithm_name, make_algorithm
from fedjax_pfl.core.context import Context
from fedjax_pfl.core.record import Record
from fedjax_pfl.data.federated import Batch
from fedjax_pfl.data.partitions import rules  # noqa: F401 - registers the rules
from fedjax_pfl.data.partitions.foreign import read_partition, recognised
from fedjax_pfl.data.partitions.importers import IMPORTERS, import_partition
from fedjax_pfl.data.partitions.partition import Partition
from fedjax_pfl.data.partitions.rule_registry import (
    COMMON_OPTIONS,
    RULES,
    make_partition,
    parse_options,
    register_rule,
    rule_options,
)
from fedjax_pfl.data.partitions.statistics import partition_statistics
from fedjax_pfl.data.scaling import SCALINGS, input_scaling
from fedjax_pfl.data.sources.source_registry import (
    DATASETS,
    Dataset,
    dataset_from_arrays,
    load_dataset,
    prepare_tfds,
    register_dataset,
)
from fedjax_pfl.engine.callbacks import Callback, Progress
from fedjax_pfl.engine.checkpoints import Checkpoints
from fedjax_pfl.engine.lowered import Lowered
from fedjax_pfl.engine.memory import Memory
from fedjax_pfl.engine.new_clients import score_new_clients, without_new_clients
from fedjax_pfl.engine.progress import LiveCurves
from fedjax_pfl.engine.runs import MAX_RUNS, sweepable
from fedjax_pfl.engine.simulate import simulate
from fedjax_pfl.engine.simulation import RoundState, Simulation
from fedjax_pfl.execution.lane_assignment import padding_efficiency
from fedjax_pfl.federation import options
from fedjax_pfl.federation.adaptation import Adaptation
from fedjax_pfl.federation.batching import Schedule, batch_indices
from fedjax_pfl.federation.build import federate
from fedjax_pfl.federation.client import Client
from fedjax_pfl.federation.data_sharding import spread
from fedjax_pfl.federation.federation import Federation
from fedjax_pfl.federation.local_training import LocalTraining
from fedjax_pfl.federation.lr_schedules import LR_SCHEDULES, register_lr_schedule
from fedjax_pfl.federation.optimizers import OPTIMIZERS, SGD, register_optimizer
from fedjax_pfl.federation.regularizers import (
    ExtraLoss,
    WeightDistribution,
    estimated_class_shares,
    proximal,
)
from fedjax_pfl.models import layers, networks
from fedjax_pfl.models.equinox_task import EquinoxTask
from fedjax_pfl.models.heads import TwoHeads
from fedjax_pfl.models.metrics import METRICS, Metric, register_metric
from fedjax_pfl.models.networks import MODELS, make_model, register_model
from fedjax_pfl.models.nnx_task import NnxTask
from fedjax_pfl.models.objectives import OBJECTIVES, Objective, register_objective
from fedjax_pfl.models.task import Forward, ForwardedBatch, FunctionTask, LinenTask, Outputs, Task
from fedjax_pfl.models.torch_weights import from_torch
from fedjax_pfl.results.model_files import load_models, model_axes, save_models
from fedjax_pfl.results.result import Result
from fedjax_pfl.utils import trees
from fedjax_pfl.utils.errors import InputError, OutputError, unknown_name
from fedjax_pfl.utils.metric_names import Measure
from fedjax_pfl.utils.structs import Broadcast, per_client, per_pair, per_server, static, struct

__all__ = [  # noqa: RUF022 - grouped as the pages of the reference are
    "__version__",
    # Writing an algorithm
    "ALGORITHMS", "Algorithm", "Broadcast", "Client", "Context", "LeafPlan", "Record", "algorithm",
    "algorithm_name", "algorithms", "make_algorithm", "per_client", "per_pair", "per_server",
    "static", "struct",
    # Aggregation
    "SharedLayers", "mixing", "similarity", "trees",
    # The federation
    "Adaptation", "Batch", "ExtraLoss", "Federation", "LR_SCHEDULES", "LocalTraining", "OPTIMIZERS",
    "SGD", "Schedule", "WeightDistribution", "batch_indices", "estimated_class_shares", "federate",
    "options", "padding_efficiency", "proximal", "register_lr_schedule", "register_optimizer",
    "spread",
    # Data and partitions
    "COMMON_OPTIONS", "DATASETS", "Dataset", "IMPORTERS", "Partition", "RULES", "SCALINGS",
    "dataset_from_arrays", "import_partition", "input_scaling", "load_dataset", "make_partition",
    "parse_options", "partition_statistics", "prepare_tfds", "read_partition", "recognised",
    "register_dataset", "register_rule", "rule_options",
    # Models
    "EquinoxTask", "Forward", "ForwardedBatch", "FunctionTask", "LinenTask", "METRICS", "MODELS",
    "Measure", "Metric", "NnxTask", "OBJECTIVES", "Objective", "Outputs", "Task", "TwoHeads",
    "from_torch", "layers", "make_model", "networks", "register_metric", "register_model",
    "register_objective",
    # Simulating
    "Callback", "Checkpoints", "LiveCurves", "Lowered", "MAX_RUNS", "Memory", "Progress",
    "RoundState", "Simulation", "score_new_clients", "simulate", "sweepable", "without_new_clients",
    # Results
    "Result", "load_models", "model_axes", "save_models",
    # Errors
    "InputError", "OutputError", "unknown_name",
]  # fmt: skip
