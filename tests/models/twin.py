"""The linen twin of networks of other libraries, and three clients to train it."""

import flax.linen as nn
import numpy as np

import fedjax_pfl as pfl

INPUTS = np.random.default_rng(0).normal(size=(6, 4)).astype(np.float32)


class Twin(nn.Module):
    @nn.compact
    def __call__(self, x, train: bool = False):
        x = nn.Dense(5, name="fc")(x)
        x = nn.relu(nn.BatchNorm(not train, momentum=0.9, name="bn")(x))
        x = nn.relu(nn.Dense(5, name="after")(x))
        return nn.Dense(3, name="head")(x)


def federation(model, **options):
    labels = np.arange(40) % 3
    data = pfl.dataset_from_arrays("a", np.random.default_rng(1).normal(size=(40, 4)), labels)
    partition = pfl.make_partition("iid", data, 3, 0)
    return pfl.federate(data, partition, model=model, batch_size=5, learning_rate=0.1, **options)
