"""What happens to uploads on their way to the server, in a fixed order.

A member's update is the difference of what it sends and what the server already holds of it. In
order: 1 clipping and 2 noise (client-level differential privacy), 3 compression with error
feedback, 4 attacks of Byzantine members, 5 fixed-point numbers of secure aggregation. What the
server receives is the reference plus the result; whatever it computes from that is post-processing.
"""

from dataclasses import replace
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp

from fedjax_pfl.aggregation.leaf_plan import LeafPlan, trainable
from fedjax_pfl.uploads.clipping import add_noise, clip_rows, next_bound, split_noise
from fedjax_pfl.uploads.compression import Compressor
from fedjax_pfl.uploads.secure import FixedPoint
from fedjax_pfl.utils import trees
from fedjax_pfl.utils.errors import InputError
from fedjax_pfl.utils.structs import static, struct
from fedjax_pfl.utils.typing import Key, Mask, PerMember, Scalar, Stack

MODEL = "model"  # the sending whose error feedback and clipping bound are remembered
FEEDBACKS = ("ef", "ef21")
PLACEMENTS = ("local", "distributed")


@struct
class AdaptiveClip:
    """A clipping bound that follows a quantile of the updates' norms (Andrew et al., 2021).

    Attributes:
      quantile: the share of updates that the bound should leave as they are.
      rate: of its geometric update.
      count_noise: s_b over the number of members, the deviation of the noise on how many updates
        the bound leaves as they are.
    """

    quantile: float = 0.5
    rate: float = 0.2
    count_noise: float = 0.05


@struct
class ClientPrivacy:
    """Client-level differential privacy of every upload.

    Attributes:
      clip: C, the largest norm of an update over all of its leaves; the first one where it adapts.
      noise: z, the noise's deviation is z C.
      placement: "local" adds all noise to each upload, so the server need not be trusted;
        "distributed" adds z C / sqrt(m) to each of m uploads, whose sum then has noise z C, for
        algorithms whose server needs only sums.
      adaptive: how the bound adapts, or None.
    """

    clip: Scalar | float
    noise: Scalar | float = 0.0
    placement: str = static(default="local")
    adaptive: AdaptiveClip | None = None


class Memory(NamedTuple):
    """What uploads remember from round to round, of the sending "model".

    Attributes:
      errors: error feedback of the members, [M, ...], or None.
      bound: the clipping bound, or None.
    """

    errors: Stack | None = None
    bound: Scalar | None = None


class Sending(NamedTuple):
    """One sending of a round's members.

    Attributes:
      ids: int32 [M], permanent ids.
      mask: bool [M], the members whose uploads count.
      what: names this sending among the round's.
      key: of this sending in this round.
    """

    ids: PerMember
    mask: Mask
    what: str
    key: Key


