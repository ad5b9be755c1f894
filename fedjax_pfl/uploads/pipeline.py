"""The upload stage: steps between what clients send and what the server receives.

A member's update is the difference of what it sends and the reference, which the server already
holds. The steps are, in this order: 1 clipping and 2 noise (client-level differential privacy),
3 compression with error feedback, 4 attacks of Byzantine members, 5 fixed-point numbers of secure
aggregation. What the server receives is the reference plus the result; whatever it computes from
that is post-processing.
"""

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from fedjax_pfl.aggregation.leaf_plan import LeafPlan
from fedjax_pfl.uploads.clipping import add_noise, clip_rows, next_bound, split_noise
from fedjax_pfl.uploads.compression import Compressor
from fedjax_pfl.uploads.secure import FixedPoint
from fedjax_pfl.uploads.stage import StageMemory, UploadInfo, UploadStage, empty_sum_row
from fedjax_pfl.utils import keys as key_of
from fedjax_pfl.utils import trees
from fedjax_pfl.utils.errors import InputError
from fedjax_pfl.utils.structs import static, struct
from fedjax_pfl.utils.typing import Mask, PerMember, Scalar, Stack

FEEDBACKS = ("ef", "ef21")
PLACEMENTS = ("local", "distributed")


@struct
class AdaptiveClip:
    """A clipping bound that follows a quantile of the updates' norms (Andrew et al., 2021).

    Attributes:
      quantile: the share of updates that the bound should leave as they are.
      rate: of its geometric update.
      count_noise: standard deviation s_b of the noise on the sum of `next_bound`, as a
        fraction of the expected number of members.
    """

    quantile: float = 0.5
    rate: float = 0.2
    count_noise: float = 0.05


@struct
class ClientPrivacy:
    """Client-level differential privacy of every upload.

    Attributes:
      clip: C, the largest norm of an update over all of its leaves; its initial value if it adapts.
      noise: z, the noise's deviation is z C.
      placement: "local" adds all noise to each upload, so the server need not be trusted;
        "distributed" adds z C / sqrt(m) to each of m uploads, whose sum then has noise z C, for
        algorithms whose server needs only sums.
      adaptive: how the bound adapts, or None.
      epsilon: guarantee of the whole run, from which `noise` is computed before the first round;
        None if the noise is given.
      delta: delta of the guarantee.
      strict: whether cohorts must be drawn as accounted, by Poisson sampling.
      public_validation: whether validation samples are public, and need no protection.
    """

    clip: Scalar | float
    noise: Any = 0.0
    placement: str = static(default="local")
    adaptive: AdaptiveClip | None = None
    epsilon: float | None = static(default=None)
    delta: float = static(default=1e-5)
    strict: bool = static(default=False)
    public_validation: bool = static(default=False)

    unit = "client"

    @property
    def distributed(self) -> bool:
        """Whether the noise is distributed over the members and protects only their sum."""
        return self.placement == "distributed"


