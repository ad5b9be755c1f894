"""pFedHN's clipped local training and private state."""

import jax

from fedjax_pfl import core, trees
from fedjax_pfl.aggregation import leaf_plan
from fedjax_pfl.algorithms.common.hypernetwork import clipped


def train(
    ctx: core.Context,
    models: core.Stack,
    cohort: core.Cohort,
    momentum: core.Tree,
    clip: core.Scalar | float,
) -> core.Trained:
    """Train locally with clipped gradients of generated leaves.

    Args:
      models: [M, ...].
      momentum: the members' optimizer states as `lasting` returned them, [M, ...].
      clip: largest norm of a gradient of generated leaves; 0: no limit.
    """
    generated = jax.tree.map(lambda _: True, ctx.plan.uploaded(models)["params"])

    def correct(gradient, params, broadcast, client):
        some = jax.tree.map(lambda on, g: g if on else None, generated, gradient,
                            is_leaf=lambda x: x is None)  # fmt: skip
        return trees.join(clipped(some, clip), gradient)

    options = {}
    if jax.tree.leaves(momentum):
        fresh = trees.take(ctx.initial_optimizer_state(), cohort.rows)
        options["optimizer_state"] = trees.join(momentum, fresh)
    return ctx.train(models, cohort, correct=correct, **options)


def private(plan: core.LeafPlan, models: core.Stack) -> core.Stack:
    """Return the leaves that are not generated, with None in place of the others."""
    return plan.select(models, lambda i: not plan.compared(i))


def lasting(plan: core.LeafPlan, memory: core.Tree) -> core.Tree:
    """Return the persistent part of the optimizers' states: that of trained private leaves.

    Optimizers hold trees like the parameters, so paths in them end in a parameter's path.
    """
    names = {path.partition("/")[2]: plan.compared(i)
             for i, path in enumerate(plan.paths) if leaf_plan.trainable(path)}  # fmt: skip

    def lasts(path, leaf):
        at = f"/{trees.path_name(path)}"
        own = [name for name in names if at.endswith(f"/{name}")]
        return leaf if own and not names[max(own, key=len)] else None

    return jax.tree_util.tree_map_with_path(lasts, memory)
