"""Federated Learning over Connected Modes.

Dennis Grinwald, Philipp Wiesner, Shinichi Nakajima. NeurIPS 2024.
https://openreview.net/forum?id=JL2eMCfDW8
"""

from dataclasses import dataclass, replace
from typing import Any

import jax
import jax.numpy as jnp
from jax import lax

from fedjax_pfl import core, mixing
from fedjax_pfl.aggregation import products
from fedjax_pfl.algorithms import fedavg

HEAD, CORNERS, POINT = "head", "corners", "point"
KERNELS = (f"params/{HEAD}/kernel", f"params/{CORNERS}")  # paths of the corners' leaves
DRAW = 1  # what a step's key is folded with for the point
NEAREST = 1e-4  # distances of two points in the energy are at least this
LEVELS = 1000  # of projection that are tried, in (0, 1]


@dataclass(frozen=True)
class Simplex(core.WrappedTask):
    """A network whose head has the kernel sum_e a_e H_e, at a point a of a simplex.

    H_1 is the kernel of the layer head, the others are `CORNERS`, [count - 1, ...]. All are
    independent draws of the network's initializer. They have one bias.
    """

    added = (CORNERS, POINT)

    count: int

    def draw(self, key, inputs, model):
        if HEAD not in model["params"]:
            raise core.InputError("floco trains a simplex of heads, and the head is frozen.")
        if "kernel" not in model["params"][HEAD]:
            raise core.InputError("floco mixes kernels of heads, and the layer head has none.")
        corners = jax.vmap(lambda key: self.network.init(key, inputs)["params"][HEAD]["kernel"])(
            jax.random.split(key, self.count - 1)
        )
        return {CORNERS: corners, POINT: jnp.full((self.count,), 1 / self.count, self.dtype)}

    def classify(self, model, features):
        params = model["params"]
        kernel = products.rows(params[POINT], kernels(params))
        head = {**params[HEAD], "kernel": kernel}
        return super().classify({**model, "params": {**params, HEAD: head}}, features)


def kernels(params: core.Tree) -> jax.Array:
    """Return H, [E, ...]."""
    return jnp.concatenate([params[HEAD]["kernel"][None], params[CORNERS]])


@core.algorithm("floco")
class Floco(fedavg.FedAvg):
    """Floco: FedAvg of a simplex of heads, in which similar clients have near points.

    A client's network has the head sum_e a_e H_e. In each step of training, a is drawn uniformly
    from the simplex, and body and all H_e are trained. After a share `warmup_fraction` of the
    rounds, all N clients train once, and their points b_i are found from their H: the first E
    principal components of all clients are projected on the simplex, at the level at which clients
    lie farthest apart. From then on, client i draws a from a neighbourhood of b_i of radius rho in
    the 1-norm. It predicts at b_i; before, at the centre of the simplex.

    Attributes:
      corners: E.
      warmup_fraction: share of the rounds before clients have their points; 1: they never do.
      rho: radius.
    """

    absent_idle = False
    absent_kept = False
    server_needs = "models"

    corners: int = core.static(default=10, allowed="at least 1")
    warmup_fraction: float = core.number(default=0.5, allowed="in [0, 1]")
    rho: float = core.number(default=0.1, allowed="at least 0")

    def prepare(self, federation):
        simplex = federation.with_network(lambda task: Simplex.around(task, self.corners), (POINT,))
        return super().prepare(simplex)

    def check(self, federation):
        plan = federation.plan
        for path, shared in zip(plan.paths, plan.shared, strict=True):
            if path in KERNELS and not shared:
                raise core.InputError(
                    f"floco averages a simplex of heads and needs all of its corners, and {path} "
                    "is not shared: leave share and freeze out."
                )

    def round_remarks(self, federation, rounds):
        begin = int(self.warmup_fraction * rounds * (1 + 1e-6))  # 0.29 * 100 rounds to 28.99
        return [f"clients have points of their own from round {begin + 1} of {rounds} on"]

    def round(self, ctx, state):
        none = jnp.zeros((ctx.num_clients,), jnp.int32)
        asked = self.is_due(ctx) & ctx.reachable()
        own = state.private["params"][POINT]
        own = ctx.when(self.is_due, lambda: self.points(ctx, state), lambda: own)
        private = {**state.private, "params": {**state.private["params"], POINT: own}}
        after, record = super().round(ctx, replace(state, private=private))
        sent = kernels(state.server["params"]).size
        further = {"numbers_up": none + asked * sent, "numbers_down": none + asked * self.corners}
        record = replace(
            record, down=record.down + asked[:, None], clients=record.clients | further
        )
        return after, record

    def is_due(self, ctx):
        return ctx.t == self.begin(ctx)

    def begin(self, ctx):
        """Return the round, from 0, before which clients get their points."""
        return jnp.floor(self.warmup_fraction * ctx.num_rounds * (1 + 1e-6)).astype(jnp.int32)

    def points(self, ctx, state):
        """Train all clients; return b_i [N, E]."""
        everyone = replace(ctx, cohort=ctx.cohort_of().masked(ctx.reachable()))
        received: Any = self.received(state, everyone.cohort.rows)
        trained = self.local_update(everyone, state, received, near=False, purpose="projection")
        sent, held = (jax.vmap(kernels)(m["params"]) for m in (trained.models, received))
        sent = everyone.upload(sent, held, "kernels", trained.cohort, compressed=False)
        points = projected(sent.reshape(ctx.num_clients, -1), self.corners)
        own, here = state.private["params"][POINT], ctx.cohort_of().mask
        return jnp.where(here[:, None], points, own)

    def local_update(self, ctx, state, received, near=None, purpose=None):
        model = received.model if isinstance(received, core.Broadcast) else received
        own = jnp.broadcast_to(model["params"][POINT], (ctx.cohort.size, self.corners))
        task, near = ctx.federation.task, ctx.t >= self.begin(ctx) if near is None else near

        def at_a_random_point(model, batch, rng, broadcast, client):
            key, centre = jax.random.fold_in(rng, DRAW), client.operand
            point = jnp.where(near, self.neighbour(key, centre), anywhere(key, centre))
            params = {**model["params"], POINT: point}
            return task.forward({**model, "params": params}, batch, rng)

        trained = super().local_update(
            ctx, state, received, forward=at_a_random_point, operands=own, purpose=purpose
        )
        params = {**trained.models["params"], POINT: own}  # which does not decay
        return replace(trained, models={**trained.models, "params": params})

    def neighbour(self, key, point):
        """Return a random point at distance U(0, rho) of a point [E], in the 1-norm."""
        direction, radius = jax.random.split(key)
        u = jax.random.uniform(direction, point.shape, point.dtype, -1, 1)
        length = jax.random.uniform(radius, (), point.dtype, 0, 1) * self.rho
        return point + length * u / jnp.sum(jnp.abs(u))

    def new_client_start(self, ctx, state):
        model = self.servers_model(state)
        centre = jnp.full_like(model["params"][POINT], 1 / self.corners)
        return {**model, "params": {**model["params"], POINT: centre}}

    def personalize(self, ctx, state, new_clients):
        """Train for a round from the server's model, at the centre of the simplex."""
        start = core.Broadcast(self.new_client_start(ctx, state))
        return self.local_update(new_clients, state, start).models


