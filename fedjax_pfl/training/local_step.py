"""The local SGD step on one minibatch, as a composable object."""

from collections.abc import Callable
from dataclasses import dataclass, field, fields
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import optax

from fedjax_pfl.data.federated import Batch
from fedjax_pfl.federation.client import Client
from fedjax_pfl.federation.federation import Federation
from fedjax_pfl.federation.optimizers import SGD, updated
from fedjax_pfl.models.task import Forward, ForwardedBatch
from fedjax_pfl.training.private_gradient import private_gradient
from fedjax_pfl.training.sparse_step import sparse_step
from fedjax_pfl.utils import keys
from fedjax_pfl.utils.errors import require, unknown_name
from fedjax_pfl.utils.structs import Broadcast, struct
from fedjax_pfl.utils.typing import Tree

# extra_loss(params, batch, broadcast, client), added to the minibatch loss
StepLoss = Callable[[Tree, ForwardedBatch, Tree, Client], jax.Array] | Callable[..., jax.Array]
# forward(model, batch, rng, broadcast, client), the loss of a minibatch and its forward pass
ForwardPass = Callable[[Tree, Batch, jax.Array, Tree, Client], Forward]
# correct(gradient, params, broadcast, client), the gradient to use instead
Correction = Callable[..., Tree]


@struct
class LocalState:
    """The carry of a `LocalStep`: a model, its optimizer state, and sums of loss and gradient.

    The sums run over all steps; divide them by `client.num_steps` for the mean.
    """

    model: Tree
    optimizer: Tree
    loss: jax.Array
    gradient: Tree  # None unless requested


class LossAndGradient(NamedTuple):
    """The results of one forward and backward pass over a minibatch.

    Attributes:
      loss: [], the minibatch loss, without extra losses.
      gradient: like the parameters, including all extra losses.
      statistics: the model's other collections, updated by the pass; {} if it has none.
      rng: the step's key, from which corrections and optimizers draw.
    """

    loss: jax.Array
    gradient: Tree
    statistics: Tree
    rng: jax.Array | None = None


# What a step's key is folded with; others are regularizers.PENALTY and those of private_gradient.
EXTRA, CORRECT, OPTIMIZER = 2**31 - 1, 2**31 - 2, 2**31 - 3


