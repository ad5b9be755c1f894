"""Uploads, aggregation and mixing in a round: methods of `Context`."""

from dataclasses import dataclass

import jax
import jax.numpy as jnp

from fedjax_pfl.aggregation import mixing, similarity
from fedjax_pfl.aggregation.aggregators import Aggregator, Senders
from fedjax_pfl.aggregation.leaf_plan import LeafPlan
from fedjax_pfl.core.context_base import ContextBase
from fedjax_pfl.core.round_observer import Upload
from fedjax_pfl.federation.participation import Cohort
from fedjax_pfl.uploads.stage import MODEL, StageMemory, UploadInfo, empty_sum_row
from fedjax_pfl.utils import keys, trees
from fedjax_pfl.utils.errors import UNCOUNTED, UncountedRelease
from fedjax_pfl.utils.structs import Broadcast
from fedjax_pfl.utils.typing import Matrix, PerMember, Rows, Stack, Tree


@dataclass(frozen=True)
class ContextUploads(ContextBase):
    """The methods of `Context` for uploads, aggregation and mixing.

    They apply the federation's upload stage and robust rule.
    """

    def upload(
        self,
        values: Tree,
        reference: Tree | Broadcast,
        what: str = MODEL,
        cohort: Cohort | None = None,
        *,
        compressed: bool = True,
    ) -> Tree:
        """Return what the server receives when the members send `values`, leaves [M, ...].

        The server and other clients compute from the result; what else they see is declared in
        `also_sent`. Only the shared leaves of models are sent; private leaves are returned
        unchanged. Without `federation.uploads` the result is `values`.

        Args:
          values: models, or anything else that is sent, such as a gradient.
          reference: the value that the server already holds, usually the model that it sent: a
            stack [M, ...] or one `Broadcast` model; private leaves may be missing. It must not
            depend on client data that was never uploaded.
          what: a name for this upload, unique within a round.
          cohort: who sends, without those whose training failed; the round's cohort by default.
          compressed: False for uploads that are recorded as `numbers_up` instead of as copies of
            the model's blocks; compressors leave them as they are.

        Returns:
          What the server receives, [M, ...]. Under distributed noise it receives sums alone: the
          difference to the reference is the members' mean in each row.
        """
        cohort, private = self.cohort if cohort is None else cohort, None
        privacy = self.federation.privacy
        costs = privacy is not None and privacy.unit == "client"
        if costs and self.outside:
            raise UncountedRelease(
                f"The upload {what!r} in {self.outside} {UNCOUNTED}: call ctx.upload in a round."
            )
        if self.observer is not None:
            self.observer.record_upload(Upload(what, compressed), cohort, costs)
        stage = self.federation.uploads
        if stage is None:
            return values
        if self.observer is not None and self.observer.amplified:
            cohort = self.observer.drawn(cohort)
        if isinstance(values, dict) and "params" in values:
            values, private = self.plan.split(values)
        held = reference.model if isinstance(reference, Broadcast) else reference
        if jax.tree.structure(held) != jax.tree.structure(values):
            held, _ = self.plan.split(held)
        if isinstance(reference, Broadcast):
            held = trees.replicate(held, cohort.size)
        key = keys.of_mechanism(self.key_for(f"upload/{what}"), self.learning_rate)
        if self.rounds_in_noise:  # a longer run starts over, and must draw new noise
            key = jax.random.fold_in(key, self.num_rounds)
        info = UploadInfo(
            cohort.ids,
            cohort.mask,
            cohort.mask & (self.federation.data.train.size[cohort.rows] > 0),
            what,
            key,
            compressed,
            self.federation.participation.expected,
        )
        if self.memory is None or what != MODEL:
            received, _ = stage(values, held, info, StageMemory())
        else:
            received = self.memory.upload(stage, values, held, info, cohort)
        return received if private is None else trees.join(received, private)

    def upload_changes(
        self, values: Stack, before: Stack, what: str, cohort: Cohort | None = None
    ) -> tuple[Stack, Stack]:
        """Upload how values that members keep have changed, [M, ...].

        Returns:
          (the values with which members go on, the changes that the server receives). Where it
          receives sums alone, it never learns the values of one member.
        """
        stage = self.federation.uploads
        if stage is not None and stage.noise_of_sums:
            changes = jax.tree.map(jnp.subtract, values, before)
            zeros = jax.tree.map(jnp.zeros_like, before)
            return values, self.upload(changes, zeros, what, cohort)
        values = self.upload(values, before, what, cohort)
        return values, jax.tree.map(jnp.subtract, values, before)

    def mix(
        self,
        weights: Matrix,
        senders: Stack,
        onto: Stack,
        plan: LeafPlan | None = None,
        rows: Rows | None = None,
    ) -> Stack:
        """Apply a mixing matrix under the federation's leaf plan, or another grouping of blocks.

        A robust rule for mixing matrices (`federation.aggregator`) changes the matrix first.

        Args:
          weights, senders, onto: see `mixing.apply`.
          plan: another grouping of the model's blocks.
          rows: [A], which of the senders each receiver is; by default the members of the cohort.
        """
        self._hide_members("ctx.mix")
        several = self.federation.execution.devices > 1
        plan, rule = plan or self.federation.plan, self.federation.aggregator
        if rule is not None and rule.for_matrices:
            if rows is None:
                whole = weights.shape[-2] == weights.shape[-1]
                rows = jnp.arange(weights.shape[-2]) if whole else self.cohort.rows
            shared, _ = plan.split(senders)
            given, weights = weights, rule.mixing(weights, shared, rows)
            if self.observer is not None:
                self.observer.weights = weights
                self.observer.record_rule(given, weights)
        return mixing.apply(weights, senders, onto, plan, blockwise=several)

    def _hide_members(self, name: str) -> None:
        """Raise `UncountedRelease` where sampling amplifies privacy."""
        if self.observer is not None and self.observer.amplified:
            raise UncountedRelease(
                f"{name} depends on how many clients were drawn, which distributed noise does not "
                "cover: call ctx.aggregate, which divides by their expected number."
            )

    def aggregate(self, weights: PerMember, uploads: Stack, onto: Tree) -> Tree:
        """Aggregate uploads into the server's new model, by a weighted sum or a robust rule.

        Without a robust rule it is `mixing.weighted_sum(weights, uploads, onto)`. With secure
        aggregation and distributed noise, members of positive weight count equally. With
        distributed noise the divisor is the expected number of members, and the missing part stays
        at `onto`.

        Args:
          weights: [B], weights of the uploads; if all are zero, the result is `onto`.
          uploads: what the server received, [B, ...].
          onto: the server's model; an update is the difference of an upload and this model.
        """
        stage, rule = self.federation.uploads, self.federation.aggregator
        if stage is not None and stage.uniform:
            part, there = self.federation.participation, weights > 0
            # Privacy needs a divisor that does not depend on the members.
            fixed = stage.noise_of_sums
            if self.observer is not None and self.observer.amplified:
                if not self.observer.counts_here:
                    raise UncountedRelease(
                        f"A sum in a loop, branch or vmap of an algorithm's own {UNCOUNTED}: call "
                        "ctx.aggregate outside of it."
                    )
                self.observer.sums += 1
            if fixed:
                weights = there / jnp.asarray(part.expected, jnp.result_type(float))
            else:
                weights = mixing.normalize(jnp.ones_like(weights), there)
            if self.observer is not None:
                self.observer.weights = weights
            if stage.noise_of_sums and len(weights) == self.cohort.size:
                weights = jnp.where(empty_sum_row(there), 1 / part.expected, weights)
        if rule is None:
            mean = mixing.weighted_sum(weights, uploads, onto=onto)
            if stage is None or not stage.noise_of_sums:
                return mean
            rest = 1 - jnp.sum(weights)  # of clients that Poisson sampling did not draw
            rest = jnp.where(jnp.any(weights != 0), rest, 0)
            return jax.tree.map(
                lambda x, old: (
                    x + (rest * old).astype(x.dtype) if jnp.issubdtype(x.dtype, jnp.inexact) else x
                ),
                mean,
                onto,
            )
        senders = self._senders(rule, weights, uploads, onto)
        new, used = rule(weights, uploads, onto, self.key_for("aggregate"), senders)
        if senders.centre is not None and self.memory is not None:
            moved = jax.tree.map(lambda x, old: x - old.astype(x.dtype), new, onto)
            self.memory.centre = trees.where(jnp.any(used != 0), moved, senders.centre)
        if self.observer is not None:
            self.observer.weights = used
            self.observer.record_rule(mixing.normalize(weights), used)
        return new

    def arrived(self, weights: PerMember) -> jax.Array:
        """Return whether the server takes a step from uploads of these weights, bool [].

        With distributed noise it always does: an empty round must look like others.
        """
        stage = self.federation.uploads
        noisy = stage is not None and stage.noise_of_sums
        return jnp.any(weights != 0) | noisy

    def _senders(self, rule: Aggregator, weights: PerMember, uploads: Stack, onto: Tree) -> Senders:
        """Return what a rule may know of the members, if these are who sent the uploads."""
        if len(weights) != self.cohort.size:
            return Senders()
        if self.memory is None or not (rule.remembers or rule.has_centre):
            return Senders(self.cohort.ids)
        if rule.has_centre:
            return Senders(self.cohort.ids, centre=self.memory.last_centre(onto))
        updates = jax.tree.map(lambda new, old: new - old.astype(new.dtype), uploads, onto)
        counted = (weights > 0) & jnp.isfinite(similarity.squared_norms(updates))
        updates = trees.keep_rows(counted, updates)
        return Senders(self.cohort.ids, self.memory.summed(updates, self.cohort))

    def aggregate_rows(self, weights: Matrix, uploads: Stack, onto: Stack) -> Stack:
        """Aggregate uploads into K models, such as those of clusters; a robust rule acts on each.

        Without `federation.aggregator` it is `mix(weights, uploads, onto)`.

        Args:
          weights: [K, B]; a rule acts on the uploads whose weights are positive.
          uploads: [B, ...].
          onto: the server's K models, which stay if their row is zero; private leaves are theirs.
        """
        rule = self.federation.aggregator
        if rule is None:
            return self.mix(weights, uploads, onto)
        (shared, _), (held, private) = self.plan.split(uploads), self.plan.split(onto)
        rows = jax.vmap(rule, in_axes=(0, None, 0, None))
        new, used = rows(weights, shared, held, self.key_for("aggregate"))
        if self.observer is not None:
            self.observer.record_rule(mixing.normalize(weights), used)
        return trees.join(new, private)

    def average(self, weights: PerMember, senders: Stack, onto: Stack) -> Stack:
        """Average the shared leaves for all members; every member keeps its private leaves.

        Args:
          weights: [B], weights of the senders; if all are zero, every member keeps its model.
          senders: models [B, ...].
          onto: models [A, ...] of the receivers.
        """
        self._hide_members("ctx.average")
        shared, _ = self.federation.plan.split(senders)
        mine, private = self.federation.plan.split(onto)
        count = jax.tree.leaves(onto)[0].shape[0]
        first = jax.tree.map(lambda leaf: leaf[0], mine)
        mean = trees.replicate(mixing.weighted_sum(weights, shared, onto=first), count)
        received = jnp.broadcast_to(jnp.any(weights != 0), (count,))
        return trees.join(trees.where(received, mean, mine), private)

    def matrices_used(self, cohort: Cohort, matrices: dict[str, jax.Array]) -> tuple[dict, dict]:
        """Return (the matrices as a robust rule changed them, {"attackers_weight": []}).

        The weight of attackers is their share of the benign members' rows of "mixing" or of the
        only matrix, or of the weights of a mean. It is left out for matrices over all clients, and
        for rules that weigh coordinates instead of members.
        """
        rule, stage = self.federation.aggregator, self.federation.uploads
        name = "mixing" if "mixing" in matrices else next(iter(matrices), None)
        changed = None if self.observer is None else self.observer.weights
        if changed is not None and name and changed.shape == matrices[name].shape:
            matrices = {**matrices, name: changed}
        attacking = None if stage is None else stage.attacking(cohort.ids)
        if attacking is None or name is None or (rule is not None and changed is None):
            return matrices, {}
        weights = matrices[name]
        if any(size != cohort.size for size in weights.shape[-2:][-weights.ndim :]):
            return matrices, {}
        share = jnp.sum(jnp.where(attacking, weights, 0), axis=-1)
        share = mixing.ratio(share, jnp.sum(jnp.abs(weights), axis=-1))
        if weights.ndim > 1:
            benign = cohort.mask & ~attacking
            share = jnp.mean(share, axis=tuple(range(share.ndim - 1)))
            share = mixing.ratio(jnp.sum(jnp.where(benign, share, 0)), jnp.sum(benign))
        return matrices, {"attackers_weight": share}
