"""The interface of robust rules, which replace the server's weighted mean of updates.

A rule takes the place of `mixing.weighted_sum` in algorithms whose server needs one mean. It gives
coefficients b of the updates x_k, from their Gram matrix, and the server moves by sum_k b_k x_k; or
it combines the updates coordinate by coordinate. The rules are in `robust_rules`.
"""

from typing import NamedTuple

import jax
import jax.numpy as jnp

from fedjax_pfl.aggregation import mixing, similarity
from fedjax_pfl.utils import trees
from fedjax_pfl.utils.errors import InputError, require
from fedjax_pfl.utils.typing import Key, Mask, Matrix, PerMember, Rows, Stack, Tree


class Senders(NamedTuple):
    """What a rule may know of the members beside their updates.

    Attributes:
      ids: int32 [M], permanent ids, or None.
      history: sums of their updates over all rounds, this one included, [M, ...], for rules that
        need them; else None.
      centre: the server's last update, for rules that begin there; else None.
    """

    ids: PerMember | None = None
    history: Stack | None = None
    centre: Tree | None = None


class Aggregator:
    """A rule for one mean.

    Attributes:
      f: the number of attackers that it tolerates.
      for_matrices: whether it is a rule for mixing matrices instead.
      remembers: whether it needs the sums of each client's updates over the rounds.
      has_centre: whether it begins at the server's last update.
      by_coordinate: whether it combines coordinates instead of giving coefficients.
      unused: names of its fields that have no effect.
    """

    f: int = 0
    name = ""  # in AGGREGATORS
    for_matrices = False
    remembers = False
    has_centre = False
    by_coordinate = False
    unused: tuple[str, ...] = ()

    def needed(self) -> int:
        """Return the least number of uploads in a round: 2f + 1."""
        return 2 * self.f + 1

    def validate(self, members: int) -> None:
        """Raise `InputError` if rounds of so many members can't tolerate f attackers."""
        fits = self.f >= 0 and members >= self.needed()
        allowed = (
            f"small enough for the {members} members of a round ({self.name} needs {self.needed()})"
        )
        require(fits, "f of the aggregator", self.f, allowed)

    def coefficients(self, gram: Matrix, weights: PerMember, mask: Mask, key: Key) -> PerMember:
        """Return b [M] for sum_k b_k x_k; `weights` [M] are those that the mean would have."""
        raise NotImplementedError

    def mixing(self, weights: Matrix, senders: Stack, own: Rows) -> Matrix:
        """Return a mixing matrix in place of `weights` [.., A, B], for rules `for_matrices`."""
        raise NotImplementedError

    def combined(self, updates: Stack, weights: PerMember, mask: Mask, key: Key, senders: Senders):
        """Return (the server's update [...], the coefficients [M] of the updates or None)."""
        gram = similarity.gram(updates, updates)
        b = self.coefficients(gram, weights, mask, key)
        return mixing.combine(b, updates), b

    def __call__(
        self,
        weights: PerMember,
        uploads: Stack,
        onto: Tree,
        key: Key,
        senders: Senders = Senders(),  # noqa: B008 - immutable
    ):
        """Return (the new model, the coefficients of the updates or None).

        Uploads whose squared norm is not finite are left out. With fewer than `needed` others the
        model is `onto`.
        """
        leaves, tree = jax.tree.flatten(uploads)
        held = tree.flatten_up_to(onto)
        floats = [i for i, x in enumerate(leaves) if jnp.issubdtype(x.dtype, jnp.inexact)]
        updates = [leaves[i] - held[i] for i in floats]
        mask = (weights > 0) & jnp.isfinite(similarity.squared_norms(updates))
        weights, enough = jnp.where(mask, weights, 0), jnp.sum(mask) >= self.needed()
        updates = trees.keep_rows(mask, updates)
        if senders.centre is not None:
            centre = tree.flatten_up_to(senders.centre)
            senders = senders._replace(centre=[centre[i] for i in floats])
        step, b = self.combined(updates, weights, mask, key, senders)
        new = list(held)
        for i, move in zip(floats, step, strict=True):
            new[i] = held[i] + jnp.where(enough, move, 0).astype(held[i].dtype)
        return tree.unflatten(new), None if b is None else jnp.where(enough, b, 0)


def check_aggregator(name: str, rule: Aggregator, replaces: str) -> None:
    """Check that a rule fits the algorithm `name`, whose `aggregator_replaces` is `replaces`.

    Raises:
      InputError: the algorithm has nothing that the rule could replace.
    """
    if replaces == "nothing":
        raise InputError(f"{name} has no mean or mixing matrix that an aggregator could replace.")
    if rule.for_matrices and replaces == "mean":
        raise InputError(
            f"The aggregator self_clip is a rule for mixing matrices, and {name} has a mean: take "
            "one for means, such as krum, median, trimmed_mean, rfa or cclip."
        )
    if not rule.for_matrices and replaces == "matrix":
        raise InputError(
            f"The aggregator {rule.name} is a rule for one mean, and {name} mixes models "
            "by a matrix: take self_clip."
        )
