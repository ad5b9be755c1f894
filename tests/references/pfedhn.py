"""pFedHN: personalized federated learning using hypernetworks (Shamsian et al., ICML 2021).

One hypernetwork on the server makes every client's model from the client's embedding:

    {
        "trunk": [{"kernel": [d, h], "bias": [h]}, {"kernel": [h, h], "bias": [h]}, ...],
        "output": {layer: {name: {"kernel": [h, size], "bias": [size]}}},
    }

the trunk's layers with a ReLU between them (none after the last), then a linear layer for each
tensor of the target network.
"""

import numpy as np

from tests.references.network import flat, loss_and_gradient, unflat
from tests.references.optimizers import clipped, sgd_step

# ------------------------------------------------------------------ the hypernetwork


def random_hypernetwork(rng, like, *, clients, embedding, hidden, depth=3):
    """(embeddings [N, d] from N(0, 1), psi from U(+-1/sqrt(fan_in))).

    Args:
      rng: a NumPy generator.
      like: a target model, or the layers of it that are made.
      clients, embedding, hidden: N, d and h.
      depth: layers of the trunk behind its first one.
    """

    def layer(fan_in, fan_out):
        bound = 1.0 / np.sqrt(fan_in)
        return {
            "kernel": rng.uniform(-bound, bound, (fan_in, fan_out)),
            "bias": rng.uniform(-bound, bound, fan_out),
        }

    trunk = [layer(fan_in, hidden) for fan_in in (embedding, *[hidden] * depth)]
    output = {
        name: {leaf: layer(hidden, np.size(value)) for leaf, value in leaves.items()}
        for name, leaves in like.items()
    }
    return rng.normal(size=(clients, embedding)), {"trunk": trunk, "output": output}


def inputs_of(vector, psi):
    """The inputs of all layers of the trunk, then those of the output layers."""
    inputs = [vector]
    for k, layer in enumerate(psi["trunk"]):
        below = inputs[-1] if k == 0 else np.maximum(inputs[-1], 0.0)
        inputs.append(below @ layer["kernel"] + layer["bias"])
    return inputs


def generate(vector, psi, like):
    """theta_i = h(v_i; psi), in the shapes of `like`."""
    inner = inputs_of(vector, psi)[-1]
    return {
        name: {
            leaf: np.reshape(inner @ layer["kernel"] + layer["bias"], np.shape(like[name][leaf]))
            for leaf, layer in leaves.items()
        }
        for name, leaves in psi["output"].items()
    }


def generate_vjp(vector, psi, cotangent):
    """The transposed Jacobian of `generate` applied to a model: (dv, dpsi)."""
    inputs = inputs_of(vector, psi)
    back, output = np.zeros_like(inputs[-1]), {}
    for name, leaves in psi["output"].items():
        output[name] = {}
        for leaf, layer in leaves.items():
            slope = np.ravel(cotangent[name][leaf])
            output[name][leaf] = {"kernel": np.outer(inputs[-1], slope), "bias": slope}
            back = back + layer["kernel"] @ slope
    trunk = []
    for k in reversed(range(len(psi["trunk"]))):
        below = inputs[k] if k == 0 else np.maximum(inputs[k], 0.0)
        trunk.insert(0, {"kernel": np.outer(below, back), "bias": back})
        back = psi["trunk"][k]["kernel"] @ back
        if k > 0:
            back = np.where(inputs[k] > 0.0, back, 0.0)
    return back, {"trunk": trunk, "output": output}


def layers_in_order(psi):
    """All layers of a hypernetwork as one list: the trunk's, then the output layers'."""
    return [
        *psi["trunk"],
        *(psi["output"][name][leaf] for name in psi["output"] for leaf in psi["output"][name]),
    ]


def numbers(embeddings, psi):
    """All that the server's optimizer moves, as one vector: the embeddings come first."""
    layers = layers_in_order(psi)
    parts = [layer[leaf] for layer in layers for leaf in ("kernel", "bias")]
    return np.concatenate([np.ravel(part) for part in (embeddings, *parts)])


def rebuilt(vector, embeddings, psi):
    """The inverse of `numbers`: (embeddings, psi)."""
    start = np.size(embeddings)
    layers = []
    for layer in layers_in_order(psi):
        copy = {}
        for leaf in ("kernel", "bias"):
            stop = start + layer[leaf].size
            copy[leaf] = vector[start:stop].reshape(layer[leaf].shape)
            start = stop
        layers.append(copy)
    rest = iter(layers[len(psi["trunk"]) :])
    output = {name: {leaf: next(rest) for leaf in psi["output"][name]} for name in psi["output"]}
    new = {"trunk": layers[: len(psi["trunk"])], "output": output}
    return vector[: np.size(embeddings)].reshape(np.shape(embeddings)), new


