"""The facts of one round that algorithms read: its number, keys, cohort and clients."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import jax
import jax.numpy as jnp

from fedjax_pfl.aggregation.leaf_plan import LeafPlan
from fedjax_pfl.core.forward_counter import ForwardCounter
from fedjax_pfl.core.persistent_optimizers import Optimizers
from fedjax_pfl.data.federated import Split
from fedjax_pfl.federation.federation import Federation
from fedjax_pfl.federation.participation import Cohort
from fedjax_pfl.utils import keys, trees
from fedjax_pfl.utils.errors import InputError
from fedjax_pfl.utils.typing import Key, Model, PerClient, PerMember, Rows, Scalar, Stack, Tree


@dataclass(frozen=True)
class RoundInfo:
    """What is known of one round: its number, keys, cohort and clients.

    Attributes:
      federation: the clients, their data and how they train.
      key: the run's key; every use derives its own from (purpose, t, permanent client id).
      t: int32, the round, counted from 0. Traced, and the same for all seeds and settings, so
        `lax.cond` on it stays a branch.
      total: int32, rounds of the whole run; traced. Algorithms read it as `num_rounds`.
      cohort: the clients that take part.
      tally: counts a round's computation and its local steps; None where nothing is recorded.
      optimizers: gives local training the optimizers' states that clients keep; None where their
        optimizers are new in each round.
      reader: reads rows of clients whose state is not on the device (`trees.Fetched`); None where
        all is there, or a round must do without.
      knows_num_rounds: whether the algorithm declares `depends_on_num_rounds`.
      replicated: a list to which `replicate` adds every (stack leaf, its one row), or None.
    """

    federation: Federation
    key: Key
    t: Scalar
    total: Scalar
    cohort: Cohort
    tally: ForwardCounter | None = None
    optimizers: Optimizers | None = None
    reader: Callable[..., Any] | None = None
    knows_num_rounds: bool = True
    replicated: list[tuple[Any, Any]] | None = None

    @property
    def num_clients(self) -> int:
        return self.federation.num_clients

    @property
    def num_rounds(self) -> Scalar:
        """int32, the number of rounds of the whole run; traced.

        Raises:
          InputError: the algorithm does not declare that its rounds depend on it.
        """
        if not self.knows_num_rounds:
            raise InputError(
                "ctx.num_rounds is only for algorithms that declare depends_on_num_rounds = True: "
                "a run of theirs that gets more rounds begins again."
            )
        return self.total

    @property
    def plan(self) -> LeafPlan:
        """Blocks of the model, and which of its leaves are shared."""
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
        return self.federation.training.rate(self.t, self.total)

    def key_for(self, purpose: str) -> Key:
        """The key of this round for one purpose; the same for all algorithms of a comparison."""
        return keys.of_round(self.key, purpose, self.t)

    def initial_model(self, purpose: str = "init") -> Model:
        """The common initial model (another purpose gives another one)."""
        return self.federation.initial_model(keys.derive(self.key, purpose))

    def replicate(self, model: Tree) -> Stack:
        """The same model for all clients, [N, ...].

        Host state keeps one row of what `init` makes so, until a client's own row is written.
        """
        stack = trees.replicate(model, self.num_clients)
        if self.replicated is not None:
            rows = zip(jax.tree.leaves(stack), jax.tree.leaves(model), strict=True)
            self.replicated.extend(rows)
        return stack

    def sizes(self, split: str | Split = "train") -> PerMember:
        """int32 [M]: samples of the cohort's clients."""
        return self.federation.data.split(split).size[self.cohort.rows]

    def everyone(self, rows: Rows | None = None) -> Cohort:
        """A cohort of the clients `rows` (all by default) in which nobody is absent or late."""
        in_place = rows is None
        rows = jnp.arange(self.num_clients, dtype=jnp.int32) if rows is None else jnp.asarray(rows)
        yes, zero = jnp.ones(rows.shape, bool), jnp.zeros(rows.shape, jnp.int32)
        return Cohort(
            rows=rows,
            ids=self.federation.data.ids[rows],
            starts=yes,
            arrives=yes,
            staleness=zero,
            phase=zero,
            delay=zero,
            mask=yes,
            diverged=~yes,
            earlier_starts=zero + self.t,
            steps=zero,
            num_clients=self.num_clients,
            in_place=in_place,
            complete=True,
            observer=self.tally,
        )
