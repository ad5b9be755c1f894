"""What tests of limits share: settings, and the models that limits are compared with."""

import numpy as np

from tests.references import fedavg, l2c_encoder, local, pfedla
from tests.references.small import COUNT, ROUNDS, further_batches, stack


def punctual(s):
    """The setting for references of late clients, none of whom is late."""
    return s.but(starts=s.cohorts, arrivals=s.cohorts)


def uniform(s):
    """All clients count as much, whatever their size."""
    return s.but(sizes=[1] * COUNT)


def drawn():
    """Options of pFedLA: hypernetworks that weigh all clients alike."""
    rng = np.random.default_rng(5)
    pairs = [
        pfedla.random_hypernetwork(
            rng, embedding=4, hidden=6, blocks=2, clients=COUNT, weighting="softmax"
        )
        for _ in range(COUNT)
    ]
    embeddings, hypernetworks = map(list, zip(*pairs, strict=True))
    return {
        "blocks": ("hidden", "head"),
        "embeddings": embeddings,
        "hypernetworks": hypernetworks,
    }


def attention(s, factor):
    """Options of L2C with an attention whose parameters are multiplied by a factor."""
    encoder = l2c_encoder.random_encoder(np.random.default_rng(3), s.initial, (3, 2))
    numbers = l2c_encoder.numbers(encoder)
    encoder = l2c_encoder.rebuilt(factor * numbers, encoder)
    return {"validation_batches": further_batches(s), "encoder": encoder}


def fedavg_of(s):
    return [models["global"] for models in fedavg.run(s)]


def local_of(s):
    return [models["personalized"] for models in local.run(s)]


def initial_of(s):
    return [s.initial] * ROUNDS


def check(limit, setting):
    run, name, wanted = limit
    for models, expected in zip(run(setting), wanted(setting), strict=True):
        ours = [models[name]] if isinstance(models[name], dict) else models[name]
        theirs = [expected] * len(ours) if isinstance(expected, dict) else expected
        np.testing.assert_allclose(stack(ours), stack(theirs), rtol=1e-9, atol=1e-11)
