"""APPLE: adaptive personalized cross-silo federated learning (Luo and Wu, IJCAI 2022)."""

import math

import numpy as np

from tests.references.network import (
    add,
    combine,
    dot,
    loss_and_gradient,
    scale,
    subtract,
    zeros_like,
)

SCHEDULES = ("exponential", "cosine")


def penalty_factor(t, rounds, share=0.1, schedule="exponential"):
    """lambda(t), which falls from 1 over the first L = share * rounds rounds, then is 0.

    "exponential": 1e-3 ** (t / L); "cosine": (cos(pi t / L) + 1) / 2. L is rounded down.
    """
    last = math.floor(share * rounds + 1e-6)
    if t >= last:
        return 0.0
    if schedule == "exponential":
        return 1e-3 ** (t / last)
    return (math.cos(math.pi * t / last) + 1.0) / 2.0


def gradients(i, cores, relations, first, penalty, x, y):
    """(gradient of the core of client i, of its relations [N]) on the samples x, y.

    Both of f(sum_j q_j w_j) + (penalty / 2) ||q - q0||^2 at the same point.
    """
    personal = combine(relations, cores)
    _, gradient = loss_and_gradient(personal, x, y)
    slopes = np.array([dot(gradient, core) for core in cores])
    return scale(relations[i], gradient), slopes + penalty * (relations - first)


def train_client(
    i,
    cores,
    relations,
    first,
    batches,
    x,
    y,
    rate,
    relation_rate,
    penalty,
    momentum=0.9,
    relation_momentum=0.9,
):
    """(client i's core, its relations) after its batches; the others' cores stay as they are.

    Args:
      cores: [N models], as the client holds them.
      relations, first: q_i and q0, [N].
      rate, relation_rate: eta_1 of the core, eta_2 of the relations.
      penalty: lambda(t) mu.
      momentum, relation_momentum: of core and relations; the buffers are new in each round.
    """
    cores, relations = list(cores), np.array(relations, np.float64)
    core_speed, relation_speed = zeros_like(cores[i]), np.zeros_like(relations)
    for batch in batches:
        slope, slopes = gradients(i, cores, relations, first, penalty, x[batch], y[batch])
        core_speed = add(scale(momentum, core_speed), slope)
        relation_speed = relation_momentum * relation_speed + slopes
        cores[i] = subtract(cores[i], scale(rate, core_speed))
        relations = relations - relation_rate * relation_speed
    return cores[i], relations


def run(
    s,
    *,
    relation_rate=0.001,
    mu=0.1,
    penalty_share=0.1,
    penalty_schedule="exponential",
    momentum=0.9,
    relation_momentum=0.9,
    relations=None,
):
    """Client i uses w_i = sum_j q_ij c_j, and learns its own core c_i and its relations q_i.

    Args:
      relation_rate: eta_2; the setting's learning rate is eta_1.
      mu: weight of (1/2) ||q - q0||^2. The published code leaves out the half.
      penalty_share, penalty_schedule: those of `penalty_factor`.
      momentum, relation_momentum: of the cores and of the relations.
      relations: q at first, [N, N]; None is q0 in every row, q0_j = n_j / n.

    Returns:
      After every round, "personalized": [N models], w_i with the client's new core and the others'
      as it received them, "cores": [N models] and "relations": [N, N].
    """
    count = len(s.clients)
    first = np.asarray(s.sizes, np.float64) / np.sum(s.sizes)
    cores = list(s.initial) if isinstance(s.initial, list | tuple) else [s.initial] * count
    relations = np.array(np.tile(first, (count, 1)) if relations is None else relations, np.float64)
    held = [list(cores) for _ in s.clients]
    personal = [combine(relations[i], held[i]) for i in range(count)]
    history = []
    for t in range(s.rounds):
        penalty = mu * penalty_factor(t, s.rounds, penalty_share, penalty_schedule)
        trained = {}
        for i in s.cohorts[t]:
            held[i] = list(cores)
            trained[i], relations[i] = train_client(
                i,
                held[i],
                relations[i],
                first,
                s.batches[t][i],
                s.x,
                s.y,
                s.learning_rate[t],
                relation_rate,
                penalty,
                momentum,
                relation_momentum,
            )
            held[i][i] = trained[i]
            personal[i] = combine(relations[i], held[i])
        for i, core in trained.items():
            cores[i] = core
        history.append(
            {
                "personalized": list(personal),
                "cores": list(cores),
                "relations": relations.copy(),
            }
        )
    return history
