"""A second head on the features of a network, for algorithms that train one for each client."""

from collections.abc import Callable
from dataclasses import dataclass

import jax
import jax.numpy as jnp
from jax import lax

from fedjax_pfl.models.task import EVALUATION, Mode, Outputs, Task
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

    fresh: bool = False

    def init(self, key: Key, inputs: jax.Array) -> Tree:
        model = self.network.init(key, inputs)
        other = self.network.init(jax.random.fold_in(key, 1), inputs) if self.fresh else model
        return {**model, "params": {**model["params"], PERSONAL_HEAD: other["params"][HEAD]}}

    def apply(self, model: Tree, inputs: jax.Array, *mode: *Mode) -> Outputs:
        features, statistics = self.embed(model, inputs, *mode)
        return Outputs(self.classify(model, features), statistics, features)

    def embed(self, model: Tree, inputs: jax.Array, *mode: *Mode) -> tuple[jax.Array, Tree]:
        return self.network.embed(_with_head(model, HEAD), inputs, *mode)

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
        personal = self.network.classify(_with_head(model, PERSONAL_HEAD), seen)
        return self.network.classify(_with_head(model, HEAD), features), personal

    def without_personal(self, model: Tree) -> Tree:
        """Return the model, or stack of models, without the personal head's contribution."""
        nothing = jax.tree.map(jnp.zeros_like, model["params"][PERSONAL_HEAD])
        return {**model, "params": {**model["params"], PERSONAL_HEAD: nothing}}


def _with_head(model: Tree, name: str) -> Tree:
    """Return the network's model with one of the heads."""
    params = {key: value for key, value in model["params"].items() if key != PERSONAL_HEAD}
    return {**model, "params": {**params, HEAD: model["params"][name]}}


def two_heads(task: Task, fresh: bool = False) -> TwoHeads:
    """Return `TwoHeads` of a task."""
    return TwoHeads.around(task, fresh)


def check_features(
    make_task: Callable[[], Task], model: Tree, inputs: jax.ShapeDtypeStruct
) -> None:
    """Raise `InputError` unless a task's head, applied to its features, gives its logits.

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
