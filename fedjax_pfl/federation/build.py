"""Building federations from a partitioned data set, a model and options."""

from dataclasses import replace
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from fedjax_pfl.aggregation.leaf_plan_of_model import creation_order
from fedjax_pfl.data.dataset import Dataset
from fedjax_pfl.data.federated import FederatedData
from fedjax_pfl.data.partitions.feature_shift import with_corruption
from fedjax_pfl.data.partitions.partition import Partition
from fedjax_pfl.execution.platforms import resolve_platform
from fedjax_pfl.execution.processes import is_distributed
from fedjax_pfl.federation.batching import IN_ORDER
from fedjax_pfl.federation.feature_cache import with_cached_features
from fedjax_pfl.federation.federation import Federation
from fedjax_pfl.federation.option_groups import documented, gathered
from fedjax_pfl.federation.options import (
    GROUPS,
    DriftOptions,
    ExecutionOptions,
    InputOptions,
    LocalTraining,
    ModelOptions,
    ParticipationOptions,
    ScoringOptions,
    SharingOptions,
)
from fedjax_pfl.federation.threat_options import ThreatOptions
from fedjax_pfl.federation.upload_options import CompressionOptions, PrivacyOptions, uploads_of
from fedjax_pfl.models.task import Task
from fedjax_pfl.utils.boundary import checked
from fedjax_pfl.utils.errors import InputError, first_line, require
from fedjax_pfl.utils.jax_flags import check_jax_flags
from fedjax_pfl.utils.typing import Tree

WHOLE_BATCHES = "PFLlib trains without incomplete minibatches, as drop_last does"
PADDED = "batch statistics count a client's first sample again where a minibatch is incomplete"


@documented(*GROUPS)
@checked
def federate(
    dataset: Dataset, partition: Partition, model: Any = "cnn", **options: Any
) -> Federation:
    """Build a federation from a partitioned data set and a model.

    The options are declared in groups in `fedjax_pfl.options`.

    Args:
      dataset: samples and labels.
      partition: the samples of each client.
      model: a name, a linen, NNX or Equinox module, a `Task` or a pair (init, apply).
      **options: options of the groups in `fedjax_pfl.options`.

    Raises:
      InputError: a value is not allowed; raised before anything is compiled.
    """
    check_jax_flags()
    groups = gathered(GROUPS, options, "federate")
    training, cohorts = groups[LocalTraining], groups[ParticipationOptions]
    threat, ids = groups[ThreatOptions], groups[InputOptions].ids(partition.num_clients)
    seen = groups[ModelOptions].notes(dataset, partition)
    dealt = np.frombuffer(partition.content_hash(dataset.labels), np.uint8)
    dataset = with_corruption(dataset, partition)
    dataset, partition = threat.poisoned(dataset, partition, ids)
    if training.batch_order in IN_ORDER and cohorts.participation < 1:
        raise InputError(
            f"batch_order {training.batch_order!r} needs a participation of 1, got "
            f"{cohorts.participation}: with sampling no formula tells where a client's last round "
            "stopped."
        )
    if cohorts.changing and training.batch_order in IN_ORDER:
        raise InputError(
            f"batch_order {training.batch_order!r} needs the same clients in all rounds: give no "
            "arrivals or departures."
        )
    if cohorts.changing and groups[PrivacyOptions].dp == "client":
        raise InputError(
            "dp='client' accounts for a fixed set of clients: give no arrivals or departures."
        )
    groups[InputOptions].check_private(dataset, partition, groups[PrivacyOptions].dp)
    execution = groups[ExecutionOptions]
    platform = resolve_platform(execution.platform)
    tokens = dataset.token_ids(partition.train.idx)
    if tokens is not None:
        dataset = replace(dataset, vocab_size=int(tokens.max()) + 1)
    task = execution.for_platform(groups[ModelOptions].task(model, dataset))
    on_host = is_distributed() or execution.client_state == "host"
    data = groups[InputOptions].data(
        dataset,
        partition,
        platform,
        class_sorted=training.batch_order == "by_class",
        on_host=on_host,
        tokens=tokens,
    )
    data = groups[DriftOptions].drifting(data, dataset, partition)
    threat.check_concepts(data)
    shapes, order = check_model(task, data)
    parts = np.asarray(data.train.size) % training.batch_size
    ragged = training.schedule.poisson or (not training.drop_last and parts.any())
    padded = len(shapes) > 1 and not task.sees_padding() and bool(ragged)
    inputs = jax.eval_shape(lambda: data.zero_inputs(task.dtype))
    network, values, match = groups[ModelOptions].with_pretrained(task, shapes, order, inputs)
    if network is not task:
        task = network
        bound = task.bound(values, None)
        shapes = jax.eval_shape(bound.initial_model, jax.random.key(0), inputs)
    metrics = threat.metrics(dataset, partition)
    if groups[ModelOptions].cache_features:
        changed = training.augment is not None or any(one.changes is not None for one in metrics)
        if changed or data.turns is not None or data.scale.ndim > 1:
            raise InputError(
                "cache_features can't be combined with an augmentation, a backdoor or rotated "
                "clients, which change samples, nor with each client's own scaling."
            )
        task, data = with_cached_features(task, data, shapes, values, platform)
    plan = groups[SharingOptions].plan(shapes, order)
    training = training.fitted(data, plan, shapes["params"], task.dtype)
    steps = training.schedule.total_steps(np.asarray(data.train.size))
    participation = cohorts.build(data.num_clients)
    members = participation.cohort_size
    uploads = uploads_of(groups[PrivacyOptions], threat, groups[CompressionOptions], ids, members)
    return Federation(
        data=data if on_host else jax.device_put(data),  # see `distribute`
        participation=participation,
        training=training,
        network=task,
        initial_values=values if is_distributed() else jax.device_put(values),
        initial_match=match,
        plan=plan,
        execution=execution.execution(steps),
        eval_batch_size=execution.eval_batch_size,
        metrics=groups[ScoringOptions].resolve(task, data) + metrics,
        sample_privacy=groups[PrivacyOptions].of_samples(task.dtype),
        uploads=uploads,
        aggregator=threat.rule(int(participation.expected), ids),
        notes=(
            *seen,
            *[WHOLE_BATCHES] * (partition.rule == "pfllib" and not training.drop_last),
            *[PADDED] * padded,
            *groups[InputOptions].notes(dataset, groups[PrivacyOptions].dp != "none"),
            *groups[SharingOptions].notes(plan),
            *groups[DriftOptions].notes(),
            *cohorts.notes(),
            *threat.notes(ids),
            *groups[CompressionOptions].notes(),
        ),
        partition_hash=dealt,
        client_names=tuple(zip(np.asarray(data.ids).tolist(), partition.names, strict=False)),
    )


