"""Features of a frozen body, computed once for all samples instead of in every local step."""

import hashlib
from collections.abc import Mapping
from dataclasses import replace
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from fedjax_pfl.aggregation.leaf_plan_of_model import paths_in_order
from fedjax_pfl.data.cache import cached_arrays
from fedjax_pfl.data.federated import FederatedData
from fedjax_pfl.execution.platforms import row_length
from fedjax_pfl.models.cached_features import DIFFERENT, HeadOnly, check_frozen_features
from fedjax_pfl.models.task import EVALUATION, Task
from fedjax_pfl.utils.errors import InputError
from fedjax_pfl.utils.typing import Tree

CHUNK = 256  # samples whose features are computed at once
COMPARED = 32  # samples whose features are computed in training and in evaluation


def with_cached_features(
    task: Task, data: FederatedData, model: Tree, values: Mapping[str, Any], platform: str
) -> tuple[Task, FederatedData]:
    """Return the task of the head, and data whose samples are the features of a frozen body.

    The features are kept in the user's cache folder under a hash of the samples, the weights and
    the first samples' features; the last of these detect a change of the network's code.

    Args:
      task: the task, with frozen leaves.
      data: the data of all clients.
      model: shapes of one client's model.
      values: pretrained values by path, of all frozen leaves.
      platform: such as "cpu".

    Raises:
      InputError: features depend on a client's model or on whether it is trained, the model does
        not define its features and its head, or frozen leaves are drawn.
    """
    zeros, key_0 = data.zero_inputs(task.dtype), jax.random.key(0)
    sample = jax.ShapeDtypeStruct(zeros.shape, zeros.dtype)
    shapes = jax.eval_shape(lambda: task.bound(values, None).frozen_leaves(key_0, zeros))
    drawn = [path for path in paths_in_order(shapes) if path not in values]
    if drawn:
        raise InputError(
            "cache_features needs one frozen body for all seeds, and initial_model (--init_from) "
            f"has no values of {', '.join(drawn[:3])}{' and others' if drawn[3:] else ''}."
        )
    frozen = {path: np.asarray(values[path]) for path in paths_in_order(shapes)}
    backbone = jax.jit(lambda given: task.bound(given, None).frozen_leaves(key_0, zeros))(frozen)
    batch = jax.eval_shape(lambda: data.zero_inputs(task.dtype, CHUNK))
    check_frozen_features(task.bound(values, backbone), model, batch)

    @partial(jax.jit, static_argnames="train")
    def apply(backbone, data, train):
        one = task.bound({}, backbone)
        first = jax.tree.map(lambda leaf: jnp.zeros(leaf.shape, leaf.dtype), model)
        pool = jnp.arange(len(data.samples), dtype=jnp.int32)
        inputs = data.batch(0, pool, pool >= 0, task.dtype).inputs
        mode = (True, key_0, pool >= 0) if train else EVALUATION
        return one.computed(one.embed, first, inputs, *mode)[0]

    def features(pool, train=False):
        part = replace(data, samples=np.asarray(data.samples[pool]), labels=data.labels[pool])
        return np.asarray(apply(backbone, part, train))

    count = len(data.samples)
    few = np.arange(min(count, COMPARED), dtype=np.int32)
    probe = features(few)
    if not np.array_equal(probe, features(few, train=True), equal_nan=True):
        raise InputError(DIFFERENT)
    key = hashlib.sha256(f"{jax.__version__} {[*frozen]}".encode())
    stored = jax.tree.leaves((data.samples, data.scale, data.shift, data.tokens))
    for array in map(np.asarray, [*stored, *frozen.values(), probe]):
        key.update(f"{array.dtype} {array.shape}".encode())
        key.update(np.ascontiguousarray(array).tobytes())

    def computed() -> dict[str, np.ndarray]:
        pools = np.arange(-(-count // CHUNK) * CHUNK, dtype=np.int32).reshape(-1, CHUNK)
        parts = [features(np.minimum(pool, count - 1)) for pool in pools]
        return {"features": np.concatenate(parts)[:count]}

    rows = cached_arrays("features", None, key.hexdigest(), computed, ("features",))["features"]
    shape, rows = rows.shape[1:], rows.reshape(len(rows), -1)
    longer = row_length(rows.shape[1], platform) - rows.shape[1]
    rows = np.pad(rows, ((0, 0), (0, longer))) if longer else rows
    kept = rows if isinstance(data.samples, np.ndarray) else jnp.asarray(rows)
    one, none = (jnp.asarray(x, np.float32) for x in (1, 0))
    changed = replace(data, samples=kept, scale=one, shift=none, tokens=None, sample_shape=shape)
    return HeadOnly.around(task, sample, replace(data, samples=data.samples[:0])), changed