@dataclass(frozen=True)
class LocalStep:
    """One step of the local optimizer on a minibatch.

    It includes momentum, weight decay, the federation's extra loss, dropout, normalization
    statistics and the clipping and noise of sample-level differential privacy, and is the step of
    `ctx.train`. In an algorithm's own loop, `step(state, batch, rng, broadcast, client)` is a step
    of `ctx.run_clients` whose initial carry is `step.begin(model)`; call it for each model if there
    are several. Other steps are composed of its two halves, `loss_and_gradient` at any model and
    `update` of a state along a gradient.

    Attributes:
      federation: the task, the optimizer, and the extra loss of all algorithms.
      learning_rate: scalar.
      extra_loss: `extra_loss(params, batch, broadcast, client)`, added to the minibatch loss.
        `batch.logits` and `batch.features` are those of the same forward pass.
      forward: `forward(model, batch, rng, broadcast, client)`, a `Forward` that replaces
        `federation.task.forward(model, batch, rng)`. Extra losses are added to it.
      correct: `correct(gradient, params, broadcast, client)` returns the gradient to use. If it or
        `extra_loss` has a parameter `key`, it receives a separate key in each step. So does an
        optimizer whose state holds a random key, such as `optax.noisy_sgd`.
      trainable: tree of booleans like the parameters; False leaves stay unchanged and are hidden
        from the optimizer. By default all but the plan's frozen leaves.
      mean_gradient: also sum the raw minibatch gradients.
      updates_per_batch: successive steps on the same minibatch, each with a new gradient; losses
        and gradients are averaged over them.
      noise_index: index of the training in its round, folded into the key of its noise.
    """

    federation: Federation
    learning_rate: jax.Array | float
    extra_loss: StepLoss | None = None
    forward: ForwardPass | None = None
    correct: Correction | None = None
    trainable: Tree | None = None
    mean_gradient: bool = False
    updates_per_batch: int = 1
    noise_index: int = 0

    _optimizer: optax.GradientTransformation = field(init=False)

    def __post_init__(self) -> None:
        # Made here, so that its computations on the rate are not repeated in every step.
        made = self.federation.training.local_optimizer(self.learning_rate)
        object.__setattr__(self, "_optimizer", made)

    def begin(self, model: Tree) -> LocalState:
        """Return the state of one client's model before its first step."""
        # A sum in half precision would soon stop growing.
        zero = jnp.zeros((), jnp.promote_types(self.federation.task.dtype, jnp.float32))
        total = jax.tree.map(jnp.zeros_like, model["params"]) if self.mean_gradient else None
        memory = self._optimizer_of(self._updated(model)).init(model["params"])
        return LocalState(model, memory, zero, total)

    def begin_all(self, models: Tree | Broadcast) -> LocalState | Broadcast:
        """Return the initial states of models [M, ...], or of one `Broadcast` model."""
        if isinstance(models, Broadcast):
            return Broadcast(self.begin(models.model))
        return jax.vmap(self.begin)(models)

    def __call__(
        self, state: LocalState, batch: Batch, rng: jax.Array, broadcast: Tree, client: Client
    ) -> LocalState:
        """Take one step on one minibatch."""
        if self._is_plain_sgd:
            carry = state.model, state.optimizer
            if stepped := sparse_step(self.federation.task, self._optimizer, *carry, batch, rng):
                model, memory, loss = stepped
                return LocalState(model, memory, state.loss + loss, None)
        for k in range(self.updates_per_batch):  # one or two: unrolled
            noise = rng if k == 0 else jax.random.fold_in(rng, k)
            result = self.loss_and_gradient(state.model, batch, noise, broadcast, client)
            state = self.update(state, result, broadcast, client)
        return state

    @property
    def _is_plain_sgd(self) -> bool:
        """Whether the step is one of SGD along the gradient of the minibatch loss."""
        training, privacy = self.federation.training, self.federation.sample_privacy
        options = (self.extra_loss, self.forward, self.correct, self.trainable)
        return (
            all(one is None for one in (*options, privacy, training.extra_loss))
            and not (self.mean_gradient or self._frozen)
            and training.clip_norm is None
            and self.updates_per_batch == 1
            and training.make_optimizer() == SGD()
        )

    def loss_and_gradient(
        self, model: Tree, batch: Batch, rng: jax.Array, broadcast: Tree, client: Client
    ) -> LossAndGradient:
        """Compute loss and gradient at a model; its parameters do not change.

        With sample-level differential privacy the gradient is clipped by samples and noisy; the
        extra losses are parts of each sample's loss.
        """
        federation = self.federation

        def of_batch(batch: Batch, rng: jax.Array):
            return self._loss_and_gradient(model, batch, rng, broadcast, client)

        if federation.sample_privacy is None:
            return of_batch(batch, rng)
        loss, gradient = private_gradient(
            lambda sample, key: of_batch(sample, key)[:2],
            batch,
            privacy=federation.sample_privacy,
            client=client,
            rng=rng,
            noise_index=self.noise_index,
            trainable=self._updated(model),
            platform=federation.task.platform,
        )
        unchanged = {name: tree for name, tree in model.items() if name != "params"}
        return LossAndGradient(loss, gradient, unchanged, rng)

    def _loss_and_gradient(
        self, model: Tree, batch: Batch, rng: jax.Array, broadcast: Tree, client: Client
    ) -> LossAndGradient:
        """Return the results of one pass over a minibatch, or over a part of one."""
        federation = self.federation

        def total(params):
            trial = {**model, "params": params}
            if self.forward is None:
                loss, after, seen = federation.task.forward(trial, batch, rng)
            else:
                loss, after, seen = self.forward(trial, batch, rng, broadcast, client)
            extra = 0
            if self.extra_loss is not None:
                key = keys.keyword(self.extra_loss, rng, EXTRA)
                extra = self.extra_loss(params, seen, broadcast, client, **key)
                name = getattr(self.extra_loss, "__qualname__", "extra_loss")
                require(jnp.shape(extra) == (), f"The extra loss {name}", jnp.shape(extra),
                        "a single number")  # fmt: skip
            penalty = federation.penalty(params, seen, client, rng)
            return loss + extra + penalty, (loss, after)

        gradient, (loss, after) = jax.grad(total, has_aux=True)(model["params"])
        statistics = {name: tree for name, tree in after.items() if name != "params"}
        return LossAndGradient(loss, gradient, statistics, rng)

    def update(
        self,
        state: LocalState,
        result: LossAndGradient,
        broadcast: Tree = None,
        client: Client | None = None,
    ) -> LocalState:
        """Take one optimizer step along a gradient and adopt the new statistics.

        Args:
          state: state whose parameters are updated.
          result: loss and gradient, at this model or another one; `result._replace(gradient=...)`
            replaces the gradient.
          broadcast, client: arguments of `correct`.
        """
        parts = self.updates_per_batch
        params, gradient, total = state.model["params"], result.gradient, None
        if self.mean_gradient:
            total = jax.tree.map(lambda t, g: t + g / parts, state.gradient, gradient)
        if self.correct is not None:
            # `client` may be None for corrections that ignore it.
            gradient = self.correct(
                gradient,
                params,
                broadcast,
                client,  # pyright: ignore[reportArgumentType]
                **keys.keyword(self.correct, result.rng, CORRECT),
            )
        moves = self._updated(state.model)
        memory = _with_keys_of_step(state.optimizer, result.rng)
        loss = None if self.federation.sample_privacy is not None else result.loss
        updates, memory = updated(self._optimizer_of(moves), gradient, memory, params, loss)
        if moves is not None:
            updates = jax.tree.map(lambda u, on: u if on else jnp.zeros_like(u), updates, moves)
        params = optax.apply_updates(params, updates)
        model = {**state.model, **result.statistics, "params": params}
        if self._frozen:  # their running statistics too
            stays = self.federation.plan.frozen_mask(model)
            model = jax.tree.map(lambda new, old, on: old if on else new, model, state.model, stays)
        return LocalState(model, memory, state.loss + result.loss / parts, total)

    @property
    def _frozen(self) -> bool:
        return self.trainable is None and any(self.federation.plan.frozen)

    def _updated(self, model: Tree) -> Tree | None:
        """Return which parameters the optimizer updates, as booleans; None for all."""
        if not self._frozen:
            return self.trainable
        frozen = self.federation.plan.frozen_mask(model)["params"]
        return jax.tree.map(lambda stays: not stays, frozen)

    def _optimizer_of(self, moves: Tree | None) -> optax.GradientTransformation:
        return self._optimizer if moves is None else optax.masked(self._optimizer, moves)