def anywhere(key: core.Key, like: jax.Array) -> jax.Array:
    """Return a uniformly distributed point of the simplex, in the shape [E] of another."""
    lengths = jax.random.exponential(key, like.shape, like.dtype)
    return lengths / jnp.sum(lengths)


def projected(rows: jax.Array, count: int) -> jax.Array:
    """Return points of the simplex, [N, count], for the rows [N, P] of clients.

    Of the projections of the principal components at levels z, it is the one with the least Riesz
    energy, the sum of |b_i - b_j|^-2 over pairs.
    """
    wide = rows.astype(jnp.promote_types(rows.dtype, "float32"))
    u, sizes, axes = jnp.linalg.svd(wide - jnp.mean(wide, axis=0), full_matrices=False)
    largest = jnp.argmax(jnp.abs(axes), axis=1, keepdims=True)
    signs = jnp.sign(jnp.take_along_axis(axes, largest, axis=1)[:, 0])
    components = (u * sizes * signs)[:, :count]
    missing = count - components.shape[1]
    components = jnp.pad(components, ((0, 0), (0, missing)))

    pairs = jnp.triu(jnp.ones((len(rows), len(rows)), bool), 1)

    def energy(level):
        points = on_simplex(components, level)
        squares = jnp.sum(jnp.square(points[:, None] - points), axis=2)
        nearest = squares <= NEAREST**2
        others = jnp.where(pairs & ~nearest, 1 / jnp.maximum(squares, NEAREST**2), 0)
        return jnp.sum(pairs & nearest), jnp.sum(others)

    levels = jnp.linspace(1e-4, 1, LEVELS, dtype=wide.dtype)
    # Nearest pairs have so much energy that in single precision no other would count beside them.
    nearest, others = lax.map(energy, levels)
    energies = (nearest - jnp.min(nearest)) / NEAREST**2 + others
    best = levels[jnp.argmin(energies)]
    return on_simplex(components, best).astype(rows.dtype)


def on_simplex(points: jax.Array, level: jax.Array) -> jax.Array:
    """Project rows [N, E] on the simplex with sum `level`; return them divided by their sums."""
    ordered = -jnp.sort(-points, axis=1)
    excess = jnp.cumsum(ordered, axis=1) - level
    support = jnp.sum(ordered * jnp.arange(1, ordered.shape[1] + 1) > excess, axis=1, keepdims=True)
    shift = jnp.take_along_axis(excess, support - 1, axis=1) / support
    return mixing.normalize(jnp.maximum(points - shift, 0))
