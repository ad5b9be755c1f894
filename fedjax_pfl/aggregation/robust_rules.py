"""Robust rules by name, which `--aggregator` takes; their formulas are in `robust`."""

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import jax
import jax.numpy as jnp

from fedjax_pfl.aggregation import mixing, products, robust, similarity
from fedjax_pfl.aggregation.aggregators import Aggregator
from fedjax_pfl.utils import trees
from fedjax_pfl.utils.errors import InputError
from fedjax_pfl.utils.structs import static, struct
from fedjax_pfl.utils.typing import Key, Mask, Matrix, Rows, Scalar, Stack


@struct
class Krum(Aggregator):
    """The update with the smallest distances to its nearest others, or the mean of several such.

    Attributes:
      selected: how many; 0 is n - f (multi-Krum).
      excluded: an update's score is the sum of its squared distances to the n - f - `excluded`
        nearest others: 2 is the paper's Krum, 1 byzfl's.
    """

    name = "krum"
    f: int = 1
    selected: int = 1
    excluded: int = static(default=2)

    def needed(self):
        return 2 * self.f + 3

    def coefficients(self, gram, weights, mask, key):
        several = jnp.sum(mask) - self.f
        selected = jnp.where(jnp.asarray(self.selected) == 0, several, self.selected)
        return robust.krum(gram, mask, self.f, selected, self.excluded)


@struct
class GeometricMedian(Aggregator):
    """The smoothed geometric median (RFA)."""

    name = "rfa"
    f: int = 0
    steps: int = static(default=8)
    smoothing: float = 0.1

    def coefficients(self, gram, weights, mask, key):
        return robust.geometric_median(gram, weights, self.steps, self.smoothing)


@struct
class CentredClipping(Aggregator):
    """Centred clipping, which begins at the server's model, or at its last update.

    Attributes:
      radius: largest distance from the centre at which an update counts in full.
      steps: iterations.
      keep_centre: begin at the mean of the last round instead of at no change; for algorithms with
        one mean a round.
    """

    name = "cclip"
    f: int = 0
    radius: float = 10.0
    steps: int = static(default=3)
    keep_centre: bool = static(default=False)

    @property
    def has_centre(self) -> bool:  # pyright: ignore[reportIncompatibleVariableOverride]
        return self.keep_centre

    def coefficients(self, gram, weights, mask, key):
        return robust.centred_clipping(gram, weights, self.radius, self.steps)

    def combined(self, updates, weights, mask, key, senders):
        if not self.keep_centre:
            return super().combined(updates, weights, mask, key, senders)
        if senders.centre is None:
            raise InputError("keep_centre is for algorithms with one mean of all clients a round.")
        # The centre is one more update, of no weight.
        both = [jnp.append(x, c[None], 0) for x, c in zip(updates, senders.centre, strict=True)]
        gram, last = similarity.gram(both, both), jnp.arange(len(weights) + 1) == len(weights)
        weights, first = jnp.append(weights, 0), last.astype(weights.dtype)
        b = robust.centred_clipping(gram, weights, self.radius, self.steps, first)
        return mixing.combine(b, both), b[:-1]


@struct
class NormBound(Aggregator):
    """The mean of updates that are scaled down to a norm of at most `radius`."""

    name = "norm_bound"
    f: int = 0
    radius: float = 1.0

    def coefficients(self, gram, weights, mask, key):
        return robust.norm_bound(gram, weights, self.radius)


@struct
class FoolsGold(Aggregator):
    """The mean of the updates of clients whose updates over all rounds are unlike others'."""

    name = "foolsgold"
    f: int = 0

    remembers = True

    def combined(self, updates, weights, mask, key, senders):
        if senders.history is None:
            raise InputError("foolsgold is for algorithms with one mean of all clients a round.")
        b = robust.foolsgold(similarity.gram(senders.history, senders.history), mask)
        return mixing.combine(b, updates), b


@struct
class TrustedRoot(Aggregator):
    """FLTrust: updates weighted by their cosine to that of a trusted client.

    A round without this client keeps the server's model.

    Attributes:
      root: permanent id of the trusted client.
    """

    name = "fltrust"
    f: int = 0
    root: int = 0

    def combined(self, updates, weights, mask, key, senders):
        if senders.ids is None:
            raise InputError("fltrust is for algorithms with one mean of the round's members.")
        gram = similarity.gram(updates, updates)
        trusted = mask & (senders.ids == self.root)
        norms = jnp.sqrt(jnp.maximum(jnp.diagonal(gram), 0))
        with_root = jnp.sum(jnp.where(trusted[:, None], gram, 0), axis=0)
        root_norm = jnp.sum(jnp.where(trusted, norms, 0))
        b = robust.fltrust(with_root, norms, root_norm, mask & ~trusted)
        return mixing.combine(b, updates), b


@struct
class Median(Aggregator):
    """The median of every coordinate."""

    name = "median"
    f: int = 0

    by_coordinate = True

    def combined(self, updates, weights, mask, key, senders):
        return robust.coordinate_median(updates, mask), None


@struct
class TrimmedMean(Aggregator):
    """The mean of every coordinate without its f largest and f smallest values."""

    name = "trimmed_mean"
    f: int = 1

    by_coordinate = True

    def combined(self, updates, weights, mask, key, senders):
        return robust.trimmed_mean(updates, mask, self.f), None


