"""FedALA: Adaptive Local Aggregation for Personalized Federated Learning.

Jianqing Zhang, Yang Hua, Hao Wang, Tao Song, Zhengui Xue, Ruhui Ma, Haibing Guan. AAAI 2023.
https://arxiv.org/abs/2212.01197
"""

from dataclasses import replace
from typing import Any, Literal

import jax
import jax.numpy as jnp
from jax import lax

from fedjax_pfl import core, training, trees
from fedjax_pfl.algorithms import fedavg

AGREEING = 10  # losses of passes that must agree before the first adaptation ends


@core.struct
class State(fedavg.State):
    models: Any = core.per_client()  # theta_hat, what each client trains from
    trained: Any = core.per_client()  # theta_i, what it trained last
    # W_i of the upper layers, in [0, 1]; None in place of the others
    weights: Any = core.per_client()
    begun: Any = core.per_client()  # bool: whether it has adapted before


@core.algorithm("fedala")
class FedALA(fedavg.FedAvg):
    """FedALA: clients mix the server's model into their own, element by element (Alg. 1).

    theta_hat = theta_i + (w - theta_i) * W_i in the upper layers, w in the lower ones; then local
    training from theta_hat, and FedAvg. W_i <- clip(W_i - eta dL/dW_i, 0, 1), over the
    minibatches of a window of the client's samples that each round draws; W_i starts at 1. A
    client's first adaptation repeats passes until the losses settle: the last 10 of more than 10
    losses, each of a pass's last minibatch, have a standard deviation below the threshold. Later
    adaptations make one pass. Clients whose model is the server's, such as all in the first round,
    do not adapt.

    Attributes:
      weight_rate: eta.
      layers: p, how many upper layers have weights, counted from the head.
      percent: s, size of the window in percent of the client's training samples.
      threshold: of the standard deviation.
      max_passes: of a first adaptation; the published code has no such bound.
      participants: "all" (the published code): at the end of a round, which is the beginning of the
        next, all clients download the new model, adapt and keep theta_hat. "sampled" (the paper):
        the cohort at the beginning of its round.
    """

    revision = 2
    unprotected = ("the element-wise weights of adaptation",)

    weight_rate: float = core.number(default=1.0, allowed="at least 0")
    layers: int = core.static(default=1, allowed="at least 1")
    percent: int = core.static(default=80, allowed="in [1, 100]")
    threshold: float = core.number(default=0.1, allowed="at least 0")
    max_passes: int = core.static(default=30, allowed="at least 1")
    participants: Literal["all", "sampled"] = core.static(default="all")

    @property  # pyright: ignore[reportAssignmentType] - it depends on a hyperparameter
    def absent_kept(self) -> bool:
        return self.participants == "sampled"

    absent_idle = absent_kept  # pyright: ignore[reportAssignmentType]

    def check(self, federation):
        core.require_whole_models(self, federation)
        layers = federation.plan.layers
        names = ", ".join(layer[0] for layer in layers)
        allowed = f"in 1..{len(layers)}, the layers of the network ({names})"
        core.require(self.layers <= len(layers), "layers", self.layers, allowed)

    def remarks(self, federation):
        sampled = federation.participation.sampled(federation.num_clients)
        notes = "all clients adapt in every round, drawn or not"
        return [*super().remarks(federation), *[notes] * (sampled and self.participants == "all")]

    def init(self, ctx):
        model = ctx.initial_model()
        models, upper = ctx.replicate(model), self._upper(ctx.plan, model)
        ones = ctx.replicate(jax.tree.map(jnp.ones_like, upper))
        start = vars(super().init(ctx))
        begun = jnp.zeros((ctx.num_clients,), bool)
        return State(**start, models=models, trained=models, weights=ones, begun=begun)

    def _upper(self, plan, model):
        """Return the parameters of the upper layers, with None in place of all other leaves."""
        upper = plan.with_share(core.SharedLayers(last=self.layers)).chosen
        return plan.select(model, lambda i: upper[i] and plan.is_trainable_shared(i))

    def round(self, ctx, state: State):
        if self.participants == "all":
            after: Any
            after, record = super().round(ctx, state)
            everyone = ctx.cohort_of()
            after, passes = self.adapt(ctx, after, after.models, everyone)
            record = replace(record, down=jnp.ones_like(record.down) * everyone.mask[:, None])
        else:
            begun, passes = self.adapt(ctx, state, state.trained, ctx.cohort)
            after, record = super().round(ctx, begun)
            lost = ctx.cohort.gather(record.clients["diverged"])  # they keep their values
            names = ("models", "weights", "begun")
            rows = {name: ctx.cohort.gather(getattr(state, name)) for name in names}
            fields = {name: ctx.cohort.scatter(getattr(after, name), rows[name], where=lost)
                    for name in names}  # fmt: skip
            after = replace(after, **fields)
        return after, replace(record, clients={**record.clients, "adaptation_passes": passes})

    def received(self, state: State, rows):
        return trees.take(state.models, rows)

    def server_update(self, ctx, state: State, mean, weights, used):
        after = super().server_update(ctx, state, mean, weights, used)
        after = replace(after, trained=used.cohort.scatter(state.trained, used.models))
        if self.participants == "sampled":
            return after
        return replace(after, models=used.cohort.scatter(state.models, used.models))

    def adapt(self, ctx, state: State, own_models, cohort):
        """Adapt the cohort's rows of `own_models` [N, ...] (adaptive local aggregation).

        Returns (the state with theta_hat, W and begun of these clients, passes int32 [N]).
        """
        own, weights, begun = cohort.gather((own_models, state.weights, state.begun))
        shared, private = ctx.plan.split(own)
        active = cohort.mask & ~_equal(shared, state.server, cohort.size)
        upper = self._upper(ctx.plan, own)
        weights, passes = learnt_weights(
            replace(ctx, cohort=cohort), state.server, (upper, private), weights, active,
            percent=self.percent, rate=self.weight_rate, threshold=self.threshold,
            limit=jnp.where(begun, 1, self.max_passes),
        )  # fmt: skip
        mixed = jax.vmap(theta_hat, (0, None, 0, 0))(upper, state.server, private, weights)
        models = trees.where(active, mixed, own)
        return replace(
            state,
            models=cohort.scatter(state.models, models),
            weights=cohort.scatter(state.weights, weights),
            begun=cohort.scatter(state.begun, begun | active),
        ), cohort.spread(passes, 0)

    def models(self, ctx, state: State, rows):
        named = {"personalized": state.models, "last_trained": state.trained}
        named = {name: trees.take(models, rows) for name, models in named.items()}
        alike = not jax.tree.leaves(state.private)
        return {**named, "global": core.Broadcast(state.server)} if alike else named


