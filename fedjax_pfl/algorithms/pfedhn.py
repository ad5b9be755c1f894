"""Personalized Federated Learning using Hypernetworks.

Aviv Shamsian, Aviv Navon, Ethan Fetaya, Gal Chechik. ICML 2021. https://arxiv.org/abs/2103.04628
"""

from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import optax

from fedjax_pfl import core, trees
from fedjax_pfl.aggregation import leaf_plan
from fedjax_pfl.algorithms.common import hypernetwork
from fedjax_pfl.algorithms.common.hypernetwork import Hypernetwork, clipped
from fedjax_pfl.utils import keys


@core.struct
class State:
    embedding: jax.Array = core.per_client()  # v, [N, d]
    psi: Hypernetwork = core.per_server()
    velocity_v: jax.Array = core.per_client()  # momentum of the server's optimizer, of v and of psi
    velocity_psi: Hypernetwork = core.per_server()
    # leaves that are not generated: statistics, a local head
    private: core.Stack = core.per_client()
    momentum: Any = core.per_client()  # of the clients' optimizers, of trained private leaves

    @property
    def generator(self):
        """Return the parameters of the server's optimizer and their momentum."""
        return (self.embedding, self.psi), (self.velocity_v, self.velocity_psi)


@core.algorithm("pfedhn")
class PFedHN(core.Algorithm):
    """pFedHN: a server hypernetwork generates each client's model from an embedding (Alg. 1).

    One client after the other gets theta_i = h(v_i; psi), trains it to theta_i', and sends it back.
    theta_i - theta_i' stands for the gradient: the server's SGD steps along its vector-Jacobian
    product, (d theta_i / d(v_i, psi))^T (theta_i - theta_i'), before the next client's turn. The
    paper's step is a round with one client. Momentum and weight decay also move the embeddings of
    absent clients. A client that is late or diverges does not change the server.

    Local momentum is reset in each round, except for private leaves (`local_head`), as in the
    authors' code. Running statistics stay with the client.

    A new client learns an embedding by local training of only v, through the frozen psi, from the
    mean of all embeddings.

    Attributes:
      server_rate: of the server's SGD.
      embedding_rate: factor on it for embeddings.
      server_momentum, server_decay: of the server's SGD.
      server_clip: largest norm of its gradient, all numbers of v and psi together; 0: no limit.
      clip: largest norm of a local gradient of theta, before decay and momentum; 0: no limit.
      embedding_size: d; 0 is 1 + N // 4.
      hidden_size: h, width of the trunk.
      depth: layers of the trunk behind its first.
      local_head: pFedHN-PC: the last layer is not generated but stays with its client.
    """

    absent_kept = False  # momentum and decay move all embeddings

    server_rate: float = core.number(default=1e-2, allowed="at least 0")
    embedding_rate: float = core.number(default=1.0, allowed="at least 0")
    server_momentum: float = core.number(default=0.9, allowed="in [0, 1)")
    server_decay: float = core.number(default=1e-3, allowed="at least 0")
    server_clip: float = core.number(default=50.0, allowed="at least 0")
    clip: float = core.number(default=50.0, allowed="at least 0")
    embedding_size: int = core.static(default=0, allowed="at least 0")
    hidden_size: int = core.static(default=100, allowed="at least 1")
    depth: int = core.static(default=3, allowed="at least 0")
    local_head: bool = core.static(default=False)

    def sharing(self):
        return "body" if self.local_head else "all"

    def check(self, federation):
        plan = federation.plan
        if not any(map(plan.is_trainable_shared, range(len(plan.paths)))):
            raise core.InputError("pfedhn generates what clients share, and that is nothing here.")
        if plan.normalized and plan.batch_norm == "shared":
            raise core.InputError(
                "pfedhn generates no running statistics: batch_norm must be 'affine_shared' or "
                "'local', got 'shared'."
            )

    def init(self, ctx):
        model, dtype = ctx.initial_model(), ctx.dtype
        like, hidden = ctx.plan.trainable_shared(model), self.hidden_size
        size = self.embedding_size or 1 + ctx.num_clients // 4
        key = keys.derive(ctx.key, "hypernetwork")
        psi = hypernetwork.first(key, (size, *[hidden] * (self.depth + 1)), like, dtype)

        def begin(client):
            own = jax.random.fold_in(keys.derive(ctx.key, "embedding"), client)
            return jax.random.normal(own, (size,), dtype)

        embedding, own = jax.vmap(begin)(ctx.ids), private_leaves(ctx.plan, model)
        of_v, of_psi = (optax.tree.zeros_like(moving) for moving in (embedding, psi))
        momentum = persistent(ctx.plan, ctx.initial_optimizer_state())
        return State(embedding, psi, of_v, of_psi, ctx.replicate(own), momentum)

    def round(self, ctx, state):
        cohort, own = ctx.cohort, ctx.cohort.gather((state.private, state.momentum))
        generator, sent = ctx.in_turn(partial(self._turn, ctx), state.generator, own)
        (private, momentum), finite, steps, loss = sent
        cohort = cohort.mark_diverged(finite, steps)
        (embedding, psi), (of_v, of_psi) = generator
        fields = cohort.scatter((state.private, state.momentum), (private, momentum))
        state = State(embedding, psi, of_v, of_psi, *fields)
        return state, ctx.record(cohort, clients={"train_loss": loss})

    def _turn(self, ctx, generator, cohort, own):
        """Train one member, then take a server step.

        Returns:
          (the server's parameters and momentum, (the member's private leaves and their momentum,
          bool [1]: not diverged, steps [1], losses [1])).
        """
        (embedding, psi), _ = generator
        private, momentum = own

        of_member = embedding[cohort.rows]
        theta = jax.vmap(psi)(of_member)
        model = trees.join(theta, private)
        trained = train_clipped(ctx, model, cohort, momentum, self.clip)
        # 0 for the late and the diverged, who keep theta.
        sent = ctx.upload(trained.models, model, cohort=cohort)
        change = optax.tree.sub(theta, ctx.plan.trainable_shared(sent))
        d_psi, d_v = psi.pullback(of_member, change)
        gradient = jnp.zeros_like(embedding).at[cohort.rows].set(d_v), d_psi
        moved, came = self._server_step(generator, gradient), trained.cohort.mask.any()
        generator = jax.tree.map(lambda new, old: jnp.where(came, new, old), moved, generator)
        if trained.optimizer_state is not None:
            momentum = persistent(ctx.plan, trained.optimizer_state)
        own = private_leaves(ctx.plan, trained.models), momentum
        after = trained.cohort
        return generator, (own, ~after.diverged, after.steps, trained.loss)

    def _server_step(self, generator, gradient):
        """Take a step of SGD on v and psi; the momentum of v covers all clients."""
        moving, velocity = generator
        rates = (self.server_rate * self.embedding_rate, self.server_rate)
        sgd = optax.chain(
            optax.add_decayed_weights(self.server_decay), optax.trace(self.server_momentum)
        )
        memory = optax.EmptyState(), optax.TraceState(velocity)
        found: Any = sgd.update(clipped(gradient, self.server_clip), memory, moving)
        step, (_, trace) = found
        pairs: Any = zip(rates, step, strict=True)  # for v and for psi
        step = tuple(optax.tree.scale(-rate, along) for rate, along in pairs)
        return optax.apply_updates(moving, step), trace.trace

    def models(self, ctx, state, rows):
        embedding, private = trees.take((state.embedding, state.private), rows)
        return {"personalized": trees.join(jax.vmap(state.psi)(embedding), private)}

    def personalize(self, ctx, state, new_clients):
        v, private = jax.tree.map(
            lambda leaf: jnp.mean(leaf, axis=0).astype(leaf.dtype), (state.embedding, state.private)
        )
        return hypernetwork.learnt_embeddings(new_clients, state.psi, v, private, self.clip)


