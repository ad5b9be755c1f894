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
from jax import lax

from fedjax_pfl import core, mixing, similarity, trees
from fedjax_pfl.aggregation import products

# The published code's generator of a learned graph.
WIDTH, STEEPNESS, STEPS, RATE, DECAY, LARGEST = 40, 3.0, 10, 0.01, 1e-4, 30


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
        w_i - u; "learned" mixes "labels" with a graph that is fitted again in each round (SFL* as
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

    batch_norm = "shared"
    absent_kept = False  # the server spreads all models over the graph in every round (section 4)

    graph: Literal["labels", "neighbours", "learned"] = core.static(default="labels")
    relation: Callable | None = core.static(default=None)
    neighbours: int = core.number(default=5, allowed="at least 1", needs="graph='neighbours'")
    layers: int = core.static(default=3, allowed="at least 1")
    server_alpha: float = core.number(default=1.0, allowed="in [0, 1]")
    graph_weight: float = core.number(default=0.3, allowed="at least 0", needs="detached=False")
    global_weight: float = core.number(default=0.3, allowed="at least 0", needs="detached=False")
    detached: bool = core.static(default=False)
    learned_share: float = core.number(default=0.05, allowed="in [0, 1)", needs="graph='learned'")

    def validate(self):
        allowed = "a function of the clients' ids, given from Python"
        relation = self.relation
        core.require(relation is None or callable(relation), "relation", relation, allowed)

    @property  # pyright: ignore[reportAssignmentType] - it depends on a hyperparameter
    def needs_classes(self) -> bool:
        return self.graph != "neighbours" and self.relation is None

    def check(self, federation):
        core.require_whole_models(self, federation)
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
    def also_sent(self) -> tuple[str, ...]:
        return ("its labels",) if self.needs_classes else ()

    def remarks(self, federation):
        notes = super().remarks(federation)
        if self.needs_classes:
            notes.append("its graph joins clients that share a label")
        every = federation.num_clients
        if self.graph == "neighbours" and self.neighbours > every:
            notes.append(f"all {every} clients are neighbours, not {self.neighbours}")
        if self.detached:
            notes.append("its norms have no gradient, as in the published code")
        return notes

    def init(self, ctx):
        model = ctx.initial_model()
        return State(ctx.replicate(model), model)

    def round(self, ctx, state):
        own = ctx.cohort.gather(state.models)
        trained, cohort, loss = self._train(ctx, state.server, own)
        sent = cohort.scatter(state.models, ctx.upload(trained, own, cohort=cohort))
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

    def _train(self, ctx, server, graph_models):
        """Train from u with a pull to it and to the graph models [M, ...]."""

        def pull(gradient, params, broadcast, client):
            (graph, of_graph), (mean, of_mean) = client.operand, broadcast
            near_graph = slope(params, graph, of_graph, self.graph_weight)
            near_mean = slope(params, mean, of_mean, self.global_weight)
            return optax.tree.add(gradient, optax.tree.add(near_graph, near_mean))

        options = {}
        if not self.detached:
            mean, graph = server["params"], graph_models["params"]
            broadcast, operands = (mean, squares(mean)), (graph, jax.vmap(squares)(graph))
            options = {"broadcast": broadcast, "operands": operands, "correct": pull}
        _, private = ctx.plan.split(graph_models)
        if not jax.tree.leaves(private):
            return ctx.train(core.Broadcast(server), **options)
        start = ctx.plan.with_private(trees.replicate(server, ctx.cohort.size), private)
        return ctx.train(start, **options)

    def _weights(self, ctx, cohort, server, sent):
        """Return alpha A^layers + (1 - alpha) I, [N, N], over uploads and last models."""
        own, data = jnp.eye(ctx.num_clients, dtype=ctx.dtype), ctx.federation.data
        if self.graph == "neighbours":
            changes = ctx.plan.trainable_shared(jax.tree.map(jnp.subtract, sent, server))
            edges = nearest_by_cosine(changes, ctx.ids, self.neighbours)
        elif self.relation is None:
            edges = share_a_label(data.class_counts, data.class_counts)
        else:
            edges = jnp.asarray(self.relation(ctx.ids))
        edges = mixing.normalize(edges.astype(ctx.dtype))
        if self.graph == "learned":
            generator = first_generator(ctx.key_for("sfl"), ctx.ids, ctx.dtype)
            learned = fitted_graph(generator, ctx.plan.trainable_shared(sent), ctx.ids)
            edges = (1 - self.learned_share) * edges + self.learned_share * learned
        # A client whose training failed is not a vertex in this round, unless it counts with its
        # last model (privacy); one without an edge keeps its model. A row of the learned graph may
        # be empty: then the other's row counts for all.
        edges = mixing.normalize(edges, ~cohort.spread(cohort.diverged & ~cohort.mask, False))
        edges = jnp.where(jnp.any(edges > 0, axis=1, keepdims=True), edges, own)
        spread = products.power(edges, self.layers)
        return self.server_alpha * spread + (1 - self.server_alpha) * own

    def models(self, ctx, state, rows):
        named = {"personalized": trees.take(state.models, rows)}
        return {**named, "global": core.Broadcast(state.server)} if ctx.plan.all_shared else named

    def personalize(self, ctx, state, new_clients):
        """Train from u with a pull to it and to the mean g_j of clients that share a label.

        In other graphs a new client has no neighbours, so both terms pull it to u.
        """
        start = trees.replicate(state.server, new_clients.num_clients)
        if self.graph == "labels" and self.relation is None:
            counts = (each.federation.data.class_counts for each in (new_clients, ctx))
            weights = mixing.normalize(share_a_label(*counts).astype(ctx.dtype))
            start = ctx.mix(weights, state.models, onto=start)
        return self._train(new_clients, state.server, start).models


def squares(params):
    """Return |w|^2."""
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


def share_a_label(counts, others):
    """Return the pairs that share a label, bool [A, B], from counts [A, C] and [B, C]."""
    held, theirs = ((each > 0).astype(jnp.float32) for each in (counts, others))
    return products.matmul(held, theirs.T) > 0


def largest(scores, ids, count):
    """Return the mask of each row's `count` largest scores, bool [A, N]; ties go to lower ids."""
    order = jnp.argsort(ids)
    rank = jnp.argsort(jnp.argsort(-scores[:, order], axis=1, stable=True), axis=1)
    return rank[:, jnp.argsort(order)] < count


def nearest_by_cosine(changes, ids, count):
    """Return the `count` nearest clients by the cosine of changes, itself first, bool [N, N]."""
    cosines = similarity.cosines(changes, changes)
    own = jnp.eye(len(cosines), dtype=bool)
    return largest(jnp.where(own, jnp.inf, cosines), ids, count)


def first_generator(key, ids, dtype):
    """Return an initial generator: two embeddings of each client and two linear layers."""
    each = jax.vmap(lambda i: jax.random.fold_in(jax.random.fold_in(key, 0), i))(ids)
    embedding = jax.vmap(lambda k: jax.random.normal(k, (2, WIDTH), dtype))(each)
    bound = WIDTH**-0.5
    kernel, bias = (
        jax.random.uniform(jax.random.fold_in(key, part), shape, dtype, -bound, bound)
        for part, shape in ((1, (2, WIDTH, WIDTH)), (2, (2, WIDTH)))
    )
    return {"embedding": jnp.moveaxis(embedding, 1, 0), "kernel": kernel, "bias": bias}


def fitted_graph(generator, models, ids):
    """Return the generator's graph [N, N], fitted to the distances between models.

    Its unit rows are fitted to those of the distances as in the published code, so distant clients
    get large edges. Each row keeps its largest edges, divided by their sum, and may be empty.
    """
    target = _unit_rows(jnp.sqrt(similarity.squared_distances(models, models)))

    def loss(generator):
        return jnp.mean(jnp.square(_unit_rows(_edges(generator)) - target))

    def step(_, generator):
        gradient = jax.grad(loss)(generator)
        return jax.tree.map(lambda v, g: v - RATE * (g + DECAY * v), generator, gradient)

    edges = _edges(lax.fori_loop(0, STEPS, step, generator))
    return mixing.normalize(jnp.where(largest(edges, ids, LARGEST), edges, 0))


def _edges(generator):
    """Return relu(tanh(3 (V_1 V_2^T - V_2 V_1^T))) with V_k = tanh(3 (E_k W_k + b_k))."""
    inside = products.matmul(generator["embedding"], generator["kernel"])
    first, second = jnp.tanh(STEEPNESS * (inside + generator["bias"][:, None]))
    crossed = products.matmul(first, second.T)
    return jax.nn.relu(jnp.tanh(STEEPNESS * (crossed - crossed.T)))


def _unit_rows(matrix):
    """Divide rows by their lengths; rows of zeros stay zero, with finite gradients."""
    total = jnp.sum(jnp.square(matrix), axis=1, keepdims=True)
    return matrix / jnp.sqrt(jnp.where(total > 1e-24, total, 1e-24))
