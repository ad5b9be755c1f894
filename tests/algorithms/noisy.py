"""One local step by hand: a network that draws and counts, and what its first step sees."""

import flax.linen as nn
import jax
import jax.numpy as jnp

import fedjax_pfl as pfl
from fedjax_pfl.federation.batching import step_key
from fedjax_pfl.models.normalization import BatchNorm
from fedjax_pfl.testing.toys import SEEDS
from fedjax_pfl.utils import keys
from tests.algorithms.harness import dense


class Noisy(nn.Module):
    """With statistics, and dropout that another draw changes."""

    @nn.compact
    def __call__(self, x, train: bool = False, valid=None):
        x = BatchNorm(name="bn")(x, train, valid)
        x = nn.Dropout(0.5, deterministic=not train)(nn.tanh(dense(5, "hidden")(x)))
        return dense(3, "head")(x)


def batches_of_a_step(federation, schedule=None):
    """(minibatches, key of the noise) of the only client's first step in round 0."""
    schedule, data = schedule or federation.schedule, federation.data
    key = keys.of_round(jax.random.key(SEEDS[0]), "train", 0)
    (step, *_) = pfl.training.batch_indices(schedule, data.train, key, 0, 0)
    batches = [
        pfl.training.Batch(
            data.samples[pool].astype(float), data.labels[pool], jnp.ones(len(pool), bool)
        )
        for pool in step
    ]
    return batches, step_key(key, 0, 0)
