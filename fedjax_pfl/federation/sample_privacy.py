"""Sample-level differential privacy: the numbers of clipping and noise in local training."""

from typing import Any

import jax.numpy as jnp

from fedjax_pfl.federation.client import Client
from fedjax_pfl.utils.errors import InputError, UndeclaredRelease
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
      most_calls: gradients that a local step may compute, as the algorithm declares; None for any
        number.
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
    most_calls: int | None = static(default=None)
    observer: Any = static(default=None)

    unit = "sample"

    def check_call(self, call: int, nested: bool) -> None:
        """Raise `UndeclaredRelease` if a step's gradient, counted from 0, is one too many.

        One that is `nested` in a loop of the step counts as all that are declared; where a single
        one is declared, it counts twice.
        """
        if self.most_calls is None:
            return
        if self.observer is not None:
            self.observer.count_calls(self.most_calls if nested else call + 1)
        count = call + 1 + (nested and self.most_calls == 1)
        if count > self.most_calls:
            raise UndeclaredRelease(
                f"A local step computes at least {count} gradients and gradients_per_batch() "
                f"declares {self.most_calls}, which would state a false epsilon: return the number "
                "of gradients on one minibatch there."
            )

    def check_owner(self, client: Client) -> None:
        """Raise `UndeclaredRelease` where gradients are counted, and this one is of no step."""
        if self.observer is not None and client.calls is None:
            raise UndeclaredRelease(
                "A gradient with noise outside of ctx.train and ctx.run_clients is not counted, "
                "which would state a false epsilon: compute it in a step of ctx.run_clients."
            )

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
