"""Communication-efficient federated learning via knowledge distillation.

Chuhan Wu, Fangzhao Wu, Lingjuan Lyu, Yongfeng Huang, Xing Xie. Nature Communications 13, 2022.
https://doi.org/10.1038/s41467-022-29763-x
"""

from dataclasses import replace
from typing import Any

import jax
import jax.numpy as jnp

from fedjax_pfl import core, mixing
from fedjax_pfl.aggregation import products
from fedjax_pfl.algorithms.common import own_models
from fedjax_pfl.algorithms.common.hypernetwork import linear
from fedjax_pfl.algorithms.common.mutual_distillation import MutualDistillation, divergence
from fedjax_pfl.algorithms.ditto import Both

NEVER = -2  # last_round of clients that never took part; not -1, which precedes round 0


@core.struct
class Mentor:
    """A mentor model and the matrix W [d, d] that maps the mentee's features to its own."""

    model: Any
    transform: Any


@core.struct
class State(own_models.State):
    """The state of FedAvg, whose server's model is the mentee.

    Attributes:
      own: the clients' `Mentor`s.
      last_round: int32 [N], in which a client took part last.
      size: int32, how many numbers the mentee's last change takes.
    """

    own: Any = core.per_client()
    last_round: jax.Array = core.per_client()
    size: jax.Array = core.per_server()


@core.algorithm("fedkd")
class FedKD(MutualDistillation):
    """FedKD: a shared mentee and private mentors teach each other; changes travel as factors.

    On each minibatch, both from the values before it, mentor v and mentee w step on

      CE(v) + (KL(p_w || p_v) + MSE(z_v, z_w W)) / (CE(v) + CE(w))    kept
      CE(w) + (KL(p_v || p_w) + MSE(z_v, z_w W)) / (CE(v) + CE(w))    sent

    in each of which the other model is constant. p are softmax outputs, z features, and W a matrix
    of the client, which steps on the MSE term. Of the change of each layer, clients send the first
    singular values that hold a share T of the energy, with their vectors. The server averages the
    changes and sends the mean in the same way; the mentee changes by what it sends. T goes linearly
    from `first_energy` to `last_energy` in the last round.

    Attributes:
      first_energy, last_energy: T, shares of the sum of squares of the singular values; 1:
        everything.
    """

    needs_classes = True
    server_needs = "models"  # factors cannot be summed
    unprotected = ("the map between features",)

    first_energy: float = core.number(default=0.95, allowed="in (0, 1]")
    last_energy: float = core.number(default=0.98, allowed="in (0, 1]")

    def check(self, federation):
        core.require_features(self, federation)

    def init(self, ctx):
        width, start = ctx.federation.num_features, super().init(ctx)
        drawn = linear(ctx.key_for("transform"), (width, width), width, ctx.dtype)
        return State(
            **vars(start) | {"own": Mentor(start.own, ctx.replicate(drawn))},
            last_round=jnp.full((ctx.num_clients,), NEVER, jnp.int32),
            size=jnp.int32(0),
        )

    def train_both(self, ctx, own: Mentor, shared):
        task, rate = ctx.federation.task, ctx.learning_rate

        def taught(mentor: bool):
            def term(params, batch, broadcast, client, key):
                teacher, transform = broadcast
                taught_by = task.forward(teacher, batch, key)
                seen = taught_by.batch
                wanted, learnt = (jax.nn.log_softmax(one.logits) for one in (seen, batch))
                z = (batch.features, seen.features) if mentor else (seen.features, batch.features)
                apart = divergence(wanted, learnt, batch.valid) + gap(transform, *z, batch.valid)
                return apart / positive(task.mean_loss(batch.logits, batch) + taught_by.loss)

            return ctx.sgd_step(extra_loss=term)

        own_step, shared_step = taught(mentor=True), taught(mentor=False)

        def step(carry, batch, rng, broadcast, client):
            v, w, transform = carry
            # Identical to the steps' forward passes, which XLA then computes once.
            of_v, of_w = (task.forward(one.model, batch, rng) for one in (v, w))
            slope = jax.grad(gap)(
                transform, of_v.batch.features, of_w.batch.features, batch.valid
            ) / positive(of_v.loss + of_w.loss)
            return (
                own_step(v, batch, rng, (w.model, transform), client),
                shared_step(w, batch, rng, (v.model, transform), client),
                transform - (rate * slope).astype(transform.dtype),
            )

        begin = own_step.begin_all(own.model), shared_step.begin_all(shared), own.transform
        (v, w, transform), finite, steps = ctx.run_clients(step, begin)
        cohort = ctx.cohort.mark_diverged(finite, 2 * steps)
        loss = w.loss / jnp.maximum(steps, 1)
        return Both(w.model, cohort, loss, own=Mentor(v.model, transform))

    def round(self, ctx, state: State):
        trained = self.local_update(ctx, state, self.received(state, ctx.cohort.rows))
        cohort, held = trained.cohort, core.Broadcast(state.server)
        done = (ctx.t + 1).astype(jnp.promote_types(ctx.dtype, jnp.float32)) / ctx.num_rounds
        energy = self.first_energy + done * (self.last_energy - self.first_energy)

        arrived = ctx.upload(trained.models, held, cohort=cohort, compressed=False)
        changed, private = ctx.plan.split(arrived)
        factored = jax.vmap(low_rank, in_axes=(0, None, None))
        changed, up = factored(changed, state.server, energy)
        weights = mixing.normalize(cohort.mask.astype(ctx.dtype))  # the mean, as published
        mean = ctx.aggregate(weights, changed, onto=state.server)
        mean, size = low_rank(mean, state.server, energy)

        took_part = cohort.mask | cohort.diverged
        current = cohort.gather(state.last_round) == ctx.t - 1  # a download is one change of w
        record = ctx.record(
            cohort,
            up=0,
            down=took_part & ~current,
            numbers_up=up * took_part,
            numbers_down=state.size * (took_part & current),
            clients={"train_loss": trained.loss},
            mixing=weights,
        )
        now = jnp.broadcast_to(ctx.t, cohort.ids.shape)
        after: Any = self.server_update(ctx, state, mean, weights, trained)
        state = replace(
            after,
            private=cohort.scatter(state.private, private),
            last_round=cohort.scatter(state.last_round, now),
            size=size,
        )
        return state, record

    def models(self, ctx, state: State, rows):
        named = super().models(ctx, state, rows)
        return named | {"personalized": named["personalized"].model}

    def personalize(self, ctx, state: State, new_clients):
        """Train both models for a round from the server's, with the mean W; return the mentors."""
        start = new_clients.replicate(self.new_client_start(ctx, state))
        mean = jnp.mean(state.own.transform, axis=0).astype(ctx.dtype)
        own = Mentor(start, new_clients.replicate(mean))
        return self.train_both(new_clients, own, start).own.model


