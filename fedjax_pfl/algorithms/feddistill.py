"""Communication-Efficient On-Device Machine Learning: Federated Distillation and Augmentation under
Non-IID Private Data.

Eunjeong Jeong, Seungeun Oh, Hyesung Kim, Jihong Park, Mehdi Bennis, Seong-Lyun Kim. 2018.
https://arxiv.org/abs/1811.11479
"""

from typing import Any

import jax
import jax.numpy as jnp

from fedjax_pfl import core, trees
from fedjax_pfl.training import ClassSums

NEVER = -1  # last_round of clients that never took part


@core.struct
class Predictions:
    """Softmax outputs by class.

    Attributes:
      means: [..., C, C], the mean output on samples of each class, 0 without any; or sums of them.
      holders: [..., C], whether there is one, or of how many clients, in the type of `means`.
    """

    means: jax.Array
    holders: jax.Array


@core.struct
class State:
    """Models, and what is known of their predictions.

    Attributes:
      models: own models.
      sent: the `Predictions` that a client sent last.
      last_round: int32 [N], in which a client sent them.
      total: the sum of the uploads of a round.
      total_round: int32, that round.
    """

    models: core.Stack = core.per_client()
    sent: Any = core.per_client()
    last_round: jax.Array = core.per_client()
    total: Any = core.per_server()
    total_round: jax.Array = core.per_server()


@core.algorithm("feddistill")
class FedDistill(core.Algorithm):
    """Federated distillation (FD): clients exchange their mean predictions by class, no models.

    Members average the softmax outputs of their minibatches in local training by class, and send
    these means. The teacher F_y of a client in the next round is the mean of those of class y that
    the other clients sent. Its local loss is CE(theta) + weight * the mean over a minibatch of
    -F_y log p, which is 0 for samples of classes without a teacher.

    Attributes:
      weight: gamma; 0: local training.
    """

    needs_classes = True
    server_needs = "sums"
    unprotected = ("the mean predictions of its classes",)

    weight: float = core.number(default=1.0, allowed="at least 0")

    def remarks(self, federation):
        off = ["weight is 0: trained locally"] if not self.weight else []
        stays = "models stay with their clients, mean predictions of classes are sent"
        return [*super().remarks(federation), stays, *off]

    def init(self, ctx):
        count = ctx.federation.data.num_classes
        none = Predictions(jnp.zeros((count, count), ctx.dtype), jnp.zeros((count,), ctx.dtype))
        never = jnp.full((ctx.num_clients,), NEVER, jnp.int32)
        models, sent = ctx.replicate(ctx.initial_model()), ctx.replicate(none)
        return State(models, sent, never, none, jnp.int32(NEVER))

    def round(self, ctx, state: State):
        teachers = self.teachers(state, ctx.cohort)
        (local, sums), finite, steps = self.train(ctx, ctx.cohort.gather(state.models), teachers)
        cohort = ctx.cohort.mark_diverged(finite, steps)
        mean = Predictions(sums.means.astype(ctx.dtype), (sums.counts > 0).astype(ctx.dtype))
        none = jax.tree.map(jnp.zeros_like, mean)
        mean = trees.where(cohort.mask, mean, none)
        arrived = ctx.upload(mean, none, "predictions", cohort, compressed=False)
        total = jax.tree.map(lambda leaf: jnp.sum(leaf, axis=0), arrived)
        some = jnp.any(cohort.mask)
        total, now = jax.tree.map(
            lambda new, old: jnp.where(some, new, old),
            (total, ctx.t),
            (state.total, state.total_round),
        )
        after = State(
            cohort.scatter(state.models, local.model),
            cohort.scatter(state.sent, mean),
            cohort.scatter(state.last_round, jnp.broadcast_to(ctx.t, cohort.ids.shape)),
            total,
            now,
        )
        classes, sent, received = len(total.holders), mean.holders > 0, teachers.holders > 0
        if getattr(ctx.federation.uploads, "privacy", None) is not None:
            sent = received = jnp.ones_like(sent)  # the count would tell its classes
        return after, ctx.record(
            cohort,
            up=0,
            down=0,
            numbers_up=classes * jnp.sum(sent, axis=1) * cohort.mask,
            numbers_down=classes * jnp.sum(received, axis=1) * ctx.cohort.mask,
            clients={"train_loss": local.loss / jnp.maximum(steps, 1)},
        )

    def teachers(self, state: State, cohort: core.Cohort) -> Predictions:
        """Return the means of the others' predictions, and whether there are any, [M, ...]."""
        sent, last = cohort.gather((state.sent, state.last_round))
        within = last == state.total_round

        def others(total, own):
            return total - jnp.where(trees.expand_to(own, within), own, 0)

        return mean_of(jax.tree.map(others, state.total, sent))

    def train(self, ctx, models, teachers: Predictions):
        """Run local steps, and sum the outputs of their minibatches by class."""
        task, step = ctx.federation.task, ctx.sgd_step(extra_loss=self.distillation)

        def see_and_step(carry, batch, rng, broadcast, client):
            state, sums = carry
            # Identical to the step's forward pass, which XLA then computes once.
            logits = task.forward(state.model, batch, rng).batch.logits
            seen = ClassSums.of(batch, jax.nn.softmax(logits), len(sums.counts))
            return step(state, batch, rng, broadcast, client), sums + seen

        count = ctx.federation.data.num_classes
        none = trees.replicate(ClassSums.zeros(count, count, ctx.dtype), ctx.cohort.size)
        begin = step.begin_all(models), none
        return ctx.run_clients(see_and_step, begin, operands=teachers)

    def distillation(self, params, batch, broadcast, client):
        """Return the term of the local loss on one minibatch."""
        means, exist = client.operand.means, client.operand.holders
        losses = -jnp.sum(means[batch.labels] * jax.nn.log_softmax(batch.logits), axis=1)
        taught = jnp.where(exist[batch.labels] & batch.valid, losses, 0)
        return self.weight * jnp.sum(taught) / jnp.maximum(jnp.sum(batch.valid), 1)

    def models(self, ctx, state: State, rows):
        return {"personalized": trees.take(state.models, rows)}

    def new_client_start(self, ctx, state):
        return ctx.initial_model()  # the models were never averaged

    def personalize(self, ctx, state: State, new_clients):
        """Train for a round from the initial model, with the means of all clients."""
        teachers = new_clients.replicate(mean_of(state.total))
        start = new_clients.replicate(self.new_client_start(ctx, state))
        return self.train(new_clients, start, teachers)[0][0].model


def mean_of(total: Predictions) -> Predictions:
    """Return the means of sums of predictions, and whether there are any."""
    exist = total.holders > 0.5  # noisy uploads are not whole numbers
    return Predictions(total.means / jnp.where(exist, total.holders, 1)[..., None], exist)
