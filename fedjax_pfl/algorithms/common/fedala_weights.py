"""FedALA's element-wise weights of local and server parameters."""

from dataclasses import replace

import jax
import jax.numpy as jnp
from jax import lax

from fedjax_pfl import core, training, trees

AGREEING = 10  # losses of passes that must agree before the first adaptation ends


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
    apart: core.Mask,
    *,
    percent: int,
    rate: core.Scalar | float,
    threshold: core.Scalar | float,
    limit: core.PerMember,
) -> tuple[core.Stack, core.PerMember]:
    """Return (W [M, ...], passes int32 [M]) after the members `apart` adapted on their windows.

    Args:
      own: their upper layers and their private leaves, [M, ...].
      weights: W before the round, [M, ...].
      percent: size of the window in percent of a client's training samples.
      rate, threshold: the learning rate, and the bound on the losses' standard deviation.
      limit: int32 [M], the largest number of passes.
    """
    federation, key, rows = ctx.federation, ctx.key_for("adaptation"), ctx.cohort.rows
    schedule = replace(federation.schedule, epochs=1, steps=None, shuffle=False, fresh=False)
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
            schedule=schedule,
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
    going = apart & (schedule.total_steps(sizes) > 0)
    first = (jnp.int32(0), weights, losses, jnp.zeros_like(sizes), going)
    _, weights, _, passes, _ = lax.while_loop(lambda at: jnp.any(at[-1]), one_pass, first)
    seen = jnp.minimum(schedule.total_steps(sizes) * schedule.batch_size, sizes)
    ctx.count_forward(passes * seen)
    return weights, passes


def window(ctx, percent):
    """Return contiguous training samples of each client, from a random start of this round."""
    train, key = ctx.federation.data.train, ctx.key_for("window")
    whole = jnp.maximum(train.size * percent // 100, 1)
    size = jnp.minimum(whole, train.size)

    def draw(client, most):
        return jax.random.randint(jax.random.fold_in(key, client), (), 0, most + 1, jnp.int32)

    return train.window(jax.vmap(draw)(ctx.ids, train.size - size), size)
