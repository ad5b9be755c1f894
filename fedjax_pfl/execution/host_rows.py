"""Distribution of rows from several processes' hosts to all devices, and back."""

from collections.abc import Sequence
from functools import cache, partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax
from jax.sharding import Mesh, NamedSharding, PartitionSpec

from fedjax_pfl.execution.mesh import place
from fedjax_pfl.execution.processes import all_devices, count, index, readable
from fedjax_pfl.utils.typing import Device

PROCESS, SLOT = "process", "slot"  # axes of the devices by process


def own_rows(total: int) -> np.ndarray:
    """Return the rows that this process keeps, an equal consecutive share, bool [total]."""
    share = -(-total // count())
    return np.arange(total) // share == index()


def combined(leaves: Sequence[np.ndarray], mesh: Mesh, *lead: str | None) -> list[jax.Array]:
    """Put rows [R, K, ...] of all processes on their devices, as `mesh.place` does.

    One process owns each row, and others have zeros in its place. Bits are summed as unsigned
    integers, so the result is exact, NaN and -0.0 included.

    Args:
      mesh: of all devices.
    """
    by_process = _by_process(all_devices())
    width = by_process.shape[SLOT]
    rows = tuple((leaf.shape[1], np.dtype(leaf.dtype)) for leaf in leaves)
    gathered = [_gathered(_bits(leaf), by_process, width) for leaf in leaves]
    return _added(gathered, rows=rows, mesh=mesh, lead=lead)


def on_hosts(leaves: Sequence[jax.Array]) -> list[np.ndarray]:
    """Gather complete arrays in every process, one by one to save device memory."""
    return [np.asarray(readable(leaf)) for leaf in leaves]


@cache
def _by_process(devices: tuple[Device, ...]) -> Mesh:
    return Mesh(np.asarray(devices).reshape(count(), -1), (PROCESS, SLOT))


def _bits(leaf: np.ndarray) -> np.ndarray:
    """Return the same bytes as integers of the same size."""
    return np.ascontiguousarray(leaf).view(_whole(leaf.dtype))


def _whole(dtype: Any) -> np.dtype:
    return np.dtype(f"u{np.dtype(dtype).itemsize}")


def _gathered(bits: np.ndarray, mesh: Mesh, width: int) -> jax.Array:
    """Gather all processes' rows, [processes, R, K, ...]; K is padded to a multiple of `width`."""
    more = -bits.shape[1] % width
    if more:
        bits = np.pad(bits, [(0, 0), (0, more), *[(0, 0)] * (bits.ndim - 2)])
    sharding = NamedSharding(mesh, PartitionSpec(PROCESS, None, SLOT))
    shape = (mesh.shape[PROCESS], *bits.shape)

    def part(at: Any) -> np.ndarray:
        return bits[at[1:]][None]

    return jax.make_array_from_callback(shape, sharding, part)


@partial(jax.jit, static_argnames=("rows", "mesh", "lead"))
def _added(
    gathered: list[jax.Array], rows: tuple[tuple[int, np.dtype], ...], mesh: Mesh, lead: tuple
) -> list[jax.Array]:
    def one(parts: jax.Array, length: int, dtype: np.dtype) -> jax.Array:
        whole = jnp.sum(parts, axis=0, dtype=parts.dtype)[:, :length]
        boolean = dtype == np.bool_
        return whole != 0 if boolean else lax.bitcast_convert_type(whole, dtype)

    whole = [one(parts, *kind) for parts, kind in zip(gathered, rows, strict=True)]
    return place(whole, mesh, *lead)
