"""Fields of `Context`: the federation, the round number, random keys and the cohort."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import jax
import jax.numpy as jnp

from fedjax_pfl.aggregation.leaf_plan import LeafPlan
from fedjax_pfl.core.persistent_optimizers import Optimizers
from fedjax_pfl.core.round_observer import RoundObserver
from fedjax_pfl.core.upload_memory import UploadMemory
from fedjax_pfl.data.federated import Split
from fedjax_pfl.federation.federation import Federation
from fedjax_pfl.federation.participation import Cohort
from fedjax_pfl.utils import keys, trees
from fedjax_pfl.utils.typing import Key, Model, PerClient, PerMember, Rows, Scalar, Stack, Tree


@dataclass(frozen=True)
class ContextBase:
    """The fields of `Context`, and what follows from them alone.

    Attributes:
      federation: the clients, their data and how they train.
      key: the run's key; keys of single uses are derived from (purpose, t, permanent client id).
      t: int32, the round, counted from 0. Traced, and the same for all seeds and settings, so
        `lax.cond` on it stays a branch.
      _total_rounds: int32, the number of rounds; traced. Algorithms read it as `num_rounds`, which
        notes that they do.
      cohort: the clients that take part.
      observer: counts a round's forward passes and local steps, or None.
      optimizers: provides the optimizer states that clients keep, or None if optimizers are
        reinitialized in each round.
      memory: provides what uploads remember between rounds, such as error feedback, or None.
      outside: name of the function that is traced if it is not `round`; uploads and noisy
        gradients are refused in it. "" within a round.
      reader: reads rows of clients whose state is not on the device (`trees.PartialLeaf`), or None.
      rounds_in_noise: whether the number of rounds is part of the keys of noise. It is for
        algorithms that read it: a longer run of these starts over, with new noise.
      asked: a set to which reading `num_rounds` adds that name, or None.
      train_purpose: purpose of the random keys of local training, where a call names no other. New
        clients have a purpose of their own, and begin unshuffled schedules at their first sample.
      replicated: a list to which `replicate` appends pairs (stack leaf, its single row), or None.
    """

    federation: Federation
    key: Key
    t: Scalar
    _total_rounds: Scalar
    cohort: Cohort
    observer: RoundObserver | None = None
    optimizers: Optimizers | None = None
    memory: UploadMemory | None = None
    outside: str = ""
    reader: Callable[..., Any] | None = None
    rounds_in_noise: bool = False
    asked: set[str] | None = None
    replicated: list[tuple[Any, Any]] | None = None
    train_purpose: str = "train"

    @property
    def num_clients(self) -> int:
        return self.federation.num_clients

    @property
    def num_rounds(self) -> Scalar:
        """int32, the number of rounds of the run; traced.

        An algorithm that reads it starts over if a run is given more rounds.
        """
        if self.asked is not None:
            self.asked.add("num_rounds")
        return self._total_rounds

    @property
    def plan(self) -> LeafPlan:
        """The blocks of the model, and which leaves are shared."""
        return self.federation.plan

    @property
    def ids(self) -> PerClient:
        """int32 [N]: permanent ids of all clients."""
        return self.federation.data.ids

    @property
    def dtype(self) -> jnp.dtype:
        """Floating type of parameters, rates and mixing matrices."""
        return self.learning_rate.dtype

    @property
    def learning_rate(self) -> Scalar:
        """The local learning rate of this round."""
        return self.federation.training.rate(self.t, self._total_rounds)

    def key_for(self, purpose: str) -> Key:
        """Return this round's key for a purpose; it is the same for all algorithms."""
        return keys.of_round(self.key, purpose, self.t)

    def initial_model(self, purpose: str = "init") -> Model:
        """Return the common initial model; each purpose has its own."""
        return self.federation.initial_model(keys.derive(self.key, purpose))

    def replicate(self, model: Tree) -> Stack:
        """Replicate a model for all clients, [N, ...].

        Offloaded state stores a single row of a replicated stack until a client's row is written.
        """
        stack = trees.replicate(model, self.num_clients)
        if self.replicated is not None:
            rows = zip(jax.tree.leaves(stack), jax.tree.leaves(model), strict=True)
            self.replicated.extend(rows)
        return stack

    def sizes(self, split: str | Split = "train") -> PerMember:
        """Return the numbers of samples of the cohort's clients, int32 [M]."""
        return self.federation.data.split(split).size[self.cohort.rows]

    def reachable(self) -> jax.Array:
        """Return which clients are there and never late, bool [N], for whom a server can wait."""
        part = self.federation.participation
        never_late, here = jnp.asarray(part.delay) == 0, part.present(self.t)
        return never_late if here is None else never_late & here

    def cohort_of(self, rows: Rows | None = None) -> Cohort:
        """Return a cohort of the clients `rows`, none of them absent or late.

        By default these are all clients, of which those that have not arrived or have left are
        absent.
        """
        here = self.federation.participation.present(self.t) if rows is None else None
        in_place = rows is None
        rows = jnp.arange(self.num_clients, dtype=jnp.int32) if rows is None else jnp.asarray(rows)
        zero, no = jnp.zeros(rows.shape, jnp.int32), jnp.zeros(rows.shape, bool)
        yes = ~no if here is None else here
        return Cohort(
            rows=rows,
            ids=self.federation.data.ids[rows],
            starts=yes,
            arrives=yes,
            staleness=zero,
            phase=zero,
            delay=zero,
            mask=yes,
            diverged=no,
            earlier_starts=zero + self.t,
            steps=zero,
            num_clients=self.num_clients,
            in_place=in_place,
            complete=here is None,
            keeps_failed=self.federation.keeps_failed,
            observer=self.observer,
        )