def check_model(task: Task, data: FederatedData) -> tuple[Tree, list[str]]:
    """Trace a model's forward pass; return (shapes of its leaves, its blocks in order).

    Raises:
      InputError: the model can't process the samples, or does not return [B, C] logits, or the
        outputs of another task.
    """
    sample, order = data.sample_shape, []
    inputs = jax.eval_shape(lambda: data.zero_inputs(task.dtype, 2))

    def first_model():
        key = jax.random.key(0)
        order.extend(creation_order(task.init(key, jnp.zeros(inputs.shape, inputs.dtype))))
        return task.initial_model(key, data.zero_inputs(task.dtype))

    try:
        model = jax.eval_shape(first_model)
        logits = jax.eval_shape(task.predict, model, inputs)
    except InputError:
        raise
    except Exception as error:
        raise InputError(
            f"The model can't take samples of shape {sample}: {first_line(error)}"
        ) from error
    shape, objective = getattr(logits, "shape", None), task.objective
    expected = objective.shape(sample, data.num_outputs)
    if shape != (2, *expected):
        actual = type(logits).__name__ if shape is None else list(shape)
        what = "logits" if objective.classes else "outputs"
        each = " (one for each class)" if objective.classes else f" for the task {objective.name}"
        raise InputError(
            f"The model must return {what} [batch, {', '.join(map(str, expected))}]{each}, got "
            f"{actual} for a batch of 2."
        )
    for path, leaf in jax.tree.leaves_with_path(model["params"]):
        where = f"Parameter {jax.tree_util.keystr(path)} of the model"
        require(jnp.issubdtype(leaf.dtype, jnp.floating), where, str(leaf.dtype), "of real numbers")
    if len(model) > 1 and np.dtype(task.dtype).itemsize < 4:
        _check_statistics(task, model, inputs)
    return model, order


def _check_statistics(task: Task, model: Tree, inputs: jax.ShapeDtypeStruct) -> None:
    """Raise `InputError` if training changes the type of a model's statistics."""
    mode = True, jax.random.key(0), jnp.ones(2, bool)
    after = jax.eval_shape(lambda m, x: task.outputs(m, x, *mode).statistics, model, inputs)
    for path, leaf in jax.tree.leaves_with_path(after):
        if leaf.dtype != task.dtype:
            raise InputError(
                f"dtype={task.dtype!r} can't hold the statistics {jax.tree_util.keystr(path)}, "
                f"which training computes in {leaf.dtype}: take compute_dtype={task.dtype!r}."
            )
