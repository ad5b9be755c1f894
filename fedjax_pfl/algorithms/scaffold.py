"""SCAFFOLD: Stochastic Controlled Averaging for Federated Learning.

Sai Praneeth Karimireddy, Satyen Kale, Mehryar Mohri, Sashank J. Reddi, Sebastian U. Stich,
Ananda Theertha Suresh. ICML 2020. https://arxiv.org/abs/1910.06378
"""

from dataclasses import replace
from typing import Any

import jax
import jax.numpy as jnp

from fedjax_pfl import core, mixing, trees
from fedjax_pfl.algorithms import fedavg


@core.struct
class State(fedavg.State):
    control: Any = core.per_server()  # c, like the parameters
    controls: Any = core.per_client()  # c_i


@core.struct
class Corrected(core.Trained):
    """The uploads: models and control variates.

    Attributes:
      controls: c_i^+, [M, ...]; unchanged for members that are absent, diverged or took no step.
      changes: c_i^+ - c_i as the server received them, [M, ...].
    """

    controls: Any = None
    changes: Any = None


@core.algorithm("scaffold")
class Scaffold(fedavg.FedAvg):
    """SCAFFOLD: local steps corrected by control variates, y <- y - eta (g - c_i + c).

    c_i^+ is the mean of the raw minibatch gradients of the local steps. For plain SGD this equals
    option II, c_i - c + (x - y_i) / (K eta); it is also right with momentum and weight decay.
    Uploads have equal weights. The change of c is the sum of the changes of c_i over N, not over
    the cohort's size.

    Attributes:
      server_rate: eta_g, of the parameters. Running statistics of normalization layers are averaged
        or stay local: a longer step could make them negative.
    """

    aggregator_replaces = "nothing"  # control variates are summed without a rule
    equal_sums = True

    server_rate: float = core.number(default=1.0, allowed="above 0")

    def check(self, federation):
        core.require_whole_models(self, federation)

    def init(self, ctx):
        start = super().init(ctx)
        zero = jax.tree.map(jnp.zeros_like, start.server["params"])
        return State(**vars(start), control=zero, controls=ctx.replicate(zero))

    def local_update(self, ctx, state: State, received):
        def correct(gradient, params, broadcast, client):
            return jax.tree.map(lambda g, ci, c: g - ci + c, gradient, client.operand, broadcast)

        controls = ctx.cohort.gather(state.controls)
        trained = super().local_update(
            ctx,
            state,
            received,
            correct=correct,
            broadcast=state.control,
            operands=controls,
            mean_gradient=True,
        )
        # A client without a step has no mean gradient, and uploads no change.
        moved = trained.cohort.mask & (ctx.federation.schedule.total_steps(ctx.sizes()) > 0)
        new = trees.where(moved, trained.gradient, controls)
        new, changes = ctx.upload_changes(new, controls, "controls", trained.cohort)
        models, cohort, loss = trained.models, trained.cohort, trained.loss
        return Corrected(models, cohort, loss, controls=new, changes=changes)

    def weigh(self, ctx, state, sent):
        return mixing.normalize(sent.cohort.mask.astype(sent.loss.dtype)), state  # 1/M

    def server_update(self, ctx, state: State, mean, weights, used: Corrected):
        params = jax.tree.map(
            lambda x, y: x + self.server_rate * (y - x), state.server["params"], mean["params"]
        )
        return replace(
            state,
            server={**mean, "params": params},
            control=self.server_control(ctx, state, weights, used),
            controls=used.cohort.scatter(state.controls, used.controls),
        )

    def server_control(self, ctx, state: State, weights, sent: Corrected):
        """Return c + (1/N) sum over members of (c_i^+ - c_i)."""
        return jax.tree.map(
            lambda c, moved: c + jnp.sum(moved, axis=0) / ctx.num_clients,
            state.control,
            sent.changes,
        )

    def record(self, ctx, trained, weights, **noted):
        return super().record(ctx, trained, weights, up=2, down=2, **noted)  # models and controls
