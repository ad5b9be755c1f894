"""Adaptive Federated Optimization.

Sashank J. Reddi, Zachary Charles, Manzil Zaheer, Zachary Garrett, Keith Rush, Jakub Konečný,
Sanjiv Kumar, H. Brendan McMahan. ICLR 2021. https://arxiv.org/abs/2003.00295
"""

from typing import Literal, NamedTuple

import jax
import jax.numpy as jnp
import optax

from fedjax_pfl import core
from fedjax_pfl.algorithms.fedavg import Weighted


class Moments(NamedTuple):
    """The server's state: the number of rounds with uploads, and m and v, like the parameters."""

    count: jax.Array
    first: core.Tree
    second: core.Tree


@core.struct
class FedOpt(Weighted):
    """FedAvg with an adaptive server step along D = sum_i p_i u_i - w.

    Algorithm 2: m <- b1 m + (1 - b1) D; v by the algorithm's rule; w <- w + eta m / (sqrt(v) +
    tau). Only parameters have moments; running statistics of normalization layers are averaged. A
    round without uploads leaves w, m and v unchanged and does not count.

    Optax's Adam, Yogi and RSS differ: they correct m and v for bias, add tau to the corrected root
    or inside it, and Yogi initializes both moments differently.
    """

    server_rate: float = core.number(default=0.01, allowed="above 0")
    b1: float = core.number(default=0.9, allowed="in [0, 1)")
    tau: float = core.number(default=1e-3, allowed="above 0")
    v0: float = core.number(default=1.0, allowed="at least 0")
    weighting: Literal["size", "uniform"] = core.static(default="size")

    def server_optimizer(self):
        def init(params):
            first = jax.tree.map(jnp.zeros_like, params)
            second = jax.tree.map(lambda w: jnp.full_like(w, self.v0 * self.tau**2), params)
            return Moments(jnp.zeros((), jnp.int32), first, second)

        def update(updates, state, params=None):
            count = state.count + 1
            change = jax.tree.map(jnp.negative, updates)  # of w - mean
            first = optax.tree.update_moment(change, state.first, self.b1, 1)
            second = jax.tree.map(lambda v, d: self.second_moment(v, d**2), state.second, change)
            rate = self.rate(count)
            step = jax.tree.map(lambda m, v: rate * m / (jnp.sqrt(v) + self.tau), first, second)
            return step, Moments(count, first, second)

        return optax.GradientTransformation(init, update)

    def second_moment(self, v: jax.Array, square: jax.Array) -> jax.Array:
        """Return the next v from the last one and D^2."""
        raise NotImplementedError

    def rate(self, count: jax.Array) -> jax.Array | float:
        """Return the server's rate in its round `count`, from 1 on."""
        return self.server_rate


@core.algorithm("fedadagrad")
class FedAdagrad(FedOpt):
    """FedAdagrad: FedOpt with v <- v + D^2.

    Attributes:
      server_rate: eta, to be tuned: 0.1 was best on CIFAR-100 and EMNIST, 0.03 to 10 elsewhere.
      b1: decay of m; 0, no momentum, in the paper.
      tau: adaptivity; the paper tries 1e-5 to 1e-1.
      v0: the first v, in units of tau^2; 1 as in the paper, 0 as in its code.
      weighting: p_i by "size", or "uniform".
    """

    server_rate: float = 0.1
    b1: float = 0.0

    def second_moment(self, v, square):
        return v + square


@core.algorithm("fedadam")
class FedAdam(FedOpt):
    """FedAdam: FedOpt with v <- b2 v + (1 - b2) D^2.

    Attributes:
      server_rate: eta, to be tuned: the best rates of the paper range from 0.003 to 1.
      b1: decay of m.
      b2: decay of v; 0.99 as in the paper, 0.999 in its code.
      tau: adaptivity; the paper tries 1e-5 to 1e-1.
      v0: the first v, in units of tau^2; 1 as in the paper, 0 as in its code.
      bias_correction: use eta sqrt(1 - b2^t) / (1 - b1^t) in the server's round t = 1, 2, ...,
        as in the code.
      weighting: p_i by "size", or "uniform".
    """

    b2: float = core.number(default=0.99, allowed="in [0, 1)")
    bias_correction: bool = core.static(default=False)

    def second_moment(self, v, square):
        return self.b2 * v + (1 - self.b2) * square

    def rate(self, count):
        if not self.bias_correction:
            return self.server_rate
        return self.server_rate * jnp.sqrt(1 - self.b2**count) / (1 - self.b1**count)


@core.algorithm("fedyogi")
class FedYogi(FedAdam):
    """FedYogi: FedOpt with v <- v - (1 - b2) D^2 sign(v - D^2).

    The hyperparameters are FedAdam's.
    """

    def second_moment(self, v, square):
        return v - (1 - self.b2) * square * jnp.sign(v - square)