# ------------------------------------------------------------------ the rounds


def train_client(
    model, batches, x, y, rate, *, momentum, weight_decay, bound, head=None, head_velocity=None
):
    """SGD on a client; momentum begins at 0, gradients are clipped before decay and momentum.

    A local head is trained in the same steps; its gradient is not clipped, and its momentum
    lasts from one of the client's rounds to the next.

    Returns:
      (model, head, velocity of the head).
    """
    vector = flat(model)
    velocity = np.zeros_like(vector)
    for batch in batches:
        whole = model if head is None else {**model, "head": head}
        _, gradient = loss_and_gradient(whole, x[batch], y[batch])
        slope = clipped(flat({name: gradient[name] for name in model}), bound)
        vector, velocity = sgd_step(vector, slope, velocity, rate, momentum, weight_decay)
        model = unflat(vector, model)
        if head is not None:
            moved, head_velocity = sgd_step(
                flat({"head": head}),
                flat({"head": gradient["head"]}),
                head_velocity,
                rate,
                momentum,
                weight_decay,
            )
            head = unflat(moved, {"head": head})["head"]
    return model, head, head_velocity


def server_gradient(embeddings, psi, client, change):
    """The vector of `numbers`: the vector-Jacobian product with theta - theta', the change.

    theta - theta' is about the rate times a gradient, so the optimizer descends along it. Only
    the client's own embedding has a gradient.
    """
    d_vector, d_psi = generate_vjp(embeddings[client], psi, change)
    d_embeddings = np.zeros_like(embeddings)
    d_embeddings[client] = d_vector
    return numbers(d_embeddings, d_psi)


def run(
    s,
    *,
    embeddings,
    hypernetwork,
    server_rate=0.01,
    embedding_rate=None,
    server_momentum=0.9,
    server_decay=0.001,
    server_clip=50.0,
    momentum=0.9,
    weight_decay=5e-05,
    clip=50.0,
    heads=None,
):
    """One client after the other gets a model from the hypernetwork, trains it, and moves it.

    Args:
      embeddings, hypernetwork: [N, d] and psi before the first round.
      server_rate, server_momentum, server_decay: of the hypernetwork's SGD. Momentum and decay
        also move the embeddings of clients that are not there.
      embedding_rate: the embeddings' own rate, or None.
      server_clip: bound of the norm of its whole gradient, embeddings included, or None.
      momentum, weight_decay, clip: of the inner steps.
      heads: [N], local last layers (pFedHN-PC), which are not in `hypernetwork`; None: none.

    Returns:
      After every round, "personalized": [N], "trained": {client: model}, "received" likewise,
      "embeddings", "hypernetwork", and "velocity", the vector of the server's momentum.
    """
    embeddings = np.array(embeddings, np.float64)
    psi = hypernetwork
    heads = [None] * len(s.clients) if heads is None else list(heads)
    of_heads = [None if head is None else 0.0 * flat({"head": head}) for head in heads]
    own_rate = server_rate if embedding_rate is None else embedding_rate
    rates = np.full(numbers(embeddings, psi).shape, server_rate)
    rates[: embeddings.size] = own_rate
    velocity = np.zeros_like(rates)

    def whole(i):
        model = generate(embeddings[i], psi, s.initial)
        return model if heads[i] is None else {**model, "head": heads[i]}

    history = []
    for t in range(s.rounds):
        received, trained = {}, {}
        for i in s.cohorts[t]:
            model = generate(embeddings[i], psi, s.initial)
            received[i] = whole(i)
            after, heads[i], of_heads[i] = train_client(
                model,
                s.batches[t][i],
                s.x,
                s.y,
                s.learning_rate[t],
                momentum=momentum,
                weight_decay=weight_decay,
                bound=clip,
                head=heads[i],
                head_velocity=of_heads[i],
            )
            trained[i] = after if heads[i] is None else {**after, "head": heads[i]}
            change = unflat(flat(model) - flat(after), model)
            slope = clipped(server_gradient(embeddings, psi, i, change), server_clip)
            vector, velocity = sgd_step(
                numbers(embeddings, psi), slope, velocity, rates, server_momentum, server_decay
            )
            embeddings, psi = rebuilt(vector, embeddings, psi)
        history.append(
            {
                "personalized": [whole(i) for i in range(len(s.clients))],
                "received": received,
                "trained": trained,
                "embeddings": embeddings,
                "hypernetwork": psi,
                "velocity": velocity,
            }
        )
    return history
