"""The result of a simulation: measurements, summaries, files."""

from collections.abc import Mapping
from dataclasses import MISSING, dataclass, fields, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import ArrayLike

from fedjax_pfl.data.files import as_path
from fedjax_pfl.results import (
    concept_changes,
    frames,
    harm,
    privacy,
    result_files,
    result_summary,
    result_table,
    significance,
)
from fedjax_pfl.results.model_names import PERSONALIZED
from fedjax_pfl.results.result_files import BY_RUN
from fedjax_pfl.results.result_scores import ResultScores
from fedjax_pfl.utils.boundary import checked
from fedjax_pfl.utils.conversions import convert
from fedjax_pfl.utils.errors import InputError, require, require_name, shown
from fedjax_pfl.utils.metric_names import ACCURACY, Measure
from fedjax_pfl.utils.typing import Tree

if TYPE_CHECKING:
    import pandas as pd  # slow imports: only where they are used
    import xarray as xr
    from matplotlib.figure import Figure


PATIENCE_ENDED, STOP_REQUESTED = "patience", "asked"  # why rounds may have ended early


@dataclass(frozen=True)
class Result(ResultScores):
    """Measurements of a simulation, with summaries, tables, figures and files.

    Arrays lead with the axes S (seed) and H (setting), then T (round) and N (client).

    Attributes:
      algorithm: canonical name; hyperparameters: by name.
      training: how clients trained, `LocalTraining.numbers` (a swept rate is in `settings`).
      seeds: S of them; settings: swept values by name, H of each ({} where H = 1 is the only one).
      num_clients, num_parameters: N, and trainable parameters of one model.
      train_sizes, test_sizes: int [N] samples; client_ids: int [N], permanent ids.
      eval_rounds: int [E], the rounds (counted from 1) after which models were scored.
      scores: "MODEL/SPLIT/accuracy" (a fraction), or the task's other measures, and
        "MODEL/SPLIT/loss", [S, H, E, N]. The model is the one a client would use after the
        round's aggregation and before its next training.
      clients: per-client records of every round, [S, H, T, N]: "participated", "diverged" (in
        training), "nonfinite" (in aggregation), "local_steps" (int32, gradients of a minibatch),
        "train_loss", "concept" (under drift), and the algorithm's own; "numbers_up" and
        "numbers_down" (int32), if it sends more than blocks of the model.
      scalars: per-round records, [S, H, T].
      copies_up, copies_down: int32 [S, H, T, N, G], copies of each block sent and received.
      blocks, block_sizes: names and shared elements of the G blocks; item_bytes: per element.
      upload_bytes: int64 [G], bytes of an uploaded copy of each block under compression; else None.
      upload_bits: of each of "numbers_up" under secure aggregation; else None.
      matrices: by name, [S, H, Q, ...] at `matrix_rounds` [Q].
      compile_seconds: tracing and compiling, all programs of the simulation.
      seconds_per_round: median wall time of one round of one run, evaluation included.
      padding_efficiency: true local steps over steps executed.
      execution: how the client axis was run.
      flops_per_step: FLOPs of one local step (`engine.costs.step_flops`), or None if unknown.
      flops_per_forward: FLOPs of one of the "forward_samples" of `clients`
        (`engine.costs.forward_flops`), or None if there are none or FLOPs are unknown.
      remarks: the algorithm's notes on its row in a table, see `Algorithm.remarks`.
      stopped: "" if all rounds were simulated, "patience" if patience ended the simulation, "asked"
        if `stop` or a callback did.
      rounds_asked: number of requested rounds if the simulation ended early, else None.
      measures: the measures of `scores`, see `Measure`; the first is the task's main metric.
      client_names: names of the N clients, such as "north", or empty.
      setting_remarks: further notes on the rows of single settings, by setting, or ().
      privacy: what clients released under differential privacy, from which `epsilons` computes what
        they spent, or None.
      partition_hash: hash of the samples of each client and their labels, "" if unknown.
      final: the end state on the device, or None for a result read from a file.
    """

    def __repr__(self) -> str:
        return result_summary.one_line(self)

    @checked
    def select(self, **values: Any) -> "Result":
        """Return the result of one setting of a sweep, without models.

        The whole result has them: `result.model(client, setting=1)`.

        Args:
          **values: swept values by name, such as `top_k=5`, that exactly one setting has.

        Raises:
          InputError: a name that was not swept, or values of no setting or several.
        """
        require(len(self.settings) > 0, "result", self, "one of a sweep, simulate(settings=...)")
        found = np.ones(self.num_settings, bool)
        for name, value in values.items():
            require_name("swept value", name, self.settings)
            found &= np.isclose(self.settings[name], convert(name, value, float), 1e-6, 0)
        names = "; ".join(result_table.setting_names(self))
        require(found.sum() == 1, "values", values, f"those of just one of {names}")
        at = slice(int(found.argmax()), int(found.argmax()) + 1)
        whole = vars(self)
        chosen = {name: {key: x[:, at] for key, x in whole[name].items()} for name in BY_RUN}
        chosen |= {name: whole[name][:, at] for name in ("copies_up", "copies_down")}
        chosen["settings"] = {name: swept[at] for name, swept in self.settings.items()}
        if self.privacy:
            own = {name: self.privacy[name][at] for name in ("clip", "noise")}
            chosen["privacy"] = self.privacy | own
        remarks = self.setting_remarks[at]
        return replace(self, **chosen, setting_remarks=remarks, final=None)

    @checked
    def summary(self, setting: int = 0) -> dict[str, Any]:
        """Return the numbers of one setting for a table; accuracies are fractions.

        Those of the main metric have its name, such as "accuracy".

        Raises:
          InputError: no round was scored, or no such setting.
        """
        return result_summary.summary(self, self.checked_setting(setting))

    @checked
    def epsilons(self, setting: int = 0) -> np.ndarray:
        """Return the epsilon that each client spent in each run, [S, N], see `results.privacy`.

        Raises:
          InputError: no differential privacy, no such setting, or dp-accounting is not installed.
        """
        require(
            self.privacy is not None,
            "dp",
            "none",
            "'client' or 'sample', for a result with an epsilon",
        )
        return privacy.epsilons(self, self.checked_setting(setting))

    @checked
    def gains(
        self,
        baseline: "Result",
        model: str = PERSONALIZED,
        split: str = "test",
        metric: str | None = None,
    ) -> harm.Gains:
        """Return each client's gain over a baseline in each seed, after the last round.

        `gains.summary()` has the share of clients that are better off and the share that is harmed.

        Args:
          baseline: result of another algorithm on the same clients, such as `local`; seeds that
            both have are compared.
          model, split, metric: as of `values`.

        Raises:
          InputError: another partition, rounds or measure, swept settings, or no seed in common.
        """
        return harm.gains(self, baseline, model, split, metric)

    @staticmethod
    @checked
    def compare(
        results: Mapping[Any, Mapping[Any, "Result"]],
        model: str = PERSONALIZED,
        split: str = "test",
    ) -> significance.Ranking:
        """Return the ranking of algorithms over data sets or settings, with its tests.

        Scores are means over seeds and the clients that all results of a block score, after the
        last round.

        Args:
          results: {block: {name: result}}, at least five blocks (data sets or settings) with the
            same names.
          model, split: as of `values`.

        Raises:
          InputError: too few blocks, or results that do not compare.
        """
        return significance.ranking(results, model, split)

    @checked
    def changes(self, setting: int = 0, model: str = PERSONALIZED) -> list[concept_changes.Change]:
        """Return scores after each change of concept, rounds to recovery, and backward transfer.

        Args:
          setting: index of the swept setting.
          model: a name that was scored.

        Raises:
          InputError: no concept drift, or no such setting.
        """
        return concept_changes.changes(self, self.checked_setting(setting), model)

    @checked
    def table(self, model: str = PERSONALIZED, form: str = "markdown") -> str:
        """Format a table with a row for each setting, and notes on the rows.

        Columns are the mean accuracy after the last round with half of its 95 % interval over seeds
        (Student's t; marked * if it extends beyond the scale), those of trained or adapted copies
        if there are any, the worst tenth of the clients, the best round, up to six further
        metrics, the epsilon if there is one, and the megabytes that a participating client sends
        and receives in a round. If settings score different clients, a column names them.

        Args:
          model: a name that was scored, on test samples.
          form: "markdown" or "plain" (aligned text).

        Raises:
          InputError: an unknown form, or a model without scores.
        """
        require_name("form of a table", form, result_table.FORMS)
        table = result_table.table(self, model)
        text = table.to_markdown() if form == "markdown" else table.to_text()
        return "\n\n".join([text, *table.notes])

    @checked
    def plot(self, model: str = PERSONALIZED, split: str = "test") -> "Figure":
        """Plot mean accuracy over clients by round, a line for each setting.

        Returns a `matplotlib.figure.Figure` (`figure.axes[0]` has the lines, `figure.savefig(path)`
        writes it); the band goes from the lowest seed to the highest.

        Raises:
          InputError: no scores of that model and split, or no round was scored.
        """
        from fedjax_pfl.results import plots  # matplotlib, slow

        return plots.plot_curves(self, model, split)

    @checked
    def plot_mixing(
        self,
        name: str | None = None,
        *,
        round: int | None = None,
        seed: int | None = None,
        setting: int = 0,
    ) -> "Figure":
        """Plot heat maps of a recorded matrix, a row for each block of layers with its own.

        Args:
          name: of `matrices`, by default the first.
          round: one of `matrix_rounds`, by default all.
          seed: one of `seeds`, by default the first.
          setting: index of the swept setting.

        Raises:
          InputError: no such matrix, round, seed or setting.
        """
        from fedjax_pfl.results import plots  # matplotlib, slow

        return plots.plot_mixing(self, name, round, self._run(seed, setting))

    @checked
    def to_xarray(self) -> "xr.Dataset":
        """Return all measurements as an `xarray.Dataset` with named axes.

        Scores have the axes (seed, setting, eval_round, client), client records (seed, setting,
        round, client), scalars (seed, setting, round), copies a further axis block, and matrices
        (seed, setting, matrix_round, [group,] receiver, sender). Clients are permanent ids; swept
        values, sample sizes and names of clients are further coordinates.
        """
        return frames.to_xarray(self)

    @checked
    def to_pandas(self) -> "pd.DataFrame":
        """Return a `pandas.DataFrame` with a row for each seed, setting, round and client.

        Columns are these four, swept values, sample sizes, client records and scores (NaN in rounds
        that were not scored).
        """
        return frames.to_pandas(self)

    def _repr_html_(self) -> str:
        return frames.to_html(self)

    def _run(self, seed: int | None, setting: int) -> tuple[int, int]:
        """Return the indices of a seed and a setting.

        Raises:
          InputError: unknown seed or setting.
        """
        seed = self.seeds[0] if seed is None else seed
        require(seed in self.seeds, "seed", seed, f"one of {list(self.seeds)}")
        return self.seeds.index(seed), self.checked_setting(setting)

    @checked
    def predict(
        self,
        client: int | str,
        x: ArrayLike,
        *,
        seed: int | None = None,
        setting: int = 0,
        outputs: bool = False,
    ) -> np.ndarray:
        """Predict with a client's personalized model after the last round.

        Args:
          client: its permanent id, or its name.
          x: samples [n, ...] as the data set has them; they are turned and scaled as the client's
            are, but not corrupted.
          seed: one of `seeds`, by default the first.
          setting: index of the swept setting.
          outputs: return the network's outputs [n, C], not the classes.

        Returns:
          Classes [n], as the client labels them; the outputs [n, ...] of a task without classes.

        Raises:
          InputError: the models were not kept, as the result was read from files; an unknown
            client, seed or setting; or samples of another shape or type, or with columns of other
            names, or in another order, than the data set's frame.
        """
        final, run, row = self._place(client, seed, setting)
        predicted = final.predict(run, row, x)
        classes = final.program.federation.network.objective.classes
        return predicted.argmax(axis=-1) if classes and not outputs else predicted

    @checked
    def model(
        self, client: int | str | None = None, *, seed: int | None = None, setting: int = 0
    ) -> Tree:
        """Return a model after the last round, for the network's `apply` and `initial_model`.

        It has all leaves of the network: frozen ones too, and adapters added to their kernels.

        Args:
          client: permanent id or name of the client whose personalized model it is; None for the
            global model.
          seed: one of `seeds`, by default the first.
          setting: index of the swept setting.

        Raises:
          InputError: the models were not kept, as the result was read from files; an unknown
            client, seed or setting; or a model that is more than the network's.
        """
        final, run, row = self._place(client, seed, setting)
        return final.model(run, row)

    def _place(
        self, client: int | str | None, seed: int | None, setting: int
    ) -> tuple[Any, int, int | None]:
        """Return the final state, and the indices of a run and a client (None for None)."""
        if self.final is None:
            raise InputError(
                "This result has no models. If it was selected, the whole result has them, with "
                "setting=K; if it was read from files or joined, pfl.load_models reads those of a "
                "run's models.npz, or of a file that pfl.save_models wrote."
            )
        at, setting = self._run(seed, setting)
        run = at * self.num_settings + setting
        if client is None:
            return self.final, run, None
        named = isinstance(client, str) and len(self.client_names) > 0
        known: list = list(self.client_names) if named else self.client_ids.tolist()
        if named:
            require_name("client", client, known)
        require(client in known, "client", client, f"one of {shown(known)}")
        return self.final, run, known.index(client)

    @checked
    def save(self, folder: str | Path) -> None:
        """Write `result.json` and `result.npz`; an existing result is never overwritten.

        Raises:
          InputError: the folder holds one of the two already.
          OutputError: a file can't be written; neither file remains.
        """
        values = {name: value for name, value in vars(self).items() if name != "final"}
        if self.measures == (ACCURACY,):
            del values["measures"]
        if not self.client_names:
            del values["client_names"]
        del values["privacy"]
        if self.privacy is not None:
            each = [privacy.guarantee(self, h)._asdict() for h in range(self.num_settings)]
            values["privacy"] = {**self.privacy, "guarantees": each}
        result_files.save(Path(folder), values)

    @classmethod
    @checked
    def load(cls, folder: str | Path) -> "Result":
        """Read a saved result without running code.

        Raises:
          InputError: no result there, or one that is damaged or another version's: a digest of all
            values is stored with them, and they must be consistent.
        """
        needed = {f.name: f.default is MISSING for f in fields(cls) if f.name != "final"}
        values = result_files.load(as_path("Folder of a result", folder), needed)
        if "measures" in values:
            values["measures"] = tuple(Measure(*one) for one in values["measures"])
        if values.get("privacy"):
            values["privacy"].pop("guarantees")  # computed from the rest
        return cls(**values)
