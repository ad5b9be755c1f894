"""The round context: local training, mixing, uploads and the record."""

from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp

from fedjax_pfl.core.context_uploads import ContextUploads
from fedjax_pfl.core.counting import COUNTS, Counting, add_counts
from fedjax_pfl.core.record import Record, packed, recorded
from fedjax_pfl.federation.adaptation import Adaptation
from fedjax_pfl.federation.batching import Schedule
from fedjax_pfl.federation.client import Client
from fedjax_pfl.federation.participation import Cohort
from fedjax_pfl.training import adapting, local_sgd, scoring
from fedjax_pfl.training.class_statistics import ClassSums, Moments, class_sums
from fedjax_pfl.training.client_loop import ClientRuns, run_clients
from fedjax_pfl.training.local_step import LocalStep, local_step
from fedjax_pfl.training.sample_features import SampleFeatures, sample_features
from fedjax_pfl.utils import trees
from fedjax_pfl.utils.errors import InputError
from fedjax_pfl.utils.structs import Broadcast
from fedjax_pfl.utils.typing import Matrix, PerMember, Rows, Scalar, Stack, Tree

NEW_CLIENTS = "personalize"  # purpose of the keys with which new clients train


@dataclass(frozen=True)
class Context(ContextUploads):
    """The context of one round, passed to the functions of an algorithm."""

    def of_new_clients(self) -> "Context":
        """Return this context with every client as a member and the random keys of new clients."""
        return replace(self, cohort=self.cohort_of(), train_purpose=NEW_CLIENTS)

    def train(
        self,
        models: Tree | Broadcast,
        cohort: Cohort | None = None,
        purpose: str | None = None,
        *,
        same_minibatches: bool = False,
        **options: Any,
    ) -> local_sgd.Trained:
        """Train the cohort locally from `models` [M, ...] or one `Broadcast` model.

        Unshuffled schedules continue where the client's earlier rounds stopped.

        Args:
          models: initial models.
          cohort: who trains; the round's cohort by default.
          purpose: names the random keys; each training of a round has its own.
          same_minibatches: True to train again, on purpose, on the minibatches of an earlier call
            with the same `purpose`.
          **options: options of `local_sgd.train` (`schedule`, `learning_rate`, `operands`,
            `broadcast`, `active`, `cursor`, `epochs`, `optimizer_state`) and of `LocalStep`
            (`extra_loss`, `forward`, `correct`, `trainable`, `mean_gradient`,
            `updates_per_batch`).

        Returns:
          The models [M, ...], the cohort without members that diverged, which keep their initial
          models, and the mean minibatch losses [M].

        Raises:
          InputError: an unknown option, or more steps than can be counted.
          TypeError: a stack without one row for each member.
        """
        cohort, purpose = self.cohort if cohort is None else cohort, purpose or self.train_purpose
        options.setdefault("learning_rate", self.learning_rate)
        options.setdefault("cursor", self._cursor(cohort, options.get("schedule")))
        options["key"] = self.key_for(purpose)
        options.setdefault("noise_index", self._noise_index())
        train = local_sgd.train
        if self.optimizers is not None and "optimizer_state" not in options:
            train = partial(self.optimizers.train, purpose=purpose)
        trained = train(self.federation, models, cohort, **options)
        if self.observer is not None:
            if not same_minibatches:
                self.observer.record_purpose(purpose)
            self.observer.record_loop(purpose, options.get("schedule") or self.federation.schedule)
        self._count_steps(cohort, trained.cohort)
        return trained

    def _count_steps(self, before: Cohort, after: Cohort) -> None:
        # Gradients with noise are counted where they are computed.
        if self.observer is not None and self.federation.sample_privacy is None:
            self.observer.count_steps(before, after)

    def _noise_index(self) -> int:
        return 0 if self.observer is None else self.observer.next_noise_index()

    def adapt(
        self,
        models: Stack | Broadcast,
        rows: Rows,
        how: Adaptation,
        noise_index: int = 0,
        purpose: str = "adapt",
    ) -> Stack:
        """Train copies of `models` for the clients `rows` as `how` specifies, [k, ...].

        Args:
          models: [k, ...], or one `Broadcast` model.
          rows, how: see `adapting.adapt`.
          noise_index: index of the adaptation after this round; each draws noise of its own.
          purpose: names the random keys; each adaptation within a round has its own.
        """
        if self.observer is not None:  # within a round: other minibatches and noise than after it
            purpose, noise_index = f"{purpose} in a round", self._noise_index()
        elif noise_index and self.federation.sample_privacy is not None:
            purpose = f"{purpose} {noise_index}"  # accounting assumes minibatches of its own
        adapted = adapting.adapt(
            self.federation, models, self.cohort_of(rows), how, key=self.key_for(purpose),
            learning_rate=self.learning_rate, noise_index=noise_index,
        )  # fmt: skip
        if self.observer is not None:
            self.observer.record_loop(purpose, how.schedule(self.federation.schedule))
        return adapted

    def sgd_step(self, **options: Any) -> LocalStep:
        """Return the local SGD step, for a loop with the algorithm's own carry (`run_clients`).

        Args:
          **options: options of `LocalStep`: `learning_rate`, `extra_loss`, `forward`, `correct`,
            `trainable`, `mean_gradient`, `updates_per_batch`.
        """
        rate = options.pop("learning_rate", self.learning_rate)
        if self.optimizers is not None:
            raise self.optimizers.own_steps()
        options.setdefault("noise_index", self._noise_index())
        return local_step(self.federation, rate, options)

    def initial_optimizer_state(
        self, model: Tree | None = None, trainable: Tree | None = None
    ) -> Tree:
        """Return the initial states of all clients' local optimizers, [N, ...].

        `train(..., optimizer_state=ctx.cohort.gather(state.optimizers))` accepts them and returns
        the next states.

        Args:
          model: the model that clients train first; the common initial model by default.
          trainable: the same argument as of `train`.
        """
        model = self.initial_model() if model is None else model
        state = self.sgd_step(trainable=trainable).begin(model).optimizer
        strong = jax.tree.map(lambda leaf: jnp.asarray(leaf, jnp.result_type(leaf)), state)
        return self.replicate(strong)

    def _cursor(self, cohort: Cohort, schedule: Schedule | None) -> jax.Array | None:
        """Return the steps [M] of earlier rounds for an unshuffled schedule, else None."""
        schedule = schedule or self.federation.schedule
        if schedule.shuffle or self.train_purpose == NEW_CLIENTS:
            return None
        sizes = self.federation.data.train.size[cohort.rows]
        return cohort.earlier_starts * schedule.total_steps(sizes)

    def run_clients(
        self,
        step: Callable[[Tree, Any, jax.Array, Tree, Client], Tree],
        carry: Tree | Broadcast,
        *,
        rows: Rows | None = None,
        purpose: str | None = None,
        schedule: Schedule | None = None,
        **options: Any,
    ) -> ClientRuns:
        """Run `client_loop.run_clients` for the cohort (or `rows`) with this round's key.

        For the cohort, absent members are inactive unless `active` is given, and unshuffled
        schedules of training samples continue where the client's earlier rounds stopped. To count
        the computation, add it to the cohort: `cohort.mark_diverged(finite, steps)`, or twice the
        steps if each step computes two gradients.
        """
        if rows is None:
            rows = self.cohort.maybe_static_rows
            options.setdefault("active", self.cohort.mask)
            if options.get("split", "train") == "train":
                options.setdefault("cursor", self._cursor(self.cohort, schedule))
        schedule, purpose = schedule or self.federation.schedule, purpose or self.train_purpose
        runs = run_clients(
            self.federation,
            step,
            carry,
            rows=rows,
            key=self.key_for(purpose),
            schedule=schedule,
            **options,
        )
        if self.observer is not None:
            split, own = options.get("split", "train"), self.federation.data.train
            self.observer.record_loop(purpose, schedule, split is own or split == "train")
        return runs

    def when(
        self,
        condition: Scalar | Callable[["Context"], Scalar],
        action: Callable[[], Any],
        otherwise: Callable[[], Any],
    ) -> Any:
        """Return `action()` in rounds in which the condition holds, and `otherwise()` in others.

        It is `lax.cond(condition, action, otherwise)` in which local steps, forward passes and
        uploads are counted.

        Args:
          condition: bool []; or `condition(ctx)`, which reads nothing but `ctx.t` and
            `ctx.num_rounds`: a `dp_epsilon` is divided over the rounds in which it holds.
          action, otherwise: functions without arguments.
        """
        at_most = None
        if callable(condition):
            at_most, condition = partial(_rounds_of, condition), condition(self)
        if self.observer is None or not self.observer.counts_here:
            return jax.lax.cond(condition, action, otherwise)
        branches = (
            Counting(self.observer, action, self.num_clients, at_most=at_most),
            Counting(self.observer, otherwise, self.num_clients),
        )
        result, counts = jax.lax.cond(condition, *branches)
        add_counts(self.observer, counts, *branches)
        return result

    def in_turn(
        self, turn: Callable[[Any, Cohort, Tree], tuple[Any, Tree]], carry: Any, values: Tree
    ) -> tuple[Any, Stack]:
        """Run `turn(carry, cohort, values) -> (carry, result)` for one member after the other.

        Local steps and uploads are counted: each member uploads once for each `ctx.upload` in it.

        Args:
          turn: gets the cohort of one member and its row of the values, [1, ...]; the leaves of
            its result are [1, ...].
          carry: what passes from turn to turn, such as the server's model.
          values: [M, ...].

        Returns:
          (the last carry, the results [M, ...]). The order is random, by permanent ids.
        """
        order = self.cohort.order(self.key_for("order"))
        counts: dict[str, jax.Array] = {}
        actions, observer = [], self.observer
        if observer is not None and not observer.counts_here:
            observer = None

        def one(carry, k):
            member, (carry, counts) = self.cohort.member(k), carry
            own = trees.take(values, k[None])
            if observer is None:
                carry, result = turn(carry, member, own)
                return (carry, counts), result
            actions.append(Counting(observer, turn, self.num_clients, member))
            (carry, result), more = actions[-1](carry, member, own)
            return (carry, jax.tree.map(jnp.add, counts, more)), result

        if observer is not None:
            none = jnp.zeros((self.num_clients,), jnp.int32)
            counts = dict.fromkeys(COUNTS, none)
        (carry, counts), results = jax.lax.scan(one, (carry, counts), order)
        if observer is not None:
            add_counts(observer, counts, actions[-1])
        back = jnp.argsort(order)
        return carry, jax.tree.map(lambda leaf: leaf[back, 0], results)

    def loss_matrix(self, candidates: Stack, rows: Rows | None = None, **options: Any) -> Matrix:
        """Return the mean loss of candidates [Q, ...] on samples of the cohort (or `rows`).

        The shape is [M, Q], or [M, K] with `choice` [M, K].

        The losses of absent members are 0 unless `active` is given. Within a round the forward
        passes are counted and recorded as "forward_samples".

        Args:
          candidates, rows: see `scoring.loss_matrix`.
          **options: options of `scoring.loss_matrix`: `split`, `choice`, `active`, `onto`.
        """
        if rows is None:
            rows = self.cohort.maybe_static_rows
            options.setdefault("active", None if self.cohort.complete else self.cohort.mask)
        losses, samples = scoring.loss_matrix(self.federation, candidates, rows, **options)
        if self.observer is not None:
            self.observer.count_forward(rows, samples, self.num_clients)
        return losses

    def class_sums(
        self, models: Stack | Broadcast, cohort: Cohort | None = None, second: Moments = "none"
    ) -> tuple[ClassSums, Cohort]:
        """Return sums of the features of each member's training samples by class, and the cohort.

        One pass in evaluation mode, over samples that are not augmented. Within a round its forward
        passes are counted and recorded as "forward_samples"; those in `models`, for
        `ctx.cohort_of(rows)`, are not.

        Args:
          models: [M, ...], or one `Broadcast` model; they must define their features.
          cohort: the members; the round's cohort by default.
          second: second moments, "trace", "scatter" or "pooled", see `ClassSums`.

        Returns:
          (sums [M, ...], the cohort without members whose sums are not finite).
        """
        cohort = self.cohort if cohort is None else cohort
        key = self.key_for("class_sums")
        sums, after = class_sums(self.federation, models, cohort, key=key, second=second)
        self._count_pass(cohort)
        return sums, after

    def sample_features(
        self,
        models: Stack | Broadcast,
        cohort: Cohort | None = None,
        then: Callable[[SampleFeatures], Any] | None = None,
    ) -> tuple[Any, Cohort]:
        """Return the features and labels of each member's training samples, and the cohort.

        They are computed as in `class_sums`, which takes less memory: features are [M, n, d], with
        n the largest client's number of samples.

        Args:
          models: [M, ...], or one `Broadcast` model; they must define their features.
          cohort: the members; the round's cohort by default.
          then: `then(features)` of one client is what is returned instead of them.

        Returns:
          (features [M, ...], a `SampleFeatures`, or results of `then`, the cohort without members
          whose features are not finite).
        """
        cohort = self.cohort if cohort is None else cohort
        key = self.key_for("sample_features")
        known, after = sample_features(self.federation, models, cohort, key=key, then=then)
        self._count_pass(cohort)
        return known, after

    def _count_pass(self, cohort: Cohort) -> None:
        if self.observer is not None:
            sizes = self.federation.data.train.size[cohort.rows]
            self.observer.count_forward(cohort.rows, sizes * cohort.mask, self.num_clients)

    def count_forward(self, samples: PerMember) -> None:
        """Count forward passes of an algorithm's own loop, int32 [M] single samples per member.

        Those of `loss_matrix` and of local steps are counted automatically.
        """
        if self.observer is not None:
            self.observer.count_forward(self.cohort.rows, samples, self.num_clients)

    def full_gradient(self, models: Stack, cohort: Cohort) -> tuple[Stack, Cohort]:
        """Return `local_sgd.full_gradient` of the cohort at `models` [M, ...]."""
        key = self.key_for("full_gradient")
        gradient, after = local_sgd.full_gradient(self.federation, models, cohort, key)
        self._count_steps(cohort, after)
        return gradient, after

    def numbers_of(self, values: int | PerMember, bits: int) -> int | PerMember:
        """Return `numbers_up` of values that are sent with `bits` bits each, rounded up.

        Args:
          values: count of values, a number or int [M], such as the entries of sparse uploads.
          bits: bits per value; for a sparse upload including its index.

        Raises:
          InputError: `bits` is not a whole number of at least 1.
        """
        return packed(values, bits, 8 * self.dtype.itemsize)

    def record(
        self,
        cohort: Cohort,
        *,
        up: int | jax.Array = 1,
        down: int | jax.Array = 1,
        numbers_up: int | jax.Array | None = None,
        numbers_down: int | jax.Array | None = None,
        clients: dict[str, jax.Array] | None = None,
        scalars: dict[str, jax.Array] | None = None,
        everyone_mixes: bool = False,
        **matrices: jax.Array,
    ) -> Record:
        """Return the round's record.

        Args:
          cohort: the cohort after training, which holds diverged clients and counted steps.
          up, down: copies of the model sent and received by each member: a number, or int [M] or
            [M, num_blocks] if members or blocks differ.
          numbers_up, numbers_down: what is sent and received beside the model's blocks, such as
            class means, in numbers of the parameters' type: a number, or int [M]. `numbers_of`
            counts a quantized or sparse upload, which is recorded with `up=0`.
          clients: arrays [M], one number for each member.
          scalars: arrays [].
          everyone_mixes: the server makes new models for all N clients: the matrices are
            [.., N, M], or [.., N, N] if absent clients' models are mixed too. Absent clients
            download their model when they next take part, so no download is counted now.
          **matrices: by name: [.., M, M] for the cohort, [.., M, N] if all clients' models are
            mixed (recorded as [.., N, N], with rows of the identity for clients that keep their
            model), or weights [M] of a single server model (recorded as [1, N]). Each member's
            weight on its own model is recorded as "self_weight", from "mixing" or the only matrix.
        """
        matrices, attacked = self.matrices_used(cohort, matrices)
        record = recorded(
            cohort,
            self.federation.plan.shared_block_sizes(),
            up=up,
            down=down,
            numbers_up=numbers_up,
            numbers_down=numbers_down,
            clients=clients or {},
            scalars=attacked | (scalars or {}),
            everyone_mixes=everyone_mixes,
            matrices=matrices,
        )
        drift = self.federation.data.drift
        if drift is None:
            return record
        concept = drift.concepts[jnp.arange(self.num_clients), drift.phase(self.t)]
        return replace(record, clients=record.clients | {"concept": concept})


def _rounds_of(condition: Callable[[Context], Scalar], rounds: int) -> int:
    """Return in how many of `rounds` rounds a condition of `Context.when` holds.

    Raises:
      InputError: it depends on more than the round and the number of rounds.
    """
    nothing: Any = None

    def holds(t):
        return condition(Context(nothing, nothing, t, jnp.int32(rounds), nothing))

    try:
        return int(jnp.sum(jax.vmap(holds)(jnp.arange(rounds, dtype=jnp.int32))))
    except (AttributeError, TypeError, jax.errors.UnexpectedTracerError) as error:
        raise InputError(
            "A condition of ctx.when that is a function must read nothing but ctx.t and "
            f"ctx.num_rounds, and this one raised {type(error).__name__}: give its value instead."
        ) from error
