"""Builds a federation out of a partitioned data set, a model and how clients train."""

from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from fedjax_pfl.aggregation.leaf_plan import creation_order, leaf_plan
from fedjax_pfl.aggregation.sharing import Rule
from fedjax_pfl.data.federated import FederatedData, by_class, make_split
from fedjax_pfl.data.partitions.partition import Partition
from fedjax_pfl.data.scaling import input_scaling
from fedjax_pfl.data.sources.registry import Dataset
from fedjax_pfl.errors import InputError, require, require_name, require_whole
from fedjax_pfl.execution.strategy import resolve_execution
from fedjax_pfl.federation.augmentation import Augmentation, resolve_augmentation
from fedjax_pfl.federation.extra_losses import ExtraLoss
from fedjax_pfl.federation.federation import Federation, initial_model
from fedjax_pfl.federation.optimizers import SGD
from fedjax_pfl.federation.participation import participation
from fedjax_pfl.federation.schedules import BATCH_ORDERS, Schedule
from fedjax_pfl.models.networks import make_model
from fedjax_pfl.models.task import Task, as_task
from fedjax_pfl.typing import Tree
from fedjax_pfl.values import number


def federate(
    dataset: Dataset,
    partition: Partition,
    model: Any = "cnn",
    *,
    learning_rate: float = 0.1,
    learning_rate_decay: float = 1.0,
    batch_size: int = 10,
    local_epochs: int = 1,
    local_steps: int | None = None,
    drop_last: bool = False,
    batch_order: str = "shuffled",
    momentum: float = 0.0,
    weight_decay: float = 0.0,
    optimizer: Callable | None = None,
    extra_loss: ExtraLoss | None = None,
    participation_fraction: float = 1.0,
    stragglers: dict[int, int] | None = None,
    straggler_schedule: str = "code",
    share: Rule | None = None,
    head: str | None = None,
    batch_norm: str | None = None,
    input_scaling_name: str = "default",
    augment: str | Augmentation | None = None,
    model_options: dict[str, Any] | None = None,
    initializer: str = "torch",
    client_execution: str | int = "auto",
    seed_execution: str = "auto",
    devices: int = 1,
    eval_batch_size: int = 100,
    dtype: str = "float32",
    compute_dtype: str | None = None,
    client_ids: np.ndarray | None = None,
) -> Federation:
    """Puts a partitioned data set and a model together.

    Args:
      dataset: samples and labels.
      partition: which samples each client holds.
      model: a name, a linen module, a `Task` or a pair (init, apply).
      learning_rate, learning_rate_decay: of the local SGD; the decay is per round.
      batch_size, local_epochs, local_steps, drop_last: the local `Schedule`; `local_steps` takes
        the place of epochs.
      batch_order: "shuffled" anew in each epoch; "partition", in the partition's order; or
        "by_class", class after class, in an order of the client's own (the published PLGA loader).
        The last two never shuffle, and a round goes on where the client's last one stopped, so all
        clients must take part.
      momentum, weight_decay: of plain SGD; or give an `optimizer` factory instead.
      extra_loss: added to the local loss of every algorithm, such as `WeightDistribution(10.0)`.
      participation_fraction: part of the clients in each round.
      stragglers, straggler_schedule: delays by client, see `participation`.
      share, head, batch_norm: the leaf plan, see `leaf_plan`; share and batch_norm are the
        algorithm's own unless they are given.
      input_scaling_name: "default", "half", "unit", "digits", "raw", "standard", "mnist", "cifar"
        or "feddwa_cifar", see `fedjax_pfl.data.scaling.SCALINGS`.
      augment: "crop_flip", "flip", a function of `fedjax_pfl.federation.augmentation`'s form, or
        None.
      model_options: options of a model given by name, such as {"hidden": 32}.
      initializer: "torch" or "flax", for models given by name.
      client_execution: "auto", "map", "vmap" or a chunk size.
      seed_execution: "auto", "map" or "vmap".
      devices: over how many local devices the client axis is dealt out.
      eval_batch_size: samples scored at once.
      dtype: floating type of parameters and inputs.
      compute_dtype: type that networks compute in, "bfloat16" or "float16"; parameters, updates,
        averages and losses stay in `dtype`.
      client_ids: int [N], permanent ids; 0..N-1 by default.

    Raises:
      InputError: whatever of this can't be; before anything is compiled.
    """
    learning_rate, learning_rate_decay = check_rates(learning_rate, learning_rate_decay)
    require_whole("eval_batch_size", eval_batch_size, 1)
    check_dtype(dtype)
    if compute_dtype is not None:
        check_dtype(compute_dtype)
    if optimizer is None:
        optimizer = SGD(momentum=momentum, weight_decay=weight_decay)
    if isinstance(optimizer, SGD):
        optimizer.validate()
    elif not callable(optimizer):
        given, allowed = type(optimizer).__name__, "a function learning_rate -> optax optimizer"
        require(False, "optimizer", given, allowed)
    require_name("batch_order", batch_order, BATCH_ORDERS)
    shuffle = batch_order == "shuffled"
    allowed = "a fraction in (0, 1]"
    participation_fraction = number("participation", participation_fraction, allowed, high=1)
    if not shuffle and participation_fraction < 1:
        raise InputError(
            f"batch_order {batch_order!r} needs a participation of 1, got {participation_fraction}:"
            " with sampling no formula tells where a client's last round stopped."
        )
    schedule = Schedule(local_epochs, local_steps, batch_size, drop_last=drop_last, shuffle=shuffle)
    schedule.validate()
    mapping = model_options is None or isinstance(model_options, Mapping)
    mapping = mapping and all(isinstance(name, str) for name in model_options or ())
    given, allowed = (
        type(model_options).__name__,
        "a dict such as {'hidden': 32}, with text for keys",
    )
    require(mapping, "model_options", given, allowed)
    if isinstance(model, str):
        options = {"vocab_size": getattr(dataset, "vocab_size", None), **(model_options or {})}
        shape, classes = dataset.input_shape, dataset.num_classes
        model = make_model(model, shape, classes, initializer, **options)
    else:
        require(not model_options, "model_options", model_options, "absent without a model's name")
    task = as_task(model, dtype)
    if compute_dtype is not None:
        task = replace(task, compute_dtype=compute_dtype)
    data = federated_data(
        dataset, partition, input_scaling_name, client_ids, batch_order == "by_class"
    )
    schedule.check_counts(data.train.capacity)
    augment = resolve_augmentation(augment, dataset.input_shape)
    statics = (("model", task), ("optimizer", optimizer), ("augment", augment))
    for name, static_value in statics:
        try:
            hash(static_value)
        except TypeError as error:
            raise InputError(f"{name} must be hashable (tuples for lists): {error}.") from error
    shapes, order = check_model(task, data)
    plan = leaf_plan(shapes, share=share, head=head, batch_norm=batch_norm, order=order)
    if extra_loss is not None:
        given, allowed = type(extra_loss).__name__, "an ExtraLoss such as WeightDistribution(10.0)"
        require(isinstance(extra_loss, ExtraLoss), "extra_loss", given, allowed)
        extra_loss.validate()
        extra_loss.check(shapes["params"], plan, data.num_classes)
        extra_loss = jax.tree.map(lambda number: np.asarray(number, dtype), extra_loss)
    execution = resolve_execution(client_execution, seed_execution, devices)
    execution = execution.fitted(schedule.total_steps(np.asarray(data.train.size)))
    return Federation(
        data=jax.device_put(data),
        participation=participation(
            data.num_clients, participation_fraction, stragglers, straggler_schedule
        ),
        learning_rate=np.asarray(learning_rate, dtype),
        learning_rate_decay=np.asarray(learning_rate_decay, dtype),
        task=task,
        plan=plan,
        schedule=schedule,
        optimizer=optimizer,
        execution=execution,
        eval_batch_size=eval_batch_size,
        augment=augment,
        extra_loss=extra_loss,
    )


