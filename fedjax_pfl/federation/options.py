"""The options of `federate` in groups, each of which builds its part of a federation."""

import copy
import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from fedjax_pfl.aggregation.leaf_plan import NORM_POLICIES, LeafPlan
from fedjax_pfl.aggregation.leaf_plan_of_model import leaf_plan
from fedjax_pfl.aggregation.sharing import Rule
from fedjax_pfl.data.dataset import Dataset
from fedjax_pfl.data.federated import FederatedData, by_class, check_turns, make_split
from fedjax_pfl.data.partitions.partition import Partition
from fedjax_pfl.data.scaling import FITTED, SCALINGS, SHARED, input_scaling, resolved_scaling
from fedjax_pfl.execution.lane_assignment import assign_lanes
from fedjax_pfl.execution.platforms import PLATFORMS, resolve_platform, row_length
from fedjax_pfl.execution.strategy import CLIENT_STATES, SEED_AXES, Execution, resolve_execution
from fedjax_pfl.federation.drift_options import DriftOptions
from fedjax_pfl.federation.local_training import RATES, SETTABLE, LocalTraining
from fedjax_pfl.federation.model_options import ModelOptions
from fedjax_pfl.federation.option_groups import Option, OptionGroup, declared, gathered, option
from fedjax_pfl.federation.participation_options import ParticipationOptions
from fedjax_pfl.federation.threat_options import ALLOWED, STRENGTHS, ThreatOptions
from fedjax_pfl.federation.upload_options import CompressionOptions, PrivacyOptions
from fedjax_pfl.models.metrics import Metric, check_metrics, names_for, resolve_metrics
from fedjax_pfl.models.task import Task
from fedjax_pfl.utils.conversions import number
from fedjax_pfl.utils.errors import InputError, require, require_classes
from fedjax_pfl.utils.registries import options_of
from fedjax_pfl.utils.typing import Tree

__all__ = [
    "GROUPS",
    "RATES",
    "SETTABLE",
    "STRENGTHS",
    "CompressionOptions",
    "DriftOptions",
    "ExecutionOptions",
    "InputOptions",
    "LocalTraining",
    "ModelOptions",
    "Option",
    "ParticipationOptions",
    "PrivacyOptions",
    "ScoringOptions",
    "SharingOptions",
    "ThreatOptions",
    "declared",
    "gathered",
    "names_for",
    "options_of",
]
LARGE = 30  # beyond it a number of a table slows or breaks training at usual rates


@dataclass(frozen=True)
class SharingOptions(OptionGroup):
    """Options of shared leaves, see `leaf_plan`."""

    batch_norm: str | None = option(
        None,
        "averaged part of normalization layers: {choices} ('local': nothing); default: the "
        "algorithm's",
        choices=NORM_POLICIES,
        called="batch-norm policy",
    )
    share: Rule | None = option(
        None,
        "layers that the server aggregates: 'all', 'none', 'head', 'body', or patterns of names "
        "such as 'head,*lora_a'; default: the algorithm's",
    )
    head: str | None = option(
        None, "name of the block of layers that classifies (default: the last one)"
    )

    def plan(self, shapes: Tree, order: Sequence[str]) -> LeafPlan:
        """Return the leaf plan of a model.

        Args:
          shapes: shapes of the model's leaves.
          order: its blocks in the network's order.

        Raises:
          InputError: no such block.
        """
        return leaf_plan(
            shapes, share=self.share, head=self.head, batch_norm=self.batch_norm, order=order
        )

    def notes(self, plan: LeafPlan) -> list[str]:
        """Return a sentence for tables on a policy that has no effect on a model."""
        if self.batch_norm is None or plan.normalized:
            return []
        return [f"batch_norm {self.batch_norm!r} has no effect without batch normalization"]


