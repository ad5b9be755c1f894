"""The federation: task, data, local training and execution, as one pytree."""

import math
from collections.abc import Callable, Sequence
from dataclasses import field, replace
from typing import Any

import jax
import numpy as np

from fedjax_pfl.aggregation.aggregators import Aggregator
from fedjax_pfl.aggregation.leaf_plan import LeafPlan, trainable
from fedjax_pfl.aggregation.leaf_plan_of_model import extended
from fedjax_pfl.aggregation.sharing import Rule
from fedjax_pfl.data.federated import FederatedData
from fedjax_pfl.execution.lane_assignment import assign_lanes
from fedjax_pfl.execution.strategy import Execution
from fedjax_pfl.federation.batching import Schedule
from fedjax_pfl.federation.client import Client
from fedjax_pfl.federation.gradient_privacy import SamplePrivacy
from fedjax_pfl.federation.local_training import LocalTraining
from fedjax_pfl.federation.participation import Participation
from fedjax_pfl.federation.regularizers import PENALTY
from fedjax_pfl.models import base_types
from fedjax_pfl.models.adapters import WithAdapters
from fedjax_pfl.models.frozen_backbone import FrozenBackbone
from fedjax_pfl.models.heads import PERSONAL_HEAD, TwoHeads, check_features
from fedjax_pfl.models.metrics import Metric
from fedjax_pfl.models.mixtures import mixture
from fedjax_pfl.models.pretrained import Match
from fedjax_pfl.models.task import ForwardedBatch, Task
from fedjax_pfl.models.wrapped_task import part_of
from fedjax_pfl.uploads.pipeline import ClientPrivacy
from fedjax_pfl.uploads.stage import UploadStage
from fedjax_pfl.utils import keys
from fedjax_pfl.utils.errors import require
from fedjax_pfl.utils.metric_names import Measure
from fedjax_pfl.utils.structs import static, struct
from fedjax_pfl.utils.typing import Tree


