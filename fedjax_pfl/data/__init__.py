"""Data sets, their sources, and partitions of their samples among clients."""

from fedjax_pfl.data.corruptions import CORRUPTIONS
from fedjax_pfl.data.dataset import Dataset, dataset_from_arrays
from fedjax_pfl.data.partitions import rules  # noqa: F401 - registers the rules
from fedjax_pfl.data.partitions.feature_shift import FEATURE_SHIFTS, shift_features
from fedjax_pfl.data.partitions.importers import (
    IMPORTERS,
    detect_tool,
    import_partition,
    read_partition,
)
from fedjax_pfl.data.partitions.partition import Partition
from fedjax_pfl.data.partitions.rule_registry import (
    COMMON_OPTIONS,
    RULES,
    DealPlan,
    make_partition,
    parse_options,
    register_rule,
    rule_options,
)
from fedjax_pfl.data.partitions.statistics import partition_statistics
from fedjax_pfl.data.public_part import split_public
from fedjax_pfl.data.scaling import SCALINGS, input_scaling
from fedjax_pfl.data.sources import builtin  # noqa: F401 - registers the data sets
from fedjax_pfl.data.sources.source_registry import DATASETS, load_dataset, register_dataset

__all__ = [
    "COMMON_OPTIONS",
    "CORRUPTIONS",
    "DATASETS",
    "FEATURE_SHIFTS",
    "IMPORTERS",
    "RULES",
    "SCALINGS",
    "Dataset",
    "DealPlan",
    "Partition",
    "dataset_from_arrays",
    "detect_tool",
    "import_partition",
    "input_scaling",
    "load_dataset",
    "make_partition",
    "parse_options",
    "partition_statistics",
    "read_partition",
    "register_dataset",
    "register_rule",
    "rule_options",
    "shift_features",
    "split_public",
]
