"""Sample-level differential privacy: the numbers of clipping and noise in local training."""

from typing import Any

import jax
import jax.numpy as jnp

from fedjax_pfl.data.federated import Batch
from fedjax_pfl.federation.client import Client
from fedjax_pfl.utils.errors import UNCOUNTED, InputError, UncountedRelease
from fedjax_pfl.utils.structs import static, struct
from fedjax_pfl.utils.typing import Scalar


@struct
class SamplePrivacy:
    """Clipping and noise of the gradients of local training, `training.private_gradient`.

    Attributes:
      clip: C, largest norm of the gradient of one sample's loss, over all trained leaves together.
      noise: z: the sum of a minibatch's gradients gets noise of deviation z C; one number, or [N]
        numbers of the clients. None until it is computed from `epsilon`.
      epsilon: target of the whole run, from which the noise is computed before the first round
        (`core.sample_privacy.noise_within`); None where the noise is given.
      delta: the delta at which epsilon holds.
      public_validation: whether validation samples are public, and need no protection.
      strict: whether minibatches must be drawn as accounted, by Poisson sampling.
      position: numbers of the round that are folded into keys of noise, such as its learning rate:
        runs in which they differ have no noise in common.
      observer: counts gradients with noise while a round is traced (`core.round_observer`), or
        None.
    """

    clip: Scalar | float
    noise: Any = 0.0
    epsilon: float | None = static(default=None)
    delta: float = static(default=1e-5)
    public_validation: bool = static(default=False)
    strict: bool = static(default=False)
    position: tuple[Any, ...] = ()
    observer: Any = static(default=None)

    unit = "sample"

    def count_gradient(self, client: Client, batch: Batch) -> tuple[int | jax.Array, ...]:
        """Count a gradient on a minibatch; return numbers that no other one of its step has.

        Raises:
          UncountedRelease: how often it is computed is unknown.
        """
        if client.calls is None:
            if self.observer is None:
                return (0,)
            raise UncountedRelease(
                f"A gradient with noise outside of ctx.train and ctx.run_clients {UNCOUNTED}: "
                "compute it in a step of ctx.run_clients."
            )
        numbers = client.calls.next(batch)
        if self.observer is not None:
            self.observer.count_calls(client.calls.total, client.calls.per_batch)
        return numbers

    def noise_of(self, client: Client) -> Scalar:
        """Return the noise multiplier of one client.

        Raises:
          InputError: it is not computed yet.
        """
        if self.noise is None:
            raise InputError(
                "The noise of dp_epsilon is computed from the rounds of a simulation: new clients "
                "must have dp_noise."
            )
        noise = jnp.asarray(self.noise)
        return noise[client.row] if noise.ndim else noise
