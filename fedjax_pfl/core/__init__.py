"""Names for authors of algorithms, such as `core.Algorithm`."""

from fedjax_pfl.aggregation.leaf_plan import LeafPlan
from fedjax_pfl.aggregation.sharing import SharedLayers
from fedjax_pfl.core.algorithm_registry import ALGORITHMS, algorithm, algorithm_name, make_algorithm
from fedjax_pfl.core.context import Context
from fedjax_pfl.core.interface import Algorithm
from fedjax_pfl.core.record import Record
from fedjax_pfl.core.requirements import require_features, require_whole_models
from fedjax_pfl.federation.federation import Federation
from fedjax_pfl.federation.participation import Cohort
from fedjax_pfl.models.task import Outputs
from fedjax_pfl.models.wrapped_task import WrappedTask
from fedjax_pfl.training.local_sgd import Trained
from fedjax_pfl.utils.errors import InputError, require, unknown_name
from fedjax_pfl.utils.structs import (
    Broadcast,
    number,
    per_client,
    per_pair,
    per_server,
    static,
    struct,
)
from fedjax_pfl.utils.typing import (
    Key,
    Mask,
    Matrix,
    Model,
    PerClient,
    PerMember,
    Rows,
    Scalar,
    Stack,
    Tree,
)

__all__ = [
    "ALGORITHMS",
    "Algorithm",
    "Broadcast",
    "Cohort",
    "Context",
    "Federation",
    "InputError",
    "Key",
    "LeafPlan",
    "Mask",
    "Matrix",
    "Model",
    "Outputs",
    "PerClient",
    "PerMember",
    "Record",
    "Rows",
    "Scalar",
    "SharedLayers",
    "Stack",
    "Trained",
    "Tree",
    "WrappedTask",
    "algorithm",
    "algorithm_name",
    "make_algorithm",
    "number",
    "per_client",
    "per_pair",
    "per_server",
    "require",
    "require_features",
    "require_whole_models",
    "static",
    "struct",
    "unknown_name",
]
