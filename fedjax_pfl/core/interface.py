"""The contract every algorithm fulfils.

An algorithm is a frozen dataclass of its hyperparameters (see `algorithm` in the registry). Its
fields are traced, so that they can be swept inside one compiled program, unless declared `static`.
"""

from dataclasses import fields, replace
from typing import Any, ClassVar, Literal, TypeAlias

import jax
import jax.numpy as jnp
import numpy as np

from fedjax_pfl.aggregation.leaf_plan import DEFAULT_NORM_POLICY
from fedjax_pfl.aggregation.sharing import Rule, describe_rule
from fedjax_pfl.core.context import Context
from fedjax_pfl.core.record import Record
from fedjax_pfl.federation.adaptation import Adaptation
from fedjax_pfl.federation.batching import Schedule
from fedjax_pfl.federation.federation import Federation
from fedjax_pfl.utils.errors import InputError
from fedjax_pfl.utils.structs import Broadcast
from fedjax_pfl.utils.typing import Model, PerClient, Rows, Stack, State

Reads: TypeAlias = Literal["cohort", "others", "everyone"]


class Algorithm:
    """Base class of algorithms; `algorithm_registry.algorithm` turns a subclass into a pytree and
    names it.

    Class attributes:
      name: canonical name.
      revision: raised whenever the same configuration gives other numbers. It is part of a run's
        identity: a run is neither continued nor pooled with one of another revision.
      row_stochastic: whether recorded matrices have rows that sum to one. An algorithm whose
        definition breaks that says so here, with its source.
      absent_kept: whether per-client state of absent clients is unchanged; likewise.
      absent_idle: whether absent clients compute and send nothing; likewise.
      share: the rule of shared leaves ("all", "none", "head", "body", see
        `fedjax_pfl.aggregation.sharing`), where the federation leaves it open.
      batch_norm: which part of normalisation layers is shared, where the federation leaves it open.
      validates: whether it uses validation samples; a federation without any is refused, and so
        are new clients without any.
      depends_on_num_rounds: whether a round depends on how many rounds the run has; only then may
        it read `ctx.num_rounds`. A run that gets more rounds begins again.
      sees: what the server needs of uploads: "nothing", "sums" (one or several weighted sums, as
        secure aggregation gives them), or single "models".
      channels: what members tell the server beside their uploads (`Context.upload`), such as
        ("class counts",). Noise and compression of uploads do not reach it.
      reads: whose state and samples a round needs: those of the "cohort"; also the state of
        "others", which functions of `mixing` and `similarity` take block by block; or those of
        "everyone". The last is refused with client_state="host".
      models_read_samples: whether `models` needs training samples of its clients.
      needs_classes: whether it uses the class of each sample; a federation whose samples have
        none, as in a regression, is refused.
    """

    __dataclass_fields__: ClassVar[dict[str, Any]]  # registering makes a dataclass of a subclass
    name: ClassVar[str] = ""
    revision: ClassVar[int] = 1
    row_stochastic: ClassVar[bool] = True
    absent_kept: ClassVar[bool] = True
    absent_idle: ClassVar[bool] = True
    share: ClassVar[Rule] = "all"
    batch_norm: ClassVar[str] = DEFAULT_NORM_POLICY
    validates: ClassVar[bool] = False
    needs_classes: ClassVar[bool] = False
    depends_on_num_rounds: ClassVar[bool] = False
    sees: ClassVar[Literal["nothing", "sums", "models"]] = "models"
    channels: ClassVar[tuple[str, ...]] = ()
    reads: ClassVar[Reads] = "cohort"
    models_read_samples: ClassVar[bool] = False

    def sharing(self) -> Rule:
        """The rule of shared leaves where it depends on static hyperparameters; else `share`."""
        return type(self).share  # of the class: a predicate is no method of the algorithm

    def validate(self) -> None:
        """Raises `InputError` for a hyperparameter out of range; called before tracing."""

    def check(self, federation: Federation) -> None:
        """Raises `InputError` where a federation lacks what the algorithm needs; before tracing."""

    def has_step(self, federation: Federation) -> np.ndarray:
        """bool [N]: the clients that would train in a round in which they take part.

        A simulation without such a client is refused. The default is
        the federation's schedule; an algorithm with its own loops or schedule overrides this.
        """
        return federation.steps() > 0

    def check_validation(self, federation: Federation) -> None:
        """Raises `InputError` where it uses validation samples and no client has any."""
        if self.validates and not federation.data.validation.total:
            raise InputError(
                f"{self.name or type(self).__name__} uses validation samples, and no client has "
                "any: partition.split_validation(0.2, seed=0), or --validation_fraction=0.2, sets "
                "training samples aside."
            )

    def uses_classes(self) -> bool:
        """Whether it needs classes where that depends on hyperparameters; else `needs_classes`."""
        return self.needs_classes

    def check_classes(self, federation: Federation) -> None:
        """Raises `InputError` where it needs classes and samples have none."""
        if self.uses_classes() and not federation.data.num_classes:
            raise InputError(
                f"{self.name or type(self).__name__} needs a class for each sample, and this data "
                f"set's task is {federation.network.objective.name}, which has none."
            )

    def check_whole_models(self, federation: Federation) -> None:
        """Raises `InputError` unless the server may average every trainable leaf."""
        plan = federation.plan
        for i, path in enumerate(plan.paths):
            if plan.shared[i] or path.partition("/")[0] != "params":
                continue
            if plan.is_frozen(i):
                raise InputError(f"{self.name} trains whole models, and {path} is frozen.")
            raise InputError(
                f"{self.name} averages whole models and can't keep {path} private: share must "
                "be 'all' and batch_norm not 'local'."
            )

    def prepare(self, federation: Federation) -> Federation:
        """The federation with the choices that it leaves to the algorithm: the shared layers.

        An algorithm that wants another head or frozen leaves asks for them here, first:
        `super().prepare(federation.with_personal_head())`. Nothing here may depend on traced
        hyperparameters. A federation that was prepared already is returned unchanged.
        """
        plan = federation.plan.with_default_share(self.sharing())
        return replace(federation, plan=plan.with_default_norm(self.batch_norm))

    def init(self, ctx: Context) -> State:
        """The state before the first round: a `struct` whose fields declare their client axes."""
        raise NotImplementedError

    def round(self, ctx: Context, state: State) -> tuple[State, Record]:
        """One communication round."""
        raise NotImplementedError

    def models(self, ctx: Context, state: State, rows: Rows) -> dict[str, Stack | Broadcast]:
        """The models that the clients `rows` [k] would use, by name.

        "personalized" must be among them; "global" is the name of a server's single model. Each
        is a stack [k, ...], or one `Broadcast` model for all of them. `rows` is a NumPy array where
        it names all clients: `trees.take` then copies nothing.
        """
        raise NotImplementedError

    def served_clients(self, ctx: Context) -> PerClient:
        """bool [N]: the clients that the algorithm makes models for; means are taken over them."""
        return jnp.ones((ctx.num_clients,), bool)

    def schedules(self, federation: Federation) -> tuple[Schedule, ...]:
        """The schedules of a round's local training, so that its steps are known beforehand."""
        return (federation.schedule,)

    def adaptation(self) -> Adaptation | None:
        """Local steps that belong to the algorithm's personalized model, taken when it is
        scored."""
        return None

    def remarks(self, federation: Federation) -> list[str]:
        """Notes that a reader of a table needs to compare the algorithm's row with others.

        Each is a sentence without a capital and a full stop: "scored after 1 local epoch".
        """
        own, told = self.adaptation(), []
        if own is not None and (own.epochs if own.steps is None else own.steps):
            when = ", after the last round alone" if own.when == "last" else ""
            told.append(f"scored after {own} on a copy{when}")
        plan, rule = federation.plan, self.sharing()
        open_or_all = plan.chosen is None or rule == "all"
        if not open_or_all and plan.shared != plan.with_share(rule).shared:
            told.append(f"shares {describe_rule(plan)}, as share says")
        return told

    def round_remarks(self, federation: Federation, rounds: int) -> list[str]:
        """Further notes, in the form of `remarks`, that depend on the number of rounds."""
        return []

    def new_client_start(self, ctx: Context, state: State) -> Model:
        """The model that a client which never took part begins with.

        By default the global one, or the mean of the personalized models where there is none.
        """
        named = self.models(ctx, state, jnp.arange(ctx.num_clients, dtype=jnp.int32))
        models = named.get("global", named["personalized"])
        if isinstance(models, Broadcast):
            return models.model
        return jax.tree.map(lambda leaf: jnp.mean(leaf, axis=0).astype(leaf.dtype), models)

    def personalize(
        self, ctx: Context, state: State, new_clients: Context, **options: Any
    ) -> Stack:
        """Models [K, ...] of clients that never took part.

        Args:
          ctx: of the federation that was trained.
          state: after its last round.
          new_clients: context of the K new clients' own federation; by default each takes one
            round's local training from `new_client_start`, of leaves too that rounds leave frozen.
          **options: of `ctx.train`, for a subclass whose new clients train otherwise.
        """
        start = self.new_client_start(ctx, state)
        if any(new_clients.plan.frozen):
            options["trainable"] = jax.tree.map(lambda _: True, start["params"])
        return new_clients.train(
            Broadcast(start), new_clients.everyone(), purpose="personalize", cursor=None, **options
        ).models

    def hyperparameters(self) -> dict[str, Any]:
        """All fields by name."""
        return {field.name: getattr(self, field.name) for field in fields(self)}
