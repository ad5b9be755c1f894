"""A second head on the features of a network, for algorithms that train one for each client."""

from collections.abc import Callable
from dataclasses import dataclass

import jax
import jax.numpy as jnp
from jax import lax

from fedjax_pfl.models.task import EVALUATION, Mode, Task
from fedjax_pfl.models.wrapped_task import WrappedTask
from fedjax_pfl.utils.errors import InputError
from fedjax_pfl.utils.typing import Key, Tree

HEAD, PERSONAL_HEAD = "head", "personal_head"


@dataclass(frozen=True)
class TwoHeads(WrappedTask):
    """A network with a second, personal head of the same form: `params[PERSONAL_HEAD]`.

    Its logits are the sum of both heads' logits; with a personal head of zeros they are the
    network's own (`without_personal`).

    Attributes:
      network: the task of the network with one head.
      fresh: whether the personal head has initial weights of its own, not the first head's.
    """

    added = (PERSONAL_HEAD,)

    fresh: bool = False

    def draw(self, key: Key, inputs: jax.Array, model: Tree) -> dict[str, Tree]:
        if HEAD not in model["params"]:
            raise InputError(
                "A frozen head can't have a personal one beside it: freeze other layers."
            )
        other = self.network.init(key, inputs) if self.fresh else model
        return {PERSONAL_HEAD: other["params"][HEAD]}

    def classify(self, model: Tree, features: jax.Array) -> jax.Array:
        common, personal = self._both(model, features, features)
        return common + personal

    def heads(
        self, model: Tree, inputs: jax.Array, *mode: *Mode, detached: bool = False
    ) -> tuple[jax.Array, jax.Array, Tree, jax.Array]:
        """Return (logits of the network's head, of the personal head, statistics, features).

        With `detached` no gradient reaches the features through the personal head. They are
        computed in `compute_dtype`, like `outputs`.
        """

        def forward(model, inputs):
            features, statistics = self.embed(model, inputs, *mode)
            seen = lax.stop_gradient(features) if detached else features
            return *self._both(model, features, seen), statistics, features

        return self.computed(forward, model, inputs)

    def _both(self, model, features, seen):
        own = self.own(model)
        head = {**own["params"], HEAD: model["params"][PERSONAL_HEAD]}
        personal = self.network.classify({**own, "params": head}, seen)
        return self.network.classify(own, features), personal

    def without_personal(self, model: Tree) -> Tree:
        """Return the model, or stack of models, without the personal head's contribution."""
        nothing = jax.tree.map(jnp.zeros_like, model["params"][PERSONAL_HEAD])
        return {**model, "params": {**model["params"], PERSONAL_HEAD: nothing}}


def check_features(
    make_task: Callable[[], Task], model: Tree, inputs: jax.ShapeDtypeStruct
) -> None:
    """Raise `InputError` unless a task's head gives, from its features, logits of their shape.

    Args:
      make_task: returns the task, inside the trace.
      model: shapes of one client's model.
      inputs: shape of a batch.
    """

    def from_features(model, inputs):
        task = make_task()
        return task.classify(model, task.embed(model, inputs, *EVALUATION)[0])

    try:
        logits = jax.eval_shape(from_features, model, inputs)
    except InputError:
        raise
    except Exception as error:
        raise make_task().no_head() from error
    expected = jax.eval_shape(lambda *args: make_task().predict(*args), model, inputs)
    if logits.shape != expected.shape:
        raise make_task().no_head()
