"""The federation: task, data, local training and execution, as one pytree."""

import math
from collections.abc import Mapping
from dataclasses import field, replace
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from fedjax_pfl.aggregation import planning
from fedjax_pfl.aggregation.leaf_plan import LeafPlan, trainable
from fedjax_pfl.aggregation.sharing import Rule
from fedjax_pfl.data.federated import FederatedData
from fedjax_pfl.execution.lane_assignment import assign_lanes
from fedjax_pfl.execution.strategy import Execution
from fedjax_pfl.federation.batching import Schedule
from fedjax_pfl.federation.client import Client
from fedjax_pfl.federation.local_training import LocalTraining
from fedjax_pfl.federation.participation import Participation
from fedjax_pfl.federation.regularizers import PENALTY
from fedjax_pfl.federation.uploads import UploadStage
from fedjax_pfl.models.heads import HEAD, PERSONAL_HEAD, TwoHeads, check_features, two_heads
from fedjax_pfl.models.metrics import Metric
from fedjax_pfl.models.mixtures import mixture
from fedjax_pfl.models.pretrained import Match
from fedjax_pfl.models.task import ForwardedBatch, Task
from fedjax_pfl.utils import keys
from fedjax_pfl.utils.errors import InputError, require
from fedjax_pfl.utils.metric_names import Measure
from fedjax_pfl.utils.structs import static, struct
from fedjax_pfl.utils.typing import Tree


