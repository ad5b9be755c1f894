"""Options of the network: its type, pretrained values, frozen layers and adapters."""

import copy
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from fedjax_pfl.aggregation.leaf_plan import LeafPlan, trainable
from fedjax_pfl.aggregation.leaf_plan_of_model import leaf_plan
from fedjax_pfl.aggregation.sharing import Rule, chosen
from fedjax_pfl.data.dataset import Dataset
from fedjax_pfl.data.partitions.partition import Partition
from fedjax_pfl.data.partitions.statistics import SPLITS
from fedjax_pfl.data.public_part import sample_hashes
from fedjax_pfl.federation.option_groups import OptionGroup, option
from fedjax_pfl.models.adapter_layers import B
from fedjax_pfl.models.adapters import parse_ranks, with_adapters
from fedjax_pfl.models.base_types import BASE_DTYPES
from fedjax_pfl.models.frozen_backbone import FrozenBackbone, values_held
from fedjax_pfl.models.model_registry import INITIALIZERS
from fedjax_pfl.models.networks import make_model
from fedjax_pfl.models.objectives import CLASSIFICATION, Objective, objective_of
from fedjax_pfl.models.pretrained import Match, facts_of, initial_values
from fedjax_pfl.models.task import Task, as_task
from fedjax_pfl.utils.errors import InputError, first_line, require, require_hashable
from fedjax_pfl.utils.typing import Tree

DTYPES = ("float32", "float64", "bfloat16", "float16")
CONVOLUTIONS = ("auto", "xla")