def _equal(stack, model, count):
    """Return which rows equal the model to the bit, bool [count]."""
    alike = jax.tree.map(lambda a, b: jnp.all((a == b).reshape(count, -1), axis=1), stack, model)
    return jnp.all(jnp.stack(jax.tree.leaves(alike)), axis=0)


def theta_hat(upper, server, private, weights):
    """Return theta + (w - theta) W in the upper layers, w in the lower ones, and private leaves.

    Args:
      upper, weights: None in place of all other leaves.
      server, private: the two halves of `LeafPlan.split`.
    """
    received = trees.join(server, private)
    return jax.tree.map(
        lambda share, theta, w: w if share is None else theta + (w - theta) * share,
        weights,
        upper,
        received,
        is_leaf=lambda leaf: leaf is None,
    )


def learnt_weights(
    ctx: core.Context,
    server: core.Tree,
    own: tuple[core.Stack, core.Stack],
    weights: core.Stack,
    active: core.Mask,
    *,
    percent: int,
    rate: core.Scalar | float,
    threshold: core.Scalar | float,
    limit: core.PerMember,
) -> tuple[core.Stack, core.PerMember]:
    """Return (W [M, ...], passes int32 [M]) after the members `active` adapted on their windows.

    Args:
      own: their upper layers and their private leaves, [M, ...].
      weights: W before the round, [M, ...].
      percent: size of the window in percent of a client's training samples.
      rate, threshold: the learning rate, and the bound on the losses' standard deviation.
      limit: int32 [M], the largest number of passes.
    """
    federation, key, rows = ctx.federation, ctx.key_for("adaptation"), ctx.cohort.rows
    part = window(ctx, percent)
    sizes, zero = part.size[rows], jnp.zeros(rows.shape, ctx.dtype)

    def step(carry, batch, rng, broadcast, client):
        server, k = broadcast
        (upper, private), weights = client.operand, carry[0]

        def loss(weights):
            model = theta_hat(upper, server, private, weights)
            key = jax.random.fold_in(rng, k)
            loss, _, seen = federation.task.forward(model, batch, key)
            return loss + federation.penalty(model["params"], seen, client, key), loss

        slope, loss = jax.grad(loss, has_aux=True)(weights)
        moved = jax.tree.map(lambda share, g: jnp.clip(share - rate * g, 0, 1), weights, slope)
        return moved, loss

    def one_pass(at):
        k, weights, losses, passes, going = at
        (weights, loss), finite, _ = training.run_clients(
            federation,
            step,
            (weights, zero),
            rows=rows,
            key=key,
            schedule=federation.schedule.one_pass(),
            split=part,
            broadcast=(server, k),
            operands=own,
            active=going,
        )
        losses = losses.at[:, k % AGREEING].set(loss)
        settled = (k >= AGREEING) & (jnp.std(losses, axis=1) < threshold)
        stays = going & finite & ~settled & (k + 1 < limit)
        return k + 1, weights, losses, passes + going, stays

    losses = jnp.zeros((len(rows), AGREEING), ctx.dtype)
    going = active & (sizes > 0)
    first = (jnp.int32(0), weights, losses, jnp.zeros_like(sizes), going)
    _, weights, _, passes, _ = lax.while_loop(lambda at: jnp.any(at[-1]), one_pass, first)
    ctx.count_forward(passes * sizes)
    return weights, passes


def window(ctx, percent):
    """Return contiguous training samples of each client, from a random start of this round."""
    train, key = ctx.federation.data.train, ctx.key_for("window")
    length = jnp.maximum(train.size * percent // 100, 1)
    size = jnp.minimum(length, train.size)

    def draw(client, most):
        return jax.random.randint(jax.random.fold_in(key, client), (), 0, most + 1, jnp.int32)

    return train.window(jax.vmap(draw)(ctx.ids, train.size - size), size)
