"""Attacks of Byzantine clients on what they upload.

An attack replaces the updates of the attackers, knowing those of the honest members of the round:
`attack(updates, honest, attackers, key)` returns rows for the attackers, where the updates are
D_j = sent_j - reference_j, [M, ...], and the masks are [M]. One that `remembers` also has
`first_memory(zero)` and `remembering(updates, honest, attackers, key, ids, memory)`, which returns
the memory after the round too.

Byzantine clients are chosen by their permanent ids. Attacks on data (label flips, backdoors) change
the samples of attackers before a run instead, see `poisoning`.

mu is the mean of the honest updates and sd their unbiased standard deviation, per coordinate.
"""

from collections.abc import Callable
from typing import NamedTuple

import jax
import jax.numpy as jnp
from jax.scipy.stats import norm

from fedjax_pfl.aggregation import mixing, products, robust, similarity
from fedjax_pfl.utils import keys, trees
from fedjax_pfl.utils.errors import require
from fedjax_pfl.utils.structs import static, struct
from fedjax_pfl.utils.typing import Key, Mask, PerMember, Scalar, Stack, Tree

DIRECTIONS = ("mean", "sign", "deviation")


@struct
class SignFlip:
    """-x of the attacker's own update, or with `of_mean` -mu."""

    of_mean: bool = static(default=False)

    def __call__(self, updates: Stack, honest: Mask, attackers: Mask, key: Key) -> Stack:
        if self.of_mean:
            return _negative(_broadcast(_mean(updates, honest), updates))
        return _negative(updates)


@struct
class Gaussian:
    """Noise with the standard deviation of the attacker's own update (A2 of Ditto's paper)."""

    def __call__(self, updates: Stack, honest: Mask, attackers: Mask, key: Key) -> Stack:
        count = sum(leaf[0].size for leaf in jax.tree.leaves(updates))
        sums = jax.tree.map(lambda x: jnp.sum(x.reshape(len(x), -1), axis=1), updates)
        mean = sum(jax.tree.leaves(sums)) / count
        variance = similarity.squared_norms(updates) / count - mean**2
        deviation = jnp.sqrt(jnp.maximum(variance, 0))
        noise = keys.normal_like(key, updates)
        return jax.tree.map(lambda x: x * trees.expand_to(x, deviation), noise)


@struct
class Scale:
    """gamma x: the attacker's own update made larger (model replacement, Bagdasaryan et al., 2020).

    Attributes:
      factor: gamma; 0 stands for the number of members present.
    """

    factor: Scalar | float = 0.0

    def __call__(self, updates: Stack, honest: Mask, attackers: Mask, key: Key) -> Stack:
        present = jnp.sum(honest | attackers)
        factor = jnp.where(self.factor == 0, present, self.factor)
        return jax.tree.map(lambda x: x * factor.astype(x.dtype), updates)


@struct
class Enlarge(Scale):
    """`Scale` of attackers with a backdoor, whose factor is a number in any case."""

    def validate(self) -> None:
        """Raise `InputError` for the factor 0."""
        allowed = "other than 0, which only attack='scale' takes for the number of members"
        factor = float(self.factor)
        require(factor != 0, "factor of a backdoor", factor, allowed)


@struct
class ALittleIsEnough:
    """mu - z sd with the largest z that hides among the honest (Baruch et al., NeurIPS 2019).

    Attributes:
      z: 0 stands for Phi^-1((n - m - s) / (n - m)), s = floor(n / 2 + 1) - m, of n members with m
        attackers.
    """

    z: Scalar | float = 0.0

    def __call__(self, updates: Stack, honest: Mask, attackers: Mask, key: Key) -> Stack:
        m = jnp.sum(attackers)
        n = jnp.sum(honest) + m
        z = jnp.where(self.z == 0, hiding_z(n, m), self.z)
        mu, sd = _mean(updates, honest), _deviation(updates, honest)
        sent = jax.tree.map(lambda mean, dev: mean - z.astype(mean.dtype) * dev, mu, sd)
        return _broadcast(sent, updates)

    def remarks(self, members: int, attackers: int) -> list[str]:
        """Return a note if z is 0 in rounds of so many members, of which so many attack."""
        if self.z != 0 or hiding_z(members, attackers) > 0:
            return []
        who = f"{attackers} attacker{'s' * (attackers != 1)} among {members} members"
        return [f"attackers send the honest mean, as alie's z is 0 with {who}: give z"]


def hiding_z(n: Scalar | int, m: Scalar | int) -> jax.Array:
    """Return the z of ALIE for n members of which m attack, at least 0."""
    needed = n // 2 + 1 - m
    share = (n - m - needed) / jnp.maximum(n - m, 1)
    return norm.ppf(jnp.clip(share, 0.5, 1 - 1e-6))


