"""Think Locally, Act Globally: Federated Learning with Local and Global Representations.

Paul Pu Liang, Terrance Liu, Liu Ziyin, Nicholas B. Allen, Randy P. Auerbach, David Brent, Ruslan
Salakhutdinov, Louis-Philippe Morency. 2020. https://arxiv.org/abs/2001.01523
"""

from dataclasses import replace
from typing import Any, Literal

import jax
import jax.numpy as jnp

from fedjax_pfl import core, trees
from fedjax_pfl.algorithms.fedavg import State
from fedjax_pfl.algorithms.fedper import PartlyShared


@core.struct
class WarmState(State):
    """The state of a warm start: clients share the local layers until they train their own."""

    common: Any = core.per_server()  # the average of the local layers, from the warm rounds
    own: Any = core.per_client()  # bool: whether the client has local layers of its own


@core.algorithm("lg_fedavg")
class LgFedAvg(PartlyShared):
    """LG-FedAvg: w_G <- mean of LocalSGD(w_Li, w_G)_G; the representation w_Li stays local.

    The complement of FedPer. All layers are trained in each round.

    Attributes:
      global_layers: the number of averaged layers; 0 is local training.
      global_end: "last", the layers next to the output (the paper); or "first", those next to the
        input (the published code on CIFAR-10, with both convolutions).
      weighting: "uniform" over the members (the published code), or by "size".
      warmup_rounds: number of first rounds that average all layers, as FedAvg does. The published
        code begins with a model of FedAvg; 0 begins with the common initial model.
    """

    global_layers: int = core.static(default=1, allowed="at least 0")
    global_end: Literal["last", "first"] = core.static(default="last")
    weighting: Literal["size", "uniform"] = core.static(default="uniform")
    warmup_rounds: int = core.static(default=0, allowed="at least 0")

    def sharing(self):
        return "all" if self.warmup_rounds else self.global_rule()

    def global_rule(self):
        """Return the rule of the global layers; a warm start shares the others at first."""
        if self.global_end == "first":
            return core.SharedLayers(first=self.global_layers)
        return core.SharedLayers(last=self.global_layers)

    def check(self, federation):
        super().check(federation)
        self.check_layers("global_layers", federation)
        plan = federation.plan
        if self.warmup_rounds and plan.shared != plan.with_share("all").shared:
            raise core.InputError(
                "lg_fedavg averages all layers in its warmup_rounds: leave share to it, or take 0."
            )

    def remarks(self, federation):
        notes = super().remarks(federation)
        if self.warmup_rounds:
            count = "round" if self.warmup_rounds == 1 else f"{self.warmup_rounds} rounds"
            notes.append(f"averaged all layers in the first {count}")
        return notes

    def init(self, ctx):
        if not self.warmup_rounds:
            return super().init(ctx)
        later = self._later(ctx)
        state, common = super().init(later), self._local(later.plan, ctx.initial_model())
        own = jnp.zeros((ctx.num_clients,), bool)
        return WarmState(state.server, state.private, None, common, own)

    def round(self, ctx, state: WarmState):
        if not self.warmup_rounds:
            return super().round(ctx, state)
        later = self._later(ctx)
        after, record = super().round(later, state)
        shared = later.plan.shared_blocks
        up = (ctx.t < self.warmup_rounds) | shared
        down = ~state.own[:, None] | shared
        return after, replace(record, up=record.up * up, down=record.down * down)

    def received(self, state: WarmState, rows):
        if not self.warmup_rounds:
            return super().received(state, rows)

        def held(common, own):
            if common is None:
                return own
            return jnp.where(trees.expand_to(own, state.own[rows]), own, common)

        taken = trees.take(state.private, rows)
        private = jax.tree.map(held, state.common, taken, is_leaf=lambda leaf: leaf is None)
        return trees.assemble(state.server, private)

    def server_update(self, ctx, state: WarmState, mean, weights, used):
        after = super().server_update(ctx, state, mean, weights, used)
        if not self.warmup_rounds:
            return after
        warm, local = ctx.t < self.warmup_rounds, self._local(ctx.plan, used.models)
        held = core.Broadcast({"local": state.common})
        uploads = ctx.upload({"local": local}, held, "local", used.cohort)["local"]
        common = ctx.aggregate(weights, uploads, onto=state.common)
        common = jax.tree.map(lambda a, b: jnp.where(warm, a, b), common, state.common)
        own = used.cohort.scatter(state.own, jnp.broadcast_to(~warm, weights.shape))
        return replace(after, common=common, own=own)

    def _later(self, ctx):
        """Return the context of the rounds after the warm start, which share the global layers."""
        plan = ctx.plan.with_share(self.global_rule())
        return replace(ctx, federation=replace(ctx.federation, plan=plan))

    def _local(self, plan, tree):
        """Return the leaves that only warm rounds average, with None in place of the others."""
        full = plan.with_share("all")
        return plan.select(tree, lambda i: full.shared[i] and not plan.shared[i])