@struct
class Bulyan(Aggregator):
    """Krum's selection, then the values nearest to the median of every coordinate."""

    name = "bulyan"
    f: int = 1
    excluded: int = static(default=2)

    by_coordinate = True

    def needed(self):
        return 4 * self.f + 3

    def combined(self, updates, weights, mask, key, senders):
        gram = similarity.gram(updates, updates)
        return robust.bulyan(gram, updates, mask, self.f, self.excluded), None


_RULE_OPTIONS = ("excluded", "radius", "smoothing")  # options of rules over means


@struct
class _Grouped(Aggregator):
    """A rule over means of updates in place of the updates themselves.

    Attributes:
      then: the rule, see `AFTER_MEANS`.
      excluded, radius, smoothing: its options, if it has them.
    """

    f: int = 1
    then: str = static(default="krum")
    excluded: int = static(default=2)
    radius: Scalar | float = 10.0
    smoothing: Scalar | float = 0.1

    @property
    def rule(self) -> Aggregator:
        rule: Any = AFTER_MEANS[self.then](f=self.f)
        options = (one for one in _RULE_OPTIONS if hasattr(rule, one))
        return replace(rule, **{one: getattr(self, one) for one in options})

    @property
    def unused(self) -> tuple[str, ...]:  # pyright: ignore[reportIncompatibleVariableOverride]
        return tuple(one for one in _RULE_OPTIONS if not hasattr(self.rule, one))

    def validate(self, members):
        super().validate(members)
        default: Any = type(self)()
        for one in self.unused:
            if getattr(self, one) != getattr(default, one):
                raise InputError(f"The rule {self.then!r} has no option {one}: leave it out.")

    def means(self, gram: Matrix, mask: Mask, key: Key) -> tuple[Matrix, Mask]:
        """Return (the weights [M, M] of the means, which rows are means)."""
        raise NotImplementedError

    def combined(self, updates, weights, mask, key, senders):
        gram = similarity.gram(updates, updates)
        rows, present = self.means(gram, mask, key)
        even = mixing.normalize(present.astype(gram.dtype))
        if self.rule.by_coordinate:
            stack = jax.tree.map(lambda x: products.rows(rows.astype(x.dtype), x), updates)
            return self.rule.combined(stack, even, present, key, senders)
        mixed = products.matmul(products.matmul(rows, gram), rows.T)
        b = products.rows(self.rule.coefficients(mixed, even, present, key), rows)
        return mixing.combine(b, updates), b


@struct
class NearestNeighbours(_Grouped):
    """A rule over updates that are each replaced by the mean of their n - f nearest (NNM)."""

    name = "nnm"

    def needed(self):
        return self.rule.needed()

    def means(self, gram, mask, key):
        return robust.nearest_neighbour_mixing(gram, mask, self.f), mask


@struct
class Bucketing(_Grouped):
    """A rule over the means of random groups.

    Attributes:
      size: of the groups.
    """

    name = "bucketing"
    size: int = static(default=2)

    def needed(self):
        return self.size * (self.rule.needed() - 1) + 1  # as many groups as the rule needs

    def means(self, gram, mask, key):
        groups = robust.bucketing(key, mask, self.size, gram.dtype)
        return groups, jnp.any(groups > 0, axis=1)


@struct
class SelfClip(Aggregator):
    """Clips each receiver's view of the others at its own model: a rule for mixing matrices.

    Attributes:
      radius: the largest distance from which another model pulls in full.
      share: if above 0, each receiver has a radius of its own instead: the smallest one that clips
        senders of at most this share of its weights.
    """

    name = "self_clip"
    radius: Scalar | float = 1.0
    share: Scalar | float = 0.0

    for_matrices = True

    def validate(self, members):
        super().validate(members)
        if self.share != 0 and self.radius != type(self)().radius:
            raise InputError(
                "self_clip takes share or radius, not both: share replaces the radius."
            )

    def mixing(self, weights: Matrix, senders: Stack, own: Rows) -> Matrix:
        """Return the clipped matrix of weights [.., A, B] with receivers `own` [A]."""
        squares = similarity.squared_distances(trees.take(senders, own), senders, own)
        share = jnp.asarray(self.share)

        def clipped(weights: Matrix) -> Matrix:
            by_share = robust.clip_radius(weights, squares, share)
            radius = jnp.where(share > 0, by_share, jnp.asarray(self.radius))
            return robust.self_clip(weights, squares, radius, own)

        return jax.vmap(clipped)(weights) if weights.ndim == 3 else clipped(weights)


def _multi_krum(**options: Any) -> Krum:
    return Krum(**{"selected": 0} | options)


# Rules over the means of `nnm` and `bucketing`.
AFTER_MEANS: dict[str, Callable[..., Aggregator]] = {
    "krum": Krum,
    "multi_krum": _multi_krum,
    "rfa": GeometricMedian,
    "cclip": CentredClipping,
    "median": Median,
    "trimmed_mean": TrimmedMean,
}

AGGREGATORS: dict[str, Callable[..., Any]] = {
    **AFTER_MEANS,
    "norm_bound": NormBound,
    "nnm": NearestNeighbours,
    "bucketing": Bucketing,
    "foolsgold": FoolsGold,
    "fltrust": TrustedRoot,
    "bulyan": Bulyan,
    "self_clip": SelfClip,
}