def local_step(
    federation: Federation, learning_rate: jax.Array, options: dict[str, Any]
) -> LocalStep:
    """Return the `LocalStep` with options given by name.

    Raises:
      InputError: unknown option.
    """
    known = [one.name for one in fields(LocalStep) if one.init][2:]
    for name in options:
        if name not in known:
            raise unknown_name("option of local training", name, known)
    return LocalStep(federation, learning_rate, **options)


def _with_keys_of_step(state: Tree, rng: jax.Array | None) -> Tree:
    """Fold the step's key into random keys in an optimizer's state.

    Without it every client would draw the same numbers in every round.

    Raises:
      TypeError: the optimizer has a random key, and the step has none.
    """

    def folded(leaf):
        typed = jnp.issubdtype(leaf.dtype, jax.dtypes.prng_key)
        if not typed and (leaf.dtype, leaf.shape) != (jnp.uint32, (2,)):  # a key of an older type
            return leaf
        if rng is None:
            raise TypeError(
                "The optimizer draws random numbers, and the step has no key: pass the results of "
                "step.loss_and_gradient to step.update."
            )
        for word in jax.random.key_data(jax.random.fold_in(rng, OPTIMIZER)):
            leaf = jax.random.fold_in(leaf, word)
        return leaf

    return jax.tree.map(folded, state)
