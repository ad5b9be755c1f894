"""Concept drift: the labels and images that a client has in a round, by plain loops."""

import numpy as np


def concept(i, t, rounds, concepts, drifting, stagger):
    """Client i's concept in round t, from 0; `rounds` are counted from 1."""
    if i >= drifting:
        return 0
    passed = sum(t + 1 >= first + stagger * i for first in rounds)
    return passed % concepts


def labels_in_round(y, owners, t, *, rounds, concepts=2, drifting, stagger=0):
    """All samples' labels in round t; concept k exchanges the labels 2k - 2 and 2k - 1.

    Args:
      y: labels without drift [n].
      owners: the client of each sample [n].
      t: the round, from 0, or a round of each client.
      rounds, concepts, drifting, stagger: see `concept`.
    """
    seen = np.array(y)
    for sample, i in enumerate(owners):
        k = concept(i, t, rounds, concepts, drifting, stagger)
        if k > 0:
            pair = [2 * k - 2, 2 * k - 1]
            if y[sample] in pair:
                seen[sample] = pair[1 - pair.index(y[sample])]
    return seen


def change(curve, rounds, first, stop, before=0.9):
    """One client's (before, after, end, rounds to recover) around a change in round `first`.

    Args:
      curve: scores after the rounds in `rounds`, counted from 1.
      first: rounds before the change.
      stop: rounds before the next one, or of the run.
    """
    old = [s for s, r in zip(curve, rounds, strict=True) if r <= first][-1]
    new = [(s, r) for s, r in zip(curve, rounds, strict=True) if first < r <= stop]
    after, end = new[0][0], new[-1][0]
    level = after + before * (old - after)
    recovered = [r - first for s, r in new if s >= level]
    return old, after, end, 0 if after >= old else min(recovered, default=np.inf)
