"""Clustered Federated Learning: Model-Agnostic Distributed Multitask Optimization Under Privacy Constraints.

Felix Sattler, Klaus-Robert Müller, Wojciech Samek. IEEE TNNLS 2021.
https://arxiv.org/abs/1910.01991
"""  # noqa: E501

from dataclasses import replace
from typing import Any, Literal

import jax
import jax.numpy as jnp
from jax import lax

from fedjax_pfl import core, mixing, similarity, trees
from fedjax_pfl.aggregation import products
from fedjax_pfl.algorithms.common.best_model import best_fitting, mean_private


@core.struct
class ClusterTree:
    """The splits so far.

    Attributes:
      parent: int32 [K], the cluster from which each was split.
      before: [K, ...], that cluster's model before the split.
    """

    parent: Any
    before: core.Stack

    @classmethod
    def begin(cls, models: core.Stack) -> "ClusterTree":
        """Return the tree before any split; `models` [K, ...] give the shapes."""
        return cls(jnp.zeros((len(jax.tree.leaves(models)[0]),), jnp.int32), models)

    def split(self, target: jax.Array, models: core.Stack) -> "ClusterTree":
        """Add splits of each cluster into itself and `target` [K]; K means no split.

        Args:
          models: of all clusters before them, [K, ...].
        """
        numbers = jnp.arange(len(self.parent), dtype=jnp.int32)
        return ClusterTree(
            written(self.parent, target, numbers), written(self.before, target, models)
        )

    def with_latest(self, models: core.Stack) -> core.Stack:
        """Return the models before each split, then the clusters' models, [2K, ...]."""
        return jax.tree.map(lambda *s: jnp.concatenate(s), self.before, models)

    def path(self, own: jax.Array, count: jax.Array) -> jax.Array:
        """Return the rows of `with_latest` with the models of all clusters of each client, [M, K].

        The latest comes first, then split by split back to the root, which fills the rest.

        Args:
          own: [M], the clusters in which clients are.
          count: [], of clusters in use.
        """
        most = len(self.parent)
        at, path = own, [most + own]
        for k in range(most - 1, 0, -1):  # the newest split first
            at = jnp.where(at == k, self.parent[k], at)
            passed = (k < count) & (self.parent[k] == at)
            path.append(jnp.where(passed, k, most + own))
        return jnp.stack(path, axis=1)


LINKAGES = {"complete": jnp.maximum, "single": jnp.minimum}


@core.struct
class State:
    # [K, ...]; neither private leaves nor unused numbers matter
    models: core.Stack = core.per_server()
    private: Any = core.per_client()  # statistics that stay with their clients
    cluster: Any = core.per_client()  # int32 [N]
    count: Any = core.per_server()  # int32 [], clusters in use: 0, ..., count - 1
    tree: ClusterTree | None = core.per_server()  # only with best_of_tree


