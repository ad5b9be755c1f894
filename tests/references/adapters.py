"""Low-rank adapters A B on the hidden layer of the references' network.

A model is {"hidden": {"lora_a": [d, r], "lora_b": [r, h]}, "head": {...}} on a base
{"kernel": [d, h], "bias": [h]} of the hidden layer, which is never trained.
"""

import numpy as np

from tests.references.network import loss_and_gradient, scale, subtract


def whole(base, model, factor):
    """The plain network: kernel W + factor A B."""
    own = model["hidden"]
    kernel = base["kernel"] + factor * own["lora_a"] @ own["lora_b"]
    return {"hidden": {"kernel": kernel, "bias": base["bias"]}, "head": model["head"]}


def sgd(base, model, batches, x, y, rate, factor, trained=("lora_a", "lora_b")):
    """Gradient steps on the trained factors and the head, one for each batch."""
    for batch in batches:
        _, gradient = loss_and_gradient(whole(base, model, factor), x[batch], y[batch])
        kernel, own = gradient["hidden"]["kernel"], model["hidden"]
        slopes = {
            "lora_a": factor * kernel @ own["lora_b"].T,
            "lora_b": factor * own["lora_a"].T @ kernel,
        }
        slopes = {name: slope * (name in trained) for name, slope in slopes.items()}
        step = scale(rate, {"hidden": slopes, "head": gradient["head"]})
        model = subtract(model, step)
    return model


def mean_product(shares, models):
    """sum_i p_i A_i B_i."""
    total = np.zeros_like(models[0]["hidden"]["lora_a"] @ models[0]["hidden"]["lora_b"])
    for share, model in zip(shares, models, strict=True):
        total = total + share * model["hidden"]["lora_a"] @ model["hidden"]["lora_b"]
    return total