def positive(losses: jax.Array) -> jax.Array:
    """Return the divisor of the terms; losses may be 0 to rounding."""
    return jnp.maximum(losses, jnp.finfo(losses.dtype).eps)


def gap(transform: jax.Array, z_v: jax.Array, z_w: jax.Array, valid: jax.Array) -> jax.Array:
    """Return the mean square of z_v - z_w W over the valid rows of features [B, d]."""
    apart = jnp.where(valid[:, None], z_v - products.matmul(z_w, transform), 0)
    return jnp.sum(jnp.square(apart)) / (z_v.shape[1] * jnp.maximum(jnp.sum(valid), 1))


def low_rank(model: core.Tree, onto: core.Tree, energy) -> tuple[core.Tree, jax.Array]:
    """Return (the model after a change of low rank, how many numbers the change takes).

    The change of each leaf from `onto` is a matrix with the leaf's last axis as columns, of which
    `leading` keeps a part. Its factors with k singular values take k (P + Q + 1) numbers, and are
    sent if that is less than the P Q of the matrix. Leaves that are vectors change entirely.

    Args:
      model, onto: leaves of the same shapes.
      energy: share of the squares of the singular values.
    """
    numbers, leaves = jnp.int32(0), []
    for new, old in zip(jax.tree.leaves(model), jax.tree.leaves(onto), strict=True):
        columns = new.shape[-1] if new.ndim else 1
        rows = new.size // columns
        if min(rows, columns) == 1:
            leaves.append(new)
            numbers += new.size
            continue
        change, rank = leading((new - old).reshape(rows, columns), energy)
        leaves.append(old + change.reshape(new.shape))
        numbers += jnp.minimum(rank * (rows + columns + 1), new.size)
    return jax.tree.structure(model).unflatten(leaves), numbers


@jax.custom_batching.sequential_vmap  # one decomposition at a time
def leading(matrix: jax.Array, energy) -> tuple[jax.Array, jax.Array]:
    """Return (the part of a matrix with its first k singular values, k).

    k is the smallest number whose squares reach this share of the sum of all squares. A matrix that
    is not finite stays as it is.
    """
    rows, columns = matrix.shape
    tall = matrix if rows >= columns else matrix.T
    tall = tall.astype(jnp.promote_types(matrix.dtype, jnp.float32))
    finite, largest = jnp.all(jnp.isfinite(tall)), jnp.max(jnp.abs(tall))
    scaled = jnp.where(finite & (largest > 0), tall / jnp.where(largest > 0, largest, 1), 0)
    squares, vectors = jnp.linalg.eigh(products.matmul(scaled.T, scaled))
    squares, vectors = jnp.maximum(squares[::-1], 0), vectors[:, ::-1]
    before = jnp.cumsum(squares) - squares
    kept = (before < energy * jnp.sum(squares)) | (energy >= 1)
    vectors = jnp.where(kept, vectors, 0)
    part = products.matmul(products.matmul(scaled, vectors), vectors.T) * largest
    part = part if rows >= columns else part.T
    rank = jnp.where(finite, jnp.sum(kept, dtype=jnp.int32), min(rows, columns))
    return jnp.where(finite, part.astype(matrix.dtype), matrix), rank
