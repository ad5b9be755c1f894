"""FedGH: a head that the server trains on class means of private bodies (ACM MM 2023)."""

import numpy as np

from tests.references.network import cross_entropy, features, linear


def class_means(model, x, y):
    """{class: mean feature [d]} over a client's samples."""
    inner = features(model, x)
    return {int(c): inner[y == c].mean(axis=0) for c in np.unique(y)}


def head_steps(head, pairs, order, size, rate):
    """The server's steps on pairs (mean, class), `size` of them in each, in the order given."""
    for start in range(0, len(order), size):
        chosen = [pairs[key] for key in order[start : start + size]]
        means, labels = np.array([m for m, _ in chosen]), np.array([c for _, c in chosen])
        _, slope = cross_entropy(linear(head, means), labels)
        head = {
            "kernel": head["kernel"] - rate * means.T @ slope,
            "bias": head["bias"] - rate * slope.sum(axis=0),
        }
    return head


def run(s, *, orders, server_rate=0.01, server_batch=1):
    """Bodies stay with their clients, and the server trains the head.

    Args:
      orders: orders[t], one for each pass of the server in round t: all pairs (client, class) in
        the order of their turns; those that nobody sent are left out.
      server_rate, server_batch: learning rate and pairs in a step.

    Returns:
      After every round, "head" and "personalized": [N].
    """
    head, bodies = s.initial["head"], [s.initial for _ in s.clients]
    history = []
    for t in range(s.rounds):
        pairs = {}
        for i in s.cohorts[t]:
            bodies[i] = s.train({**bodies[i], "head": head}, t, i)
            own = s.clients[i]["samples"]
            for c, mean in class_means(bodies[i], s.x[own], s.y[own]).items():
                pairs[i, c] = (mean, c)
        for order in orders[t]:
            sent = [key for key in order if key in pairs]
            head = head_steps(head, pairs, sent, server_batch, server_rate)
        personalized = [{**body, "head": head} for body in bodies]
        history.append({"head": head, "personalized": personalized})
    return history
