"""Clustered federated learning by recursive bipartition (Sattler et al., TNNLS 2021)."""

import numpy as np

from tests.references.network import add, combine, flat, squared_norm, subtract
from tests.references.similarity import cosine

LINKAGES = {"complete": np.max, "single": np.min}


def two_groups(similarity, linkage="complete"):
    """Agglomerative clustering on distances -similarity until two groups are left.

    Args:
      similarity: [M, M].
      linkage: the distance of two groups: "complete", the largest of their members', or "single",
        the smallest; the latter makes the largest similarity between the two groups as small as
        can be (the paper's optimal bipartition).

    Returns:
      Two ascending lists of positions, the one with position 0 first. Ties go to the pair of
      groups with the lowest members.
    """
    distance = -np.asarray(similarity, np.float64)
    groups = [[k] for k in range(len(distance))]
    while len(groups) > 2:
        gaps = {
            (a, b): LINKAGES[linkage](distance[np.ix_(groups[a], groups[b])])
            for a in range(len(groups))
            for b in range(a + 1, len(groups))
        }
        a, b = min(gaps, key=lambda pair: (gaps[pair], pair))
        groups[a] = sorted(groups[a] + groups.pop(b))
    return groups


def largest_between(similarity, first, second):
    """alpha_cross^max, the largest similarity between members of two groups."""
    return float(np.max(np.asarray(similarity)[np.ix_(first, second)]))


def bipartition(updates, linkage="complete", gamma_max=None):
    """The positions of the two halves of a cluster, or None where the paper's test keeps it whole.

    Args:
      updates: the members' updates.
      linkage: of `two_groups`.
      gamma_max: the halves must have sqrt((1 - alpha_cross^max) / 2) > gamma_max; None asks
        nothing.
    """
    vectors = [flat(update) for update in updates]
    similarity = np.array([[cosine(a, b) for b in vectors] for a in vectors])
    first, second = two_groups(similarity, linkage)
    if gamma_max is not None:
        gap = max(1.0 - largest_between(similarity, first, second), 0.0)
        if not np.sqrt(gap / 2.0) > gamma_max:
            return None
    return first, second


def best_of_tree(last, i, loss):
    """The model of least loss among those of client i's clusters before each split, and its own.

    Args:
      last: the last element of a history.
      i: the client.
      loss: a function of a model; ties go to the later one.
    """
    path = [node["model"] for node in last["tree"] if i in node["members"]]
    path.append(last["personalized"][i])
    losses = [loss(model) for model in path]
    return path[max(k for k, value in enumerate(losses) if value == min(losses))]


def run(
    s,
    *,
    mean_below=0.4,
    largest_above=1.6,
    first_split=20,
    max_clusters=None,
    linkage="complete",
    gamma_max=None,
    ids=None,
):
    """FedAvg with equal weights inside each cluster; a cluster that stands still is halved.

    A cluster is split where, of its participants' updates, the mean's norm is below `mean_below`,
    the largest norm above `largest_above` and there are more than two: before this round's updates
    are averaged, and at most once in a round. The half with the lowest permanent id keeps the
    cluster's number; the other takes the next free one. Absent members keep theirs.

    Args:
      mean_below, largest_above: eps_1 and eps_2.
      first_split: rounds before which nothing is split.
      max_clusters: with so many clusters nothing is split any more; lower numbers come first. None
        sets no bound.
      linkage, gamma_max: those of `bipartition`.
      ids: permanent ids of the clients; None is 0, ..., N - 1.

    Returns:
      After every round, "personalized": [N models], "models": {cluster: model}, "clusters": [N],
      "norms": {cluster: (of the mean, largest)} of clusters with participants, and "tree": the
      splits so far, {"round", "cluster", "new", "members", "model"}, the model before the split.
    """
    order = np.arange(len(s.clients)) if ids is None else np.asarray(ids)
    models, clusters, tree = {0: s.initial}, [0 for _ in s.clients], []
    history = []
    for t in range(s.rounds):
        updates = {
            i: subtract(
                s.train(models[clusters[i]], t, i),
                models[clusters[i]],
            )
            for i in s.cohorts[t]
        }
        norms = {}
        for cluster in sorted(models):
            present = [i for i in updates if clusters[i] == cluster]
            present.sort(key=order.__getitem__)
            if not present:
                continue
            mean = combine([1.0 / len(present)] * len(present), [updates[i] for i in present])
            largest = max(np.sqrt(squared_norm(updates[i])) for i in present)
            norms[cluster] = (float(np.sqrt(squared_norm(mean))), float(largest))
            stands = norms[cluster][0] < mean_below and norms[cluster][1] > largest_above
            room = max_clusters is None or len(models) < max_clusters
            if not (t >= first_split and stands and len(present) > 2 and room):
                continue
            halves = bipartition([updates[i] for i in present], linkage, gamma_max)
            if halves is None:
                continue
            new = len(models)
            members = [i for i, own in enumerate(clusters) if own == cluster]
            tree.append(
                {
                    "round": t,
                    "cluster": cluster,
                    "new": new,
                    "members": members,
                    "model": models[cluster],
                }
            )
            models[new] = models[cluster]
            for position in halves[1]:
                clusters[present[position]] = new
        for cluster in models:
            present = [i for i in updates if clusters[i] == cluster]
            if present:
                uniform = [1.0 / len(present)] * len(present)
                mean = combine(uniform, [updates[i] for i in present])
                models[cluster] = add(models[cluster], mean)
        history.append(
            {
                "personalized": [models[cluster] for cluster in clusters],
                "models": dict(models),
                "clusters": list(clusters),
                "norms": norms,
                "tree": list(tree),
            }
        )
    return history