@struct
class Federation:
    """Everything that an algorithm may use.

    Passed to compiled functions as an argument, never closed over: a closed-over data set would
    be copied into the program.

    Attributes:
      data: the clients' data, on the device.
      participation: sampling and stragglers.
      training: options of local training.
      network: one client's network and loss; in a run, `task`.
      initial_values: of leaves that do not begin with drawn values, by path.
      backbone: leaves that no client's model holds, as a run has them; None outside of runs.
      initial_match: what of the network is given, or None.
      plan: blocks of the model and what is shared.
      execution: how the client axis is run.
      eval_batch_size: samples scored at once.
      metrics: scored beside the task's headline.
      uploads: what happens to uploads on their way to the server, or None.
      client_names: (permanent id, name) of clients that have names, such as hospitals; else empty.
    """

    data: FederatedData
    participation: Participation
    training: LocalTraining
    network: Task = static()
    plan: LeafPlan = static()
    execution: Execution = static()
    eval_batch_size: int = static()
    initial_values: dict[str, jax.Array] = field(default_factory=dict)
    backbone: Tree = None
    initial_match: Match | None = static(default=None)
    metrics: tuple[Metric, ...] = static(default=())
    uploads: UploadStage | None = None
    client_names: tuple[tuple[int, str], ...] = static(default=())

    def __repr__(self) -> str:
        """The sizes, which are known under tracing too."""
        data = self.data
        sizes = f"{data.train.total} train, {data.test.total} test"
        sizes += f", {data.validation.total} validation" if data.validation.total else ""
        return (
            f"Federation({self.num_clients} clients: {sizes}, samples {data.sample_shape}, "
            f"{data.num_outputs} outputs, {self.plan.num_parameters} parameters)"
        )

    @property
    def measures(self) -> tuple[Measure, ...]:
        """The measures that are scored; the first is the task's headline."""
        headline = self.network.objective.headline
        return (headline, *(one.measure for one in self.metrics))

    @property
    def task(self) -> Task:
        """One client's network and loss, with the fixed leaves that a run has."""
        return self.network.bound(self.initial_values, self.backbone)

    def begun(self, key: jax.Array) -> "Federation":
        """The federation of the run of that key, with the fixed leaves."""
        key = keys.derive(key, "init")
        backbone = self.task.fixed_leaves(key, sample_inputs(self.task, self.data))
        return replace(self, backbone=backbone) if backbone else self

    @property
    def num_frozen(self) -> int:
        """Parameters of the network that no client's model holds, as they are never trained."""
        shapes = jax.eval_shape(lambda: self.begun(jax.random.key(0)).backbone) or {}
        return sum(math.prod(leaf.shape) for leaf in jax.tree.leaves(shapes.get("params", {})))

    @property
    def begins_alike(self) -> bool:
        """Whether all initial models are one, as every parameter is given."""
        paths = filter(trainable, self.plan.paths)
        return all(path in self.initial_values for path in paths)

    def _shaped(self) -> Task:
        """The task with any fixed leaves, where only shapes are asked."""
        return self.begun(jax.random.key(0)).task

    @property
    def num_clients(self) -> int:
        return self.data.num_clients

    @property
    def schedule(self) -> Schedule:
        """Batches of local training: epochs or steps."""
        return self.training.schedule

    def with_training(self, **options: Any) -> "Federation":
        """The same data, model and clients, with other options of local training.

        Args:
          **options: those of `LocalTraining`; the others stay. Epochs take the place of steps, and
            an optimizer that of momentum and weight decay. `batch_order` can't change: the samples
            are stored in that order.

        Raises:
          InputError: no such option, or a value that is not allowed.
        """
        own = self.training.batch_order
        order = options.get("batch_order", own)
        require(order == own, "batch_order", order, f"{own!r}, as it is")
        training = self.training.changed(**options).checked()
        params = jax.eval_shape(self.initial_model, jax.random.key(0))["params"]
        training = training.fitted(self.data, self.plan, params, self.task.dtype)
        changed = replace(self, training=training)
        return replace(
            changed, execution=assign_lanes(replace(self.execution, fill=1.0), changed.steps())
        )

    def replace_training(self, **values: Any) -> "Federation":
        """The federation with values of its training replaced, unchecked; they may be traced."""
        return replace(self, training=replace(self.training, **values))

    def for_runs(self, count: int) -> "Federation":
        """The federation whose devices are shared for so many runs, as its `mesh` says.

        Raises:
          InputError: the mesh has devices for more.
        """
        return self.on_devices(self.execution.shared(count))

    def on_devices(self, execution: Execution) -> "Federation":
        """The federation with the devices of that execution, shared as they are there."""
        its = self.execution
        changed = replace(its, devices=execution.devices, runs=execution.runs, runs_first=False)
        if changed == its:
            return replace(self, execution=changed)
        return replace(self, execution=assign_lanes(replace(changed, fill=1.0), self.steps()))

    def steps(self) -> np.ndarray:
        """int64 [N]: local steps of each client that takes part in a round, by the schedule."""
        return self.schedule.total_steps(np.asarray(self.data.train.size).astype(np.int64))

    @property
    def num_features(self) -> int:
        """d of the features [B, d] that the head sees; nothing is computed.

        An algorithm whose loss needs features asks in its `check`: before anything is compiled.

        Raises:
          InputError: the model does not say what its features are.
        """
        data, task = self.data, self.task
        model = jax.eval_shape(lambda: self.initial_model(jax.random.key(0)))
        shape = (1, *data.sample_shape)
        inputs = jax.ShapeDtypeStruct(shape, data.input_dtype(task.dtype))
        features = jax.eval_shape(lambda *given: self._shaped().features(*given), model, inputs)
        return features.shape[-1]

    def with_personal_head(self, fresh: bool = False) -> "Federation":
        """The federation whose models have a second head, which stays with its client.

        Its block is called "personal_head", its task is a `TwoHeads`. A federation that has one
        already is returned unchanged.

        Args:
          fresh: the second head begins with new weights, not with the first head's.

        Raises:
          InputError: the model does not say what its features and its head are.
        """
        if isinstance(self.network, TwoHeads):
            return self
        sample = self.data.sample_shape
        inputs = jax.ShapeDtypeStruct((2, *sample), self.data.input_dtype(self.task.dtype))
        key = jax.random.key(0)
        check_features(self._shaped, jax.eval_shape(self.initial_model, key), inputs)
        if HEAD not in jax.eval_shape(self.initial_model, key)["params"]:
            raise InputError(
                "A frozen head can't have a personal one beside it: freeze other layers."
            )
        changed = replace(self, network=two_heads(self.network, fresh))
        model = jax.eval_shape(changed.initial_model, key)
        return replace(changed, plan=planning.with_personal_head(self.plan, model, PERSONAL_HEAD))

    def with_mixtures(self) -> "Federation":
        """The federation in which a pair of models is a model whose logits are mixed (`pairs`).

        Its task is a `Mixture`, and its models begin as they would. A federation that has one
        already is returned unchanged.
        """
        return replace(self, network=mixture(self.network))

    def frozen(self, rule: Rule) -> "Federation":
        """The federation in which no round trains the leaves that a rule names, such as "head".

        All clients keep their initial values, statistics included, and never send them. The local
        steps of an adaptation do train them, and so do those of new clients.

        Raises:
          InputError: no such rule, or it leaves nothing to train.
        """
        return replace(self, plan=self.plan.with_frozen(rule))

    def penalty(
        self, params: Tree, batch: ForwardedBatch, client: Client, rng: jax.Array | None = None
    ) -> jax.Array | int:
        """The extra loss of one client's model on one minibatch; 0 where there is none.

        Args:
          rng: the step's key, for an extra loss that takes a key.
        """
        extra = self.training.extra_loss
        if extra is None:
            return 0
        return extra(params, batch, client, self.plan, **keys.keyword(extra, rng, PENALTY))

    def initial_model(self, key: jax.Array) -> Tree:
        """A fresh model of one client."""
        return initial_model(self.network, self.data, key, self.initial_values)


def initial_model(
    task: Task, data: FederatedData, key: jax.Array, values: Mapping[str, Any]
) -> Tree:
    """A fresh model of one client for the data's samples, with given values by path."""
    return task.bound(values, None).initial_model(key, sample_inputs(task, data))


def sample_inputs(task: Task, data: FederatedData) -> jax.Array:
    """A batch of one sample of zeros, from which a network learns its inputs' shape."""
    shape = (1, *data.sample_shape)
    return jnp.zeros(shape, data.input_dtype(task.dtype))
