"""The federated data set on the device: one flat copy of the samples, and index lists per client.

Images are never padded or copied per client: samples are stored as loaded (mostly uint8), and
batches are gathered by index and scaled inside the compiled program.
"""

import hashlib
import math
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from fedjax_pfl.utils.errors import require
from fedjax_pfl.utils.structs import static, struct
from fedjax_pfl.utils.trees import NotHere
from fedjax_pfl.utils.typing import Rows, Scalar


@struct
class Split:
    """Which samples of the pool each client holds, for one of train, validation and test.

    Attributes:
      index: int32 [total], pool indices, client after client; None if it stays on the host.
      offset: int32 [N], where each client's part of `index` begins.
      size: int32 [N], samples of each client.
      capacity: the largest size (at least 1).
      total: samples of all clients.
      equal: whether all clients hold the same number, so that no lane waits for another.
      shards: how many equal parts `index` has, one for each device; see `FederatedData`. Offsets
        are then within a client's own part.
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
        """Samples of a client on average, rounded up; at least 1."""
        return max(-(-self.total // self.size.shape[0]), 1)

    def window(self, start: jax.Array, size: jax.Array) -> "Split":
        """Of each client the `size` [N] samples from position `start` [N] on; both may be traced.

        They must lie within the client's part: 0 <= start, start + size <= `self.size`. The
        capacity and the total stay those of the whole.
        """
        return replace(self, offset=self.offset + start, size=size, equal=False)


@struct
class Batch:
    """Samples of one minibatch: inputs [B, ...], labels int32 [B], and valid bool [B].

    Labels of tasks other than classification are int32 or float [B, K].
    """

    inputs: jax.Array
    labels: jax.Array
    valid: jax.Array


@struct
class FederatedData:
    """All clients' data.

    Attributes:
      samples: [n, d], each in one row: training samples, then test samples, in the type that they
        are stored in. uint16 and int32 are token ids, which are never scaled. In rows, because
        accelerators pad short last axes: a TPU would hold 28x28 pixels as 32x128. Rows may be
        longer than d; what follows is not read.
      labels: int32 [n]; [n, K], also float32, where samples have no classes.
      scale, shift: float, broadcast against one sample: input = sample * scale + shift.
      train, validation, test: the splits; `validation` may hold no samples.
      class_counts: int32 [N, C], training samples of each class; [N, 1], all of them, without.
      ids: int32 [N], permanent client ids.
      label_map: int32 [N, C] or None: the label that each client sees in place of a class.
      num_classes: C; 0 where samples have no classes.
      num_outputs: of a model, for one sample or one token.
      sample_shape: of one sample, such as (28, 28, 1); d numbers.
      shards: how many equal parts the pool has. Each device has its own, with the samples of its
        own clients (`home_of`), and programs see it where that device's clients are run. With one
        part every device has all samples.
      digest: of the content before it was divided into parts; else empty.
      there: int32 [M], the clients whose samples are there, or None for all.
      own: bool [N], the clients whose samples this process has, in its host's memory, or None for
        all (`federation.at_home`). Of others it has no part of the splits' indices either.
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
    there: jax.Array | None = None
    own: Any = None

    @property
    def num_clients(self) -> int:
        return self.ids.shape[0]

    @property
    def share(self) -> int:
        """Clients of one device, at most: as many one after the other have the same home."""
        return -(-self.num_clients // self.shards)

    def home_of(self, rows: Rows) -> Any:
        """The part of the pool, and number of the device, that has the samples of clients."""
        return rows // self.share

    def check_there(self, rows: Rows) -> None:
        """Raises `NotHere` unless the samples of clients are there: all, or those of `rows`."""
        if self.there is not None and rows is not self.there:
            raise NotHere("Fetched: the samples of other clients than those on the device.")

    def narrowed(self, whole: Rows, part: Rows) -> "FederatedData":
        """The same data for `part` of the rows `whole`: there too if the samples of these are."""
        return replace(self, there=part) if self.there is not None and self.there is whole else self

    def content(self) -> str:
        """SHA-256 of the data, the same wherever and in whatever parts they lie."""
        if self.digest:
            return self.digest
        total = hashlib.sha256()
        for leaf in map(np.asarray, jax.tree.leaves(self)):
            total.update(f"{leaf.dtype} {leaf.shape}".encode())
            total.update(np.ascontiguousarray(leaf).tobytes())
        return total.hexdigest()

    def input_dtype(self, dtype: str) -> np.dtype[Any]:
        """Type of the model's inputs: int32 for token ids, the type of the scale for all others."""
        tokens = self.samples.dtype in (np.uint16, np.int32)
        return jnp.dtype(jnp.int32 if tokens else dtype)

    def split(self, name: str | Split) -> Split:
        """A split by name; one that is given, such as a window, is returned as it is."""
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
        """One minibatch: positions [B] within the client's part of a split.

        Rows that are not valid repeat the client's first sample: another client's samples are never
        used, not even under a mask (0 times a NaN would be NaN). A client without any
        samples has no batch. `augment` changes the samples [B, ...] before they are scaled.
        """
        pool = self.places(split, row, jnp.where(valid, positions, 0))
        return self.batch(row, pool, valid, dtype, augment)

    def places(self, split: Split, row: Scalar | int, positions: jax.Array) -> jax.Array:
        """Where the pool has a client's samples at `positions` [B] within its part of a split.

        Raises:
          NotHere: the samples of this split are not on the device.
        """
        if split.index is None:
            raise NotHere("Fetched: samples of a split that is not on the device.")
        return _taken(split.index, _taken(split.offset, row) + positions)

    def batch(
        self,
        row: Scalar | int,
        pool: jax.Array,
        valid: jax.Array,
        dtype: str,
        augment: Callable[[jax.Array], jax.Array] | None = None,
    ) -> Batch:
        """The minibatch of samples of one client that are at `pool` [B]; see `fetch`."""
        rows = _taken(self.samples, pool)[..., : math.prod(self.sample_shape)]
        inputs = rows.reshape(*pool.shape, *self.sample_shape)
        if augment is not None:
            inputs = augment(inputs)
        inputs = inputs.astype(self.input_dtype(dtype))
        if jnp.issubdtype(inputs.dtype, jnp.floating):
            inputs = inputs * self.scale.astype(dtype) + self.shift.astype(dtype)
        labels = _taken(self.labels, pool)
        if self.label_map is not None:
            labels = self.label_map[row, labels]
        elif jnp.issubdtype(labels.dtype, jnp.floating):
            labels = labels.astype(dtype)
        return Batch(inputs, labels, valid)


def _taken(x: jax.Array | np.ndarray, rows: Scalar | jax.Array | int) -> jax.Array:
    """`x[rows]` of rows that are there: a TPU would check each gather's in a program of its own."""
    return jnp.asarray(x).at[rows].get(mode="promise_in_bounds", wrap_negative_indices=False)


def by_class(
    index: np.ndarray, offsets: np.ndarray, labels: np.ndarray, ids: np.ndarray, num_classes: int
) -> np.ndarray:
    """`index` with each client's part sorted by class, stably, in the client's own class order.

    If all clients had the same order, all would go from one class to the next in the same round,
    and the server's model would swing with them. In the published PLGA code each client has its
    classes in the order in which it drew them; here the permanent id decides.

    Args:
      labels: of the samples of `index`, [total].
      ids: permanent ids, [N].
    """
    owners = np.repeat(np.arange(len(ids)), np.diff(offsets))
    orders = [np.random.default_rng([int(i), 2023]).permutation(num_classes) for i in ids]
    return index[np.lexsort((np.stack(orders)[owners, labels], owners))]


def make_split(index: np.ndarray, offsets: np.ndarray) -> Split:
    """A `Split`, on the device, of flat pool indices and their offsets [N + 1]."""
    total = int(offsets[-1])
    require(total < 2**31, "samples that clients hold, together", total, "below 2^31")
    sizes = np.diff(offsets).astype(np.int32)
    return Split(
        index=jnp.asarray(index if len(index) else [0], np.int32),
        offset=jnp.asarray(offsets[:-1], np.int32),
        size=jnp.asarray(sizes),
        capacity=max(int(sizes.max(initial=0)), 1),
        total=int(sizes.sum()),
        equal=bool((sizes == sizes[0]).all()),
    )