def check_rates(rate: Any, decay: Any) -> tuple[float, float]:
    """The local learning rate and its decay as numbers.

    Raises:
      InputError: they can't be that.
    """
    rate = number("learning_rate", rate, "a finite number of at least 0")
    decay = number("learning_rate_decay", decay, "in (0, 1]", high=1)
    require(decay > 0, "learning_rate_decay", decay, "in (0, 1]")
    return rate, decay


def check_dtype(dtype: str) -> None:
    """Raises `InputError` unless models and inputs can have that type."""
    names = ("float32", "float64", "bfloat16", "float16")
    require_name("dtype", dtype, names)
    if dtype == "float64" and not jax.config.jax_enable_x64:
        raise InputError(
            "dtype float64 needs JAX's 64-bit types: jax.config.update('jax_enable_x64', True)."
        )


def check_model(task: Task, data: FederatedData) -> tuple[Tree, list[str]]:
    """(shapes of one client's model, its blocks in order), after a dry run of its forward pass.

    Raises:
      InputError: the model can't take the data's samples, or does not return [B, C] logits.
    """
    sample = tuple(data.samples.shape[1:])
    inputs = jax.ShapeDtypeStruct((2, *sample), data.input_dtype(task.dtype))
    order = []

    def first_model():
        key = jax.random.key(0)
        order.extend(creation_order(task.init(key, jnp.zeros(inputs.shape, inputs.dtype))))
        return initial_model(task, data, key)

    try:
        model = jax.eval_shape(first_model)
        logits = jax.eval_shape(task.predict, model, inputs)
    except InputError:
        raise
    except Exception as error:
        reason = (str(error).strip() or type(error).__name__).splitlines()[0]
        raise InputError(f"The model can't take samples of shape {sample}: {reason}") from error
    shape = getattr(logits, "shape", None)
    if shape != (2, data.num_classes):
        got = type(logits).__name__ if shape is None else list(shape)
        raise InputError(
            f"The model must return logits [batch, {data.num_classes}] (one for each class), got "
            f"{got} for a batch of 2."
        )
    return model, order