@struct
class InnerProduct:
    """-epsilon mu (inner product manipulation, Xie et al., UAI 2020)."""

    epsilon: Scalar | float = 0.1

    def __call__(self, updates: Stack, honest: Mask, attackers: Mask, key: Key) -> Stack:
        mean = _mean(updates, honest)
        return _broadcast(jax.tree.map(lambda x: -self.epsilon * x, mean), updates)


class MimicMemory(NamedTuple):
    """What `Mimic` remembers of earlier rounds.

    Attributes:
      rounds: how many it has watched.
      mean: mean of the honest updates over these rounds.
      direction: the direction of largest spread, of length 1.
      target: permanent id of the client that is copied.
    """

    rounds: Scalar
    mean: Tree
    direction: Tree
    target: Scalar


@struct
class Mimic:
    """A copy of the honest update that lies farthest along the direction of largest spread.

    All attackers send the same copy (Karimireddy, He and Jaggi, ICLR 2022). In each of the first
    rounds one power iteration turns the direction towards the first principal component of the
    honest updates, as in the authors' code; then the client that was copied last is copied to the
    end. Where it is absent, the member that lies farthest is.

    Attributes:
      warmup: rounds in which the direction is sought; 0 finds that of each round's updates, by
        `steps` power iterations, and copies another client each time, as for uploads beside the
        model.
      steps: power iterations without warm-up rounds.
    """

    warmup: int = static(default=1)
    steps: int = static(default=20, needs="warmup=0")

    @property
    def remembers(self) -> bool:
        return self.warmup > 0

    def first_memory(self, zero: Tree) -> MimicMemory:
        """Return what is known before the first round."""
        return MimicMemory(jnp.int32(0), zero, zero, jnp.int32(-1))

    def remembering(
        self,
        updates: Stack,
        honest: Mask,
        attackers: Mask,
        key: Key,
        ids: PerMember,
        memory: MimicMemory,
    ) -> tuple[Stack, MimicMemory]:
        """Return what attackers send, and what they know after this round."""
        watching = (memory.rounds < self.warmup) & jnp.any(honest)
        share = 1 / (1 + memory.rounds.astype(jnp.result_type(float)))

        def averaged(old, new):
            return jax.tree.map(lambda a, b: (a + share * (b - a)).astype(a.dtype), old, new)

        mean = averaged(memory.mean, _mean(updates, honest))
        away = jax.tree.map(lambda x, centre: x - centre, updates, mean)
        away = trees.keep_rows(honest, away)
        start = jax.tree.map(lambda x: x[0], keys.normal_like(key, updates))
        before = trees.where(memory.rounds == 0, start, memory.direction)
        turned = _unit(mixing.combine(similarity.dots(away, before), away))
        direction = _unit(averaged(memory.direction, turned))
        mean = trees.where(watching, mean, memory.mean)
        direction = trees.where(watching, direction, memory.direction)
        along = similarity.dots(trees.keep_rows(honest, updates), direction)
        farthest = jnp.argmax(jnp.where(honest, along, -jnp.inf))
        target = jnp.where(watching, ids[farthest], memory.target).astype(memory.target.dtype)
        there = honest & (ids == target)
        chosen = jnp.where(jnp.any(there), jnp.argmax(there), farthest)
        known = MimicMemory(memory.rounds + watching, mean, direction, target)
        return _broadcast(trees.row(updates, chosen), updates), known

    def __call__(self, updates: Stack, honest: Mask, attackers: Mask, key: Key) -> Stack:
        weights = mixing.normalize(honest.astype(jnp.float32))
        gram = similarity.gram(updates, updates)
        gram = jnp.where(honest[:, None] & honest[None, :], gram, 0)
        centre = jnp.eye(len(weights)) - weights[None, :]
        centred = products.matmul(products.matmul(centre, gram), centre.T) * (
            honest[:, None] & honest[None, :]
        )

        def step(_, a):
            a = products.rows(centred, a)
            return a / jnp.maximum(jnp.linalg.norm(a), jnp.finfo(a.dtype).tiny)

        start = jax.random.normal(key, (len(weights),)) * honest
        along = products.rows(centred, jax.lax.fori_loop(0, self.steps, step, start))
        chosen = jnp.argmax(jnp.where(honest, jnp.abs(along), -jnp.inf))
        return _broadcast(trees.row(updates, chosen), updates)


