"""The files of a run: configuration, measurements, matrices, models, tables and pictures.

Every file is written under a temporary name and then renamed, so a file with its final name is
complete.

OUTPUT/run.json             the flags; OUTPUT/checkpoints/, while it runs, to continue it
OUTPUT/partition.npz        each client's samples (`Partition.load` reads it)
OUTPUT/comparison.csv, .md  one row for each algorithm
OUTPUT/gains.png            sorted gains over `local` and `fedavg`, where one of them is a row
OUTPUT/METRIC.png           curves of the main metric: accuracy.png, mse.png
OUTPUT/partition.png        samples by client and class
OUTPUT/tensorboard/NAME/seed_S  measurements as event files, with --tensorboard
OUTPUT/tracking.json        what trackers have (`experiments.outputs.tracking`)
OUTPUT/clients.csv          where clients have names: those, samples, scores (`clients_table`)
OUTPUT/NAME/config.json     everything that determines the run, and its machine
OUTPUT/NAME/summary.json    the numbers of the table; accuracies are fractions
OUTPUT/NAME/metrics.csv     seed,round,metric,value: means over clients, and their number; sums of
                            traffic, local steps, candidates' forward passes and FLOPs. An infinite
                            error counts, and is "inf"; missing values have no line
OUTPUT/NAME/result.npz, result.json     everything, for `Result.load`
OUTPUT/NAME/new_clients.csv     main metric of new clients; OUTPUT/new_clients.md
OUTPUT/NAME/models.npz      models after the last round (`fedjax_pfl.results.model_files` reads
                            them)
"""

import csv
import json
import math
import shutil
from collections.abc import Iterator, Mapping
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

import fedjax_pfl as pfl
from fedjax_pfl.data.atomic_files import atomic_write, writing
from fedjax_pfl.results import harm
from fedjax_pfl.results.accuracy_conventions import DEFAULT
from fedjax_pfl.results.model_names import COUNTS

from . import comparison_table, line_styles

if TYPE_CHECKING:
    import pandas as pd  # slow imports: only where they are used
    from matplotlib.figure import Figure

HEADING = ("seed", "round", "metric", "value")  # of metrics.csv
NEW_CLIENTS = "new_clients.csv"
REPLACED = ".replaced-"  # beginning of the name of a folder that another one takes the place of


def write_text(path: Path, text: str) -> None:
    with atomic_write(path) as part:
        part.write_text(text, encoding="utf-8")


def write_csv(path: Path, table: "pd.DataFrame") -> None:
    """Write a table's columns, with their names and without its index."""
    write_text(path, table.to_csv(index=False, lineterminator="\r\n"))


def write_json(path: Path, value: Any) -> None:
    """Write strict JSON: NaN becomes null, infinities the texts "inf" and "-inf"."""
    write_text(path, json.dumps(plain(value), indent=2, allow_nan=False) + "\n")


def plain(value: Any) -> Any:
    """Convert a value to JSON's types."""
    if isinstance(value, Mapping):
        return {str(key): plain(item) for key, item in value.items()}
    if isinstance(value, np.ndarray | np.generic):
        return plain(value.tolist())
    if isinstance(value, list | tuple | set):
        return [plain(item) for item in value]
    if isinstance(value, float):
        if math.isfinite(value):
            return value
        return None if math.isnan(value) else str(value)
    return value if isinstance(value, str | int | bool | None) else str(value)


def write_algorithm(
    folder: Path,
    result: pfl.Result,
    config: Mapping,
    facts: Mapping,
    models: Mapping | None,
    new_clients: "pd.DataFrame | None" = None,
) -> None:
    """Write one algorithm's folder.

    Args:
      folder: created here, under another name until it is complete.
      result: without swept settings.
      config: content of `config.json`.
      facts: added to the summary, such as the data set's name.
      models: by name, or None to leave them out.
      new_clients: rows of their scores, if there are any.
    """
    from fedjax_pfl.results import plots  # matplotlib, slow

    target, folder = folder, folder.with_name(f".part-{folder.name}")
    shutil.rmtree(folder, ignore_errors=True)  # of a run that was killed while writing
    with writing(folder):
        folder.mkdir()
    write_json(folder / "config.json", config)
    result.save(folder)
    with atomic_write(folder / "metrics.csv") as part, part.open("w", newline="") as file:
        writer = csv.writer(file)
        writer.writerow(HEADING)
        writer.writerows(metric_rows(result))
    for name, value in result.matrices.items():
        names = result.blocks if value.ndim == 6 else None
        title = f"{result.algorithm}: {name} weights, seed {result.seeds[0]}"
        picture = plots.mixing_heatmaps(
            value[0, 0], result.matrix_rounds, title, names, result.client_names
        )
        write_picture(folder / f"{name}.png", picture)
    if new_clients is not None:
        write_csv(folder / NEW_CLIENTS, new_clients)
    if models is not None:
        with atomic_write(folder / "models.npz") as part:
            pfl.save_models(part, models)
    write_json(folder / "summary.json", result.summary() | dict(facts))
    with writing(target):
        if target.exists():  # with fewer rounds or seeds
            target.replace(target.with_name(REPLACED + target.name))
        folder.replace(target)
    restore(target.parent)


def restore(output: Path) -> None:
    """Bring back the algorithms' folders that a killed process did not replace, remove others."""
    for path in output.glob(f"{REPLACED}*"):
        target = path.with_name(path.name.removeprefix(REPLACED))
        if target.exists():
            shutil.rmtree(path, ignore_errors=True)
        else:
            path.replace(target)