@struct
class Federation:
    """Clients' data, their model and training options, and the execution strategy.

    It is passed to compiled functions as an argument, never closed over: a closed-over data set
    would be copied into the program.

    Attributes:
      data: the clients' data, on the device; in host memory if clients' states are there, or with
        several processes.
      participation: sampling and stragglers.
      training: options of local training.
      network: one client's network and loss, without frozen leaves; see `task`.
      initial_values: values of pretrained leaves by path; other leaves are drawn.
      backbone: frozen leaves that are stored once instead of in clients' models; None outside of
        runs.
      initial_match: which leaves of the network are pretrained, or None.
      plan: blocks of the model, and which leaves are shared.
      execution: execution strategy of the client axis.
      eval_batch_size: samples scored at once.
      metrics: metrics beside the task's main metric.
      sample_privacy: sample-level differential privacy of local training, or None.
      uploads: transformation of uploads on their way to the server, or None.
      aggregator: robust rule in place of the server's mean or mixing matrix, or None.
      notes: sentences below tables on the initial model, drift, arrivals and departures, attacks,
        robust rules and compression, with names of swept numbers in braces, which
        `swept_numbers.sentences` replaces.
      partition_hash: uint8 [32], of the samples of each client and their labels, or None.
      client_names: pairs (permanent id, name) of clients with names, such as hospitals.
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
    sample_privacy: SamplePrivacy | None = None
    uploads: UploadStage | None = None
    aggregator: Aggregator | None = None
    partition_hash: Any = None
    notes: tuple[str, ...] = static(default=())
    client_names: tuple[tuple[int, str], ...] = static(default=())

    def __repr__(self) -> str:
        """Return the sizes, which are static."""
        data = self.data
        sizes = f"{data.train.total} train, {data.test.total} test"
        sizes += f", {data.validation.total} validation" if data.validation.total else ""
        return (
            f"Federation({self.num_clients} clients: {sizes}, samples {data.sample_shape}, "
            f"{data.num_outputs} outputs, {self.plan.num_parameters} parameters)"
        )

    @property
    def measures(self) -> tuple[Measure, ...]:
        """The scored measures; the first is the task's main metric."""
        main = self.network.objective.main_metric
        return (main, *(one.measure for one in self.metrics))

    @property
    def task(self) -> Task:
        """One client's network and loss, including frozen leaves."""
        return self.network.bound(self.initial_values, self.backbone)

    @property
    def adapters(self) -> WithAdapters | None:
        """The adapters of the network: the layers that have them, rank and scale; or None."""
        return part_of(self.network, WithAdapters)

    @property
    def base_dtype(self) -> str | None:
        """Type in which frozen parameters are held, or None for that of models."""
        task = part_of(self.network, FrozenBackbone)
        return None if task is None else task.base_dtype

    def with_backbone(self, key: jax.Array) -> "Federation":
        """Return the federation with the frozen leaves of the run of that key."""
        key = keys.derive(key, "init")
        backbone = self.task.frozen_leaves(key, self.data.zero_inputs(self.network.dtype))
        return replace(self, backbone=backbone) if backbone else self

    @property
    def num_frozen(self) -> int:
        """Number of frozen parameters that clients' models do not contain."""
        shapes = jax.eval_shape(lambda: self.with_backbone(jax.random.key(0)).backbone) or {}
        return sum(map(math.prod, base_types.shapes(shapes.get("params", {}))))

    @property
    def same_initial_model(self) -> bool:
        """Whether all runs begin with the same model: every parameter is pretrained."""
        paths = filter(trainable, self.plan.paths)
        return all(path in self.initial_values for path in paths)

    def _shaped(self) -> Task:
        """Return the task with frozen leaves of an arbitrary seed, to evaluate shapes."""
        return self.with_backbone(jax.random.key(0)).task

    @property
    def model_shapes(self) -> Tree:
        """Shapes and types of one client's model."""
        return jax.eval_shape(self.initial_model, jax.random.key(0))

    @property
    def num_clients(self) -> int:
        return self.data.num_clients

    @property
    def schedule(self) -> Schedule:
        """Batches of local training: epochs or steps."""
        return self.training.schedule

    def with_training(self, **options: Any) -> "Federation":
        """Return the federation with other options of local training.

        Args:
          **options: options of `LocalTraining`; the others stay. Epochs replace steps, and an
            optimizer replaces momentum and weight decay. `batch_order` can't change, since
            "by_class" also fixes the order in which samples are stored.

        Raises:
          InputError: unknown option, or a value that is not allowed.
        """
        own = self.training.batch_order
        order = options.get("batch_order", own)
        require(order == own, "batch_order", order, f"{own!r}, as it is")
        training = self.training.changed(**options).checked()
        params = self.model_shapes["params"]
        training = training.fitted(self.data, self.plan, params, self.task.dtype)
        changed = replace(self, training=training)
        return replace(
            changed, execution=assign_lanes(replace(self.execution, fill=1.0), changed.steps())
        )

    def replace_training(self, **values: Any) -> "Federation":
        """Return the federation with values of `training` replaced, unchecked; may be traced."""
        return replace(self, training=replace(self.training, **values))

    @property
    def privacy(self) -> SamplePrivacy | ClientPrivacy | None:
        """Differential privacy of samples or of clients, or None."""
        return self.sample_privacy or getattr(self.uploads, "privacy", None)

    @property
    def keeps_failed(self) -> bool:
        """Whether clients whose training failed count, with an update of zero."""
        return self.uploads is not None and self.uploads.keeps_failed

    def with_devices(self, execution: Execution) -> "Federation":
        """Return the federation with the devices of another execution strategy."""
        its = self.execution
        changed = replace(
            its, devices=execution.devices, run_groups=execution.run_groups, runs_first=False
        )
        if changed == its:
            return replace(self, execution=changed)
        return replace(self, execution=assign_lanes(replace(changed, fill=1.0), self.steps()))

    def steps(self) -> np.ndarray:
        """Return the local steps of each client per round it takes part in, int64 [N]."""
        return self.schedule.total_steps(np.asarray(self.data.train.size).astype(np.int64))

    @property
    def num_features(self) -> int:
        """Width d of the features [B, d], the inputs of the head.

        Raises:
          InputError: the model does not define its features.
        """
        inputs = jax.eval_shape(lambda: self.data.zero_inputs(self.network.dtype))
        features = jax.eval_shape(
            lambda *args: self._shaped().features(*args), self.model_shapes, inputs
        )
        return features.shape[-1]

    def with_network(
        self, wrap: Callable[[Task], Task], personal: Sequence[str] = ()
    ) -> "Federation":
        """Return the federation with a task around its network, such as further modules.

        Rules of shared leaves apply to the new modules, too. A federation that has a task of the
        same class is returned unchanged.

        Args:
          wrap: makes the task of the network's, such as `TwoHeads.around`.
          personal: names of new modules that stay with their clients under every rule.

        Raises:
          InputError: the task has a head of its own, and the model does not define its features and
            its head; or there is no module of a name in `personal`.
        """
        network = wrap(self.network)
        if part_of(self.network, type(network)) is not None:
            return self
        if getattr(network, "has_own_head", False):
            inputs = jax.eval_shape(lambda: self.data.zero_inputs(self.network.dtype, 2))
            check_features(self._shaped, self.model_shapes, inputs)
        changed = replace(self, network=network)
        plan = extended(self.plan, changed.model_shapes, personal)
        return replace(changed, plan=plan)

    def with_personal_head(self, fresh: bool = False) -> "Federation":
        """Return the federation with a second, private head in its models.

        The block of that head is "personal_head", and the task is a `TwoHeads`. A federation with
        two heads is returned unchanged.

        Args:
          fresh: initialize the second head independently instead of as a copy of the first.

        Raises:
          InputError: the model does not define its features and its head.
        """
        return self.with_network(lambda task: TwoHeads.around(task, fresh), (PERSONAL_HEAD,))

    def with_mixtures(self) -> "Federation":
        """Return the federation whose models may be pairs with mixed logits (`pairs`).

        The task is a `Mixture`; initial models do not change. Such a federation is returned
        unchanged.
        """
        return self.with_network(mixture)

    def with_frozen(self, rule: Rule) -> "Federation":
        """Return the federation with leaves frozen in all rounds by a rule, such as "head".

        Clients keep the initial values of these leaves, including statistics, and never send them.
        Adaptation and new clients still train them.

        Raises:
          InputError: unknown rule, or it leaves nothing to train.
        """
        return replace(self, plan=self.plan.with_frozen(rule))

    def penalty(
        self, params: Tree, batch: ForwardedBatch, client: Client, rng: jax.Array | None = None
    ) -> jax.Array | int:
        """Return the extra loss of one client's model on one minibatch, or 0.

        Args:
          rng: the step's key, for an extra loss that takes a key.
        """
        extra = self.training.extra_loss
        if extra is None:
            return 0
        return extra(params, batch, client, self.plan, **keys.keyword(extra, rng, PENALTY))

    def initial_model(self, key: jax.Array) -> Tree:
        """Return an initial model."""
        bound = self.network.bound(self.initial_values, None)
        return bound.initial_model(key, self.data.zero_inputs(self.network.dtype))
