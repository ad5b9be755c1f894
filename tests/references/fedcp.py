"""FedCP: a policy divides features between a personal and a global head (KDD 2023)."""

import numpy as np

from tests.references.averaging import average
from tests.references.network import add, backward, cross_entropy, features, linear, scale, subtract

WIDTHS = (20.0, 30.0, 40.0, 100.0)
PRIVATE = ("personal_head", "context")


def unit(head):
    """v: the direction of the kernel's sum over the classes."""
    total = head["kernel"].sum(axis=1)
    return total / np.linalg.norm(total)


def gates(model, z, noise):
    """(shares [n, 2, d], what their gradient needs)."""
    policy, v = model["policy"], model["context"]["v"]
    scores = linear(policy, z * v)
    centred = scores - scores.mean(axis=1, keepdims=True)
    deviation = np.sqrt((centred**2).mean(axis=1, keepdims=True) + 1e-5)
    normed = centred / deviation
    out = normed * policy["scale"] + policy["offset"]
    powers = np.exp(np.maximum(out, 0).reshape(len(z), 2, -1) + noise)
    return powers / powers.sum(axis=1, keepdims=True), (deviation, normed, out)


def logits(model, x, noise=0.0):
    """h_i(a z) + h_g((1 - a) z)."""
    z = features({"hidden": model["hidden"]}, x)
    share, _ = gates(model, z, noise)
    mine = linear(model["personal_head"], z * share[:, 0])
    return mine + linear(model["head"], z * share[:, 1])


def discrepancy(z, other):
    """(the mean over pairs of k(z, z) + k(o, o) - 2 k(z, o), its slope with respect to z)."""
    total, slope, count = 0.0, np.zeros_like(z), len(z)
    for width in WIDTHS:
        for i in range(count):
            for j in range(count):
                near = np.exp(-((z[i] - z[j]) ** 2).sum() / width)
                far = np.exp(-((z[i] - other[j]) ** 2).sum() / width)
                total += near + np.exp(-((other[i] - other[j]) ** 2).sum() / width) - 2 * far
                slope[i] += 2 * near * (-2 / width) * (z[i] - z[j])
                slope[i] -= 2 * far * (-2 / width) * (z[i] - other[j])
    return total / count**2, slope / count**2


def loss_and_gradient(model, received, x, y, noise, weight):
    """The local loss on a minibatch, and its gradient for body, personal head and policy."""
    body = {"hidden": model["hidden"]}
    z = features(body, x)
    share, (deviation, normed, out) = gates(model, z, noise)
    loss, slope = cross_entropy(logits(model, x, noise), y)
    apart, pull = discrepancy(z, features({"hidden": received["hidden"]}, x))
    own, common, policy = model["personal_head"], model["head"], model["policy"]
    gradient = {"personal_head": {"kernel": (z * share[:, 0]).T @ slope, "bias": slope.sum(axis=0)}}
    divided = np.stack([slope @ own["kernel"].T, slope @ common["kernel"].T], axis=1)
    below = (divided * share).sum(axis=1) + weight * pull
    inner = divided * z[:, None]
    to_scores = share * (inner - (share * inner).sum(axis=1, keepdims=True))
    to_out = to_scores.reshape(len(z), -1) * (out > 0)
    to_normed = to_out * policy["scale"]
    mean = to_normed.mean(axis=1, keepdims=True)
    along = (to_normed * normed).mean(axis=1, keepdims=True)
    to_linear = (to_normed - mean - normed * along) / deviation
    v = model["context"]["v"]
    gradient["policy"] = {
        "kernel": (z * v).T @ to_linear,
        "bias": to_linear.sum(axis=0),
        "scale": (to_out * normed).sum(axis=0),
        "offset": to_out.sum(axis=0),
    }
    below = below + to_linear @ policy["kernel"].T * v
    gradient["hidden"] = backward({**body, "head": own}, x, 0 * slope, below)["hidden"]
    return loss + weight * apart, gradient


def train(received, batches, noises, x, y, rate, weight, decay=0.0):
    """A member's model after its minibatches, under the received global head."""
    model = received
    for batch, noise in zip(batches, noises, strict=True):
        _, gradient = loss_and_gradient(model, received, x[batch], y[batch], noise, weight)
        moved = {name: model[name] for name in gradient}
        gradient = add(gradient, scale(decay, moved))
        model = {**model, **subtract(moved, scale(rate, gradient))}
    return model


def run(s, *, noises, weight=5.0, decay=0.0):
    """Rounds of training under the global head, which is averaged with the personal ones.

    Args:
      noises: noises[t][i], for each batch the noise [n, 2, d] of the policy.
      weight: of the discrepancy of features.
      decay: weight decay of what is trained.

    Returns:
      After every round, "global": shared layers, "personalized": [N], with "personal_head" and
      "context".
    """
    head = s.initial["head"]
    own = [{"personal_head": head, "context": {"v": unit(head)}} for _ in s.clients]
    shared, history = s.initial, []
    for t in range(s.rounds):
        sent = []
        for i in s.cohorts[t]:
            start = {**shared, **own[i]}
            model = train(
                start, s.batches[t][i], noises[t][i], s.x, s.y, s.learning_rate[t], weight, decay
            )
            mine = model["personal_head"]
            own[i] = {"personal_head": mine, "context": {"v": unit(mine)}}
            common = {name: (mine[name] + shared["head"][name]) / 2 for name in mine}
            public = {name: layer for name, layer in model.items() if name not in PRIVATE}
            sent.append({**public, "head": common})
        if sent:
            shared = average(sent, s.sizes, s.cohorts[t])
        history.append({"global": shared, "personalized": [{**shared, **mine} for mine in own]})
    return history