def metric_rows(result: pfl.Result, setting: int = 0) -> Iterator[tuple[int, int, str, float]]:
    """Yield rows (seed, round, metric, value): scores of evaluated rounds, records of all."""
    table: dict[str, np.ndarray] = {}
    measures = {one.name: one for one in result.measures}
    for name, values in result.scores.items():
        values = values[:, setting].astype(np.float64)
        table[name] = mean_over_clients(values)
        model, split, measure = name.split("/")
        if measure in measures:
            there = (~np.isnan(values)).sum(axis=-1)
            table[f"{name}_clients"] = np.where(there, there, np.nan)  # clients of the mean
            table[f"{name}_worst_decile"] = measures[measure].worst_tenth(values)
            with np.errstate(invalid="ignore"):  # infinite errors have no distance to their mean
                squares = mean_over_clients((values - table[name][..., None]) ** 2)
            table[f"{name}_std_over_clients"] = np.sqrt(squares)
        if measure == result.measures[0].name:
            pools = result.measures[0].pools
            if split == "test" and pools:
                pooled = np.where(there > 0, result.pooled(model)[:, setting], np.nan)
                table[f"{name}_pooled"] = pooled
            if not result.clients["participated"].all():
                over = partial(result.participant_mean, model, split)
                table[f"{name}_participants"] = over()[:, setting]
                table[f"{name}_next_participants"] = over(next_round=True)[:, setting]
                if split == "test" and pools:
                    pooled = over(next_round=True, pooled=True)[:, setting]
                    table[f"{name}_next_participants_pooled"] = pooled
    yield from _rows(result, table, result.eval_rounds)
    records = {"participants": result.clients["participated"][:, setting].sum(axis=-1)}
    records["diverged_clients"] = result.clients["diverged"][:, setting].sum(axis=-1)
    if result.nonfinite():
        records["nonfinite_clients"] = result.clients["nonfinite"][:, setting].sum(axis=-1)
    for name, values in result.clients.items():
        if name not in ("participated", "diverged", "nonfinite", *COUNTS):
            records[name] = mean_over_clients(values[:, setting].astype(np.float64))
    for way, sent in result.traffic().items():
        records[f"traffic/{way}_bytes"] = sent[:, setting].sum(axis=-1)
    for name in COUNTS:
        if name in result.clients:
            counts = result.clients[name][:, setting]
            records[name] = counts.sum(axis=-1, dtype=np.int64)
    if (flops := result.flops()) is not None:
        records["computation/flops"] = flops[:, setting].sum(axis=-1)
    scalars = {name: values[:, setting] for name, values in result.scalars.items()}
    if not result.server_nonfinite():
        scalars.pop("server_nonfinite", None)
    records |= scalars
    yield from _rows(result, records, np.arange(1, result.rounds + 1))


def _rows(result: pfl.Result, table: Mapping[str, np.ndarray], rounds: np.ndarray) -> Iterator:
    for s, seed in enumerate(result.seeds):
        for name, values in table.items():
            for number, value in zip(rounds.tolist(), values[s].tolist(), strict=True):
                if not math.isnan(value):
                    yield seed, number, name, value


def mean_over_clients(values: np.ndarray) -> np.ndarray:
    """Return the mean over the last axis without NaN; NaN if nothing is left."""
    known = ~np.isnan(values)
    total = np.where(known, values, 0).sum(axis=-1)
    return np.where(known.any(axis=-1), total / np.maximum(known.sum(axis=-1), 1), np.nan)


def write_comparison(
    folder: Path,
    results: Mapping[str, pfl.Result],
    title: str,
    training: str = "",
    headline: str = DEFAULT,
) -> None:
    """Write the table, as CSV (fractions) and Markdown (percentages), and the accuracy curves.

    The Markdown comes last: a folder that has it has all the rest.

    Args:
      training: how clients train, in a line.
      headline: the number that rows lead with, a name in `HEADLINES`.
    """
    from fedjax_pfl.results import comparison_plots, plots

    table = comparison_table.comparison(results, headline)
    write_text(folder / "comparison.csv", table.to_csv(missing="-"))
    below = [*table.notes, comparison_table.notes(results)]
    drawn = comparison_table.labelled(results)
    styles = dict(zip(drawn, line_styles.numbers(list(results)), strict=True))
    picture = f"{next(iter(results.values())).measure().name}.png"
    write_picture(folder / picture, plots.accuracy_curves(drawn, styles=styles))
    over = harm.gains_over_baselines(results, pfl.Result.gains)
    if over:
        styles = dict(zip(results, line_styles.numbers(list(results)), strict=True))
        panels = [comparison_plots.Panel("", base, gains) for base, gains in over.items()]
        write_picture(folder / "gains.png", comparison_plots.sorted_gains(panels, styles))
    above = [f"# {title}", *([f"Training: {training}."] if training else [])]
    above += comparison_table.headline_notes(results, headline)
    text = [*above, comparison_table.caption(results), table.to_markdown(), *below]
    write_text(folder / "comparison.md", "\n\n".join(text) + "\n")


def write_picture(path: Path, figure: "Figure") -> None:
    with atomic_write(path) as part:
        figure.savefig(part, format="png")


def write_partition(folder: Path, partition: pfl.Partition, dataset: pfl.Dataset) -> None:
    """Write the partition and its picture."""
    from fedjax_pfl.data.partitions import partition_plots

    with atomic_write(folder / "partition.npz") as part:
        partition.save(part)
    picture = partition_plots.heatmap(
        partition,
        dataset.labels,
        dataset.num_classes,
        f"Training samples of {dataset.name}, partition {partition.rule}",
        dataset.class_names or None,
    )
    write_picture(folder / "partition.png", picture)
