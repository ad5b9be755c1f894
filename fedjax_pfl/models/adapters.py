"""Low-rank adapters (LoRA) on the dense layers of a linen network.

A layer with a fixed kernel W computes x W + scale (x A) B, with A [inputs, rank] and B [rank,
outputs] in the same dict as the kernel. B is initially zero, so the network is initially unchanged.
Clients have adapters of their own on a common W.
"""

import fnmatch
import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import flax.linen as nn
import jax
import jax.numpy as jnp

from fedjax_pfl.models.layers import Dense
from fedjax_pfl.models.task import Mode, Outputs, Task
from fedjax_pfl.models.wrapped_task import WrappedTask
from fedjax_pfl.utils import keys, trees
from fedjax_pfl.utils.conversions import decimal
from fedjax_pfl.utils.errors import InputError, refused, require
from fedjax_pfl.utils.typing import Key, Tree

DENSE = (Dense, nn.Dense, nn.DenseGeneral)
A, B = "lora_a", "lora_b"
Layer = tuple[tuple[str, ...], int, int]  # path of the module, inputs, outputs


@dataclass(frozen=True)
class Adapted(WrappedTask):
    """A network with adapters.

    Attributes:
      network: the task of the network without adapters.
      layers: the layers with adapters.
      rank: rank of the adapters.
      scale: factor of the adapters' term.
      ranks: ranks by client, at most `rank`; that of client id k is ranks[k % len(ranks)]. Empty:
        all clients have `rank`.
    """

    layers: tuple[Layer, ...]
    rank: int
    scale: float
    ranks: tuple[int, ...] = ()

    def ranks_of(self, ids: jax.Array) -> jax.Array:
        """Return the adapters' rank of clients by their permanent ids, int32 [k]."""
        ranks = jnp.asarray(self.ranks or (self.rank,), jnp.int32)
        return ranks[ids % len(ranks)]

    def init(self, key: Key, inputs: jax.Array) -> Tree:
        model = self.network.init(key, inputs)
        params = model["params"]
        for path, width, out in self.layers:
            bound = width**-0.5
            of_layer = keys.derive(key, f"adapter {'/'.join(path)}")
            shape, dtype = (width, self.rank), jnp.float32
            first = jax.random.uniform(of_layer, shape, dtype, -bound, bound)
            factors = {A: first, B: jnp.zeros((self.rank, out), dtype)}
            params = trees.replace_at(params, path, {**trees.at(params, path), **factors})
        return {**model, "params": params}

    def apply(self, model: Tree, inputs: jax.Array, *mode: *Mode) -> Outputs:
        with nn.intercept_methods(self._added):
            out: Any = self.network.apply(model, inputs, *mode)
        return Outputs(*out)

    def embed(self, model: Tree, inputs: jax.Array, *mode: *Mode) -> tuple[jax.Array, Tree]:
        with nn.intercept_methods(self._added):
            return self.network.embed(model, inputs, *mode)

    def classify(self, model: Tree, features: jax.Array) -> jax.Array:
        with nn.intercept_methods(self._added):
            return self.network.classify(model, features)

    def _added(self, call: Callable[..., Any], args, kwargs, context) -> Any:
        module = context.module
        out = call(*args, **kwargs)
        dense = isinstance(module, DENSE) and context.method_name == "__call__"
        if not (dense and module.has_variable("params", A)):
            return out
        a, b = (module.get_variable("params", name).astype(out.dtype) for name in (A, B))
        x = args[0] if args else kwargs["inputs"]
        lead = x.shape[: x.ndim - _axes(module)]
        more = x.reshape(*lead, -1).astype(out.dtype) @ a @ b
        return out + self.scale * more.reshape(out.shape)


def adapted(task: Task, inputs: jax.ShapeDtypeStruct, fixed: tuple[str, ...], rank: int,
            alpha: float | None, pattern: str, ranks: tuple[int, ...] = ()) -> Adapted:  # fmt: skip
    """Return `Adapted` of a task: adapters on its dense layers with a fixed kernel.

    Args:
      task: the task of the network.
      inputs: shape of a batch.
      fixed: paths of leaves that are not trained.
      rank: rank of the adapters.
      alpha: the adapters' term is multiplied by alpha / rank; by 1 for None.
      pattern: pattern of the layers' names; several are separated by commas.
      ranks: ranks by client, see `Adapted`.

    Raises:
      InputError: unknown layer.
    """
    known = [layer for layer in dense_layers(task, inputs)
             if f"params/{'/'.join(layer[0])}/kernel" in fixed]  # fmt: skip
    names = ["/".join(path) for path, _, _ in known]
    patterns = [one.strip() for one in pattern.split(",")]
    layers = tuple(
        layer
        for name, layer in zip(names, known, strict=True)
        if any(fnmatch.fnmatchcase(name, one) for one in patterns)
    )
    if not layers:
        there = f"; those that are frozen: {', '.join(names)}" if names else ""
        raise InputError(
            f"There is no frozen dense layer for adapters that {pattern!r} names{there}."
        )
    return Adapted.around(task, layers, rank, 1.0 if alpha is None else alpha / rank, ranks)


def parse_ranks(given: str | Sequence[int]) -> tuple[int, ...]:
    """Return the shortest series of ranks that clients take in turn.

    Args:
      given: "2,4,8" or numbers, in turn; "2:50%,8:50%" for shares, mixed evenly.

    Raises:
      InputError: anything else, or shares that are not 100 % together.
    """
    words = given.split(",") if isinstance(given, str) else [*map(str, given)]
    parts = [word.partition(":") for word in words]
    ranks, shares = [decimal(rank) for rank, _, _ in parts], [share for _, _, share in parts]
    allowed = "ranks such as 2,4,8, or with shares 2:50%,8:50% that are 100 % together"
    if not words or not all(ranks):
        raise refused("lora_ranks", given, allowed)
    if not any(colon for _, colon, _ in parts):
        return tuple(rank or 0 for rank in ranks)
    each = [decimal(share.strip().removesuffix("%")) or 0 for share in shares]
    signed = all(share.strip().endswith("%") for share in shares)
    require(signed and sum(each) == 100, "lora_ranks", given, allowed)
    count = 100 // math.gcd(*each)
    # The k-th client of a rank with share s is placed at (k + 1/2) / s.
    places = sorted(
        ((k + 0.5) * 100 / share, place)
        for place, share in enumerate(each)
        for k in range(share * count // 100)
    )
    return tuple(ranks[place] or 0 for _, place in places)


def dense_layers(task: Task, inputs: jax.ShapeDtypeStruct) -> list[Layer]:
    """Return the dense layers of a linen network, in the order in which they are called."""
    layers: dict[tuple[str, ...], tuple[int, int]] = {}

    def noted(call, args, kwargs, context):
        out, module = call(*args, **kwargs), context.module
        if isinstance(module, DENSE) and context.method_name == "__call__":
            x = args[0] if args else kwargs["inputs"]
            width = math.prod(x.shape[x.ndim - _axes(module) :])
            kernel = math.prod(module.get_variable("params", "kernel").shape)
            layers[module.path] = width, kernel // width
        return out

    with nn.intercept_methods(noted):
        jax.eval_shape(task.init, jax.random.key(0), inputs)
    return [(path, *sizes) for path, sizes in layers.items()]


def _axes(module: nn.Module) -> int:
    """Return how many last axes of its inputs a layer contracts."""
    axis = getattr(module, "axis", -1)
    return len(axis) if isinstance(axis, tuple | list) else 1
