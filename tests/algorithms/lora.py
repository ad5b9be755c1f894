"""Adapters of the tests of LoRA algorithms."""

import jax
import numpy as np

RANK, ALPHA = 2, 3.0
ADAPTERS = {"lora_rank": RANK, "lora_alpha": ALPHA}


def base_of(case):
    """The hidden layer that the run of this case begins with."""
    started = jax.jit(case.federation.with_backbone)(case.key)
    return jax.tree.map(np.asarray, started.backbone["params"]["hidden"])
