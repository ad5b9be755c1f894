"""Attacks on vectors, in NumPy; the largest factors are searched, as their authors do."""

import numpy as np


def alie(x, z):
    return x.mean(0) - z * x.std(0, ddof=1)


def direction(x, name):
    mean = x.mean(0)
    if name == "mean":
        return -mean / np.linalg.norm(mean)
    return -np.sign(mean) if name == "sign" else -x.std(0, ddof=1)


def searched(fits):
    """The largest g that fits, by bisection."""
    low, high = 0.0, 1e4
    for _ in range(100):
        middle = (low + high) / 2
        low, high = (middle, high) if fits(middle) else (low, middle)
    return low


def min_max(x, name):
    p = direction(x, name)
    widest = max(np.sum((a - b) ** 2) for a in x for b in x)

    def fits(g):
        return max(np.sum((x.mean(0) + g * p - a) ** 2) for a in x) <= widest

    return x.mean(0) + searched(fits) * p


def min_sum(x, name):
    p = direction(x, name)
    widest = max(sum(np.sum((a - b) ** 2) for b in x) for a in x)

    def fits(g):
        return sum(np.sum((x.mean(0) + g * p - a) ** 2) for a in x) <= widest

    return x.mean(0) + searched(fits) * p


def mimic(x):
    centred = x - x.mean(0)
    _, _, rows = np.linalg.svd(centred)
    return x[np.argmax(np.abs(centred @ rows[0]))]


class Mimic:
    """Rounds of the authors' MimicVariantAttacker; `start` is its first random direction."""

    def __init__(self, warmup, start):
        self.warmup, self.z, self.mean, self.t, self.target = warmup, start, 0.0, 0, None

    def copied(self, x, ids):
        """The id of the honest client that is copied."""
        if self.t < self.warmup:
            self.mean = self.t / (1 + self.t) * self.mean + x.mean(0) / (1 + self.t)
            turned = sum((v - self.mean) @ self.z * (v - self.mean) for v in x)
            turned = turned / np.linalg.norm(turned)
            self.z = turned if self.t == 0 else (self.t * self.z + turned) / (1 + self.t)
            self.z = self.z / np.linalg.norm(self.z)
            self.target = ids[np.argmax(x @ self.z)]
        self.t += 1
        return self.target if self.target in ids else ids[np.argmax(x @ self.z)]
