"""pFedLA and HeurpFedLA: layer-wise aggregation by hypernetworks (Ma et al., CVPR 2022).

Every client i has, on the server, an embedding v_i, a vector [d_v], and a hypernetwork psi_i:

    {
        "trunk": [{"kernel": [d_v, h], "bias": [h]}, {"kernel": [h, h], "bias": [h]}, ...],
        "output": [{"kernel": [h, N], "bias": [N]}, ...],
    }

the trunk's layers in order, each followed by a ReLU, then one output layer per block, in the
order of `blocks`. The paper's supplement with the exact structure isn't available; 100 -> 100 ->
100 -> 100 is what public implementations have.

A block is the name of one of the network's layers, or a tuple of several.
"""

import numpy as np

from tests.references.network import layers_of, subtract

WEIGHTINGS = ("softmax", "relu_norm")


def block_dot(a, b, block):
    """Inner product of two models over one block."""
    return sum(
        float(np.sum(a[layer][name] * b[layer][name]))
        for layer in layers_of(block)
        for name in a[layer]
    )


# ------------------------------------------------------------------ the hypernetwork


def random_hypernetwork(rng, *, embedding, hidden, blocks, clients, depth=3, weighting="softmax"):
    """(v, psi) of one client: v from N(0, 1), the trunk from U(+-1/sqrt(fan_in)).

    The output layers are zero, so that all weights are 1/N, or, for "relu_norm", have kernels
    from U(0, 1) and zero biases.

    Args:
      rng: a NumPy generator.
      embedding, hidden: the sizes d_v and h.
      blocks, clients: how many of each.
      depth: the number of layers of the trunk.
      weighting: one of `WEIGHTINGS`.
    """
    vector = rng.normal(size=embedding)
    trunk = []
    for fan_in in (embedding, *[hidden] * (depth - 1)):
        bound = 1.0 / np.sqrt(fan_in)
        trunk.append(
            {
                "kernel": rng.uniform(-bound, bound, (fan_in, hidden)),
                "bias": rng.uniform(-bound, bound, hidden),
            }
        )
    high = 1.0 if weighting == "relu_norm" else 0.0
    output = [
        {"kernel": rng.uniform(0.0, high, (hidden, clients)), "bias": np.zeros(clients)}
        for _ in range(blocks)
    ]
    return vector, {"trunk": trunk, "output": output}


def normalized(scores, weighting):
    """Weights over the clients from one output layer's scores [N].

    "relu_norm" with no positive score gives 1/N.
    """
    if weighting == "softmax":
        powers = np.exp(scores - scores.max())
        return powers / powers.sum()
    if weighting == "relu_norm":
        positive = np.maximum(scores, 0.0)
        total = positive.sum()
        return positive / total if total > 0.0 else np.full(len(scores), 1.0 / len(scores))
    raise ValueError(f"Unknown weighting {weighting!r}. Valid: {', '.join(WEIGHTINGS)}.")


def normalized_vjp(scores, cotangent, weighting):
    """The cotangent of the scores, from that of the weights; at a score of 0, ReLU' = 0."""
    weights = normalized(scores, weighting)
    centred = cotangent - cotangent @ weights
    if weighting == "softmax":
        return weights * centred
    total = np.maximum(scores, 0.0).sum()
    if total == 0.0:
        return np.zeros_like(scores)
    return np.where(scores > 0.0, centred / total, 0.0)


def forward(vector, psi):
    """The inputs of all layers of the trunk and of the output layers, and the scores [L, N]."""
    inputs = [np.asarray(vector, np.float64)]
    for layer in psi["trunk"]:
        inputs.append(np.maximum(inputs[-1] @ layer["kernel"] + layer["bias"], 0.0))
    scores = [inputs[-1] @ layer["kernel"] + layer["bias"] for layer in psi["output"]]
    return inputs, np.array(scores)


def hypernetwork(vector, psi, weighting="softmax"):
    """Eq. (4): alpha_i [L, N], every row non-negative and summing to 1."""
    return np.array([normalized(row, weighting) for row in forward(vector, psi)[1]])


def hypernetwork_vjp(vector, psi, cotangent, weighting="softmax"):
    """The transposed Jacobian of `hypernetwork` applied to `cotangent` [L, N].

    Returns:
      (dv, dpsi) in the shapes of (vector, psi).
    """
    inputs, scores = forward(vector, psi)
    back = np.zeros_like(inputs[-1])
    output = []
    for layer, row, of_row in zip(psi["output"], scores, cotangent, strict=True):
        d_scores = normalized_vjp(row, of_row, weighting)
        output.append({"kernel": np.outer(inputs[-1], d_scores), "bias": d_scores})
        back = back + layer["kernel"] @ d_scores
    trunk = []
    for layer, below, above in reversed(
        list(zip(psi["trunk"], inputs[:-1], inputs[1:], strict=True))
    ):
        d_sums = np.where(above > 0.0, back, 0.0)
        trunk.insert(0, {"kernel": np.outer(below, d_sums), "bias": d_sums})
        back = layer["kernel"] @ d_sums
    return back, {"trunk": trunk, "output": output}


