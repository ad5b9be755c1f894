"""What algorithms require of the head and of its sharing."""

import jax

from fedjax_pfl import core


def check_only_head_shared(name: str, federation: core.Federation) -> None:
    """Raise `InputError` unless the network has a body, and the head is all that is shared."""
    plan = federation.plan
    if len(plan.layers) == 1:
        raise core.InputError(
            f"{name} learns bodies under a shared head, and this network is only a head."
        )
    for path, shared, block in zip(plan.paths, plan.shared, plan.block_of, strict=True):
        if shared != (plan.blocks[block] in plan.heads):
            raise core.InputError(
                f"{name} shares the head and nothing else, and {path} is "
                f"{'shared' if shared else 'private'}: leave share and freeze out."
            )


def has_linear_head(federation: core.Federation) -> bool:
    """Return whether the head has only a kernel [features, classes] and a bias [classes]."""
    count, width = federation.data.num_classes, federation.num_features
    leaves = zip(federation.plan.paths, jax.tree.leaves(federation.model_shapes), strict=True)
    head = {path: leaf.shape for path, leaf in leaves if path.startswith("params/head/")}
    return head == {"params/head/kernel": (width, count), "params/head/bias": (count,)}
