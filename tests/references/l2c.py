"""L2C: learning to collaborate in decentralized learning (Li et al., CVPR 2022)."""

import numpy as np

from tests.references import l2c_encoder
from tests.references.network import combine, dot, loss_and_gradient, subtract
from tests.references.optimizers import adam_begin, adam_step


def softmax_over(logits, active):
    """Softmax [N] over the clients of the mask `active`; 0 for the others."""
    powers = np.exp(np.where(active, logits - logits[active].max(), -np.inf))
    return powers / powers.sum()


def mixed(before, weights, deltas):
    """before - sum_j weights[j] deltas[j]; `deltas` is {client: delta}."""
    return subtract(before, combine([weights[j] for j in deltas], list(deltas.values())))


def logit_gradient(logits, active, before, deltas, x, y):
    """Gradient [N] of the loss of the mixed model by the logits.

    dL / dw_j = -<grad L, delta_j>, and back through the softmax.
    """
    weights = softmax_over(logits, active)
    _, gradient = loss_and_gradient(mixed(before, weights, deltas), x, y)
    slope = np.zeros_like(logits)
    for j, delta in deltas.items():
        slope[j] = -dot(gradient, delta)
    return weights * (slope - weights @ slope)


def neighbours_to_keep(logits, client, count, ids=None):
    """bool [N]: the client itself and the `count` others with the largest logits.

    Ties go to the lower id; by default ids are positions.
    """
    ids = range(len(logits)) if ids is None else ids
    others = [j for j in range(len(logits)) if j != client]
    others.sort(key=lambda j: (-logits[j], ids[j]))
    mask = np.zeros(len(logits), bool)
    mask[[client, *others[:count]]] = True
    return mask


def run(
    s,
    *,
    validation_batches,
    logit_rate=0.01,
    prune_after=10,
    neighbours=None,
    whole_pass=False,
    betas=(0.9, 0.99),
    logits=None,
    encoder=None,
    encoder_decay=0.01,
    ids=None,
):
    """Every client subtracts a mixture of all clients' updates, by weights that it learns.

    Args:
      validation_batches: like `batches`, of validation samples; a client without any keeps its
        logits.
      logit_rate, betas: Adam's.
      prune_after: T_0, the round after which a client is left with some neighbours; one that is
        absent then does so when it is back, its logits being the same.
      neighbours: how many, besides itself; max(1, N // 10) by default.
      whole_pass: a step of the logits for each validation batch; otherwise for the first one
        only. The weights in a step's loss are always those of the current logits. The model that
        is kept was mixed before all steps.
      logits: [N, N], the first ones; 0 by default.
      encoder: the first attention of meta-L2C (see `l2c_encoder`): logits are its scores of pairs
        of updates. Each member of a cohort takes Adam's steps on a copy of its own, and all go on
        from the mean of the copies. Logits are the scores by which clients mixed; scores with
        absent clients stay what they were.
      encoder_decay: its weight decay (AdamW).
      ids: see `neighbours_to_keep`.

    Returns:
      After every round, "personalized": [N]; "trained": {client: model} before mixing; "weights":
      [N, N] as applied, with the identity's rows for absent clients; "logits": [N, N], "active":
      bool [N, N]; "moments": [N], Adam's states; "encoder", if there is one.
    """
    count = len(s.clients)
    kept = max(1, count // 10) if neighbours is None else neighbours
    logits = np.zeros((count, count)) if logits is None else np.array(logits, np.float64)
    active = np.ones((count, count), bool)
    pruned = np.zeros(count, bool)
    learnt = logits[0] if encoder is None else l2c_encoder.numbers(encoder)
    moments = [adam_begin(learnt) for _ in s.clients]
    models = [s.initial for _ in s.clients]
    history = []
    for t in range(s.rounds):
        cohort = list(s.cohorts[t])
        present = np.isin(np.arange(count), cohort)
        trained = {i: s.train(models[i], t, i) for i in cohort}
        deltas = {i: subtract(models[i], trained[i]) for i in cohort}
        weights, copies = np.eye(count), []
        updates = {j: l2c_encoder.update_of(s.initial, trained[j]) for j in cohort}
        for i in cohort:
            if encoder is not None:
                logits[i, cohort] = l2c_encoder.scores(encoder, updates, i)
            if t >= prune_after and not pruned[i]:
                active[i], pruned[i] = neighbours_to_keep(logits[i], i, kept, ids), True
            before, heard = models[i], active[i] & present
            weights[i] = softmax_over(logits[i], heard)
            models[i] = mixed(before, weights[i], deltas)
            walk, own = validation_batches[t][i], encoder
            for batch in walk if whole_pass else walk[:1]:
                current = logits[i].copy()
                if encoder is not None:
                    current[cohort] = l2c_encoder.scores(own, updates, i)
                slope = logit_gradient(current, heard, before, deltas, s.x[batch], s.y[batch])
                if encoder is None:
                    logits[i], moments[i] = adam_step(
                        logits[i], slope, moments[i], logit_rate, *betas
                    )
                else:
                    slope = l2c_encoder.scores_gradient(own, updates, i, slope)
                    vector, moments[i] = adam_step(
                        l2c_encoder.numbers(own),
                        l2c_encoder.numbers(slope),
                        moments[i],
                        logit_rate,
                        *betas,
                        weight_decay=encoder_decay,
                    )
                    own = l2c_encoder.rebuilt(vector, own)
            copies.append(own)
        if encoder is not None and copies:
            mean = np.mean([l2c_encoder.numbers(own) for own in copies], axis=0)
            encoder = l2c_encoder.rebuilt(mean, encoder)
        history.append(
            {
                "personalized": list(models),
                "trained": trained,
                "weights": weights,
                "logits": logits.copy(),
                "active": active.copy(),
                "moments": list(moments),
                "encoder": encoder,
            }
        )
    return history