@struct
class Uploads:
    """The steps between what members send and what the server receives.

    Attributes:
      privacy: clipping and noise, or None.
      compressor: of updates, or None.
      feedback: error feedback of the compressor: "ef" or "ef21", or None.
      attack: what Byzantine members send instead, see `attacks`, or None.
      attackers: int32 [A], their permanent ids; empty without.
      fixed_point: numbers of secure aggregation, or None.
    """

    privacy: ClientPrivacy | None = None
    compressor: Compressor | None = None
    feedback: str | None = static(default=None)
    attack: Any = None
    attackers: jax.Array | None = None
    fixed_point: FixedPoint | None = None

    @property
    def remembers_errors(self) -> bool:
        return self.compressor is not None and self.feedback is not None

    @property
    def remembers_bound(self) -> bool:
        return self.privacy is not None and self.privacy.adaptive is not None

    @property
    def keeps_failed(self) -> bool:
        """Whether a client whose training failed still counts, with the zero update."""
        return self.privacy is not None

    def first_memory(self, shared: Stack) -> Memory:
        """The memory before the first round, for shared leaves [N, ...] of all clients."""
        errors = jax.tree.map(jnp.zeros_like, shared) if self.remembers_errors else None
        return Memory(errors, jnp.asarray(self.privacy.clip) if self.remembers_bound else None)

    def refuse(self, name: str, sees: str, plan: LeafPlan) -> None:
        """Raises `InputError` where an algorithm can't have these steps.

        Args:
          name, sees: the algorithm's.
          plan: which leaves are shared.
        """
        if sees == "models":
            needs = f"{name}'s server needs single models, "
            if self.fixed_point is not None:
                raise InputError(f"{needs}which secure aggregation hides: leave secure_bits out.")
            if self.privacy is not None and self.privacy.placement == "distributed":
                raise InputError(
                    f"{needs}which would hold only a part of the noise: dp_placement must be "
                    "'local'."
                )
        shared = [path for path, on in zip(plan.paths, plan.shared, strict=True) if on]
        statistics = [path for path in shared if not trainable(path)]
        if self.privacy is not None and statistics:
            raise InputError(
                f"Differential privacy can't cover running statistics such as {statistics[0]}: "
                "take batch_norm='local' or 'affine_shared', or a network without batch "
                "normalization."
            )

    def attacks(self, ids: PerMember) -> Mask:
        """Which clients are Byzantine, [M]."""
        if self.attackers is None:
            return jnp.zeros(ids.shape, bool)
        return jnp.isin(ids, self.attackers)

    def __call__(
        self, sent: Stack, reference: Stack, sending: Sending, memory: Memory
    ) -> tuple[Stack, Memory]:
        """(what the server receives [M, ...], the memory after it).

        Args:
          sent: what members send, [M, ...]; leaves that are no floats pass unchanged.
          reference: what the server holds in its place, [M, ...].
          sending: who sends what.
          memory: of the sending "model"; of others it is empty.
        """
        leaves, tree = jax.tree.flatten(sent)
        held = tree.flatten_up_to(reference)
        floats = [i for i, x in enumerate(leaves) if jnp.issubdtype(x.dtype, jnp.inexact)]
        if not floats:
            return sent, memory
        before = [held[i].astype(leaves[i].dtype) for i in floats]
        updates = [leaves[i] - old for i, old in zip(floats, before, strict=True)]
        errors = None
        if memory.errors is not None:
            kept = tree.flatten_up_to(memory.errors)
            errors = [kept[i] for i in floats]
        updates, errors, bound = self._steps(updates, sending, errors, memory.bound)
        for i, old, update in zip(floats, before, updates, strict=True):
            leaves[i] = (old + update).astype(old.dtype)
        if errors is not None:
            for i, error in zip(floats, errors, strict=True):
                kept[i] = error
            errors = tree.unflatten(kept)
        return tree.unflatten(leaves), Memory(errors, bound)

    def _steps(self, updates, sending: Sending, errors, bound):
        members = jax.vmap(lambda client: jax.random.fold_in(sending.key, client))(sending.ids)

        def keys(number):
            return jax.vmap(lambda key: jax.random.fold_in(key, number))(members)

        if self.privacy is not None:
            updates, bound = self._private(updates, sending, keys(1), bound)
        if self.compressor is not None:
            updates, errors = self._compressed(updates, sending.mask, keys(2), errors)
        if self.attack is not None:
            attackers = self.attacks(sending.ids)
            key = jax.random.fold_in(sending.key, 3)
            honest = sending.mask & ~attackers
            evil = self.attack(updates, honest, sending.mask & attackers, key)
            updates = trees.where(attackers, evil, updates)
        if self.fixed_point is not None:
            updates = jax.vmap(self.fixed_point.rounded)(updates, keys(4))
        return updates, errors, bound

    def _private(self, updates, sending: Sending, keys, bound):
        privacy = self.privacy
        clip = privacy.clip if bound is None else bound
        updates, norms = clip_rows(updates, clip)
        members = jnp.sum(sending.mask)
        multiplier = privacy.noise
        if bound is not None:
            counted = privacy.adaptive.count_noise * members
            multiplier = split_noise(privacy.noise, counted)
            noise = counted * jax.random.normal(jax.random.fold_in(sending.key, 5))
            how = privacy.adaptive
            bound = next_bound(bound, norms, sending.mask, noise, how.quantile, how.rate)
        deviation = multiplier * clip
        if privacy.placement == "distributed":
            deviation = deviation / jnp.sqrt(jnp.maximum(members, 1))
        return add_noise(keys, updates, deviation), bound

    def _compressed(self, updates, mask: Mask, keys, errors):
        compress = jax.vmap(self.compressor)
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


def without_attack(uploads: Uploads) -> Uploads:
    """The same steps with honest members only."""
    return replace(uploads, attack=None, attackers=None)
