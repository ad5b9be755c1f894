"""SFL: personalized federated learning with a graph (Chen et al., IJCAI 2022)."""

import numpy as np

from tests.references.network import add, combine, scale, squared_norm, subtract, zeros_like
from tests.references.sfl_graph import label_graph, learned_graph, neighbour_graph

GRAPHS = ("labels", "neighbours", "learned")


def norms_gradient(params, targets):
    """The gradient of sum of weight ||w - target|| over pairs (weight, target).

    At a target it is 0, and nearer to it than rounding errors, which had its direction otherwise.
    """
    total = zeros_like(params)
    for weight, target in targets:
        apart = subtract(params, target)
        length = np.sqrt(squared_norm(apart))
        if length > 16 * np.finfo(np.float64).eps * np.sqrt(squared_norm(target)):
            total = add(total, scale(weight / length, apart))
    return total


def smoothed(models, graph, layers=3, server_alpha=1.0):
    """alpha A^layers Theta + (1 - alpha) Theta, [N models]."""
    spread = np.linalg.matrix_power(np.asarray(graph, np.float64), layers)
    weights = server_alpha * spread + (1.0 - server_alpha) * np.eye(len(models))
    return [combine(row, models) for row in weights], weights


def run(
    s,
    *,
    graph="labels",
    layers=3,
    server_alpha=1.0,
    graph_weight=0.3,
    global_weight=0.3,
    detached=False,
    neighbours=5,
    ids=None,
    generators=None,
    learned_share=0.05,
):
    """Clients train from the mean u, held near u and near their graph model g_i.

    The local loss is f_i(w) + graph_weight ||w - g_i|| + global_weight ||w - u||, norms not
    squared. The server spreads the models over the graph, g = A^layers Theta, where an absent
    client is represented by its last g_i, and u is the mean of all g_i.

    Args:
      graph: A, [N, N] with rows that sum to one; or "labels", the published code's, which joins
        clients that share a training label; or "neighbours", those nearest by cosine of what they
        are away from u; or "learned", SFL* as published: "labels" mixed with a graph that is
        fitted anew in each round. Rows in which that is empty are those of "labels".
      layers, server_alpha: those of `smoothed`.
      graph_weight, global_weight: those of the two norms.
      detached: the norms have no gradient, as in the published code.
      neighbours, ids: how many a client has, itself included, and ids that decide ties.
      generators: generators[t], the first generator of round t for "learned".
      learned_share: of the learned graph.

    Returns:
      After every round, "personalized": [g_i], "global": u, "trained": {client: model} and
      "weights": [N, N], those over the models sent and the last g_i of absent clients.
    """
    named = isinstance(graph, str)
    if named and graph not in GRAPHS:
        raise ValueError(f"Unknown graph {graph!r}. Valid: {', '.join(GRAPHS)}.")
    given = label_graph(s.clients, s.y) if named else np.asarray(graph, np.float64)
    count = len(s.clients)
    models, readout = [s.initial for _ in s.clients], s.initial
    history = []
    for t in range(s.rounds):
        trained = {}
        for i in s.cohorts[t]:
            targets = [(graph_weight, models[i]), (global_weight, readout)]

            def pull(params, targets=targets):
                return norms_gradient(params, targets)

            extra = None if detached else pull
            trained[i] = s.train(readout, t, i, extra_gradient=extra)
        weights = np.eye(count)
        if trained:
            sent = [trained.get(i, model) for i, model in enumerate(models)]
            edges = given
            if named and graph == "neighbours":
                edges = neighbour_graph(sent, readout, neighbours, ids)
            elif named and graph == "learned":
                fitted = learned_graph(sent, generators[t])
                empty = ~fitted.any(axis=1, keepdims=True)
                fitted = np.where(empty, given, fitted)
                edges = (1.0 - learned_share) * given + learned_share * fitted
            models, weights = smoothed(sent, edges, layers, server_alpha)
            readout = combine([1.0 / count] * count, models)
        history.append(
            {
                "personalized": list(models),
                "global": readout,
                "trained": trained,
                "weights": weights,
            }
        )
    return history
