"""A simulation's result: arrays with the axes (seed, setting, round, client), and summaries."""

from dataclasses import MISSING, dataclass, field, fields
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from fedjax_pfl.data.files import as_path
from fedjax_pfl.errors import InputError, require_name
from fedjax_pfl.measures import ACCURACY, Measure
from fedjax_pfl.results import headlines, result_files, tables
from fedjax_pfl.results.names import HEADLINE
from fedjax_pfl.results.remarks import (
    named,
    never_took_part,
    row_remarks,
    scored_clients,
    without_steps,
)

if TYPE_CHECKING:
    from matplotlib.figure import Figure  # slow import: only where it is drawn


IMPATIENT, ASKED = "patience", "asked"  # why rounds may have ended early


@dataclass(frozen=True)
class Result:
    """Everything measured in a simulation.

    Arrays lead with the axes S (seed) and H (setting), then T (round) and N (client).

    Attributes:
      algorithm: canonical name; hyperparameters: by name.
      training: how clients trained, `LocalTraining.numbers` (a swept rate is in `settings`).
      seeds: S of them; settings: swept values by name, H of each ({} where H = 1 is the only one).
      num_clients, num_parameters: N, and trainable parameters of one model.
      train_sizes, test_sizes: int [N] samples; client_ids: int [N], permanent ids.
      eval_rounds: int [E], rounds (counted from 1) after which models were scored.
      scores: "MODEL/SPLIT/accuracy" (a fraction), or the task's other measures, and
        "MODEL/SPLIT/loss", [S, H, E, N]. The model is the one a client would use after the
        round's aggregation and before its next training.
      clients: per-client records of every round, [S, H, T, N]: "participated", "diverged",
        "local_steps" (int32, gradients of a minibatch), "train_loss", and the algorithm's own;
        "numbers_up" and "numbers_down" (int32), if it sends more than blocks of the model.
      scalars: per-round records, [S, H, T].
      copies_up, copies_down: int32 [S, H, T, N, G], copies of each block sent and received.
      blocks, block_sizes: names and shared elements of the G blocks; item_bytes: per element.
      matrices: by name, [S, H, Q, ...] at `matrix_rounds` [Q].
      compile_seconds: tracing and compiling, all programs of the simulation.
      seconds_per_round: median wall time of one round of one run, evaluation included.
      padding_efficiency: true local steps over steps executed.
      execution: how the client axis was run.
      flops_per_step: FLOPs of one of those steps (`costs.step_flops`), or None where they are
        unknown, as in a result of a version that did not count them.
      flops_per_forward: FLOPs of one of the "forward_samples" of `clients`, the forward passes of
        candidates' losses (`costs.forward_flops`); None where there are none or they are unknown.
      remarks: the algorithm's notes on its row in a table, see `Algorithm.remarks`.
      stopped: "" where all rounds were simulated; "patience" where they ended early by patience,
        "asked" where `stop` ended them.
      rounds_asked: how many there would have been then; None otherwise.
      measures: the measures of `scores`, see `Measure`; the first is the task's headline.
      setting_remarks: further ones on the rows of single settings, by setting; () where there are
        none.
      final: the end state on the device, or None for a result read from a file.
    """

    algorithm: str
    hyperparameters: dict[str, Any]
    training: dict[str, Any]
    seeds: tuple[int, ...]
    settings: dict[str, np.ndarray]
    num_clients: int
    num_parameters: int
    train_sizes: np.ndarray
    test_sizes: np.ndarray
    eval_rounds: np.ndarray
    scores: dict[str, np.ndarray]
    clients: dict[str, np.ndarray]
    scalars: dict[str, np.ndarray]
    copies_up: np.ndarray
    copies_down: np.ndarray
    blocks: tuple[str, ...]
    block_sizes: np.ndarray
    client_ids: np.ndarray
    item_bytes: int
    matrices: dict[str, np.ndarray]
    matrix_rounds: np.ndarray
    compile_seconds: float
    seconds_per_round: float
    padding_efficiency: float
    execution: str
    flops_per_step: float | None = None
    flops_per_forward: float | None = None
    remarks: tuple[str, ...] = ()
    stopped: str = ""
    rounds_asked: int | None = None
    setting_remarks: tuple[tuple[str, ...], ...] = ()
    measures: tuple[Measure, ...] = (ACCURACY,)
    final: Any = field(default=None, repr=False, compare=False)

    @property
    def rounds(self) -> int:
        return self.copies_up.shape[2]

    def __repr__(self) -> str:
        said = (
            f"{self.algorithm}: {self.num_clients} clients, {self.rounds} rounds, "
            f"{len(self.seeds)} seed(s), {self.num_settings} setting(s)"
        )
        if not len(self.eval_rounds):
            return f"Result({said}; none was scored yet)"
        measure = self.measure()
        if f"{HEADLINE}/test/{measure.name}" not in self.scores:
            return f"Result({said}; no test samples)"
        final, worst = self.curve()[:, :, -1].mean(), self.worst_decile().mean()
        who = {client for h in range(self.num_settings) for client in scored_clients(self, h)}
        over = "" if len(who) == self.num_clients else f" over {named(sorted(who))}"
        what = f"final mean {measure.said} {final:.4f}{over}, worst tenth {worst:.4f}"
        return f"Result({said}; {what})"

    @property
    def num_settings(self) -> int:
        return self.copies_up.shape[1]

    def measure(self, name: str | None = None) -> Measure:
        """The measure of that name, by default the headline of the task.

        Raises:
          InputError: it was not measured.
        """
        if name is None:
            return self.measures[0]
        known = {one.name: one for one in self.measures}
        require_name("metric of this result", name, known)
        return known[name]

    def values(
        self, model: str = HEADLINE, split: str = "test", metric: str | None = None
    ) -> np.ndarray:
        """A measure of a named model, [S, H, E, N]; by default the headline of the task.

        Raises:
          InputError: no such model, split or metric was scored.
        """
        end = f"/{self.measure(metric).name}"
        name = f"{model}/{split}{end}"
        if name not in self.scores:
            known = sorted(key for key in self.scores if key.endswith(end))
            raise InputError(f"No scores {name!r} in this result; it has {', '.join(known)}.")
        return self.scores[name]

    def accuracy(self, model: str = HEADLINE, split: str = "test") -> np.ndarray:
        """Accuracy [S, H, E, N] of a named model, of a classifier.

        Raises:
          InputError: no such model or split was scored, or the task has no accuracy.
        """
        return self.values(model, split, "accuracy")

    def require_scores(self) -> None:
        """Raises `InputError` where the rounds ended before the first that is scored."""
        if not len(self.eval_rounds):
            raise InputError(
                f"No round of this result was scored: it ends after round {self.rounds}, before "
                "the first one that eval_every asks for."
            )

    def curve(
        self, model: str = HEADLINE, split: str = "test", metric: str | None = None
    ) -> np.ndarray:
        """Plain mean of a measure over clients, [S, H, E]; NaN in rounds without scores."""
        accuracy = self.values(model, split, metric)
        mean, some = np.full(accuracy.shape[:-1], np.nan, accuracy.dtype), np.isfinite(accuracy)
        scored = some.any(axis=-1)
        mean[scored] = np.nanmean(accuracy[scored], axis=-1)
        return mean

    def pooled(self, model: str = HEADLINE) -> np.ndarray:
        """The headline over all test samples of scored clients, [S, H, E].

        For classifiers all correct predictions over all samples; NaN where the headline is no mean
        over samples, such as a perplexity.
        """
        accuracy = self.values(model).astype(np.float64)
        if not self.measure().pools:
            return np.full(accuracy.shape[:-1], np.nan)
        correct = np.nan_to_num(accuracy) * self.test_sizes
        if self.measure() == ACCURACY:
            correct = np.rint(correct)
        correct = correct.sum(-1)
        return correct / np.maximum((np.isfinite(accuracy) * self.test_sizes).sum(-1), 1)

    def headline(self, name: str = headlines.FIRST, model: str = HEADLINE) -> np.ndarray:
        """One number for each run, [S, H]; accuracies are fractions.

        Args:
          name: "final", "best" or "last_tenth" of the rounds' plain means over clients; "pfllib"
            and "flbench", the best round's accuracy over all test samples pooled, as these
            libraries report it; "flower", the last round's.
          model: a name that was scored.

        Raises:
          InputError: an unknown headline, one over pooled samples where the task's measure is no
            mean over samples, or a model without scores.
        """
        headlines.check_pools(name, self.measure())
        how, curve = headlines.headline_of(name), self.curve(model).astype(np.float64)
        if how.average == "samples":
            curve = np.where(np.isfinite(curve), self.pooled(model), np.nan)
        return headlines.one_number(curve, how.score, self.measure())

    def participants(
        self, model: str = HEADLINE, split: str = "test", coming: bool = False, pooled: bool = False
    ) -> np.ndarray:
        """The headline over the clients that took part in the round just scored, [S, H, E].

        Args:
          model, split: as of `values`.
          coming: over the clients of the next round instead, before they train in it. Codes that
            score the selected clients when a round begins report this. NaN after the
            last round.
          pooled: weighted by test samples, not the plain mean.

        NaN where none of them was scored.
        """
        accuracy = self.values(model, split).astype(np.float64)
        took_part = self.clients["participated"].astype(bool)
        if coming:
            took_part = np.roll(took_part, -1, axis=2)
            took_part[:, :, -1] = False
        weights = took_part[:, :, self.eval_rounds - 1] & np.isfinite(accuracy)
        weights = weights * (self.test_sizes if pooled else 1.0)
        total = weights.sum(-1)
        mean = (np.nan_to_num(accuracy) * weights).sum(-1) / np.where(total > 0, total, 1)
        return np.where(total > 0, mean, np.nan)

    def worst_decile(self, model: str = HEADLINE) -> np.ndarray:
        """Mean over the worst tenth of clients (at least one) after the last round, [S, H]."""
        last = self.measure().worst_first(self.values(model)[:, :, -1])
        known = max(int(np.isfinite(last[0, 0]).sum()), 1)
        return last[..., : max(1, -(-known // 10))].mean(-1)

    def diverged(self) -> list[tuple[int, int, int, int]]:
        """(seed, setting, round, permanent client id) of every training that went non-finite."""
        found = np.argwhere(self.clients["diverged"])
        ids = self.client_ids
        return [(self.seeds[s], int(h), int(t) + 1, int(ids[n])) for s, h, t, n in found]

    def traffic(self) -> dict[str, np.ndarray]:
        """Bytes sent ("up") and received ("down") by each client, int64 [S, H, T, N]."""
        size = self.block_sizes.astype(np.int64) * self.item_bytes
        sent = {
            "up": self.copies_up.astype(np.int64) @ size,
            "down": self.copies_down.astype(np.int64) @ size,
        }
        for way in sent:
            if (numbers := self.clients.get(f"numbers_{way}")) is not None:
                sent[way] += numbers.astype(np.int64) * self.item_bytes
        return sent

    def traffic_mb_per_client_round(self, setting: int = 0) -> dict[str, float]:
        """Megabytes (1e6 bytes) a participating client sends and receives in one round."""
        present = max(int(self.clients["participated"][:, setting].sum()), 1)
        sent = {way: float(bytes_[:, setting].sum()) for way, bytes_ in self.traffic().items()}
        return {way: total / present / 1e6 for way, total in sent.items()}

    def flops(self) -> np.ndarray | None:
        """FLOPs of each client's local training, float64 [S, H, T, N]; None if they are unknown.

        Clients that diverge count too. A last minibatch that is not full costs as much as a full
        one. The losses of candidates that a client computes are included.
        """
        if self.flops_per_step is None or "local_steps" not in self.clients:
            return None
        steps = self.clients["local_steps"] * float(self.flops_per_step)
        passes = self.clients.get("forward_samples")
        if passes is None:
            return steps
        return None if self.flops_per_forward is None else steps + passes * self.flops_per_forward

    def computation(self, setting: int = 0) -> dict[str, float | None]:
        """Local training in numbers; a GFLOP is 1e9 floating-point operations.

        "flops_per_step"; "local_steps_per_client_round" and "gflop_per_client_round", of a client
        that takes part; "gflop_per_client", in all rounds, mean over all clients and seeds. Where
        candidates were scored, "flops_per_forward" and "forward_samples_per_client_round" too.
        """
        present, done = max(int(self.clients["participated"][:, setting].sum()), 1), self.flops()
        total = None if done is None else float(done[:, setting].sum()) / 1e9
        runs = len(self.seeds) * self.num_clients

        def counted(name: str) -> float | None:
            counts = self.clients.get(name)
            return None if counts is None else int(counts[:, setting].sum(dtype=np.int64)) / present

        numbers = {
            "flops_per_step": self.flops_per_step,
            "local_steps_per_client_round": counted("local_steps"),
            "gflop_per_client_round": None if total is None else total / present,
            "gflop_per_client": None if total is None else total / runs,
        }
        if "forward_samples" in self.clients:
            numbers["flops_per_forward"] = self.flops_per_forward
            numbers["forward_samples_per_client_round"] = counted("forward_samples")
        return numbers

    def summary(self, setting: int = 0) -> dict[str, Any]:
        """The numbers of one setting for a table; accuracies are fractions.

        Those of the headline have its name, such as "accuracy".

        Raises:
          InputError: no round was scored.
        """
        self.require_scores()
        curve = self.curve()[:, setting]
        scored = np.isfinite(curve).any(axis=0)  # an adaptation may come after the last round alone
        curve = curve[:, scored] if scored.any() else curve
        pooled = self.pooled()[:, setting, -1]
        spread = float(curve[:, -1].std(ddof=1)) if len(self.seeds) > 1 else None  # unknown
        clients = scored_clients(self, setting)
        among = np.nanstd(self.values()[:, setting, -1], axis=-1).mean()
        measure = self.measure()
        end = f"/{measure.name}"
        return {
            "algorithm": self.algorithm,
            "num_clients": self.num_clients,
            "rounds": self.rounds,
            "seeds": list(self.seeds),
            "training": self.training
            | {k: float(v[setting]) for k, v in self.settings.items() if k in self.training},
            measure.name: {
                "final_mean": float(curve[:, -1].mean()),
                "final_std_over_seeds": spread,
                "final_std_over_clients": float(among) if len(clients) > 1 else None,
                "final_pooled": float(pooled.mean()) if measure.pools else None,
                "best_mean": float(measure.best(curve).mean()),
                "last_tenth_mean": float(curve[:, -max(1, curve.shape[1] // 10) :].mean()),
                "worst_decile": float(self.worst_decile()[:, setting].mean()),
            },
            f"final_{measure.name}_by_model": {
                name.removesuffix(end): float(np.nanmean(values[:, setting, -1]))
                for name, values in self.scores.items()
                if name.endswith(end)
            },
            "measures": [one._asdict() for one in self.measures],
            **({"metrics": self._metrics(setting)} if self.measures[1:] else {}),
            "scored_clients": clients,
            "never_took_part": never_took_part(self, setting),
            "clients_without_steps": without_steps(self, setting),
            "remarks": row_remarks(self, setting),
            "diverged_clients": sorted({n for _, h, _, n in self.diverged() if h == setting}),
            "traffic_mb_per_client_round": self.traffic_mb_per_client_round(setting),
            "computation": self.computation(setting),
            "seconds_per_round": self.seconds_per_round,
            "compile_seconds": self.compile_seconds,
            "padding_efficiency": self.padding_efficiency,
            "client_execution": self.execution,
            "model_parameters": self.num_parameters,
        }

    def _metrics(self, setting: int) -> dict[str, Any]:
        """The other measures of the personalized model, on test samples."""
        found = {}
        for one in self.measures[1:]:
            curve = self.curve(metric=one.name)[:, setting]
            curve = curve[:, np.isfinite(curve).any(axis=0)]
            if not curve.size:  # defined for no client
                found[one.name] = {"final_mean": None, "best_mean": None}
                continue
            best = one.toward(np.nanmax(one.toward(curve), axis=-1))
            known = {"final_mean": np.nanmean(curve[:, -1]), "best_mean": np.nanmean(best)}
            found[one.name] = {name: float(value) for name, value in known.items()}
        return found

    def table(self, model: str = HEADLINE, form: str = "markdown") -> str:
        """One row for each setting: mean accuracy after the last round with half of its 95 %
        interval over seeds (Student's t; marked * where it extends beyond the scale), the worst
        tenth of the clients, the best round, and the megabytes a participating client sends and
        receives in a round. Where settings score different clients, a column names them. Remarks on
        the rows follow below the table.

        Args:
          model: a name that was scored, on test samples.
          form: "markdown" or "plain" (aligned text).

        Raises:
          InputError: an unknown form, or a model without scores.
        """
        return tables.table(self, model, form)

    def plot(self, model: str = HEADLINE, split: str = "test") -> "Figure":
        """Mean accuracy over clients against the round, a line for each setting.

        Returns a `matplotlib.figure.Figure` (`figure.axes[0]` has the lines, `figure.savefig(path)`
        writes it); the band goes from the lowest seed to the highest.

        Raises:
          InputError: no scores of that model and split.
        """
        return tables.plot(self, model, split)

    def save(self, folder: str | Path) -> None:
        """Writes `result.json` and `result.npz`; an existing result is never overwritten.

        Raises:
          InputError: the folder holds one of the two already.
          OutputError: they can't be written; then neither exists.
        """
        values = {name: value for name, value in vars(self).items() if name != "final"}
        if self.measures == (ACCURACY,):
            del values["measures"]
        result_files.save(Path(folder), values)

    @classmethod
    def load(cls, folder: str | Path) -> "Result":
        """Reads what `save` wrote; nothing in it can run code.

        Raises:
          InputError: no result there, or one that is damaged or another version's: a digest of all
            values is stored with them, and they must be consistent.
        """
        needed = {f.name: f.default is MISSING for f in fields(cls) if f.name != "final"}
        found = result_files.load(as_path("Folder of a result", folder), needed)
        if "measures" in found:
            found["measures"] = tuple(Measure(*one) for one in found["measures"])
        return cls(**found)