@struct
class Uploads(UploadStage):
    """The steps between what members send and what the server receives.

    Attributes:
      privacy: clipping and noise, or None.
      compressor: of updates, or None.
      feedback: error feedback of the compressor: "ef" or "ef21", or None.
      attack: what Byzantine members send instead, see `attacks`, or None.
      attackers: int32 [A], their permanent ids, or None.
      fixed_point: numbers of secure aggregation, or None.
    """

    privacy: ClientPrivacy | None = None
    compressor: Compressor | None = None
    feedback: str | None = static(default=None)
    attack: Any = None
    attackers: jax.Array | None = None
    fixed_point: FixedPoint | None = None

    @property
    def remembers(self) -> bool:
        adapts = self.privacy is not None and self.privacy.adaptive is not None
        return self.feedback is not None or adapts or self._attack_remembers

    @property
    def _attack_remembers(self) -> bool:
        return getattr(self.attack, "remembers", False)

    @property
    def keeps_failed(self) -> bool:
        return self.privacy is not None

    @property
    def uniform(self) -> bool:
        return self.fixed_point is not None or self.noise_of_sums

    @property
    def noise_of_sums(self) -> bool:
        return self.privacy is not None and self.privacy.distributed

    def first_memory(self, shared: Stack) -> StageMemory:
        errors = None if self.feedback is None else jax.tree.map(jnp.zeros_like, shared)
        bound = attack = None
        if self.privacy is not None and self.privacy.adaptive is not None:
            bound = jnp.asarray(self.privacy.clip)
        if self._attack_remembers:
            leaves = jax.tree.leaves(shared)
            floats = [x for x in leaves if jnp.issubdtype(x.dtype, jnp.inexact)]
            attack = self.attack.first_memory([jnp.zeros_like(x[0]) for x in floats])
        return StageMemory(errors, bound, attack)

    def attacking(self, ids: PerMember) -> Mask | None:
        return None if self.attackers is None else jnp.isin(ids, self.attackers)

    @property
    def number_bits(self) -> int | None:
        return None if self.fixed_point is None else self.fixed_point.bits

    def block_bytes(self, plan: LeafPlan, item_bytes: int) -> np.ndarray | None:
        if self.compressor is None and self.fixed_point is None:
            return None
        bits = np.zeros(plan.num_blocks, np.int64)
        for block, size, shared in zip(plan.block_of, plan.sizes, plan.shared, strict=True):
            if shared and self.fixed_point is not None:
                bits[block] += size * self.fixed_point.bits
            elif shared and self.compressor is not None:
                bits[block] += self.compressor.bits([size], 8 * item_bytes)
        return -(-bits // 8)

    def __call__(
        self, sent: Stack, reference: Stack, info: UploadInfo, memory: StageMemory
    ) -> tuple[Stack, StageMemory]:
        leaves, tree = jax.tree.flatten(sent)
        held = tree.flatten_up_to(reference)
        floats = [i for i, x in enumerate(leaves) if jnp.issubdtype(x.dtype, jnp.inexact)]
        whole = len(floats) < len(leaves)
        if whole and (self.privacy is not None or self.fixed_point is not None):
            what = "Secure aggregation" if self.privacy is None else "Differential privacy"
            raise InputError(
                f"{what} can't cover the whole numbers, such as counts of samples, in the upload "
                f"{info.what!r}."
            )
        steps = (self.privacy, self.compressor, self.attack, self.fixed_point)
        if not floats or all(step is None for step in steps):
            return sent, memory
        before = [held[i].astype(leaves[i].dtype) for i in floats]
        updates = [leaves[i] - old for i, old in zip(floats, before, strict=True)]
        errors = None
        if memory.errors is not None:
            kept = tree.flatten_up_to(memory.errors)
            errors = [kept[i] for i in floats]
        updates, after = self._steps(updates, info, memory._replace(errors=errors))
        sending = info.mask
        if self.noise_of_sums:
            sending = info.weighted | empty_sum_row(info.weighted)
            updates = _means(updates, sending)
        updates = trees.keep_rows(sending, updates)
        for i, old, update in zip(floats, before, updates, strict=True):
            leaves[i] = (old + update).astype(old.dtype)
        if after.errors is not None:
            for i, error in zip(floats, after.errors, strict=True):
                kept[i] = error
            after = after._replace(errors=tree.unflatten(kept))
        return tree.unflatten(leaves), after

    def _steps(self, updates, info: UploadInfo, memory: StageMemory):
        errors, bound, attack = memory
        of_members, of_attack, of_count = jax.random.split(info.key, 3)
        if self.privacy is not None:
            private = self.privacy.clip, self.privacy.noise, self.privacy.distributed
            of_members, of_count = (
                key_of.of_mechanism(key, *private) for key in (of_members, of_count)
            )
        members = jax.vmap(lambda client: jax.random.fold_in(of_members, client))(info.ids)

        def keys(number):
            return jax.vmap(lambda key: jax.random.fold_in(key, number))(members)

        if self.privacy is not None:
            updates = trees.keep_rows(info.mask, updates)
            updates, bound = _private(self.privacy, updates, info, (keys(1), of_count), bound)
        if self.compressor is not None and info.compressed:
            compress = jax.vmap(self.compressor)
            updates, errors = self._compressed(compress, updates, info.mask, keys(2), errors)
        attackers = self.attacking(info.ids)
        if self.attack is not None and attackers is not None:
            who = info.mask & ~attackers, info.mask & attackers
            if attack is None:
                attacked = self.attack(updates, *who, of_attack)
            else:
                attacked, attack = self.attack.remembering(
                    updates, *who, of_attack, info.ids, attack
                )
            updates = trees.where(attackers, attacked, updates)
        if self.fixed_point is not None:
            updates = jax.vmap(self.fixed_point.rounded)(updates, keys(4))
        return updates, StageMemory(errors, bound, attack)

    def _compressed(self, compress, updates, mask: Mask, keys, errors):
        if errors is None:
            return compress(updates, keys), None
        if self.feedback == "ef":
            wanted = jax.tree.map(jnp.add, updates, errors)
            sent = compress(wanted, keys)
            after = jax.tree.map(jnp.subtract, wanted, sent)
        else:  # ef21: the server keeps a running estimate of each client's update
            change = compress(jax.tree.map(jnp.subtract, updates, errors), keys)
            sent = after = jax.tree.map(jnp.add, errors, change)
        return sent, trees.where(mask, after, errors)


def _means(updates: Stack, counted: Mask) -> Stack:
    """Return the mean of the counted rows in each row, since noise does not cover single ones."""
    count = jnp.sum(counted)

    def mean(x):
        total = jnp.sum(x, axis=0, where=trees.expand_to(x, counted), keepdims=True)
        return jnp.broadcast_to(total / count.astype(x.dtype), x.shape)

    return jax.tree.map(mean, updates)


def _private(privacy: ClientPrivacy, updates, info: UploadInfo, keys, bound):
    """Return (clipped and noisy updates, the next clipping bound)."""
    of_members, of_count = keys
    clip = privacy.clip if bound is None else bound
    updates, norms = clip_rows(updates, clip)
    members = jnp.sum(info.weighted)
    multiplier, adaptive = privacy.noise, privacy.adaptive
    if bound is not None and adaptive is not None:
        count_deviation = adaptive.count_noise * info.expected
        multiplier = split_noise(privacy.noise, count_deviation)
        noise = count_deviation * jax.random.normal(of_count)
        quantile, rate = adaptive.quantile, adaptive.rate
        after = next_bound(bound, norms, info.mask, noise, info.expected, quantile, rate)
        bound = after.astype(bound.dtype)
    deviation = jnp.where(multiplier > 0, multiplier * clip, 0)
    if privacy.distributed:
        deviation = deviation / jnp.sqrt(jnp.maximum(members, 1))
    return add_noise(of_members, updates, deviation), bound
