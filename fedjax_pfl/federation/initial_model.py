"""Initial models for the samples of a federation."""

from collections.abc import Mapping
from typing import Any

import jax
import jax.numpy as jnp

from fedjax_pfl.data.federated import FederatedData
from fedjax_pfl.models.task import Task
from fedjax_pfl.utils.typing import Key, Model


def initial_model(task: Task, data: FederatedData, key: Key, values: Mapping[str, Any]) -> Model:
    """Return an initial model for the data's samples, with pretrained values by path."""
    return task.bound(values, None).initial_model(key, sample_inputs(task, data))


def sample_inputs(task: Task, data: FederatedData) -> jax.Array:
    """Return a batch of one sample of zeros, [1, ...], to initialize networks with."""
    return jnp.zeros((1, *data.sample_shape), data.input_dtype(task.dtype))
