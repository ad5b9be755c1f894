"""Agreement and data exchange of several processes that run one program.

Every process calls the functions here in the same order, with `jax.distributed` started, and never
while a round runs. In a single process they do nothing else than call their arguments.
"""

import contextlib
import json
import weakref
from collections.abc import Callable, Iterator
from functools import cache
from typing import Any, TypeVar

import jax
import numpy as np
from jax.experimental import multihost_utils
from jax.sharding import Mesh, NamedSharding, PartitionSpec, Sharding

from fedjax_pfl.utils.errors import InputError, OutputError
from fedjax_pfl.utils.typing import Device, Tree

T = TypeVar("T")
PIECE = 2**26  # bytes that are sent at once
TEXT = 1024  # texts are padded to a multiple of so many bytes, so that few programs are compiled
# In messages of JAX where a connection between processes is broken.
BROKEN = ("Gloo", "gloo", "NCCL", "onnection", "UNAVAILABLE", "oordination")
_known: weakref.WeakSet[Exception] = weakref.WeakSet()  # errors that all processes have
_lost: list[bool] = []


class LostProcess(OutputError):
    """Error: another process of this program has ended."""


def count() -> int:
    """Return the number of processes; with several, the first call starts JAX's backend."""
    return jax.process_count() if jax.distributed.is_initialized() else 1


def index() -> int:
    """Return this process's number, from 0."""
    return jax.process_index() if jax.distributed.is_initialized() else 0


def is_distributed() -> bool:
    """Return whether this process is one of several."""
    return count() > 1


def is_first() -> bool:
    """Return whether this process writes files; true for a single process."""
    return index() == 0


def is_broken() -> bool:
    """Return whether another process is known to have ended."""
    return bool(_lost)


def lost_process() -> LostProcess:
    """Return the error of a process that can no longer reach another one."""
    _lost.append(True)
    return LostProcess(
        "Another process of this run has ended, or can't be reached, so this one ends too."
    )


@contextlib.contextmanager
def lost_process_errors() -> Iterator[None]:
    """Context manager that explains programs which fail as another process has ended.

    Raises:
      LostProcess: they do.
    """
    try:
        yield
    except (jax.errors.JaxRuntimeError, ValueError) as error:
        if is_distributed() and any(word in str(error) for word in BROKEN):
            raise lost_process() from error
        raise


def all_devices() -> tuple[Device, ...]:
    """Return the devices that programs can use, ordered by process."""
    if not is_distributed():
        return tuple(jax.local_devices())
    return tuple(sorted(jax.devices(), key=lambda device: (device.process_index, device.id)))


def exchange(value: Any) -> list[Any]:
    """Return the JSON values of all processes, in their order.

    Raises:
      InputError, OutputError: another process gives such an error instead (`agreed`).
      LostProcess: one has ended.
    """
    return _exchange(value, None)


def _exchange(value: Any, error: Exception | None) -> list[Any]:
    """Exchange as `exchange` does; an error of this process is sent to the others and raised."""
    if not is_distributed():
        if error is not None:
            raise error
        return [value]
    sent = None if error is None else [isinstance(error, InputError), str(error)]
    for number, (other, _) in enumerate(received := _gather_json([sent, value])):
        if other is not None and error is None:
            of_input, text = other
            error = (InputError if of_input else OutputError)(f"Process {number}: {text}")
    if error is not None:
        _known.add(error)
        raise error
    return [each for _, each in received]


