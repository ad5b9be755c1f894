"""SPFL and SPFL-w: clients mixed by the softmax of their updates' cosines (ICLR 2022 submission).

`run` is the published code for the paper's SPFL, `run_paper` equation (7) by stages, and
`run_weights` SPFL-w. They share the routine that measures the similarity every Gamma rounds.
"""

import numpy as np

from tests.references.local_sgd import repeated, sgd
from tests.references.network import combine, layers_of, subtract
from tests.references.similarity import cosine_matrix, softmax_rows

BODY_WEIGHTS = (0.5, 0.3, 0.2)  # SPFL, three body blocks
ALL_WEIGHTS = (0.4, 0.2, 0.2, 0.2)  # SPFL-w, three body blocks and the head


def block_weights(count, given, of_three):
    """How much each block's cosine counts.

    Args:
      count: the number of blocks.
      given: "auto" or the numbers themselves.
      of_three: the published code's numbers, for as many blocks; "auto" means these where they
        fit, and equal parts otherwise.
    """
    if given == "auto":
        return list(of_three) if count == len(of_three) else [1.0 / count] * count
    if len(given) != count:
        raise ValueError(f"{len(given)} weights for {count} blocks.")
    return list(given)


def kernels(block):
    """The leaves that are compared: biases don't count."""
    return [(layer, "kernel") for layer in layers_of(block)]


def every_leaf(blocks, model):
    """All leaves of several blocks."""
    return [
        (layer, name) for b in blocks for layer in layers_of(b) for name in sorted(model[layer])
    ]


def weighted_cosines(moves, blocks, weights):
    """S [M, M]: the sum over blocks of weight times the cosines of the kernels' updates."""
    total = np.zeros((len(moves), len(moves)))
    for weight, block in zip(weights, blocks, strict=True):
        total = total + weight * cosine_matrix(moves, kernels(block))
    return total


class Rounds:
    """What the three variants share: the local steps, the routine and the clients' models.

    Args:
      s: the setting; nothing is weighted by the amount of data.
      routine_batches: like `batches`, for the routine; read in its rounds only.
      one_step: one SGD step per minibatch instead of two.
    """

    def __init__(self, s, *, routine_batches, one_step=False):
        self.models = [s.initial for _ in s.clients]
        self.x, self.y, self.rates = s.x, s.y, s.learning_rate
        self.batches, self.routine_batches = s.batches, routine_batches
        self.updates = 1 if one_step else 2

    def train(self, model, steps, t):
        """Two successive SGD steps on every minibatch, or one."""
        return sgd(model, repeated(steps, self.updates), self.x, self.y, self.rates[t])

    def routine(self, t):
        """Alg. 1: all models become their mean; every client's update from it, as in a round."""
        count = len(self.models)
        mean = combine([1.0 / count] * count, self.models)
        self.models = [mean] * count
        steps = self.routine_batches[t]
        return [subtract(self.train(mean, steps[i], t), mean) for i in range(count)]

    def local(self, cohort, t):
        """What every participant trains from its own model."""
        return {i: self.train(self.models[i], self.batches[t][i], t) for i in cohort}


def pairs(cohort):
    """Indices of the participants' rows and columns in a matrix of all clients."""
    return np.ix_(list(cohort), list(cohort))


def rows_of(similarity, cohort):
    """Stilde [N, N]: softmax over the participants; identity rows for the others."""
    weights = np.eye(len(similarity))
    if len(cohort):
        weights[list(cohort)] = 0.0
        weights[pairs(cohort)] = softmax_rows(similarity[pairs(cohort)])
    return weights


def step(model, shares, moves, layers):
    """The model with sum_j shares[j] moves[j] added to the given layers."""
    moved = combine(shares, moves)
    return {
        layer: {n: v + moved[layer][n] for n, v in leaves.items()} if layer in layers else leaves
        for layer, leaves in model.items()
    }


