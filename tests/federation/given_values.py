"""Values for the layers of a small network, in memory and in safetensors files."""

import json

import jax
import jax.numpy as jnp
import numpy as np

from fedjax_pfl.testing.toys import toy_federation
from fedjax_pfl.utils import keys

SHAPES = {"fc_0/kernel": (4, 5), "fc_0/bias": (5,), "head/kernel": (5, 3), "head/bias": (3,)}


def federation(**options):
    return toy_federation(**{"dtype": "float32", "validation_size": 0} | options)


def values(*names, rng=None):
    rng = rng or np.random.default_rng(3)
    return {name: rng.normal(size=SHAPES[name]).astype(np.float32) for name in names or SHAPES}


def safetensors(path, arrays, **damage):
    """Writes a file as the format's description says."""
    header, content = {"__metadata__": {"format": "np"}}, b""
    for name, array in arrays.items():
        kind = "BF16" if array.dtype == jnp.bfloat16 else f"F{8 * array.itemsize}"
        end = len(content) + array.nbytes
        at = [len(content), end]
        header[name] = {"dtype": kind, "shape": list(array.shape), "data_offsets": at} | damage
        content += array.tobytes()
    text = json.dumps(header).encode()
    path.write_bytes(len(text).to_bytes(8, "little") + text + content)
    return path


def initial(federation, seed=0):
    return federation.initial_model(keys.derive(jax.random.key(seed), "init"))["params"]


def assert_given(federation, wanted):
    model = initial(federation)
    for name, value in wanted.items():
        layer, leaf = name.split("/")
        np.testing.assert_array_equal(model[layer][leaf], value)
