"""Federations of three ragged clients for any network, and their local training."""

import jax
import jax.numpy as jnp
import numpy as np

from fedjax_pfl.core.context import Context
from fedjax_pfl.data.dataset import dataset_from_arrays
from fedjax_pfl.data.partitions.partition import Partition
from fedjax_pfl.federation.build import federate
from fedjax_pfl.utils.structs import Broadcast

GREY, COLOUR, TINY, TEXT = (28, 28, 1), (32, 32, 3), (64, 64, 3), (200,)  # shapes of samples


def small_federation(module, order=(0, 1, 2), tokens=False, sizes=(5, 2, 3), **options):
    """Ragged clients with a few samples of 6x6x1 pixels or 6 tokens in 3 classes, in float64."""
    rng = np.random.default_rng(0)
    total = sum(sizes) + len(sizes)
    if tokens:
        x, extra = rng.integers(0, 9, (total, 6)), {"vocab_size": 9}
    else:
        x, extra = rng.normal(size=(total, 6, 6, 1)).astype(np.float32), {}
    data = dataset_from_arrays("small", x, rng.integers(0, 3, total), num_classes=3, **extra)
    ends = np.cumsum(sizes)
    lists = [np.arange(ends[i] - sizes[i], ends[i]) for i in order]
    partition = Partition.from_lists(train=lists, test=[[total - 1 - i] for i in order])
    options = {"dtype": "float64", "batch_size": 2, "learning_rate": 0.5} | options
    return federate(data, partition, module, client_ids=np.asarray(order), **options)


def trained(federation, seed=0):
    """Models of all clients after local training from one model, on the host."""

    @jax.jit
    def run(federation):
        zero = jnp.int32(0)
        ctx = Context(federation, jax.random.key(seed), zero, zero + 1, None)
        start = Broadcast(federation.initial_model(jax.random.key(7)))
        return ctx.train(start, ctx.cohort_of()).models

    return jax.tree.map(np.asarray, run(federation))