def federated_data(
    dataset: Dataset,
    partition: Partition,
    input_scaling_name: str = "default",
    client_ids: np.ndarray | None = None,
    class_sorted: bool = False,
) -> FederatedData:
    """The data of all clients as host arrays, ready to be put on a device.

    `class_sorted` puts each client's training samples class after class.

    Raises:
      InputError: the partition does not fit the data set, or a scaling is unknown.
    """
    samples, labels = dataset.pool()
    partition.validate(len(labels), dataset.num_classes, labels)
    if not len(partition.train.idx):
        raise InputError(
            f"No client of the partition (rule {partition.rule!r}) holds a training sample, so "
            "there is nothing to train on."
        )
    scale, shift = input_scaling(input_scaling_name, dataset)
    ids = np.arange(partition.num_clients) if client_ids is None else np.asarray(client_ids)
    known = ids.dtype.kind in "iu" and ids.shape == (partition.num_clients,)
    distinct = known and len(set(ids.tolist())) == len(ids) and 0 <= ids.min() <= ids.max() < 2**31
    allowed = f"{partition.num_clients} distinct whole numbers in 0..2^31-1"
    require(distinct, "client_ids", ids.tolist(), allowed)
    counts = partition.class_counts(labels, dataset.num_classes, "train")
    label_map = partition.label_map
    train = partition.train.idx, partition.train.offsets
    if class_sorted:
        index = by_class(*train, np.asarray(labels)[train[0]], ids, dataset.num_classes)
        train = index, train[1]
    return FederatedData(
        samples=samples,
        labels=np.asarray(labels, np.int32),
        scale=np.asarray(scale, np.float32),
        shift=np.asarray(shift, np.float32),
        train=make_split(*train),
        validation=make_split(*partition.validation),
        test=make_split(*partition.test),
        class_counts=np.asarray(counts, np.int32),
        ids=ids.astype(np.int32),
        label_map=None if label_map is None else np.asarray(label_map, np.int32),
        num_classes=dataset.num_classes,
    )
