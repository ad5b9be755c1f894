"""Personalized Federated Learning with First Order Model Optimization.

Michael Zhang, Karan Sapra, Sanja Fidler, Serena Yeung, Jose M. Alvarez. ICLR 2021.
https://arxiv.org/abs/2012.08565
"""

from typing import Literal

import jax
import jax.numpy as jnp
from jax import lax

from fedjax_pfl import core, mixing, similarity, trees

TINY = 1e-9  # added to smaller sums of weights, as in the published code
NEAR = 1e-6  # relative to |s_i|: a nearer model differs from s_i by rounding only
SELF_AFFINITY = 0.1  # initial affinity of a client for itself, as in the published code


@core.struct
class State:
    starts: core.Stack = core.per_client()  # s_i: where each client's last local training began
    trained: core.Stack = core.per_client()  # Theta_i: what it trained from there, its last upload
    affinity: jax.Array = core.per_pair()  # P [receiver, sender]
    last_upload: jax.Array = core.per_client()  # int32 [N], the round of it; -1 before the first


@core.algorithm("fedfomo")
class FedFomo(core.Algorithm):
    """FedFomo: each client mixes the models that lower its validation loss, then trains.

    At the start of a round it has its own last model and downloads models that some others
    uploaded in the last round: w_ij = (L_i(s_i) - L_i(Theta_j)) / |Theta_j - s_i|, negative ones
    dropped, the rest scaled to sum 1, and s_i <- s_i + sum_j w_ij (Theta_j - s_i). L_i is the mean
    loss on client i's validation samples. What it downloads depends on its affinities, which the
    weights raise.

    The models scored are s_i ("personalized", mixed and not yet trained) and Theta_i
    ("last_trained").

    Attributes:
      downloads: M, how many models of others a client downloads; at most all.
      exploration: probability that a download is random, in the first round; otherwise it is the
        remaining candidate of largest affinity.
      exploration_decay: decrease of that probability per round, down to 0.
      norm: of the distances, over all trainable shared parameters: "l2" (the paper), or "l1" (the
        published code's default).
      affinity: raised by the "normalized" signed weights w_ij / |sum_k w_ik| (published code), or
        by the "raw" ones.
      fallback: without a positive weight a client trains on from its last trained model, or falls
        back to its "start" s_i, as the published code does.
    """

    needs_validation = True
    also_sent = ("which models it downloads",)

    downloads: int = core.static(default=4, allowed="at least 0")
    exploration: float = core.number(default=0.3, allowed="in [0, 1]")
    exploration_decay: float = core.number(default=0.05, allowed="at least 0")
    norm: Literal["l2", "l1"] = core.static(default="l2")
    affinity: Literal["normalized", "raw"] = core.static(default="normalized")
    fallback: Literal["trained", "start"] = core.static(default="trained")

    def check(self, federation):
        if not any(federation.plan.shared):
            raise core.InputError(f"{self.name} mixes what clients share, and share is 'none'.")

    def remarks(self, federation):
        notes, others = super().remarks(federation), federation.num_clients - 1
        if self.downloads > others:
            many = f"all {others} others" if others > 1 else f"{others or 'no'} other"
            notes.append(f"downloads {many}, not {self.downloads}")
        return [*notes, "scored before its last local training"]

    def init(self, ctx):
        models = ctx.replicate(ctx.initial_model())
        affinity = SELF_AFFINITY * jnp.eye(ctx.num_clients, dtype=ctx.dtype)
        return State(models, models, affinity, jnp.full(ctx.num_clients, -1, jnp.int32))

    def round(self, ctx, state):
        rows, everyone = ctx.cohort.rows, jnp.arange(ctx.num_clients)
        starts, own, affinity = ctx.cohort.gather((state.starts, state.trained, state.affinity))
        uploaders = (state.last_upload >= 0) & (state.last_upload == jnp.max(state.last_upload))
        candidates = uploaders & (rows[:, None] != everyone)
        choice, found = self.choose(ctx, ctx.cohort.ids, rows, affinity, candidates)
        initial = with_private_of(ctx, starts, own)
        signed = signed_weights(ctx, self.norm, initial, state.trained, choice, found)
        share = positive_part(signed, self.fallback)
        mixed, weights = self.mix(ctx, share, choice, state.trained, initial)
        trained, cohort, loss = ctx.train(mixed)
        sent = ctx.upload(trained, own, cohort=cohort)

        risen = rise(signed, self.affinity).astype(affinity.dtype)
        raised = affinity.at[jnp.arange(len(rows))[:, None], choice].add(risen)
        state = State(
            cohort.scatter(state.starts, mixed),
            cohort.scatter(state.trained, sent),
            cohort.scatter(state.affinity, raised),
            cohort.scatter(state.last_upload, jnp.full(len(rows), ctx.t, jnp.int32)),
        )
        took_part = cohort.mask | cohort.diverged
        return state, ctx.record(
            cohort,
            down=found.sum(axis=1) * took_part,
            clients={"train_loss": loss, "mixed_models": (share > 0).sum(axis=1)},
            mixing=weights,
        )

    def choose(self, ctx, ids, own, affinity, candidates, first=0):
        """Return (indices of the models to mix [A, 1 + D], which downloads exist, bool [A, D]).

        Args:
          ids: permanent ids of the clients [A].
          own: int [A], the index of each client's own model, which always comes first.
          affinity, candidates: see `epsilon_greedy`.
          first: the index of the model in the candidates' first column.
        """
        key, count = ctx.key_for("fedfomo"), min(self.downloads, ctx.num_clients - 1)
        chance = jnp.maximum(self.exploration - self.exploration_decay * ctx.t, 0)
        picks, found = epsilon_greedy(key, ids, ctx.ids, affinity, candidates, count, chance)
        own = own[:, None]
        return jnp.concatenate([own, jnp.where(found, first + picks, own)], axis=1), found

    @staticmethod
    def mix(ctx, share, choice, candidates, starts):
        """Return (the mixtures [A, ...], their weights [A, Q]).

        As shares sum to one, s + sum_j w_j (Theta_j - s) is sum_j w_j Theta_j.
        """
        count = len(jax.tree.leaves(candidates)[0])
        at = jnp.arange(len(choice))[:, None], choice
        weights = jnp.zeros((len(choice), count), share.dtype).at[at].add(share)
        return ctx.mix(weights, candidates, onto=starts), weights

    def models(self, ctx, state, rows):
        starts, trained = trees.take((state.starts, state.trained), rows)
        return {"personalized": starts, "last_trained": trained}

    def personalize(self, ctx, state, new_clients):
        """Train new clients locally, then mix each model once with those of random others.

        Without validation samples there are no weights, and the client uses its fallback.
        """
        own, count = super().personalize(ctx, state, new_clients), new_clients.num_clients
        starts = new_clients.replicate(self.new_client_start(ctx, state))
        initial = with_private_of(new_clients, starts, own)
        candidates = jnp.broadcast_to(state.last_upload >= 0, (count, ctx.num_clients))
        alike, rows = jnp.zeros(candidates.shape), jnp.arange(count, dtype=jnp.int32)
        choice, found = self.choose(ctx, new_clients.ids, rows, alike, candidates, first=count)
        models = jax.tree.map(lambda *each: jnp.concatenate(each), own, state.trained)
        signed = signed_weights(new_clients, self.norm, initial, models, choice, found, rows)
        share = positive_part(signed, self.fallback)
        return self.mix(new_clients, share, choice, models, initial)[0]