@core.algorithm("cfl")
class Cfl(core.Algorithm):
    """FedAvg with equal weights within clusters; a cluster whose mean update vanishes is split.

    A cluster is split where, of its members' updates, the mean's norm is below `mean_below`, the
    largest norm above `largest_above`, and there are more than two: before they are averaged, and
    at most once in a round. The half with the lowest permanent id keeps the cluster's number, as do
    absent clients.

    Attributes:
      mean_below: eps_1. Like eps_2 it has the scale of updates, of learning rate and model: the
        result's `mean_norm` and `update_norm` show it.
      largest_above: eps_2.
      first_split: rounds before which no cluster is split.
      max_clusters: K; clusters are split in the order of their numbers until there are K. The
        published code has no bound, which corresponds to N.
      linkage: distance of two groups when members are joined by -cos of their updates: "complete",
        the largest of their members' (the published code), or "single", the smallest (the paper's
        optimal bipartition).
      gamma_max: the halves must have sqrt((1 - alpha) / 2) > gamma_max, alpha the largest cosine
        between them (the paper's test); -1 asks nothing.
      best_of_tree: also score, for each client, the best on its validation samples of the models
        that its clusters had before each split, and its own.
    """

    batch_norm = "shared"
    aggregator_replaces = "mean"  # of each cluster

    mean_below: float = core.number(default=0.4, allowed="at least 0")
    largest_above: float = core.number(default=1.6, allowed="at least 0")
    first_split: int = core.number(default=20, allowed="at least 0")
    max_clusters: int = core.static(default=10, allowed="at least 1")
    linkage: Literal["complete", "single"] = core.static(default="complete")
    gamma_max: float = -1.0
    best_of_tree: bool = core.static(default=False)

    @property  # pyright: ignore[reportAssignmentType] - it depends on a hyperparameter
    def unprotected(self) -> tuple[str, ...]:
        return ("the choice among models by validation samples",) if self.best_of_tree else ()

    def validate(self):
        valid = self.gamma_max == -1 or self.gamma_max >= 0
        core.require(valid, "gamma_max", self.gamma_max, "at least 0, or -1 for no test")

    def check(self, federation):
        core.require_whole_models(self, federation)
        if self.best_of_tree and not federation.data.validation.total:
            raise core.InputError(
                "cfl's best_of_tree chooses by validation samples, and the federation has none: "
                "partition.split_validation(0.2, seed=0), or --validation_fraction=0.2, sets "
                "training samples aside."
            )

    def remarks(self, federation):
        notes = super().remarks(federation)
        if federation.participation.sampled(federation.num_clients):
            notes.append("made for full participation: a split moves only clients that take part")
        return notes

    def round_remarks(self, federation, rounds):
        if rounds > self.first_split:
            return []
        first = f"no cluster is split in the first {self.first_split} rounds"
        return [f"is FedAvg with equal weights: {first}"]

    def init(self, ctx):
        most = min(self.max_clusters, ctx.num_clients)  # each has a member
        models = trees.replicate(ctx.initial_model(), most)
        tree = ClusterTree.begin(models) if self.best_of_tree else None
        _, private = ctx.plan.split(ctx.replicate(ctx.initial_model()))
        clusters = jnp.zeros((ctx.num_clients,), jnp.int32)
        return State(models, private, clusters, jnp.int32(1), tree)

    def round(self, ctx, state):
        own, private = ctx.cohort.gather((state.cluster, state.private))
        received = ctx.plan.with_private(trees.take(state.models, own), private)
        trained, cohort, loss = ctx.train(received)
        sent = ctx.upload(trained, received, cohort=cohort)
        update = ctx.plan.trainable_shared(jax.tree.map(jnp.subtract, sent, received))
        norms = jnp.sqrt(similarity.squared_norms(update))
        members = self._members(state, own, cohort)
        mean_norms = jnp.sqrt(similarity.squared_norms(_means(members, update)))
        largest = jnp.max(jnp.where(members, norms, 0), axis=1)
        stationary = (mean_norms < self.mean_below) & (largest > self.largest_above)
        wants = stationary & (jnp.sum(members, axis=1) > 2) & (ctx.t >= self.first_split)
        state, now = lax.cond(
            jnp.any(wants & (state.count < len(wants))),
            lambda: self._split(state, own, update, cohort.ids, members & wants[:, None]),
            lambda: (state, own),
        )
        weights = mixing.normalize(self._members(state, now, cohort).astype(ctx.dtype))
        models = ctx.aggregate_rows(weights, sent, onto=state.models)
        _, private = ctx.plan.split(trained)
        fields = cohort.scatter((state.private, state.cluster), (private, now))
        return replace(state, models=models, private=fields[0], cluster=fields[1]), ctx.record(
            cohort,
            clients={
                "train_loss": loss,
                "cluster": now,
                "update_norm": norms,
                "mean_norm": mean_norms[own],
            },
            scalars={"clusters": state.count},
            mixing=weights[now],
        )

    @staticmethod
    def _members(state, own, cohort):
        """Return the members of each cluster that trained, bool [K, M]."""
        numbers = jnp.arange(len(jax.tree.leaves(state.models)[0]))
        return (own == numbers[:, None]) & cohort.mask

    def _split(self, state, own, update, ids, members):
        """Split the clusters whose rows of `members` [K, M] are not empty.

        Returns (the new state, the cohort's clusters [M])."""
        cosines = similarity.cosines(update, update)
        second = second_halves(cosines, ids, members, self.linkage)
        between = largest_between(cosines, members, second)
        apart = jnp.sqrt(jnp.maximum(1 - between, 0) / 2) > self.gamma_max
        granted = jnp.any(members, axis=1) & ((self.gamma_max < 0) | apart)
        number = state.count + jnp.cumsum(granted, dtype=jnp.int32) - 1
        most = len(number)
        granted &= number < most
        moves = second & jnp.any(members & granted[:, None], axis=0)
        target = jnp.where(granted, number, most)  # beyond the last one nothing is written

        models, tree = state.models, state.tree
        return replace(
            state,
            models=written(models, target, models),
            count=state.count + jnp.sum(granted, dtype=jnp.int32),
            tree=None if tree is None else tree.split(target, models),
        ), jnp.where(moves, number[own], own)

    def models(self, ctx, state, rows):
        own, private = trees.take((state.cluster, state.private), rows)
        named = {"personalized": trees.take(state.models, own)}
        if self.best_of_tree:
            named["best_of_tree"] = self._best_of_tree(ctx, state, own, private, rows)
        return {name: ctx.plan.with_private(models, private) for name, models in named.items()}

    @staticmethod
    def _best_of_tree(ctx, state, own, private, rows):
        """Return the models with the least loss on each client's validation samples.

        Candidates are its cluster's model and those before each split. Ties go to the later one."""
        models = state.tree.with_latest(state.models)
        path = state.tree.path(own, state.count)
        best, _ = best_fitting(ctx, models, private, rows, split="validation", choice=path)
        return trees.take(models, jnp.take_along_axis(path, best[:, None], axis=1)[:, 0])

    def personalize(self, ctx, state, new_clients):
        """Train the cluster's model that fits a new client's training samples best."""
        everyone = new_clients.cohort
        numbers = jnp.arange(len(jax.tree.leaves(state.models)[0]))
        used = jnp.where(numbers < state.count, numbers, 0)
        choice = jnp.broadcast_to(used, (everyone.size, len(used)))
        own = mean_private(state, everyone.size)
        best, _ = best_fitting(new_clients, state.models, own, everyone.rows, choice=choice)
        start = ctx.plan.with_private(trees.take(state.models, best), own)
        return new_clients.train(start).models