def run(
    s,
    *,
    body,
    head="head",
    gamma=10,
    weights="auto",
    **training,
):
    """Updates of the body are mixed by one matrix; the head keeps its own.

    Args:
      s: softmax and sums run over its cohorts, and the others keep their models; the routine is
        all clients' in any case.
      body: the blocks of the body in order, each a layer's name or a tuple of several.
      head: the block that stays local between two routines.
      gamma: Gamma; the routine opens rounds 0, Gamma, 2 Gamma, ...
      weights: how much each body block's cosine counts: "auto" or numbers, see `block_weights`.
      **training: options of `Rounds`.

    Returns:
      After every round, "personalized": [N]; "similarity": S [N, N]; "weights": Stilde [N, N] of
      this round, with identity rows for absent clients; "trained": {client: model}.
    """
    state = Rounds(s, **training)
    parts = block_weights(len(body), weights, BODY_WEIGHTS)
    shared = {layer for block in body for layer in layers_of(block)}
    similarity = np.zeros((len(s.clients), len(s.clients)))
    history = []
    for t in range(s.rounds):
        cohort = list(s.cohorts[t])
        if t % gamma == 0:
            similarity = weighted_cosines(state.routine(t), body, parts)
        mixing = rows_of(similarity, cohort)
        trained = state.local(cohort, t)
        moves = [subtract(trained[i], state.models[i]) for i in cohort]
        for k, i in enumerate(cohort):
            own = np.eye(len(cohort))[k]
            model = step(state.models[i], mixing[i, cohort], moves, shared)
            state.models[i] = step(model, own, moves, set(layers_of(head)))
        history.append(
            {
                "personalized": list(state.models),
                "similarity": similarity,
                "weights": mixing,
                "trained": trained,
            }
        )
    return history


def run_paper(
    s,
    *,
    body,
    head="head",
    gamma=10,
    server_rate=1.0,
    data_shares=None,
    raw_cosines=False,
    stage="stages",
    **training,
):
    """Equation (7) for two stages, body and head, each mixed by a matrix of its own.

    Args:
      body, head, gamma, **training: as in `run`.
      server_rate: alpha.
      data_shares: n_j for the factor |D_j| / |D| of (7), over the participants; None leaves it
        out.
      raw_cosines: S itself, eq. (4).
      stage: "stages", body and head; "blocks", each for itself; "model", all together.

    Returns:
      As `run`; "similarity" and "weights" are [stages, N, N], with the factor of (7).
    """
    state = Rounds(s, **training)
    blocks = [*body, head]
    stages = {
        "stages": [list(body), [head]],
        "blocks": [[block] for block in blocks],
        "model": [blocks],
    }[stage]
    similarity = np.zeros((len(stages), len(s.clients), len(s.clients)))
    history = []
    for t in range(s.rounds):
        cohort = list(s.cohorts[t])
        if t % gamma == 0:
            moves = state.routine(t)
            similarity = np.array(
                [cosine_matrix(moves, every_leaf(part, s.initial)) for part in stages]
            )
        mixing = np.array([rows_of(of_stage, cohort) for of_stage in similarity])  # eq. (6)
        for of_stage, raw in zip(mixing, similarity, strict=True):
            if raw_cosines and cohort:
                of_stage[pairs(cohort)] = raw[pairs(cohort)]  # eq. (4)
            if data_shares is not None and cohort:
                total = sum(data_shares[j] for j in cohort)
                of_stage[pairs(cohort)] *= [data_shares[j] / total for j in cohort]
        trained = state.local(cohort, t)
        moves = [subtract(trained[i], state.models[i]) for i in cohort]  # -g_j
        for i in cohort:
            for part, of_stage in zip(stages, mixing, strict=True):
                layers = {layer for block in part for layer in layers_of(block)}
                shares = server_rate * of_stage[i, cohort]
                state.models[i] = step(state.models[i], shares, moves, layers)  # eq. (7)
        history.append(
            {
                "personalized": list(state.models),
                "similarity": similarity,
                "weights": mixing,
                "trained": trained,
            }
        )
    return history


def run_weights(
    s,
    *,
    body,
    head="head",
    gamma=10,
    weights="auto",
    ema=0.0,
    **training,
):
    """SPFL-w: the trained models themselves are mixed, all layers by one matrix.

    Args:
      body, head, gamma, **training: as in `run`.
      weights: how much the cosine of each block counts, the head last: "auto" or numbers.
      ema: part of the old similarity that a routine keeps, in [0, 1): S <- ema S + (1 - ema) S_new,
        from S = 0 on; the published code has 0.6.

    Returns:
      As `run`.
    """
    state = Rounds(s, **training)
    blocks = [*body, head]
    parts = block_weights(len(blocks), weights, ALL_WEIGHTS)
    similarity = np.zeros((len(s.clients), len(s.clients)))
    history = []
    for t in range(s.rounds):
        cohort = list(s.cohorts[t])
        if t % gamma == 0:
            measured = weighted_cosines(state.routine(t), blocks, parts)
            similarity = ema * similarity + (1.0 - ema) * measured
        mixing = rows_of(similarity, cohort)
        trained = state.local(cohort, t)
        uploads = [trained[j] for j in cohort]
        for i in cohort:
            state.models[i] = combine(mixing[i, cohort], uploads)
        history.append(
            {
                "personalized": list(state.models),
                "similarity": similarity,
                "weights": mixing,
                "trained": trained,
            }
        )
    return history