def with_private_of(ctx, starts, own):
    """Return the starts [A, ...] with the private leaves of the clients' own models [A, ...]."""
    return trees.join(ctx.plan.split(starts)[0], ctx.plan.split(own)[1])


def epsilon_greedy(key, ids, everyone, affinity, candidates, count, chance):
    """Return (rows of the models that clients download, whether there was one), [A, count].

    Each download in turn is a random remaining candidate with the probability of exploration, and
    otherwise the one of largest affinity. Choices do not depend on the order of rows.

    Args:
      ids, everyone: permanent ids of the receivers [A], and of all clients [N].
      affinity: [A, N].
      candidates: bool [A, N], the clients whose models exist.
    """
    luck, priority, ties = draws(key, ids, everyone, count)
    return pick(affinity, candidates, luck < chance, priority, ties)


def draws(key, ids, everyone, count):
    """Return random numbers that depend only on permanent ids.

    They are (one per download, [A, count] in 0..1; two per pair of clients, [A, N] in 0..2^31).
    """
    first, second = (jax.random.fold_in(key, k) for k in range(2))

    def of_downloads(i):
        return jax.random.uniform(jax.random.fold_in(first, i), (count,), jnp.float32)

    def of_pair(i, j):
        pair = jax.random.fold_in(jax.random.fold_in(second, i), j)
        return jax.random.bits(pair, (2,), jnp.uint32) >> 1

    pairs = jax.vmap(lambda i: jax.vmap(lambda j: of_pair(i, j))(everyone))(ids)
    return jax.vmap(of_downloads)(ids), pairs[..., 0], pairs[..., 1]