def _means(members, update):
    """Return each cluster's mean update [K, ...]; 0 for a cluster without members [K, M]."""
    weights = mixing.normalize(members.astype(jnp.result_type(float)))
    none = jax.tree.map(lambda leaf: jnp.zeros_like(leaf[0]), update)
    return jax.vmap(mixing.weighted_sum, (0, None, None))(weights, update, none)


def written(stack: core.Tree, target: jax.Array, values: core.Tree) -> core.Tree:
    """Write `values` [K, ...] to the rows `target` [K] of a stack [K, ...]; row K is none."""
    return jax.tree.map(lambda leaf, v: leaf.at[target].set(v, mode="drop"), stack, values)


def second_halves(cosines, ids, members, linkage):
    """Return the clients that leave their cluster, bool [M]: the half without its lowest id.

    Agglomerative clustering inside every cluster on distances -cos, until two groups are left.
    Ties go to the pair of groups with the lowest ids.

    Args:
      cosines: [M, M].
      ids: int32 [M].
      members: bool [K, M], those of the clusters to be cut; no other client leaves.
      linkage: "complete" or "single": the distance of two groups is the largest or the smallest
        of their members'.
    """
    order = jnp.argsort(ids)
    inside = members[:, order]
    count, join = len(order), LINKAGES[linkage]
    pairs = _together(inside) & ~jnp.eye(count, dtype=bool)
    # A group has the row and column of its lowest member; those of others are infinite.
    distances = jnp.where(pairs, -(cosines + cosines.T)[order][:, order] / 2, jnp.inf)
    groups = jnp.sum(inside, axis=1, dtype=jnp.int32)

    def unfinished(state):
        return jnp.any(state[0] > 2)

    def merge(state):
        groups, leader, distances = state
        still = jnp.any(inside & (groups > 2)[:, None], axis=0)
        nearest = jnp.argmin(jnp.where(still[:, None], distances, jnp.inf))
        a, b = nearest // count, nearest % count  # a < b, as the matrix is symmetric to the bit
        joined = join(distances[a], distances[b]).at[a].set(jnp.inf)
        distances = distances.at[a].set(joined).at[:, a].set(joined)
        distances = distances.at[b].set(jnp.inf).at[:, b].set(jnp.inf)
        return groups - inside[:, a], jnp.where(leader == b, a, leader), distances

    leader = jnp.arange(count)
    _, leader, _ = lax.while_loop(unfinished, merge, (groups, leader, distances))
    lowest = jnp.argmax(inside, axis=1)  # its half keeps the cluster's number
    leaves = jnp.any(inside & (leader != lowest[:, None]), axis=0)
    return leaves[jnp.argsort(order)]


def largest_between(cosines, members, second):
    """Return the largest cosine between the halves of each cluster, [K]; -1 if one is empty."""
    across = _together(members) & ~second[:, None] & second
    largest = jnp.max(jnp.where(across, cosines, -1), axis=1)
    return jnp.max(jnp.where(members, largest, -1), axis=1)


def _together(members):
    """Return the pairs in one cluster, bool [M, M]."""
    inside = members.astype(jnp.float32)
    return products.matmul(inside.T, inside) > 0
