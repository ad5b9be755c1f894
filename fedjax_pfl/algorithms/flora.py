"""FLoRA: Federated Fine-Tuning Large Language Models with Heterogeneous Low-Rank Adaptations.

Ziyao Wang, Zheyu Shen, Yexiao He, Guoheng Sun, Hongyi Wang, Lingjuan Lyu, Ang Li. NeurIPS 2024.
https://arxiv.org/abs/2409.05976
"""

from dataclasses import replace

from fedjax_pfl import core, trees
from fedjax_pfl.algorithms.common.merged_adapters import A, B, MergedAdapters, summed_products


@core.algorithm("flora")
class FLoRA(MergedAdapters):
    """FLoRA: the server stacks the clients' adapters, and their product is merged into W.

    W <- W + s sum_i p_i A_i B_i. Every round begins with new adapters, A drawn and B = 0.
    """

    def added(self, a, b, weights):
        return summed_products(a, b, weights)

    def server_update(self, ctx, state, mean, weights, sent):
        state = super().server_update(ctx, state, mean, weights, sent)
        drawn = ctx.federation.initial_model(ctx.key_for("adapters"))
        names = {f"params/{name}/{leaf}" for name in self.layers(ctx.federation) for leaf in (A, B)}
        new = [path in names for path in ctx.plan.paths]
        fresh = ctx.plan.select(drawn, new.__getitem__)
        kept = ctx.plan.select(state.server, lambda i: not new[i])
        return replace(state, server=trees.join(kept, fresh)) if any(new) else state
