"""The algorithm interface.

An algorithm is a frozen dataclass of its hyperparameters. Its fields are traced, so that one
compiled program can sweep them, unless they are declared `static`.
"""

from dataclasses import replace
from typing import Any, ClassVar, Literal

import jax
import jax.numpy as jnp
import numpy as np

from fedjax_pfl.aggregation.leaf_plan import DEFAULT_NORM_POLICY
from fedjax_pfl.aggregation.sharing import Rule, describe_rule
from fedjax_pfl.core.context import Context
from fedjax_pfl.core.record import Record
from fedjax_pfl.federation.adaptation import Adaptation
from fedjax_pfl.federation.federation import Federation
from fedjax_pfl.utils.structs import Broadcast
from fedjax_pfl.utils.typing import Model, PerClient, Rows, Stack, State, Tree


class Algorithm:
    """Base class of algorithms; `core.algorithm` registers a subclass and makes it a pytree.

    Class attributes:
      name: canonical name.
      revision: increased whenever the same configuration gives different numbers. It is part of a
        run's identity: runs of two revisions are neither continued nor pooled.
      row_stochastic: False only if the paper's mixing matrices have rows that do not sum to one.
      absent_kept: False only if the paper changes the state of absent clients.
      absent_idle: False only if absent clients compute or send something in the paper.
      share: default rule of shared leaves ("all", "none", "head", "body", see
        `fedjax_pfl.aggregation.sharing`), if the federation does not set one.
      batch_norm: default policy of shared normalization layers, if the federation does not set one.
      needs_validation: whether the algorithm uses validation samples; federations and new clients
        without any are refused.
      server_needs: what the server needs of uploads: "nothing", "sums" (one or several weighted
        sums, as secure aggregation provides), or single "models".
      aggregator_replaces: what a robust rule (`federation.aggregator`) replaces: the "mean" of
        `ctx.aggregate` or `ctx.aggregate_rows`, the mixing "matrix" of `ctx.mix` (`self_clip`), or
        "nothing".
      equal_sums: whether uploads are summed with equal weights, which distributed noise and secure
        aggregation need; implied by `aggregator_replaces = "mean"`.
      also_sent: what members send to the server beside their uploads (`Context.upload`), such as
        ("class counts",), or what they ask for. Noise and compression of uploads do not apply to
        it. With `needs_validation` it depends on validation samples, not on training samples.
      unprotected: statistics that rounds or models compute from training samples without noise,
        other than gradients of `ctx.train` and `ctx.sgd_step`, such as ("class means",).
        Sample-level differential privacy refuses such algorithms, and those with `also_sent` or
        with validation samples that are not declared public.
      needs_classes: whether the algorithm uses class labels; federations without classes, as in
        regression, are refused.
      takes_ranks: whether clients may have adapters of different rank (`lora_ranks`).
    """

    __dataclass_fields__: ClassVar[dict[str, Any]]  # registering makes a dataclass of a subclass
    name: ClassVar[str] = ""
    revision: ClassVar[int] = 1
    row_stochastic: ClassVar[bool] = True
    absent_kept: ClassVar[bool] = True
    absent_idle: ClassVar[bool] = True
    share: ClassVar[Rule] = "all"
    batch_norm: ClassVar[str] = DEFAULT_NORM_POLICY
    needs_validation: ClassVar[bool] = False
    needs_classes: ClassVar[bool] = False
    takes_ranks: ClassVar[bool] = False
    server_needs: ClassVar[Literal["nothing", "sums", "models"]] = "models"
    aggregator_replaces: ClassVar[Literal["mean", "matrix", "nothing"]] = "nothing"
    equal_sums: ClassVar[bool] = False
    also_sent: ClassVar[tuple[str, ...]] = ()
    unprotected: ClassVar[tuple[str, ...]] = ()

    def sharing(self) -> Rule:
        """Return the rule of shared leaves; override it if it depends on static hyperparameters."""
        return type(self).share  # of the class: a predicate is not a method of the algorithm

    def validate(self) -> None:
        """Raise `InputError` for hyperparameters that do not go together; called before tracing.

        Ranges of single ones are declared: `core.number(default=0.1, allowed="at least 0")`.
        """

    def check(self, federation: Federation) -> None:
        """Raise `InputError` if the federation lacks what the algorithm needs; before tracing."""

    def has_step(self, federation: Federation) -> np.ndarray:
        """Return which clients train in a round in which they take part, bool [N].

        A simulation without such a client is refused. The default follows the federation's
        schedule; an algorithm with its own loops or schedule overrides this.
        """
        return federation.steps() > 0

    def prepare(self, federation: Federation) -> Federation:
        """Return the federation with the algorithm's defaults, such as its shared layers.

        An algorithm that needs a second head or frozen leaves requests them here:
        `super().prepare(federation.with_personal_head())`. The result must not depend on traced
        hyperparameters. A prepared federation is returned unchanged.
        """
        plan = federation.plan.with_defaults(self.sharing(), self.batch_norm)
        return replace(federation, plan=plan)

    def init(self, ctx: Context) -> State:
        """Return the state before the first round, a `struct` that declares its client axes."""
        raise NotImplementedError(f"{self.name} must define init(self, ctx).")

    def round(self, ctx: Context, state: State) -> tuple[State, Record]:
        """Run one communication round."""
        raise NotImplementedError(f"{self.name} must define round(self, ctx, state).")

    def models(self, ctx: Context, state: State, rows: Rows) -> dict[str, Stack | Broadcast]:
        """Return the models that the clients `rows` [k] use for prediction, by name.

        "personalized" is required; "global" is the server's single model. Each is a stack
        [k, ...], or one `Broadcast` model for all clients. `rows` is a NumPy array if it contains
        all clients, in which case `trees.take` copies nothing.
        """
        raise NotImplementedError(f"{self.name} must define models(self, ctx, state, rows).")

    def updated_base(self, ctx: Context, state: State) -> Tree | None:
        """Return the frozen leaves that the server has changed, or None.

        They are some leaves of `ctx.federation.backbone`, in nested dicts as there, and one tree
        for all clients. Rounds, scores, saved models and new clients have them in place of those
        that the run began with.
        """
        return None

    def served_clients(self, ctx: Context) -> PerClient:
        """Return which clients have models, bool [N]; means are taken over them."""
        return jnp.ones((ctx.num_clients,), bool)

    def adaptation(self) -> Adaptation | None:
        """Return the local steps that precede scoring of the personalized model, or None."""
        return None

    def remarks(self, federation: Federation) -> list[str]:
        """Return notes that readers need to compare the algorithm's row of a table with others.

        Each is a clause without a capital and a full stop: "scored after 1 local epoch".
        """
        own, notes = self.adaptation(), []
        if own is not None and (own.epochs if own.steps is None else own.steps):
            when = ", after the last round only" if own.when == "last" else ""
            notes.append(f"scored after {own} on a copy{when}")
        plan, rule = federation.plan, self.sharing()
        open_or_all = plan.chosen is None or rule == "all"
        if not open_or_all and plan.shared != plan.with_share(rule).shared:
            notes.append(f"shares {describe_rule(plan)}, as set by share")
        if not plan.shared_blocks.any():
            notes.append("shares no layer of this network: local training")
        return notes

    def round_remarks(self, federation: Federation, rounds: int) -> list[str]:
        """Return further notes, as `remarks` does, that depend on the number of rounds."""
        return []

    def new_client_start(self, ctx: Context, state: State) -> Model:
        """Return the initial model of a client that never took part.

        By default it is the global model, or the mean of the personalized models without one.
        """
        named = self.models(ctx, state, jnp.arange(ctx.num_clients, dtype=jnp.int32))
        models = named.get("global", named["personalized"])
        if isinstance(models, Broadcast):
            return models.model
        return jax.tree.map(lambda leaf: jnp.mean(leaf, axis=0).astype(leaf.dtype), models)

    def personalize(
        self, ctx: Context, state: State, new_clients: Context, **options: Any
    ) -> Stack:
        """Return models [K, ...] of clients that never took part.

        By default each new client trains for one round from `new_client_start`, including leaves
        that rounds leave frozen.

        Args:
          ctx: context of the trained federation.
          state: its state after the last round.
          new_clients: context of the K new clients' own federation, all of whom are its cohort.
          **options: options of `ctx.train`, for subclasses whose new clients train differently.
        """
        start = self.new_client_start(ctx, state)
        if any(new_clients.plan.frozen):
            options["trainable"] = jax.tree.map(lambda _: True, start["params"])
        return new_clients.train(Broadcast(start), **options).models
