"""Federated data on the device: one copy of the samples, and index lists per client.

Images are neither padded nor copied per client: samples are stored as loaded (mostly uint8), and
minibatches are gathered by index and scaled inside the compiled program.
"""

import hashlib
import math
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from fedjax_pfl.data.drift import Drift
from fedjax_pfl.data.vocabulary import Vocabulary
from fedjax_pfl.utils.errors import require
from fedjax_pfl.utils.structs import static, struct
from fedjax_pfl.utils.trees import RowsNotOnDevice
from fedjax_pfl.utils.typing import Rows, Scalar


@struct
class Split:
    """The clients' samples of one split: train, validation or test.

    Attributes:
      index: int32 [total], pool indices, client after client; None if it stays on the host.
      offset: int32 [N], beginning of each client's part of `index`.
      size: int32 [N], number of samples of each client.
      capacity: the largest size (at least 1).
      total: number of samples of all clients.
      equal: whether all clients have the same number, so that no lane waits for another.
      shards: number of equal parts of `index`, one per device, see `FederatedData`. Offsets are
        then relative to the part of the client's device.
    """

    index: jax.Array
    offset: jax.Array
    size: jax.Array
    capacity: int = static()
    total: int = static()
    equal: bool = static()
    shards: int = static(default=1)

    @property
    def mean_size(self) -> int:
        """Mean number of samples per client, rounded up; at least 1."""
        return max(-(-self.total // self.size.shape[0]), 1)

    def window(self, start: jax.Array, size: jax.Array) -> "Split":
        """Return `size` [N] samples of each client from position `start` [N] on.

        Both may be traced, with 0 <= start and start + size <= `self.size`. Capacity and total are
        unchanged.
        """
        return replace(self, offset=self.offset + start, size=size, equal=False)


@struct
class Batch:
    """A minibatch.

    Attributes:
      inputs: [B, ...].
      labels: int32 [B]; int32 or float [B, K] for tasks other than classification.
      valid: bool [B], False for padding.
    """

    inputs: jax.Array
    labels: jax.Array
    valid: jax.Array


@struct
class FederatedData:
    """All clients' data.

    Attributes:
      samples: [n, d], one row per sample: training samples, then test samples, as stored. uint16
        and int32 are token ids, which are never scaled. They are rows because accelerators pad
        short last axes: a TPU would store 28x28 pixels as 32x128. Rows may be longer than d; the
        rest is padding.
      labels: int32 [n]; int32 or float32 [n, K] without classes.
      scale, shift: float, broadcast against one sample: input = sample * scale + shift; [N, ...]
        where clients have their own.
      train, validation, test: the splits; `validation` may hold no samples.
      class_counts: int32 [N, C], training samples per class; [N, 1] without classes.
      ids: int32 [N], permanent client ids.
      label_map: int32 [N, C] or None: the label that each client sees instead of a class.
      turns: int32 [N] or None: quarter turns, counterclockwise, of each client's images.
      tokens: int32 [V] or None: the model's id of each stored token id.
      vocabulary: limits by which `tokens` was fitted, or None.
      feature_names: see `Dataset`.
      scaling: name of the input scaling if it is fitted to training samples; otherwise empty.
      drift: concept drift, or None. The fields above are those of one round (`at_round`).
      num_classes: C; 0 without classes.
      num_outputs: number of a model's outputs for one sample or one token.
      sample_shape: shape of one sample, such as (28, 28, 1); d numbers.
      shards: number of equal parts of the pool. Each device has one part, with the samples of its
        own clients (`shard_of`). With one part every device has all samples.
      digest: hash of the content before it was divided into parts; otherwise empty.
      device_rows: int32 [M], the clients whose samples are on the device, or None for all.
      own: bool [N], the clients whose samples this process has in its host's memory, or None for
        all. It has no indices of other clients either.
    """

    samples: jax.Array
    labels: jax.Array
    scale: jax.Array
    shift: jax.Array
    train: Split
    validation: Split
    test: Split
    class_counts: jax.Array
    ids: jax.Array
    label_map: jax.Array | None
    num_classes: int = static()
    num_outputs: int = static()
    sample_shape: tuple[int, ...] = static()
    shards: int = static(default=1)
    digest: str = static(default="")
    scaling: str = static(default="")
    device_rows: jax.Array | None = None
    own: Any = None
    turns: jax.Array | None = None
    drift: Drift | None = None
    tokens: jax.Array | None = None
    vocabulary: Vocabulary | None = static(default=None)
    feature_names: tuple[str, ...] = static(default=())

    @property
    def num_clients(self) -> int:
        return self.ids.shape[0]

    @property
    def share(self) -> int:
        """Largest number of clients per device; consecutive clients share a device."""
        return -(-self.num_clients // self.shards)

    def shard_of(self, rows: Rows) -> Any:
        """Return the part of the pool, and thus the device, with the samples of clients."""
        return rows // self.share

    def require_rows(self, rows: Rows) -> None:
        """Raise `RowsNotOnDevice` unless the samples of the clients `rows` are on the device."""
        if self.device_rows is not None and rows is not self.device_rows:
            raise RowsNotOnDevice("samples of clients that are not on the device")

    def narrowed(self, rows: Rows, part: Rows) -> "FederatedData":
        """Return the same data for `part` of the clients `rows` that are on the device."""
        return replace(self, device_rows=part) if self.device_rows is rows else self

    def at_round(self, t: Scalar | int) -> "FederatedData":
        """Return the data as the clients have them in round `t`, counted from 0."""
        if self.drift is None:
            return self
        return replace(self, **self.drift.fields(self.drift.phase(t)))

    def before_drift(self, t: Scalar | int) -> "FederatedData":
        """Return the data of the phase before that of round `t`; in the first phase the same."""
        assert self.drift is not None
        phase = jnp.maximum(self.drift.phase(t) - 1, 0)
        return replace(self, **self.drift.fields(phase))

    def content(self) -> str:
        """Return the SHA-256 of the data, whatever their place and parts."""
        if self.digest:
            return self.digest
        total = hashlib.sha256()
        for leaf in map(np.asarray, jax.tree.leaves(self)):
            total.update(f"{leaf.dtype} {leaf.shape}".encode())
            total.update(np.ascontiguousarray(leaf).tobytes())
        return total.hexdigest()

    def input_dtype(self, dtype: str) -> np.dtype[Any]:
        """Return the type of the model's inputs: int32 for token ids, otherwise `dtype`."""
        tokens = self.samples.dtype in (np.uint16, np.int32)
        return jnp.dtype(jnp.int32 if tokens else dtype)

    def zero_inputs(self, dtype: str, count: int = 1) -> jax.Array:
        """Return a minibatch of zeros as a model receives it, [count, ...], to initialize it."""
        return jnp.zeros((count, *self.sample_shape), self.input_dtype(dtype))

    def split(self, name: str | Split) -> Split:
        """Return a split by name; a `Split`, such as a window, is returned unchanged."""
        if isinstance(name, Split):
            return name
        return {"train": self.train, "validation": self.validation, "test": self.test}[name]

    def fetch(
        self,
        split: Split,
        row: Scalar | int,
        positions: jax.Array,
        valid: jax.Array,
        dtype: str,
        augment: Callable[[jax.Array], jax.Array] | None = None,
    ) -> Batch:
        """Return the minibatch at positions [B] within the client's part of a split.

        Invalid rows repeat the client's first sample: another client's samples are never used, not
        even under a mask (0 times NaN is NaN). A client without samples has no minibatch.
        `augment` changes the samples [B, ...] before they are scaled.
        """
        pool = self.pool_indices(split, row, jnp.where(valid, positions, 0))
        return self.batch(row, pool, valid, dtype, augment)

    def scaling_of(self, row: Scalar | int) -> tuple[jax.Array, jax.Array]:
        """Return scale and shift of a client's samples."""
        if self.scale.ndim < 2:
            return self.scale, self.shift
        return self.scale[row], self.shift[row]

    def pool_indices(self, split: Split, row: Scalar | int, positions: jax.Array) -> jax.Array:
        """Return the pool indices of positions [B] within the client's part of a split.

        Raises:
          RowsNotOnDevice: the samples of this split are not on the device.
        """
        if split.index is None:
            raise RowsNotOnDevice("samples of a split that is not on the device")
        return _taken(split.index, _taken(split.offset, row) + positions)

    def batch(
        self,
        row: Scalar | int,
        pool: jax.Array,
        valid: jax.Array,
        dtype: str,
        augment: Callable[[jax.Array], jax.Array] | None = None,
    ) -> Batch:
        """Return the minibatch of one client's samples at pool indices [B]; see `fetch`."""
        rows = _taken(self.samples, pool)[..., : math.prod(self.sample_shape)]
        samples = rows.reshape(*pool.shape, *self.sample_shape)
        labels = self.seen_labels(row, _taken(self.labels, pool), dtype)
        return Batch(self.inputs(row, samples, dtype, augment), labels, valid)

    def inputs(
        self,
        row: Scalar | int,
        samples: jax.Array,
        dtype: str,
        augment: Callable[[jax.Array], jax.Array] | None = None,
    ) -> jax.Array:
        """Return stored samples [B, ...] as the model of a client sees them.

        They are changed in this order: quarter turns, `augment`, the model's token ids, scaling.
        """
        if self.turns is not None:
            samples = _turned(samples, self.turns[row])
        if augment is not None:
            samples = augment(samples)
        # Half precision is too coarse for large values that differ little, until they are scaled.
        wide = str(jnp.promote_types(dtype, jnp.float32))
        samples = samples.astype(self.input_dtype(wide))
        if self.tokens is not None:
            samples = _taken(self.tokens, samples)
        if jnp.issubdtype(samples.dtype, jnp.floating):
            scale, shift = self.scaling_of(row)
            samples = (samples * scale.astype(wide) + shift.astype(wide)).astype(dtype)
        return samples

    def seen_labels(self, row: Scalar | int, labels: jax.Array, dtype: str) -> jax.Array:
        """Return stored labels [B, ...] as a client has them, by `tokens` and `label_map`."""
        if self.tokens is not None and labels.ndim == 2:  # next tokens; -1 stands for none
            labels = jnp.where(labels < 0, labels, _taken(self.tokens, jnp.maximum(labels, 0)))
        if self.label_map is not None:
            return self.label_map[row, labels]
        return labels.astype(dtype) if jnp.issubdtype(labels.dtype, jnp.floating) else labels


def _taken(x: jax.Array | np.ndarray, rows: Scalar | jax.Array | int) -> jax.Array:
    """Return `x[rows]` without bounds checks, which cost time on a TPU."""
    return jnp.asarray(x).at[rows].get(mode="promise_in_bounds", wrap_negative_indices=False)


def _turned(images: jax.Array, turns: jax.Array) -> jax.Array:
    """Turn images [B, h, w, c] by quarter turns, 0 to 3 of them, counterclockwise."""
    images = jnp.where(turns & 2, images[:, ::-1, ::-1], images)
    if images.shape[1] != images.shape[2]:
        return images  # by half turns only
    return jnp.where(turns & 1, jnp.rot90(images, axes=(1, 2)), images)


def check_turns(turns: np.ndarray, shape: tuple[int, ...], half_turns: str) -> None:
    """Raise `InputError` unless samples of a shape can be turned by quarter turns.

    `half_turns` is the option that restricts them to half turns, such as "groups=2".
    """
    allowed = "that of images, (h, w, c)"
    require(len(shape) == 3, "Shape of a sample to rotate", shape, allowed)
    square = shape[0] == shape[1] or not (np.asarray(turns) & 1).any()
    require(
        square, "Shape of a sample to rotate by quarter turns", shape, f"square, or {half_turns}"
    )


def by_class(
    index: np.ndarray, offsets: np.ndarray, labels: np.ndarray, ids: np.ndarray, num_classes: int
) -> np.ndarray:
    """Sort each client's part of `index` by class, stably, in the client's own order of classes.

    With the same order for all clients, all would go from one class to the next in the same round.
    In the published PLGA code each client has its classes in the order in which it drew them; here
    the permanent id determines the order.

    Args:
      index: pool indices, client after client [total].
      offsets: beginning of each client's part, and the end [N + 1].
      labels: labels of the samples of `index` [total].
      ids: permanent ids [N].
      num_classes: C.
    """
    owners = np.repeat(np.arange(len(ids)), np.diff(offsets))
    orders = [np.random.default_rng([int(i), 2023]).permutation(num_classes) for i in ids]
    return index[np.lexsort((np.stack(orders)[owners, labels], owners))]


def make_split(index: np.ndarray, offsets: np.ndarray) -> Split:
    """Make a `Split` on the device of flat pool indices and their offsets [N + 1]."""
    total = int(offsets[-1])
    require(total < 2**31, "samples of all clients", total, "below 2^31")
    sizes = np.diff(offsets).astype(np.int32)
    return Split(
        index=jnp.asarray(index if len(index) else [0], np.int32),
        offset=jnp.asarray(offsets[:-1], np.int32),
        size=jnp.asarray(sizes),
        capacity=max(int(sizes.max(initial=0)), 1),
        total=int(sizes.sum()),
        equal=bool((sizes == sizes[0]).all()),
    )