def pick(affinity, candidates, explores, priority, ties):
    """Return (choices [A, D] made one after the other, bool [A, D] whether a candidate was left).

    Args:
      affinity: [A, N].
      candidates: bool [A, N].
      explores: bool [A, D], whether a choice is random: the first remaining one by priority.
        Otherwise it has the largest affinity, the first by ties.
      priority, ties: uint32 [A, N], below 2^31.
    """
    last = jnp.uint32(2**31)

    def one(left, explore):
        best = jnp.max(jnp.where(left, affinity, -jnp.inf), axis=1, keepdims=True)
        greedy = jnp.argmin(jnp.where(left & (affinity == best), ties, last), axis=1)
        random = jnp.argmin(jnp.where(left, priority, last), axis=1)
        picked = jnp.where(explore, random, greedy).astype(jnp.int32)
        any_left = jnp.any(left, axis=1)
        return left & (jnp.arange(left.shape[1]) != picked[:, None]), (picked, any_left)

    _, (picks, any_left) = lax.scan(one, candidates, explores.T)
    return picks.T, any_left.T


def signed_weights(ctx, norm, starts, candidates, choice, found, rows=None):
    """Return signed w_ij, [A, 1 + D], of each client's own model and its downloads.

    Args:
      norm: of the distances, "l2" or "l1".
      starts: s_i, [A, ...].
      candidates: models [Q, ...].
      choice: int [A, 1 + D], the candidates that are a client's own model and its downloads.
      found: bool [A, D].
      rows: int [A], the clients; the cohort by default.
    """
    itself = jnp.arange(len(choice))[:, None]
    before = ctx.loss_matrix(starts, rows, choice=itself)
    after = ctx.loss_matrix(candidates, rows, choice=choice, onto=starts)
    reference, models = ctx.plan.trainable_shared(starts), ctx.plan.trainable_shared(candidates)

    def distance(chosen):
        return length(jax.tree.map(jnp.subtract, trees.take(models, chosen), reference), norm)

    distances = lax.map(distance, choice.T).T
    apart = distances > NEAR * jnp.asarray(length(reference, norm))[:, None]
    weights = (before - after) / jnp.where(apart, distances, 1)
    there = jnp.concatenate([jnp.ones_like(found, shape=(len(found), 1)), found], axis=1)
    # A model that overflows on the client's samples is no help, but no harm either.
    return jnp.where(apart & there & jnp.isfinite(weights), weights, 0)


def length(models, norm):
    """Return the norms of models [A, ...] as vectors, [A]."""
    if norm == "l2":
        return jnp.sqrt(similarity.squared_norms(models))
    return sum(jnp.sum(abs(x).reshape(len(x), -1), axis=1) for x in jax.tree.leaves(models))


def positive_part(signed, fallback):
    """Return weights [A, 1 + D] of sum 1, or 0 for a client that falls back to its "start"."""
    share = mixing.normalize(jnp.maximum(signed, 0))
    if fallback == "start":
        return share
    none = ~jnp.any(share > 0, axis=1)
    return share.at[:, 0].set(jnp.where(none, 1, share[:, 0]))


def rise(signed, affinity):
    """Return the increments of the affinities, [A, 1 + D]: "raw" or "normalized" weights."""
    if affinity == "raw":
        return signed
    total = jnp.abs(jnp.sum(signed, axis=1, keepdims=True))
    return signed / jnp.where(total < TINY, total + TINY, total)