@struct
class MinMax:
    """mu + g p with the largest g whose distances to the honest stay below those among them.

    Shejwalkar and Houmansadr, NDSS 2021. The authors search for g; it has a closed form.

    Attributes:
      direction: p is -mu / |mu| ("mean"), -sign(mu) ("sign") or -sd ("deviation").
    """

    direction: str = static(default="deviation")

    def __call__(self, updates: Stack, honest: Mask, attackers: Mask, key: Key) -> Stack:
        mu, p = _mean(updates, honest), _direction(updates, honest, self.direction)
        away = jax.tree.map(lambda mean, x: mean - x, mu, updates)  # d_k = mu - x_k
        along, norms = similarity.dots(away, p), similarity.squared_norms(away)
        length = _squared_norm(p)
        widest = jnp.max(_honest_distances(updates, honest))
        inside = along**2 + length * jnp.maximum(widest - norms, 0)
        each = (jnp.sqrt(inside) - along) / jnp.where(length > 0, length, 1)
        g = jnp.where(length > 0, jnp.min(jnp.where(honest, each, jnp.inf)), 0)
        return _broadcast(_moved(mu, g, p), updates)


@struct
class MinSum:
    """mu + g p with the largest g whose summed squared distances to the honest stay below theirs.

    Shejwalkar and Houmansadr, NDSS 2021; `direction` as in `MinMax`.
    """

    direction: str = static(default="deviation")

    def __call__(self, updates: Stack, honest: Mask, attackers: Mask, key: Key) -> Stack:
        mu, p = _mean(updates, honest), _direction(updates, honest, self.direction)
        away = similarity.squared_norms(jax.tree.map(lambda mean, x: mean - x, mu, updates))
        sums = jnp.sum(_honest_distances(updates, honest), axis=1)
        room = jnp.maximum(jnp.max(sums) - jnp.sum(jnp.where(honest, away, 0)), 0)
        length = jnp.sum(honest) * _squared_norm(p)
        g = jnp.sqrt(mixing.ratio(room, length))
        return _broadcast(_moved(mu, g, p), updates)


ATTACKS: dict[str, Callable[..., object]] = {
    "sign_flip": SignFlip,
    "gaussian": Gaussian,
    "scale": Scale,
    "alie": ALittleIsEnough,
    "ipm": InnerProduct,
    "mimic": Mimic,
    "min_max": MinMax,
    "min_sum": MinSum,
}


def _mean(updates: Stack, honest: Mask) -> Tree:
    weights = mixing.normalize(honest.astype(jnp.result_type(float)))
    return mixing.combine(weights, trees.keep_rows(honest, updates))


def _unit(tree: Tree) -> Tree:
    """Return a tree scaled to the length 1; zeros stay."""
    length = jnp.sqrt(_squared_norm(tree))
    return jax.tree.map(lambda x: mixing.ratio(x, length).astype(x.dtype), tree)


def _deviation(updates: Stack, honest: Mask) -> Tree:
    """Return the unbiased standard deviation of every coordinate."""
    mean, weights = _mean(updates, honest), honest.astype(jnp.result_type(float))
    squares = jax.tree.map(lambda x, m: jnp.square(x - m), trees.keep_rows(honest, updates), mean)
    total = mixing.combine(weights, squares)
    return jax.tree.map(lambda x: jnp.sqrt(x / jnp.maximum(jnp.sum(weights) - 1, 1)), total)


def _direction(updates: Stack, honest: Mask, name: str) -> Tree:
    mean = _mean(updates, honest)
    if name == "mean":
        length = jnp.sqrt(_squared_norm(mean))
        return jax.tree.map(lambda x: -mixing.ratio(jnp.ones(()), length) * x, mean)
    if name == "sign":
        return jax.tree.map(lambda x: -jnp.sign(x), mean)
    return _negative(_deviation(updates, honest))


def _honest_distances(updates: Stack, honest: Mask) -> jax.Array:
    kept = trees.keep_rows(honest, updates)
    distances = robust.pairwise_squares(similarity.gram(kept, kept))
    return jnp.where(honest[:, None] & honest[None, :], distances, 0)


def _squared_norm(tree: Tree) -> Scalar:
    return sum((jnp.sum(jnp.square(leaf)) for leaf in jax.tree.leaves(tree)), jnp.zeros(()))


def _moved(mu: Tree, g: Scalar, p: Tree) -> Tree:
    return jax.tree.map(lambda mean, step: mean + g.astype(mean.dtype) * step, mu, p)


def _negative(tree: Tree) -> Tree:
    return jax.tree.map(jnp.negative, tree)


def _broadcast(tree: Tree, like: Stack) -> Stack:
    return jax.tree.map(lambda one, x: jnp.broadcast_to(one, x.shape).astype(x.dtype), tree, like)