@dataclass(frozen=True)
class ModelOptions(OptionGroup):
    """Options of the clients' network."""

    model_options: dict[str, Any] | None = option(
        None, "options of a network given by name, such as {'hidden': 32}"
    )
    initializer: str = option(
        "torch",
        "distribution of initial parameters of a network given by name: {choices}",
        choices=INITIALIZERS,
    )
    initial_model: str | Path | Mapping[str, Any] | None = option(
        None,
        "values that models begin with, matched by the paths of leaves: a model, or an NPZ or "
        "safetensors file; under PyTorch's names they are converted",
    )
    names: dict[str, str] | None = option(
        None,
        "the network's layer for a layer of initial_model, such as {'conv1': 'conv_0'}",
        needs="initial_model",
    )
    partial: bool = option(
        False,
        "take what fits of initial_model and draw the other leaves, instead of refusing it",
        needs="initial_model",
    )
    objective: str | None = option(
        None,
        "loss and measures by name, such as 'regression' or your own, instead of those of the data "
        "set's task",
    )
    freeze: Rule | None = option(
        None,
        "layers that are never trained nor sent, kept once for all clients: 'head', 'body', or "
        "patterns of layers' names such as 'conv_*,fc' or, of adapters, 'body,*lora_a'",
    )
    lora_rank: int | None = option(
        None,
        "train low-rank adapters of that rank on frozen dense layers and convolutions, beside the "
        "head; the body is frozen unless freeze selects other layers",
        low=1,
    )
    lora_alpha: float | None = option(
        None, "scale of adapters, alpha / rank; default: the rank", needs="lora_rank or lora_ranks"
    )
    lora_layers: str = option(
        "*",
        "patterns of names of the frozen layers that have adapters, such as '*qkv,*proj'",
        needs="lora_rank or lora_ranks",
    )
    lora_ranks: str | Sequence[int] | None = option(
        None,
        "ranks by client, in turn by client id, such as '2,4,8', or by shares, '2:50%,8:50%'; "
        "lora_rank is the largest. Most algorithms need one rank for all",
    )
    cache_features: bool = option(
        False,
        "compute the features of a frozen body once for all samples, before training; the values "
        "of all frozen leaves must be given",
    )
    base_dtype: str | None = option(
        None,
        "type in which frozen parameters are held, converted where they are used: {choices}; int8 "
        "has a scale for each column; default: dtype",
        choices=BASE_DTYPES,
    )
    dtype: str = option("float32", "floating type of models and inputs: {choices}", choices=DTYPES)
    compute_dtype: str | None = option(
        None, "type of networks' computations, such as bfloat16; models stay in dtype",
        choices=DTYPES,
    )  # fmt: skip

    convolutions: str = option(
        "auto",
        "how convolutions are computed: {choices}; 'auto': on CPUs as matrix products or by "
        "minimal filtering, those of nn.Conv and nnx.Conv too",
        choices=CONVOLUTIONS,
    )

    def validate(self) -> None:
        if "float64" in (self.dtype, self.compute_dtype) and jnp.result_type(float) != jnp.float64:
            raise InputError(
                "dtype float64 needs JAX's 64-bit types: jax.config.update('jax_enable_x64', True)."
            )
        if self.lora_ranks is not None:
            allowed = f"absent or {self.rank}, the largest of lora_ranks"
            require(self.lora_rank in (None, self.rank), "lora_rank", self.lora_rank, allowed)
        _require_texts("model_options", self.model_options, "{'hidden': 32}, with text for keys")
        _require_texts("names", self.names, "{'conv1': 'conv_0'}, with names of layers")
        layers = (self.names or {}).values()
        fits = all(isinstance(layer, str) for layer in layers)
        require(fits, "names", self.names, "texts, the names of the network's layers")

    @property
    def ranks(self) -> tuple[int, ...]:
        """Ranks by client, see `WithAdapters`; () if all have the same."""
        return () if self.lora_ranks is None else parse_ranks(self.lora_ranks)

    @property
    def rank(self) -> int | None:
        """The adapters' rank, the largest of all clients; None without adapters."""
        return self.lora_rank if self.lora_ranks is None else max(self.ranks)

    def task(self, model: Any, dataset: Dataset) -> Task:
        """Return the task of a model for the data set's samples.

        Raises:
          InputError: unknown network, or it can't process the samples.
        """
        if isinstance(model, str):
            vocab_size = getattr(dataset, "vocab_size", None)
            options = {"vocab_size": vocab_size, **(self.model_options or {})}
            shape, outputs = dataset.input_shape, dataset.num_outputs
            options["per_token"] = self._objective(dataset).per_token
            model = make_model(model, shape, outputs, self.initializer, **options)
        else:
            allowed = "absent without a model's name"
            require(not self.model_options, "model_options", self.model_options, allowed)
            plain = type(self).__dataclass_fields__["initializer"].default
            allowed = f"{plain!r}, as the model draws its own values"
            require(self.initializer == plain, "initializer", self.initializer, allowed)
        task = as_task(model, self.dtype)
        plain = type(self).__dataclass_fields__["dtype"].default
        allowed = f"{task.dtype!r}, the model's own"
        require(self.dtype in (plain, task.dtype), "dtype", self.dtype, allowed)
        unset = task.objective == CLASSIFICATION and not dataset.has_classes
        if unset or self.objective is not None:
            task = _with_field(task, "objective", self._objective(dataset))
        if self.compute_dtype is not None:
            task = _with_field(task, "compute_dtype", self.compute_dtype)
        if self.convolutions != CONVOLUTIONS[0]:
            task = _with_field(task, "convolutions", self.convolutions)
        require_hashable("model", task)
        return task

    def _objective(self, dataset: Dataset) -> Objective:
        """Return the objective by name, or that of the data set's task.

        Raises:
          InputError: unknown name, or the objective does not fit the data set's labels.
        """
        if self.objective is None:
            return objective_of(dataset.task)
        objective, what = objective_of(self.objective), f"The objective {self.objective!r}"
        if objective.classes and not dataset.has_classes:
            raise InputError(f"{what} needs classes, and data set {dataset.name!r} has none.")
        shape = objective.shape(dataset.input_shape, dataset.num_outputs)
        count = max(shape) + 1  # prevents labels from being broadcast along another axis
        outputs = jax.ShapeDtypeStruct((count, *shape), jnp.float32)
        labels = jax.ShapeDtypeStruct((count, *dataset.train_y.shape[1:]), dataset.train_y.dtype)
        try:
            losses = jax.eval_shape(objective.losses, outputs, labels)
            statistics = jax.eval_shape(objective.sample_statistics, outputs, labels)
        except Exception as error:
            raise InputError(
                f"{what} can't take labels of {dataset.name!r}: {first_line(error)}"
            ) from error
        wanted = (count, objective.num_statistics) if objective.num_statistics else (count,)
        if losses.shape != (count,) or statistics.shape != wanted:
            raise InputError(
                f"{what} must have losses [{count}] and sample statistics {list(wanted)} for "
                f"{count} samples of {dataset.name!r}, got {list(losses.shape)} and "
                f"{list(statistics.shape)}."
            )
        return objective

    def notes(self, dataset: Dataset, partition: Partition) -> list[str]:
        """Return notes if clients hold samples that the initial model was trained on, or other ids.

        Raises:
          InputError: a damaged file.
        """
        _, seen = facts_of(self.initial_model)
        notes = []
        if self.initial_model is not None and dataset.vocabulary is not None:
            notes = ["token ids are of these clients' vocabulary, as the initial model's must be"]
        if not len(seen):
            return notes
        pool = np.concatenate([dataset.train_x, dataset.test_x])
        known = np.isin(sample_hashes(pool), seen)
        held = {name: partition.split(name).idx for name in SPLITS}
        parts = [
            f"{known[idx].sum():,} of {len(idx):,} {name} samples"
            for name, idx in held.items()
            if known[idx].any()
        ]
        if parts:
            notes.append(f"the initial model was trained on {', '.join(parts)} of the clients")
        return notes

    def with_pretrained(
        self, task: Task, shapes: Tree, order: Sequence[str], inputs: jax.ShapeDtypeStruct
    ) -> tuple[Task, dict[str, Any], Match | None]:
        """Return (task with pretrained and frozen leaves, pretrained values, their match).

        Args:
          task: task of the complete network.
          shapes: shapes of its leaves.
          order: its blocks in the network's order.
          inputs: shape of a batch.

        Raises:
          InputError: values do not fit, or frozen layers leave nothing to train.
        """
        values, match = {}, None
        if self.initial_model is not None:
            given = self.initial_model, task, shapes, inputs
            values, match = initial_values(*given, self.names or {}, self.partial)
        task = self._fixed(task, shapes, order, inputs, bool(values))
        return task, values_held(task, values), match

    def _fixed(
        self,
        task: Task,
        shapes: Tree,
        order: Sequence[str],
        inputs: jax.ShapeDtypeStruct,
        pretrained: bool,
    ) -> Task:
        """Return the task with frozen leaves and adapters; `pretrained`: values are given."""
        if self.rank is None:
            plan = leaf_plan(shapes, order=order)
            rule = "none" if self.freeze is None else self.freeze
            frozen = _selected(plan, plan.with_frozen(rule).frozen)
            self._check_base(frozen)
            fixed = FrozenBackbone.around(task, frozen, self.base_dtype)
            return fixed if pretrained or frozen else task
        own, of_adapters = _without_adapters("body" if self.freeze is None else self.freeze)
        plan = leaf_plan(shapes, order=order)
        frozen = _selected(plan, chosen(own, plan))
        named = self.rank, self.lora_alpha, self.lora_layers, self.ranks
        task = with_adapters(task, inputs, frozen, *named)
        if of_adapters:
            zeros = jnp.zeros(inputs.shape, inputs.dtype)
            plan = leaf_plan(jax.eval_shape(task.init, jax.random.key(0), zeros), order=order)
            selected = _selected(plan, chosen(of_adapters, plan))
            frozen += tuple(path for path in selected if path not in frozen)
            trained = any(trainable(path) for path in plan.paths if path not in frozen)
            require(trained, "freeze", self.freeze, "a rule that leaves something to train")
            zero = not pretrained and any(path.endswith(f"/{B}") for path in selected)
            allowed = f"without {B}: these factors are zero without a base that has others"
            require(not zero, "freeze", self.freeze, allowed)
        self._check_base(frozen)
        return FrozenBackbone.around(task, frozen, self.base_dtype)

    def _check_base(self, frozen: tuple[str, ...]) -> None:
        """Raise `InputError` if there is no base to be held in another type."""
        if self.base_dtype is not None:
            allowed = "absent without frozen layers (freeze, lora_rank)"
            require(bool(frozen), "base_dtype", self.base_dtype, allowed)
            allowed = "absent with cache_features, which holds no base"
            require(not self.cache_features, "base_dtype", self.base_dtype, allowed)


def _without_adapters(rule: Rule) -> tuple[Rule, str]:
    """Return (a rule without patterns of adapters' leaves, those patterns)."""
    if not isinstance(rule, str):
        return rule, ""
    words = [word.strip() for word in rule.split(",")]
    patterns = [word for word in words if "lora" in word]
    return ",".join(w for w in words if w not in patterns) or "body", ",".join(patterns)


def _require_texts(name: str, options: Any, example: str) -> None:
    """Raise `InputError` unless an option is absent or a dict with text for keys."""
    fits = options is None or isinstance(options, Mapping)
    fits = fits and all(isinstance(key, str) for key in options or ())
    require(fits, name, type(options).__name__, f"a dict such as {example}")


def _selected(plan: LeafPlan, flags: Sequence[bool]) -> tuple[str, ...]:
    return tuple(path for path, on in zip(plan.paths, flags, strict=True) if on)


def _with_field(task: Task, name: str, value: Any) -> Task:
    """Return a copy with another field; a user's task may have an `__init__` of its own."""
    task = copy.copy(task)
    object.__setattr__(task, name, value)
    return task
