"""Host buffers of a simulation's measurements, filled chunk by chunk."""

from collections.abc import Sequence
from typing import Any

import jax
import numpy as np

from fedjax_pfl.utils.typing import Tree


def _host(leaf: jax.Array) -> np.ndarray:
    """Copy to the host; half precision becomes float32, as NumPy has no bfloat16."""
    copy = np.array(leaf)
    return copy.astype(np.float32) if copy.dtype.name in ("bfloat16", "float16") else copy


class MetricsBuffer:
    """Measurements of all chunks on the host."""

    def __init__(self, eval_every: int, rounds: int, matrix_rounds: Sequence[int]):
        self.rounds: int = rounds
        self.matrix_rounds: list[int] = sorted({int(r) for r in matrix_rounds})
        self.eval_every: int = eval_every
        self.done: int = 0
        self.parts: list[Tree] = []
        self.matrices: list[Tree] = []
        self.paces: list[float] = []

    def add(self, length: int, buffers: Tree, matrices: Tree, seconds: float) -> None:
        # Whole buffers are fetched and cut here: cutting on the device compiles for each length.
        self.parts.append(jax.tree.map(lambda leaf: _host(leaf)[:, :length].copy(), buffers))
        self.done += length
        self.paces += [seconds / length] * length
        if self.done in self.matrix_rounds:
            self.matrices.append(jax.tree.map(_host, matrices))

    def trees(self) -> dict[str, Tree]:
        """Return all measurements as arrays, for a checkpoint."""
        joined = jax.tree.map(lambda *leaves: np.concatenate(leaves, axis=1), *self.parts)
        self.parts = [joined]
        stacked = jax.tree.map(lambda *leaves: np.stack(leaves), *self.matrices or [()])
        return {"records": joined, "matrices": stacked, "paces": np.asarray(self.paces)}

    def follow(self, past: "MetricsBuffer") -> None:
        """Adopt the measurements of earlier rounds, whose last scores may be dropped."""
        trees = past.trees()
        self.done, self.paces = past.done, list(past.paces)
        due = self._due()
        records = dict(trees["records"])
        records["scores"] = {
            name: np.where(due[None, :, None], value, np.nan)
            for name, value in records["scores"].items()
        }
        self.parts, self.matrices = [records], list(past.matrices)

    def restore(self, trees: dict[str, list[Any]], records: Any, matrices: Any) -> None:
        """Invert `trees`, given the leaves and a chunk with their structures."""
        self.parts = [jax.tree.unflatten(records, trees["records"])]
        self.paces = trees["paces"][0].tolist()
        self.done = len(self.paces)
        seen = sum(r <= self.done for r in self.matrix_rounds)
        stacked = trees["matrices"]
        self.matrices = [
            jax.tree.unflatten(matrices, [leaf[q] for leaf in stacked]) for q in range(seen)
        ]

    def latest(self, name: str) -> float | None:
        """Return the last mean of a score over runs and clients."""
        for part in reversed(self.parts):
            scores = part["scores"].get(name)
            if scores is not None and not np.isnan(scores).all():
                seen = ~np.isnan(scores).all(axis=(0, 2))
                return float(np.nanmean(scores[:, np.flatnonzero(seen)[-1]]))
        return None

    def curve(self, name: str) -> tuple[np.ndarray, np.ndarray]:
        """Return (scored rounds [E], means over clients [R, E]), NaN without scores."""
        due = self._due()
        if not self.parts:
            return np.zeros(0, int), np.zeros((1, 0))
        values = np.concatenate([part["scores"][name] for part in self.parts], axis=1)[:, due]
        known = ~np.isnan(values)  # an infinite error counts
        total = np.where(known, values, 0).sum(axis=-1, dtype=np.float64)
        count = known.sum(axis=-1)
        return np.flatnonzero(due) + 1, np.where(count > 0, total / np.maximum(count, 1), np.nan)

    def _due(self) -> np.ndarray:
        """Return which of the past rounds were scored, bool [done]."""
        every = np.arange(1, self.done + 1)
        return (every % self.eval_every == 0) | (every == self.rounds)

    def seconds_per_round(self) -> float:
        # Whole periods of evaluation, so that it is included for all chunk lengths.
        every = min(self.eval_every, len(self.paces))
        complete = len(self.paces) // every * every
        return float(np.median(np.reshape(self.paces[:complete], (-1, every)).mean(axis=1)))

    def collect(self, axes: tuple[int, int]) -> dict[str, Any]:
        """Return fields of `Result` for the past rounds: [R, T, ...] becomes [S, H, T, ...]."""

        def split(leaf):
            return leaf.reshape(axes[0], leaf.shape[0] // axes[0], *leaf.shape[1:])

        due = self._due()
        joined = jax.tree.map(lambda *leaves: split(np.concatenate(leaves, axis=1)), *self.parts)
        stacked = {}
        if self.matrices:
            stack = jax.tree.map(lambda *leaves: np.stack(leaves, axis=1), *self.matrices)
            stacked = jax.tree.map(split, stack)
        return {
            "eval_rounds": np.flatnonzero(due) + 1,
            "scores": {name: value[:, :, due] for name, value in joined["scores"].items()},
            "clients": joined["clients"],
            "scalars": joined["scalars"],
            "copies_up": joined["up"],
            "copies_down": joined["down"],
            "matrices": stacked,
            "matrix_rounds": np.asarray([r for r in self.matrix_rounds if r <= self.done], int),
        }
