"""SCAFFOLD: stochastic controlled averaging (Karimireddy et al., ICML 2020)."""

from typing import Any

import jax

from fedjax_pfl import mixing
from fedjax_pfl.algorithm import Algorithm
from fedjax_pfl.clients import Shared
from fedjax_pfl.errors import require
from fedjax_pfl.registry import method
from fedjax_pfl.structs import per_client, shared, struct


@struct
class State:
    server: Any = shared()
    control: Any = shared()  # c, like the parameters
    controls: Any = per_client()  # c_i


@method("scaffold")
class Scaffold(Algorithm):
    """Local steps corrected by control variates: y <- y - eta (g - c_i + c).

    c_i^+ is the mean of the raw minibatch gradients on the way: for plain SGD the same as option
    II, c_i - c + (x - y_i) / (K eta), and right with momentum and weight decay too. Uploads weigh
    the same whatever their sizes; c moves by the changes of c_i over N, not over the cohort.

    Attributes:
      server_rate: eta_g.
    """

    batch_norm = "shared"

    server_rate: float = 1.0

    def validate(self):
        require(self.server_rate > 0, "server_rate", self.server_rate, "above 0")

    def check(self, federation):
        self.check_whole_models(federation)

    def init(self, ctx):
        model = ctx.initial_model()
        zero = jax.tree.map(lambda leaf: 0 * leaf, model["params"])
        return State(model, zero, ctx.replicate(zero))

    def round(self, ctx, state):
        controls = ctx.cohort.gather(state.controls)

        def correct(gradient, params, shared, client):
            return jax.tree.map(lambda g, ci, c: g - ci + c, gradient, client.operand, shared)

        trained, cohort, loss, gradient = ctx.train(
            Shared(state.server),
            correct=correct,
            shared=state.control,
            operands=controls,
            mean_gradient=True,
        )
        uniform = mixing.normalize(cohort.mask.astype(loss.dtype))  # 1/M
        mean = mixing.weighted_sum(uniform, trained, onto=state.server)
        server = jax.tree.map(lambda x, y: x + self.server_rate * (y - x), state.server, mean)
        # A client without a step uploads no change: its mean gradient says nothing.
        moved = cohort.mask & (ctx.federation.schedule.total_steps(ctx.sizes()) > 0)
        change = jax.tree.map(lambda new, old: new - old, gradient, controls)
        total = mixing.weighted_sum(moved.astype(loss.dtype), change, onto=self._zero(state))
        control = jax.tree.map(lambda c, d: c + d / ctx.num_clients, state.control, total)
        kept = State(server, control, cohort.scatter(state.controls, gradient, where=moved))
        record = ctx.record(cohort, up=2, down=2, clients={"train_loss": loss}, mixing=uniform)
        return kept, record

    @staticmethod
    def _zero(state):
        return jax.tree.map(lambda leaf: 0 * leaf, state.control)

    def models(self, ctx, state, rows):
        return {"personalized": Shared(state.server), "global": Shared(state.server)}