@dataclass(frozen=True)
class InputOptions(OptionGroup):
    """Options of the data: input scaling and client ids."""

    input_scaling: str | Sequence[Any] = option(
        "default",
        "how stored samples are scaled for the model: {choices}; or in Python a pair (mean, "
        "deviation) of known constants",
        choices=tuple(SCALINGS),
    )
    client_ids: np.ndarray | None = option(None, "int [N], permanent ids; 0..N-1 by default")

    def data(
        self,
        dataset: Dataset,
        partition: Partition,
        platform: str = "cpu",
        class_sorted: bool = False,
        on_host: bool = False,
        tokens: np.ndarray | None = None,
    ) -> FederatedData:
        """Return the data of all clients in the layout of a platform.

        Args:
          dataset: samples and labels.
          partition: the samples of each client.
          platform: such as "cpu".
          class_sorted: sort each client's training samples by class.
          on_host: keep the samples in host memory.
          tokens: the model's id of each stored token id, see `Dataset.token_ids`.

        Raises:
          InputError: the partition does not fit the data set, or there is not one id per client.
        """
        samples, targets = dataset.pool()
        labels = dataset.labels
        # No single device holds all samples of several processes, or those kept on the host.
        keep: Any = np.asarray if on_host else jnp.asarray
        partition.validate(len(labels), dataset.num_classes, labels)
        if not len(partition.train.idx):
            raise InputError(
                f"No client of the partition (rule {partition.rule!r}) holds a training sample, so "
                "there is nothing to train on."
            )
        scale, shift = input_scaling(self.input_scaling, dataset, partition)
        scaling = resolved_scaling(self.input_scaling, dataset)
        ids = self.ids(partition.num_clients)
        counts = partition.class_counts(labels, dataset.num_classes, "train")
        label_map, turns = partition.label_map, partition.turns
        if turns is not None:
            check_turns(turns, dataset.input_shape, "groups=2")
        train = partition.train.idx, partition.train.offsets
        if class_sorted:
            require_classes("batch_order 'by_class'", dataset.has_classes)
            index = by_class(*train, np.asarray(labels)[train[0]], ids, dataset.num_classes)
            train = index, train[1]
        rows = samples.reshape(len(samples), -1)
        longer = row_length(rows.shape[1], platform) - rows.shape[1]
        return FederatedData(
            samples=keep(np.pad(rows, ((0, 0), (0, longer))) if longer else rows),
            labels=jnp.asarray(targets),
            scale=jnp.asarray(scale, np.float32),
            shift=jnp.asarray(shift, np.float32),
            train=make_split(*train),
            validation=make_split(*partition.split("validation")),
            test=make_split(*partition.test),
            class_counts=jnp.asarray(counts, np.int32),
            ids=jnp.asarray(ids, np.int32),
            label_map=None if label_map is None else jnp.asarray(label_map, np.int32),
            num_classes=dataset.num_classes if dataset.has_classes else 0,
            num_outputs=dataset.num_outputs,
            sample_shape=tuple(dataset.input_shape),
            turns=None if turns is None else jnp.asarray(turns, np.int32),
            scaling=scaling if isinstance(scaling, str) and scaling in FITTED else "",
            tokens=None if tokens is None else jnp.asarray(tokens),
            vocabulary=dataset.vocabulary,
            feature_names=dataset.feature_names,
        )

    def notes(self, dataset: Dataset, private: bool) -> list[str]:
        """Return a sentence for tables on statistics that clients share, or should.

        Without `private` it may tell of samples.
        """
        if dataset.vocabulary is not None:
            return ["vocabulary of all clients' training samples"]
        x, raw = dataset.train_x, resolved_scaling(self.input_scaling, dataset) == "raw"
        table = x.ndim == 2 and x.dtype == np.float32 and not private
        if table and raw and max(x.max(initial=0), -x.min(initial=0)) > LARGE:
            return [f"some inputs exceed ±{LARGE} and are not scaled: try input_scaling='standard'"]
        if resolved_scaling(self.input_scaling, dataset) != SHARED:
            return []
        return ["inputs scaled by the mean and deviation of all clients' training samples"]

    def check_private(self, dataset: Dataset, partition: Partition, unit: str) -> None:
        """Raise `InputError` if privacy does not cover inputs, or a sample at several clients."""
        scaling = resolved_scaling(self.input_scaling, dataset)
        if unit == "none":
            return
        if dataset.vocabulary is not None:
            raise InputError(
                f"dp={unit!r} does not cover the vocabulary, which shows what the clients' texts "
                "are made of: take that of a public part, or give token ids of a known one."
            )
        if isinstance(scaling, str) and scaling in FITTED:
            raise InputError(
                f"dp={unit!r} does not cover input_scaling {scaling!r}, exact means and deviations "
                "of clients' samples: give known constants, input_scaling=(mean, deviation), or "
                "'raw' for samples that are scaled already."
            )
        shared = int(np.sum(np.bincount(partition.train.idx) > 1))
        if unit == "sample" and shared:
            raise InputError(
                f"dp='sample' states what a sample at one client costs, and {shared} training "
                "samples are held by several: take a partition without overlap."
            )

    def ids(self, count: int) -> np.ndarray:
        """Return the permanent ids of so many clients.

        Raises:
          InputError: there is not one for each.
        """
        require(count > 0, "Number of clients of the partition", count, "at least 1")
        ids = np.arange(count) if self.client_ids is None else np.asarray(self.client_ids)
        known = ids.dtype.kind in "iu" and ids.shape == (count,)
        distinct = known and len(set(ids.tolist())) == len(ids)
        distinct = distinct and 0 <= ids.min() <= ids.max() < 2**31
        allowed = f"{count} distinct whole numbers in 0..2^31-1"
        require(distinct, "client_ids", ids.tolist(), allowed)
        return ids


