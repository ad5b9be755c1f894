"""Low-rank adapters (LoRA) on the layers of a network.

A layer with a frozen kernel W computes x W + scale (x A) B, with A [inputs, rank] and B [rank,
outputs] in the same dict as the kernel. B is initially zero, so the network is initially unchanged.
Clients have adapters of their own on a common W. `adapter_layers` lists the layers.
"""

import fnmatch
import math
from collections.abc import Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass, replace
from typing import Any

import jax
import jax.numpy as jnp

from fedjax_pfl.models.adapter_layers import (
    A,
    B,
    Layer,
    equinox_layers,
    linen_adapters,
    linen_layers,
    nnx_layers,
)
from fedjax_pfl.models.equinox_task import EquinoxTask
from fedjax_pfl.models.nnx_task import NnxTask
from fedjax_pfl.models.task import Task
from fedjax_pfl.models.wrapped_task import WrappedTask
from fedjax_pfl.utils import keys, trees
from fedjax_pfl.utils.conversions import decimal, is_list
from fedjax_pfl.utils.errors import InputError, refused, require
from fedjax_pfl.utils.typing import Key, Tree


@dataclass(frozen=True)
class WithAdapters(WrappedTask):
    """A network with adapters.

    Attributes:
      network: the task of the network without adapters.
      layers: the layers with adapters.
      rank: rank of the adapters.
      scale: factor of the adapters' term.
      ranks: ranks by client, at most `rank`; that of client id k is ranks[k % len(ranks)]. Empty:
        all clients have `rank`.
      framework: of the network's module, "linen", "nnx" or "equinox".
    """

    layers: tuple[Layer, ...]
    rank: int
    scale: float
    ranks: tuple[int, ...] = ()
    framework: str = "linen"

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

    @property
    def kernel(self) -> str:
        """Name of the leaf of a layer that an adapter changes."""
        return "weight" if self.framework == "equinox" else "kernel"

    def in_shape(self, product: jax.Array, kernel: jax.Array) -> jax.Array:
        """Return a product of factors, [inputs, outputs], in the shape of a layer's kernel."""
        product = product.T if self.framework == "equinox" else product
        return product.reshape(kernel.shape)

    def plain(self, model: Tree) -> Tree:
        params = model["params"]
        for path, _, _ in self.layers:
            own = dict(trees.at(params, path))
            product = own.pop(A) @ own.pop(B)
            own[self.kernel] += self.scale * self.in_shape(product, own[self.kernel])
            params = trees.replace_at(params, path, own)
        return self.network.plain({**model, "params": params})

    def calling(self) -> AbstractContextManager[Any]:
        return linen_adapters(self.scale)

    def own(self, model: Tree) -> Tree:
        """Return a model whose factors B have the scale, if it is of no linen module."""
        if self.framework == "linen":
            return model
        params = model["params"]
        for path, _, _ in self.layers:
            if B in (own := trees.at(params, path)):
                params = trees.replace_at(params, path, {**own, B: self.scale * own[B]})
        return {**model, "params": params}


def with_adapters(
    task: Task,
    inputs: jax.ShapeDtypeStruct,
    frozen: tuple[str, ...],
    rank: int,
    alpha: float | None,
    pattern: str,
    ranks: tuple[int, ...] = (),
) -> WithAdapters:
    """Return `WithAdapters` of a task: adapters on its layers with a frozen kernel.

    Args:
      task: the task of the network.
      inputs: shape of a batch.
      frozen: paths of leaves that are not trained.
      rank: rank of the adapters.
      alpha: the adapters' term is multiplied by alpha / rank; by 1 for None.
      pattern: pattern of the layers' names; several are separated by commas.
      ranks: ranks by client, see `WithAdapters`.
    """
    framework, every = _framework_and_layers(task, inputs)
    scale = 1.0 if alpha is None else alpha / rank
    made = WithAdapters.around(task, (), rank, scale, ranks, framework)
    known = [layer for layer in every if f"params/{'/'.join(layer[0])}/{made.kernel}" in frozen]
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
            "There is no frozen dense layer or convolution without groups for adapters that "
            f"{pattern!r} names{there}."
        )
    return replace(made, layers=layers)


def _framework_and_layers(task: Task, inputs: jax.ShapeDtypeStruct) -> tuple[str, list[Layer]]:
    """Return the framework of a task's module, and its layers that take adapters."""
    if isinstance(task, NnxTask):
        return "nnx", [*nnx_layers(task.abstract())]
    if isinstance(task, EquinoxTask):
        return "equinox", [*equinox_layers(task.abstract())]
    return "linen", linen_layers(task.init, inputs)


def parse_ranks(given: str | Sequence[int]) -> tuple[int, ...]:
    """Return the shortest series of ranks that clients take in turn.

    Args:
      given: "2,4,8" or numbers, in turn; "2:50%,8:50%" for shares, mixed evenly.

    Raises:
      InputError: anything else, or shares that are not 100 % together.
    """
    listed = [*map(str, given)] if is_list(given) else []
    words = given.split(",") if isinstance(given, str) else listed
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
    # Ranks are interleaved: the k-th client of a rank with share s comes at (k + 1/2) / s.
    places = sorted(
        ((k + 0.5) * 100 / share, place)
        for place, share in enumerate(each)
        for k in range(share * count // 100)
    )
    return tuple(ranks[place] or 0 for _, place in places)
