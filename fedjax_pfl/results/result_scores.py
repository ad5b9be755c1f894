"""Scores of a result: methods of `Result` that select and average them."""

import numpy as np

from fedjax_pfl.results import accuracy_conventions
from fedjax_pfl.results.means import mean_over_clients
from fedjax_pfl.results.model_names import ADAPTED, PERSONALIZED, TRAINED
from fedjax_pfl.results.result_fields import ResultFields
from fedjax_pfl.utils.boundary import checked
from fedjax_pfl.utils.errors import InputError, require_name
from fedjax_pfl.utils.metric_names import ACCURACY, Measure


class ResultScores(ResultFields):
    """The methods of `Result` on scores, with means over clients, rounds and samples."""

    def measure(self, name: str | None = None) -> Measure:
        """Return the measure of a name; by default the task's main metric.

        Raises:
          InputError: it was not measured.
        """
        if name is None:
            return self.measures[0]
        known = {one.name: one for one in self.measures}
        require_name("metric of this result", name, known)
        return known[name]

    @checked
    def values(
        self, model: str = PERSONALIZED, split: str = "test", metric: str | None = None
    ) -> np.ndarray:
        """Return a measure of a named model, [S, H, E, N]; by default the task's main metric.

        Raises:
          InputError: no such model, split or metric was scored.
        """
        end = f"/{self.measure(metric).name}"
        name = f"{model}/{split}{end}"
        if name not in self.scores:
            known = sorted(key for key in self.scores if key.endswith(end))
            if not known:
                raise InputError(
                    f"No scores {name!r} in this result, nor others: no client that is scored has "
                    "a test or validation sample."
                )
            aside = (
                " partition.split_validation(0.2, seed=0), or --validation_fraction=0.2, sets "
                "validation samples aside."
            )
            hint = (
                "" if split != "validation" or any(f"/{split}/" in key for key in known) else aside
            )
            raise InputError(f"No scores {name!r} in this result; it has {', '.join(known)}.{hint}")
        return self.scores[name]

    def require_same_samples(self, other: "ResultScores") -> None:
        """Raise `InputError` unless another result is of the same clients, samples and rounds."""
        for name in ("client_ids", "train_sizes", "test_sizes"):
            if not np.array_equal(getattr(self, name), getattr(other, name)):
                raise InputError(
                    f"Results can only be compared on the same clients with the same samples; the "
                    f"{name} of {self.algorithm} and {other.algorithm} differ."
                )
        hashes = self.partition_hash, other.partition_hash
        if all(hashes) and hashes[0] != hashes[1]:
            raise InputError(
                "Results can only be compared on the same clients with the same samples; "
                f"{self.algorithm} and {other.algorithm} had other partitions or data sets."
            )
        rounds = [one.rounds_asked or one.rounds for one in (self, other)]
        if rounds[0] != rounds[1]:
            raise InputError(
                f"Results can only be compared after the same rounds; {self.algorithm} had "
                f"{rounds[0]}, {other.algorithm} {rounds[1]}."
            )

    def accuracy(self, model: str = PERSONALIZED, split: str = "test") -> np.ndarray:
        """Return a classifier's accuracy for a named model, [S, H, E, N].

        Raises:
          InputError: no such model or split was scored, or the task has no accuracy.
        """
        return self.values(model, split, "accuracy")

    @property
    def is_scored(self) -> bool:
        """Whether the personalized model was scored on test samples in some round."""
        return bool(len(self.eval_rounds)) and self.has(PERSONALIZED)

    def require_scores(self) -> None:
        """Raise `InputError` if the run ended before the first scored round."""
        if not len(self.eval_rounds):
            raise InputError(
                f"No round of this result was scored: it ends after round {self.rounds}, before "
                "the first one that eval_every asks for."
            )

    def curve(
        self, model: str = PERSONALIZED, split: str = "test", metric: str | None = None
    ) -> np.ndarray:
        """Return the plain mean of a measure over clients, [S, H, E]; NaN without scores."""
        return mean_over_clients(self.values(model, split, metric))

    def copies(self) -> dict[str, np.ndarray]:
        """Return the means of "trained" or "adapted" copies after the last round, [S, H]."""
        there = (one for one in (TRAINED, ADAPTED) if self.has(one))
        return {name: self.curve(name)[..., -1] for name in there}

    def has(self, model: str, split: str = "test") -> bool:
        """Return whether a model was scored on a split."""
        return f"{model}/{split}/{self.measure().name}" in self.scores

    def pooled(self, model: str = PERSONALIZED) -> np.ndarray:
        """Return the main metric over all test samples of scored clients, [S, H, E].

        For classifiers all correct predictions over all samples; NaN where the main metric is no
        mean over samples, such as a perplexity.
        """
        accuracy = self.values(model).astype(np.float64)
        if not self.measure().pools:
            return np.full(accuracy.shape[:-1], np.nan)
        return mean_over_clients(accuracy, self.test_sizes, counts=self.measure() == ACCURACY)

    def headline(
        self, name: str = accuracy_conventions.DEFAULT, model: str = PERSONALIZED
    ) -> np.ndarray:
        """Return one number for each run, [S, H]; accuracies are fractions.

        Args:
          name: "final", "best" or "last_tenth" of the rounds' plain means over clients; "pfllib"
            and "flbench", the best round's accuracy over all test samples pooled, as these
            libraries report it; "flower", the last round's.
          model: a name that was scored.

        Raises:
          InputError: an unknown headline, one over pooled samples where the main metric is no
            mean over samples, a model without scores, or no round was scored.
        """
        self.require_scores()
        accuracy_conventions.check_pools(name, self.measure())
        how, curve = accuracy_conventions.headline_of(name), self.curve(model).astype(np.float64)
        if how.average == "samples":
            curve = np.where(~np.isnan(curve), self.pooled(model), np.nan)
        return accuracy_conventions.one_number(curve, how.score, self.measure())

    def at_best_validation(
        self, per_client: bool = False, model: str = PERSONALIZED, metric: str | None = None
    ) -> np.ndarray:
        """Return test scores in the round with the best validation score, [S, H, N].

        The first of equal rounds counts, and none in which fewer clients than in others have
        validation scores.

        Args:
          per_client: each client's own best round; those without validation samples keep the run's.
            By default each run has one round for all clients, that of the best mean over them.
          model, metric: as of `values`.

        Raises:
          InputError: no scores on validation samples, or no round was scored.
        """
        self.require_scores()
        test = self.values(model, metric=metric)
        own = self.values(model, "validation")
        count = (~np.isnan(own)).sum(axis=-1)
        full = count == count.max(axis=-1, keepdims=True)
        curve = np.where(full, self.curve(model, "validation"), np.nan)
        judged = np.broadcast_to(curve[..., None], own.shape)
        if per_client:
            judged = np.where(np.isnan(own).all(axis=2, keepdims=True), judged, own)
        judged = np.where(np.isnan(judged), -np.inf, self.measure().toward(judged))
        chosen = judged.argmax(axis=2, keepdims=True)
        values = np.take_along_axis(test, chosen, axis=2)
        known = np.take_along_axis(judged, chosen, axis=2) > -np.inf
        return np.where(known, values, np.nan)[:, :, 0]

    def participant_mean(
        self,
        model: str = PERSONALIZED,
        split: str = "test",
        next_round: bool = False,
        pooled: bool = False,
    ) -> np.ndarray:
        """Return the main metric, averaged over the clients of the round just scored, [S, H, E].

        Args:
          model, split: as of `values`.
          next_round: over the clients of the next round instead, before they train in it, as code
            that scores the selected clients when a round begins. NaN after the last round.
          pooled: weighted by test samples, not the plain mean.

        NaN where none of them was scored.
        """
        accuracy = self.values(model, split).astype(np.float64)
        took_part = self.clients["participated"].astype(bool)
        if next_round:
            took_part = np.roll(took_part, -1, axis=2)
            took_part[:, :, -1] = False
        there = took_part[:, :, self.eval_rounds - 1]
        return mean_over_clients(accuracy, there * (self.test_sizes if pooled else 1))

    def worst_decile(self, model: str = PERSONALIZED) -> np.ndarray:
        """Return the mean over the worst tenth of clients after the last round, [S, H].

        Raises:
          InputError: no round was scored, or not that model.
        """
        self.require_scores()
        return self.measure().worst_tenth(self.values(model)[:, :, -1])