def _gather_json(value: Any) -> list[Any]:
    """Gather the values of all processes through their devices."""
    text = np.frombuffer(json.dumps(value).encode(), np.uint8)
    with lost_process_errors():
        lengths = np.asarray(multihost_utils.process_allgather(np.int32(len(text))))
        width = -(-int(lengths.max()) // TEXT) * TEXT
        texts = multihost_utils.process_allgather(np.pad(text, (0, width - len(text))))
    return [
        json.loads(row[:length].tobytes())
        for row, length in zip(np.asarray(texts), lengths, strict=True)
    ]


def agreed(fn: Callable[[], T]) -> T:
    """Run `fn()` in every process; an input or output error in one is raised in all.

    Raises:
      InputError, OSError: this process's own, or `InputError` and `OutputError` for another's.
    """
    return _together(fn, True)[0]


def on_first(fn: Callable[[], T]) -> T:
    """Run `fn()` in the first process; all get its JSON value, or its error."""
    return _together(fn, is_first())[1]


def _together(fn: Callable[[], T], mine: bool) -> tuple[Any, Any]:
    """Return (this process's value, the first one's), once all know of all errors."""
    if not is_distributed():
        value = fn()
        return value, value
    value, error = None, None
    try:
        value = fn() if mine else None
    except (InputError, OSError) as caught:
        if isinstance(caught, LostProcess) or caught in _known:  # from an exchange within
            raise
        error = caught
    plain = isinstance(value, bool | int | float | str | list | dict)
    received = _exchange(value if is_first() and plain else None, error)
    return value, received[0]


def put(array: Any, sharding: Sharding) -> jax.Array:
    """Put a host array that all processes have on the devices of all; each copies its part."""
    if sharding.is_fully_addressable:
        return jax.device_put(array, sharding)
    host = np.asarray(array)
    return jax.make_array_from_callback(host.shape, sharding, lambda part: host[part])


def readable(tree: Tree) -> Tree:
    """Return the arrays such that this process can read them completely."""
    if not is_distributed() or all(map(_is_readable, jax.tree.leaves(tree))):
        return tree
    return _gather(all_devices())(tree)


def _is_readable(leaf: Any) -> bool:
    return not isinstance(leaf, jax.Array) or leaf.is_fully_addressable or leaf.is_fully_replicated


@cache
def _gather(devices: tuple[Device, ...]) -> Callable[[Tree], Tree]:
    everywhere = NamedSharding(Mesh(np.asarray(devices), ("all",)), PartitionSpec())
    return jax.jit(lambda tree: tree, out_shardings=everywhere)


def gather_to_host(tree: Tree) -> list[np.ndarray]:
    """Return the leaves on the host, gathered one by one; empty except in the first process."""
    if not is_distributed():
        return [_joined(leaf) for leaf in jax.tree.leaves(tree)]
    with lost_process_errors():
        leaves = (readable(leaf) for leaf in jax.tree.leaves(tree))
        return [np.asarray(leaf) if is_first() else np.empty(0) for leaf in leaves]


def _joined(leaf: Any) -> np.ndarray:
    """Return a leaf on the host without the copy that JAX would keep with it."""
    if not isinstance(leaf, jax.Array) or leaf.is_fully_replicated:
        return np.asarray(leaf)
    joined = np.empty(leaf.shape, leaf.dtype)
    for shard in leaf.addressable_shards:
        if shard.replica_id == 0:
            joined[shard.index] = shard.data
    return joined


def from_first(arrays: dict[str, np.ndarray]) -> dict[str, np.ndarray]:
    """Send the first process's arrays to all, a piece at a time through the devices."""
    if not is_distributed():
        return arrays
    shapes = exchange({n: [list(a.shape), str(a.dtype)] for n, a in arrays.items()})[0]
    if is_first():
        found = {name: np.ascontiguousarray(array) for name, array in arrays.items()}
    else:
        found = {name: np.empty(shape, np.dtype(dtype)) for name, (shape, dtype) in shapes.items()}
    content = [found[name].reshape(-1).view(np.uint8) for name in shapes]
    ends = np.cumsum([len(part) for part in content], dtype=np.int64).tolist()
    total = ends[-1] if ends else 0
    with lost_process_errors():
        for start in range(0, total, PIECE):
            piece = np.zeros(min(total, PIECE), np.uint8)
            parts = list(_parts(content, ends, start, start + len(piece)))
            if is_first():
                for part, at in parts:
                    piece[at : at + len(part)] = part
            piece = np.asarray(multihost_utils.broadcast_one_to_all(piece))
            if not is_first():
                for part, at in parts:
                    part[...] = piece[at : at + len(part)]
    return {name: found[name].reshape(shape) for name, (shape, _) in shapes.items()}


def _parts(
    content: list[np.ndarray], ends: list[int], start: int, end: int
) -> Iterator[tuple[np.ndarray, int]]:
    """Return the pieces within start..end of concatenated arrays, and their offsets."""
    for array, last in zip(content, ends, strict=True):
        first = last - len(array)
        part = array[max(start - first, 0) : max(end - first, 0)]
        if len(part):
            yield part, max(first - start, 0)
