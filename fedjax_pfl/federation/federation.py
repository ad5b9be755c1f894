"""The federation: task, data, local training and execution, as one pytree."""

import math
from collections.abc import Callable, Mapping
from dataclasses import field, replace
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import optax

from fedjax_pfl.aggregation import planning
from fedjax_pfl.aggregation.leaf_plan import LeafPlan, trainable
from fedjax_pfl.aggregation.sharing import Rule
from fedjax_pfl.data.federated import FederatedData
from fedjax_pfl.execution.lane_assignment import assign_lanes
from fedjax_pfl.execution.strategy import Execution
from fedjax_pfl.federation.augmentation import Augmentation
from fedjax_pfl.federation.batching import Schedule
from fedjax_pfl.federation.client import Client
from fedjax_pfl.federation.local_training import LocalTraining
from fedjax_pfl.federation.participation import Participation
from fedjax_pfl.federation.regularizers import PENALTY, ExtraLoss
from fedjax_pfl.federation.uploads import UploadStage
from fedjax_pfl.models.heads import HEAD, PERSONAL_HEAD, TwoHeads, check_features, two_heads
from fedjax_pfl.models.metrics import Metric
from fedjax_pfl.models.mixtures import mixture
from fedjax_pfl.models.pretrained import Match
from fedjax_pfl.models.task import ForwardedBatch, Task
from fedjax_pfl.utils import keys
from fedjax_pfl.utils.errors import InputError, refused, require
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
      learning_rate: local learning rate of the first round.
      learning_rate_decay: factor by which it shrinks from one round to the next.
      lr_schedule: `(t, total) -> factor` of the rate in round `t` (from 0) of `total`, both
        traced, or None.
      network: one client's network and loss; in a run, `task`.
      initial_values: of leaves that do not begin with drawn values, by path.
      backbone: leaves that no client's model holds, as a run has them; None outside of runs.
      initial_match: what of the network is given, or None.
      plan: blocks of the model and what is shared.
      schedule: local epochs or steps.
      optimizer: factory `learning_rate -> optax.GradientTransformation`.
      clip_norm: largest norm of the gradients that it sees, or None.
      keep_optimizer_state: whether its state outlives a client's rounds.
      batch_order: how a client's training samples lie and are drawn, see `LocalTraining`.
      execution: how the client axis is run.
      eval_batch_size: samples scored at once.
      augment: random change of the training images, or None.
      extra_loss: added to every client's minibatch loss, or None.
      metrics: scored beside the task's headline.
      uploads: what happens to uploads on their way to the server, or None.
      client_names: (permanent id, name) of clients that have names, such as hospitals; else empty.
    """

    data: FederatedData
    participation: Participation
    learning_rate: jax.Array
    learning_rate_decay: jax.Array
    network: Task = static()
    plan: LeafPlan = static()
    schedule: Schedule = static()
    batch_order: str = static()
    optimizer: Callable[..., Any] = static()
    execution: Execution = static()
    eval_batch_size: int = static()
    augment: Augmentation | None = static(default=None)
    extra_loss: ExtraLoss | None = None
    lr_schedule: Callable[..., Any] | None = static(default=None)
    clip_norm: jax.Array | None = None
    initial_values: dict[str, jax.Array] = field(default_factory=dict)
    backbone: Tree = None
    initial_match: Match | None = static(default=None)
    keep_optimizer_state: bool = static(default=False)
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

    def rate(self, t: jax.Array, total: jax.Array) -> jax.Array:
        """The local learning rate of round `t` of `total`; traced."""
        decay = self.learning_rate_decay
        rate = self.learning_rate * decay ** t.astype(decay.dtype)
        if self.lr_schedule is None:
            return rate
        return rate * jnp.asarray(self.lr_schedule(t, total), rate.dtype)

    def rate_factors(self, total: int) -> np.ndarray:
        """The schedule's factors of the rate in each round, [total]; empty without a schedule.

        Raises:
          InputError: it can't be traced, or a factor is not one finite number of at least 0.
        """
        schedule = self.lr_schedule
        if schedule is None:
            return np.ones(0)
        name, allowed = (
            "lr_schedule",
            "a function (t, total) -> factor of traced numbers",
        )
        try:
            factors = jax.jit(jax.vmap(schedule, (0, None)))(
                np.arange(total, dtype=np.int32), total
            )
        except Exception as error:
            reason = (str(error).strip() or type(error).__name__).splitlines()[0]
            raise InputError(f"{name} must be {allowed}: {reason}") from error
        shape = list(factors.shape[1:])
        require(not shape, name, f"a factor of shape {shape}", allowed)
        bad = np.flatnonzero(~(np.isfinite(factors) & (factors >= 0)))
        if len(bad):
            allowed = "finite and at least 0 in each round"
            raise refused(name, f"{factors[bad[0]]} in round {bad[0] + 1}", allowed)
        return factors

    def local_optimizer(self, learning_rate: jax.Array) -> optax.GradientTransformation:
        """The optimizer of local steps at that rate, which clips gradients first if asked to."""
        made = self.optimizer(learning_rate)
        if self.clip_norm is None:
            return made
        return optax.chain(optax.clip_by_global_norm(self.clip_norm), made)

    @property
    def training(self) -> LocalTraining:
        """The options of local training that made it; not for use in compiled functions."""
        return LocalTraining.of(self)

    def with_training(self, **options: Any) -> "Federation":
        """The same data, model and clients, with other options of local training.

        Args:
          **options: those of `LocalTraining`; the others stay. Epochs take the place of steps, and
            an optimizer that of momentum and weight decay. `batch_order` can't change: the samples
            are stored in that order.

        Raises:
          InputError: no such option, or a value that is not allowed.
        """
        order = options.get("batch_order", self.batch_order)
        require(order == self.batch_order, "batch_order", order, f"{self.batch_order!r}, as it is")
        training = self.training.changed(**options).checked()
        params = jax.eval_shape(self.initial_model, jax.random.key(0))["params"]
        changed = replace(self, **training.parts(self.data, self.plan, params, self.task.dtype))
        return replace(
            changed, execution=assign_lanes(replace(self.execution, fill=1.0), changed.steps())
        )

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
        if self.extra_loss is None:
            return 0
        key = keys.keyword(self.extra_loss, rng, PENALTY)
        return self.extra_loss(params, batch, client, self.plan, **key)

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