def step(vector, psi, cotangent, rate, weighting="softmax"):
    """Eqs. (10) and (11): v + rate dv and psi + rate dpsi.

    The cotangent comes from theta - theta_bar, which is minus the learning rate times a
    gradient: adding descends.
    """
    d_vector, d_psi = hypernetwork_vjp(vector, psi, cotangent, weighting)
    moved = {
        part: [
            {name: layer[name] + rate * change[name] for name in layer}
            for layer, change in zip(psi[part], d_psi[part], strict=True)
        ]
        for part in psi
    }
    return vector + rate * d_vector, moved


# ------------------------------------------------------------------ aggregation


def retained_blocks(weights, client, count):
    """Eq. (12): which blocks a client keeps [L]: the `count` with the largest weight on itself.

    Ties go to the earlier block.
    """
    own = weights[:, client]
    ranking = sorted(range(len(own)), key=lambda block: (-own[block], block))
    mask = np.zeros(len(own), bool)
    mask[ranking[:count]] = True
    return mask


def with_retained(weights, client, mask):
    """alpha_i with the rows of the retained blocks with weight only on the client."""
    return np.where(mask[:, None], np.eye(weights.shape[1])[client], weights)


def aggregate(weights, models, blocks):
    """Eqs. (5), (6): block l is sum_j weights[l, j] models[j]^l."""
    mixed = {layer: dict(leaves) for layer, leaves in models[0].items()}
    for row, block in zip(weights, blocks, strict=True):
        for layer in layers_of(block):
            for name in mixed[layer]:
                total = np.zeros_like(mixed[layer][name])
                for weight, model in zip(row, models, strict=True):
                    total = total + weight * model[layer][name]
                mixed[layer][name] = total
    return mixed


def weight_cotangent(change, models, blocks):
    """[L, N]: <theta_j^l, dtheta_i^l>, the derivative of <theta_bar_i, dtheta_i> by alpha_i."""
    return np.array([[block_dot(model, change, block) for model in models] for block in blocks])


# ------------------------------------------------------------------ the rounds


def run(
    s,
    *,
    blocks,
    embeddings,
    hypernetworks,
    hypernetwork_rate=1.0,
    retained=0,
    updates="mixed",
    weighting="softmax",
):
    """Every client's model mixes all clients' uploads, each block with weights of its own.

    Args:
      blocks: the blocks in the order of the hypernetworks' output layers; together, all layers
        of the network, each once.
      embeddings, hypernetworks: v_i and psi_i of every client before the first round.
      hypernetwork_rate: a factor before the increments of (10) and (11), which have none.
      retained: how many blocks a client keeps from its own last upload: 0 is pFedLA, k > 0
        HeurpFedLA.
      updates: whether the "mixed" blocks or "all" count in (10) and (11).
      weighting: what turns scores into weights, one of `WEIGHTINGS`.

    Returns:
      After every round, "received": {client: theta_bar} the cohort trained from, "uploaded":
      [N] last uploads; and what follows from them and from the updated hypernetworks, that is
      what the next round starts with: "alpha": [N, L, N] as applied (the identity's rows for
      retained blocks), "retained": [N, L] of bool, "personalized": [N], theta_bar; "embedding":
      [N], "hypernetwork": [N].
    """
    count = len(s.clients)
    named = [layer for block in blocks for layer in layers_of(block)]
    uploaded = list(s.initial) if isinstance(s.initial, list) else [s.initial for _ in s.clients]
    if sorted(named) != sorted(uploaded[0]):
        raise ValueError(f"The blocks hold {sorted(named)}, the network {sorted(uploaded[0])}.")
    vectors = [np.asarray(vector, np.float64) for vector in embeddings]
    networks = list(hypernetworks)

    def distribute():
        masks, alphas = [], []
        for i in range(count):
            weights = hypernetwork(vectors[i], networks[i], weighting)
            masks.append(retained_blocks(weights, i, retained))
            alphas.append(with_retained(weights, i, masks[i]))
        mixed = [aggregate(weights, uploaded, blocks) for weights in alphas]
        return np.array(masks), np.array(alphas), mixed

    masks, alphas, personal = distribute()
    history = []
    for t in range(s.rounds):
        stored = list(uploaded)  # all clients at once: nobody sees this round's uploads
        received = {i: personal[i] for i in s.cohorts[t]}
        for i in s.cohorts[t]:
            trained = s.train(received[i], t, i)
            change = subtract(trained, received[i])
            uploaded[i] = trained  # theta_bar_i + dtheta_i
            cotangent = weight_cotangent(change, stored, blocks)
            if updates == "mixed":
                cotangent = np.where(masks[i][:, None], 0.0, cotangent)
            vectors[i], networks[i] = step(
                vectors[i], networks[i], cotangent, hypernetwork_rate, weighting
            )
        masks, alphas, personal = distribute()
        history.append(
            {
                "personalized": personal,
                "received": received,
                "uploaded": list(uploaded),
                "alpha": alphas,
                "retained": masks,
                "embedding": list(vectors),
                "hypernetwork": list(networks),
            }
        )
    return history