def train_clipped(
    ctx: core.Context,
    models: core.Stack,
    cohort: core.Cohort,
    momentum: core.Tree,
    clip: core.Scalar | float,
) -> core.Trained:
    """Train locally with clipped gradients of generated leaves.

    Args:
      models: [M, ...].
      momentum: the members' optimizer states as `persistent` returned them, [M, ...].
      clip: largest norm of a gradient of generated leaves; 0: no limit.
    """
    generated = jax.tree.map(lambda _: True, ctx.plan.trainable_shared(models)["params"])

    def correct(gradient, params, broadcast, client):
        some = jax.tree.map(lambda on, g: g if on else None, generated, gradient,
                            is_leaf=lambda x: x is None)  # fmt: skip
        return trees.join(clipped(some, clip), gradient)

    options = {}
    if jax.tree.leaves(momentum):
        fresh = trees.take(ctx.initial_optimizer_state(), cohort.rows)
        options["optimizer_state"] = trees.join(momentum, fresh)
    return ctx.train(models, cohort, correct=correct, **options)


def private_leaves(plan: core.LeafPlan, models: core.Stack) -> core.Stack:
    """Return the leaves that are not generated, with None in place of the others."""
    return plan.select(models, lambda i: not plan.is_trainable_shared(i))


def persistent(plan: core.LeafPlan, memory: core.Tree) -> core.Tree:
    """Return the persistent part of the optimizers' states: that of trained private leaves.

    Optimizers hold trees like the parameters, so paths in them end in a parameter's path.
    """
    names = {path.partition("/")[2]: plan.is_trainable_shared(i)
             for i, path in enumerate(plan.paths) if leaf_plan.trainable(path)}  # fmt: skip

    def lasts(path, leaf):
        at = f"/{trees.path_name(path)}"
        own = [name for name in names if at.endswith(f"/{name}")]
        return leaf if own and not names[max(own, key=len)] else None

    return jax.tree_util.tree_map_with_path(lasts, memory)
