"""Personalized Federated Learning With a Graph.

Fengwen Chen, Guodong Long, Zonghan Wu, Tianyi Zhou, Jing Jiang. IJCAI 2022.
https://arxiv.org/abs/2203.00829
"""

from collections.abc import Callable
from typing import Literal

import jax
import jax.numpy as jnp
import numpy as np
import optax

from fedjax_pfl import core, mixing, trees
from fedjax_pfl.aggregation import products
from fedjax_pfl.algorithms.common import sfl_graphs


@core.struct
class State:
    # g_i, the models spread over the graph; their own private leaves
    models: core.Stack = core.per_client()
    server: core.Model = core.per_server()  # u, their mean


@core.algorithm("sfl")
class Sfl(core.Algorithm):
    """SFL: the server aggregates models over a graph of clients and their mean over all.

    w_i <- LocalSGD(u) on f_i(w) + graph_weight |w - g_i| + global_weight |w - u|, norms not
    squared; g <- alpha A^layers w + (1 - alpha) w; u <- mean of all g_i. An absent client is
    represented by its last g_i.

    Attributes:
      graph: A. "labels" joins clients that share a training label, themselves included (the
        published code: the server must know the labels); "neighbours" the nearest by cosine of
        w_i - u; "learned" mixes "labels" with a graph that is fitted anew in each round (SFL* as
        published). Rows are divided by their sums.
      relation: a function from the permanent ids [N], traced, to non-negative edges [N, N], which
        replace those of "labels", also in "learned" (a known graph, as in the paper). Python only.
      neighbours: of a client, itself included; only for "neighbours".
      layers: the number of aggregations over the graph per round.
      server_alpha: alpha, the weight of the aggregate.
      graph_weight, global_weight: lambda, of the two norms.
      detached: the norms have no gradient, as in the published code: clients train as in FedAvg.
      learned_share: part of the fitted graph in "learned".
    """

    reads = "everyone"
    batch_norm = "shared"
    absent_kept = False  # the server spreads all models over the graph in every round (section 4)

    graph: Literal["labels", "neighbours", "learned"] = core.static(default="labels")
    relation: Callable | None = core.static(default=None)
    neighbours: int = 5
    layers: int = core.static(default=3)
    server_alpha: float = 1.0
    graph_weight: float = 0.3
    global_weight: float = 0.3
    detached: bool = core.static(default=False)
    learned_share: float = 0.05

    def validate(self):
        allowed = "a function of the clients' ids, given from Python"
        given = self.relation
        core.require(given is None or callable(given), "relation", given, allowed)
        for name in ("neighbours", "layers"):
            core.require(getattr(self, name) >= 1, name, getattr(self, name), "at least 1")
        core.require(0 <= self.server_alpha <= 1, "server_alpha", self.server_alpha, "in [0, 1]")
        core.require(0 <= self.learned_share < 1, "learned_share", self.learned_share, "in [0, 1)")
        for name in ("graph_weight", "global_weight"):
            core.require(getattr(self, name) >= 0, name, getattr(self, name), "at least 0")

    def uses_classes(self):
        return self.graph != "neighbours" and self.relation is None

    def check(self, federation):
        self.check_whole_models(federation)
        if self.relation is None:
            return
        if self.graph == "neighbours":
            raise core.InputError("sfl takes relation or graph=neighbours, not both.")
        edges = np.asarray(jax.jit(self.relation)(federation.data.ids))
        count = federation.num_clients
        fits = edges.shape == (count, count) and bool((np.isfinite(edges) & (edges >= 0)).all())
        core.require(
            fits, "relation(ids)", edges, f"edges [{count}, {count}] of at least 0, all finite"
        )

    @property  # pyright: ignore[reportAssignmentType] - it depends on a hyperparameter
    def channels(self) -> tuple[str, ...]:
        by_labels = self.graph != "neighbours" and self.relation is None
        return ("its labels",) if by_labels else ()

    def remarks(self, federation):
        told = super().remarks(federation)
        if self.uses_classes():
            told.append("its graph joins clients that share a label")
        every = federation.num_clients
        if self.graph == "neighbours" and self.neighbours > every:
            told.append(f"all {every} clients are neighbours, not {self.neighbours}")
        if self.detached:
            told.append("its norms have no gradient, as in the published code")
        return told

    def init(self, ctx):
        model = ctx.initial_model()
        return State(ctx.replicate(model), model)

    def round(self, ctx, state):
        held = ctx.cohort.gather(state.models)
        trained, cohort, loss = self._train(ctx, ctx.cohort, state.server, held)
        sent = cohort.scatter(state.models, ctx.upload(trained, held))
        arrived = jnp.any(cohort.mask)
        weights = self._weights(ctx, cohort, state.server, sent) * arrived
        models = ctx.mix(weights, sent, onto=sent)
        parts = jnp.broadcast_to(arrived / ctx.num_clients, ctx.num_clients)
        server = mixing.weighted_sum(parts.astype(ctx.dtype), models, onto=state.server)
        return State(models, server), ctx.record(
            cohort,
            down=1 if self.detached else 2,  # u, and g_i for its norm
            clients={"train_loss": loss},
            everyone_mixes=True,
            mixing=weights,
        )

    def _train(self, ctx, cohort, server, held, **options):
        """Train from u with a pull to it and to the graph models [M, ...]."""

        def pull(gradient, params, broadcast, client):
            (graph, of_graph), (mean, of_mean) = client.operand, broadcast
            near_graph = slope(params, graph, of_graph, self.graph_weight)
            near_mean = slope(params, mean, of_mean, self.global_weight)
            return optax.tree.add(gradient, optax.tree.add(near_graph, near_mean))

        if not self.detached:
            mean, graph = server["params"], held["params"]
            broadcast, operands = (mean, squares(mean)), (graph, jax.vmap(squares)(graph))
            options |= {"broadcast": broadcast, "operands": operands, "correct": pull}
        _, private = ctx.plan.split(held)
        if not jax.tree.leaves(private):
            return ctx.train(core.Broadcast(server), cohort, **options)
        start = ctx.plan.with_private(trees.replicate(server, cohort.size), private)
        return ctx.train(start, cohort, **options)

    def _weights(self, ctx, cohort, server, sent):
        """Return alpha A^layers + (1 - alpha) I, [N, N], over uploads and last models."""
        own, data = jnp.eye(ctx.num_clients, dtype=ctx.dtype), ctx.federation.data
        if self.graph == "neighbours":
            changes = ctx.uploaded(jax.tree.map(jnp.subtract, sent, server))
            edges = sfl_graphs.nearest_by_cosine(changes, ctx.ids, self.neighbours)
        elif self.relation is None:
            edges = sfl_graphs.share_a_label(data.class_counts, data.class_counts)
        else:
            edges = jnp.asarray(self.relation(ctx.ids))
        edges = mixing.normalize(edges.astype(ctx.dtype))
        if self.graph == "learned":
            generator = sfl_graphs.first_generator(ctx.key_for("sfl"), ctx.ids, ctx.dtype)
            learned = sfl_graphs.fitted_graph(generator, ctx.uploaded(sent), ctx.ids)
            edges = (1 - self.learned_share) * edges + self.learned_share * learned
        # A client that diverged is no vertex in this round; one without an edge keeps its model. A
        # row of the learned graph may be empty: then the other's row counts for all.
        edges = mixing.normalize(edges, ~cohort.spread(cohort.diverged, False))
        edges = jnp.where(jnp.any(edges > 0, axis=1, keepdims=True), edges, own)
        spread = products.power(edges, self.layers)
        return self.server_alpha * spread + (1 - self.server_alpha) * own

    def models(self, ctx, state, rows):
        named = {"personalized": trees.take(state.models, rows)}
        return {**named, "global": core.Broadcast(state.server)} if ctx.plan.all_shared else named

    def personalize(self, ctx, state, new_clients):
        """Train from u with a pull to it and to the mean g_j of clients that share a label.

        A new client is not part of other graphs, and is pulled only to u.
        """
        everyone = new_clients.everyone()
        held = trees.replicate(state.server, everyone.size)
        if self.graph == "labels" and self.relation is None:
            counts = (each.federation.data.class_counts for each in (new_clients, ctx))
            weights = mixing.normalize(sfl_graphs.share_a_label(*counts).astype(ctx.dtype))
            held = ctx.mix(weights, state.models, onto=held)
        return self._train(
            new_clients, everyone, state.server, held, purpose="personalize", cursor=None
        ).models


def squares(params):
    """|w|^2."""
    return jnp.asarray(optax.tree.vdot(params, params))


def slope(params, reference, of_reference, weight):
    """Return the gradient of weight |w - w_ref|; `of_reference` is |w_ref|^2.

    It is 0 at w_ref and within rounding of it: the gradient has length 1 at any distance, so its
    direction would be that of rounding errors where all g_i are equal.
    """
    away = optax.tree.sub(params, reference)
    apart = squares(away)
    rounding = 16 * jnp.finfo(of_reference.dtype).eps
    far = apart > rounding**2 * of_reference
    factor = jnp.where(far, jax.lax.rsqrt(jnp.where(far, apart, 1)), 0)
    return optax.tree.scale(weight * factor, away)