@dataclass(frozen=True)
class ScoringOptions(OptionGroup):
    """Options of scoring."""

    metrics: Sequence[str | Metric] | None = option(
        None,
        "metrics beside the task's main metric: names such as 'macro_f1', 'auc' or 'r2', or in "
        "Python a Metric of a function (outputs, labels, valid)",
    )

    def resolve(self, task: Task, data: FederatedData) -> tuple[Metric, ...]:
        """Return the metrics for a network's task and the clients' data.

        Raises:
          InputError: the task has no such metric, or a function is not a valid metric.
        """
        requested, objective = () if self.metrics is None else self.metrics, task.objective
        result = resolve_metrics(requested, objective, data.num_classes)
        outputs = objective.shape(data.sample_shape, data.num_outputs)
        labels = jax.ShapeDtypeStruct(data.labels.shape[1:], data.labels.dtype)
        check_metrics(result, jax.ShapeDtypeStruct(outputs, task.dtype), labels)
        return result


@dataclass(frozen=True)
class ExecutionOptions(OptionGroup):
    """Options of execution on devices; results are equal up to rounding."""

    client_execution: str | int = option(
        "auto",
        "execution of clients: 'map' (one after the other), 'vmap' (side by side), the number of "
        "clients that a device runs side by side, or 'auto'",
    )
    seed_execution: str = option("auto", "execution of seeds: {choices}", choices=SEED_AXES)
    devices: int = option(1, "devices that share the clients, or the runs, see mesh", low=1)
    mesh: str = option(
        "auto",
        "devices by axis, such as 'clients:4,runs:2'; runs are seeds and settings; 'auto': runs "
        "first, then clients",
    )
    eval_batch_size: int = option(100, "samples scored at once", low=1)
    client_state: str = option(
        "auto",
        "where clients' states are stored: {choices}; 'host': in host memory, or in a file if that "
        "is too small, with the cohort's rows on the device; 'auto': 'host' if 'device' does not "
        "fit",
        choices=CLIENT_STATES,
    )
    platform: str | None = option(
        None,
        "platform that programs are compiled for: {choices}; default: this process's",
        choices=PLATFORMS,
    )

    def execution(self, steps: np.ndarray) -> Execution:
        """Return the strategy for clients with a number of local steps [N] per round.

        Raises:
          InputError: unknown strategy, or more devices than are available.
        """
        resolved = resolve_execution(
            self.client_execution, self.seed_execution, self.devices, self.platform, self.mesh
        )
        return assign_lanes(replace(resolved, client_state=self.client_state), steps)

    def for_platform(self, task: Task) -> Task:
        """Return the task of the platform, for which its layers choose their form."""
        placed = copy.copy(task)  # no `replace`: a user's task may have an __init__ of its own
        object.__setattr__(placed, "platform", resolve_platform(self.platform))
        return placed


def checked_number(name: str, value: Any) -> float:
    """Return a number of a federation by the name that it has in settings, checked.

    Raises:
      InputError: it is out of the range of its option.
    """
    options = declared(LocalTraining) | declared(PrivacyOptions)
    if name in options:
        return options[name].check(value)
    value = number(name, value, "a finite number", -math.inf, math.inf)
    holds, allowed = ALLOWED.get(name.partition("_")[2], (math.isfinite, ""))  # of a strength
    require(holds(value), name, value, allowed)
    return value


# In the order of `federate` and of command lines.
GROUPS: tuple[type[OptionGroup], ...] = (
    ModelOptions,
    SharingOptions,
    LocalTraining,
    ParticipationOptions,
    DriftOptions,
    PrivacyOptions,
    ThreatOptions,
    CompressionOptions,
    InputOptions,
    ScoringOptions,
    ExecutionOptions,
)
