"""Five unlike models and their clients' samples, for tests of scores and of adapted copies."""

from functools import cache

import jax
import jax.numpy as jnp
import numpy as np

from fedjax_pfl import Context
from fedjax_pfl.testing.toys import toy_federation
from fedjax_pfl.utils import keys

COUNT = 5
KEY = jax.random.key(9)


@cache
def models_of(network=None):
    """A stack of five unlike models; the toy network's by default."""
    federation = toy_federation(model=network)
    return jax.jit(jax.vmap(federation.initial_model))(jax.random.split(KEY, COUNT))


def samples(federation, i, split):
    part = jax.device_get(federation.data.split(split))
    at = part.index[part.offset[i] :][: part.size[i]]
    return np.asarray(federation.data.samples, np.float64)[at], np.asarray(federation.data.labels)[
        at
    ]


def context(federation, t=0, total=3):
    cohort = federation.participation.cohort(keys.derive(KEY, "cohort"), t, federation.data.ids)
    return Context(federation, KEY, jnp.int32(t), jnp.int32(total), cohort)
