"""Networks by name, adapters of frameworks, objectives and metrics."""

from fedjax_pfl.models import layers, networks
from fedjax_pfl.models.base_file import write_base
from fedjax_pfl.models.equinox_task import EquinoxTask
from fedjax_pfl.models.heads import TwoHeads
from fedjax_pfl.models.metrics import METRICS, Metric, register_metric
from fedjax_pfl.models.networks import MODELS, make_model, register_model
from fedjax_pfl.models.nnx_task import NnxTask
from fedjax_pfl.models.objectives import OBJECTIVES, Objective, register_objective
from fedjax_pfl.models.pretrained import from_torch
from fedjax_pfl.models.task import FunctionTask, LinenTask, Outputs, Task
from fedjax_pfl.models.wrapped_task import WrappedTask
from fedjax_pfl.utils.metric_names import Measure

__all__ = [
    "METRICS",
    "MODELS",
    "OBJECTIVES",
    "EquinoxTask",
    "FunctionTask",
    "LinenTask",
    "Measure",
    "Metric",
    "NnxTask",
    "Objective",
    "Outputs",
    "Task",
    "TwoHeads",
    "WrappedTask",
    "from_torch",
    "layers",
    "make_model",
    "networks",
    "register_metric",
    "register_model",
    "register_objective",
    "write_base",
]
