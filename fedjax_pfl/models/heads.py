"""A second head on the features of a network, for algorithms that train one for each client."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, fields, replace
from typing import Any

import jax
import jax.numpy as jnp
from jax import lax

from fedjax_pfl.models.task import EVALUATION, Mode, Outputs, Task
from fedjax_pfl.utils.errors import InputError
from fedjax_pfl.utils.typing import Key, Tree

HEAD, PERSONAL_HEAD = "head", "personal_head"


@dataclass(frozen=True)
class TwoHeads(Task):
    """A network with a second, personal head of the same form: `params[PERSONAL_HEAD]`.

    Its logits are those of both heads added up; with a personal head of zeros they are the
    network's own (`without_personal`).

    Attributes:
      network: the task of the network with one head.
      fresh: the personal head begins with new weights, not with the first head's.
    """

    network: Task
    fresh: bool = False

    def bound(self, values: Mapping[str, Any], backbone: Tree) -> Task:
        return replace(self, network=self.network.bound(values, backbone))

    def fixed_leaves(self, key: Key, inputs: jax.Array) -> Tree:
        return self.network.fixed_leaves(key, inputs)

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

    def losses(self, logits: jax.Array, labels: jax.Array) -> jax.Array:
        return self.network.losses(logits, labels)

    def heads(
        self, model: Tree, inputs: jax.Array, *mode: *Mode, detached: bool = False
    ) -> tuple[jax.Array, jax.Array, Tree, jax.Array]:
        """(logits of the network's head, of the personal head, changed statistics, features).

        With `detached` no gradient reaches the features through the personal head. Computed in
        `compute_dtype`, as `outputs` is.
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
        """The model, or stack of models, whose logits are those of the network's own head."""
        nothing = jax.tree.map(jnp.zeros_like, model["params"][PERSONAL_HEAD])
        return {**model, "params": {**model["params"], PERSONAL_HEAD: nothing}}


def _with_head(model: Tree, name: str) -> Tree:
    """The network's model with one of the heads as its own."""
    params = {key: value for key, value in model["params"].items() if key != PERSONAL_HEAD}
    return {**model, "params": {**params, HEAD: model["params"][name]}}


def two_heads(task: Task, fresh: bool = False) -> TwoHeads:
    """`TwoHeads` of a task."""
    same = {one.name: getattr(task, one.name) for one in fields(Task)}
    return TwoHeads(task, fresh, **same)


def check_features(made: Callable[[], Task], model: Tree, inputs: jax.ShapeDtypeStruct) -> None:
    """Raises `InputError` unless a task's head, applied to its features, gives its logits.

    Args:
      made: makes the task, while it is traced.
      model: shapes of one client's model.
      inputs: shape of a batch.
    """

    def apart(model, inputs):
        task = made()
        return task.classify(model, task.embed(model, inputs, *EVALUATION)[0])

    try:
        logits = jax.eval_shape(apart, model, inputs)
    except InputError:
        raise
    except Exception as error:
        raise made().no_head() from error
    wanted = jax.eval_shape(lambda *given: made().predict(*given), model, inputs)
    if logits.shape != wanted.shape:
        raise made().no_head()
