"""Where measurements go beside files: TensorBoard's event files, Weights & Biases, MLflow.

A tracker opens a stream for each algorithm, setting and seed, and gets rows (round, metric, value).
Its package is an extra, imported where it is first used.
"""

import importlib
import itertools
import shutil
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

import fedjax_pfl as pfl
from fedjax_pfl.data.atomic_files import writing

Row = tuple[int, str, float]  # round, metric, value
LONGEST = 500  # characters of a parameter that every MLflow takes


@dataclass(frozen=True)
class Stream:
    """The measurements of one seed, of an algorithm or of a setting of a sweep.

    Attributes:
      output: folder of the run or sweep.
      place: the algorithm, or the folder of a sweep's program.
      setting: such as "top_k=3"; "" where nothing is swept.
      facts: flags and hyperparameters by name.
    """

    output: Path
    place: str
    setting: str
    seed: int
    facts: Mapping[str, Any]

    @property
    def key(self) -> str:
        """A name that no other stream of the folder has."""
        setting = [self.setting.replace("/", "_")] if self.setting else []
        return "/".join([self.place, *setting, f"seed_{self.seed}"])

    @property
    def title(self) -> str:
        return " ".join(filter(None, (self.place, self.setting, f"seed {self.seed}")))


class Opened(Protocol):
    """A stream that takes rows.

    Attributes:
      id: its tracker's name for it.
      where: a place to look at, for readers.
    """

    id: str
    where: str

    def log(self, rows: Sequence[Row]) -> None:
        """Takes rows, ascending by round; all of them or, with an exception, none."""
        ...

    def close(self, whole: bool) -> None: ...


class Tracker(Protocol):
    """One kind of place.

    Attributes:
      key: names it in the record of what was logged.
      flag: that asks for it.
      goes_on: whether a stream is continued by its id; otherwise each process begins it anew.
    """

    key: str
    flag: str
    goes_on: bool

    def open(self, stream: Stream, known: str | None) -> Opened: ...


def chosen(args: Any) -> list[Tracker]:
    """The trackers that the flags ask for.

    Raises:
      InputError: a package is missing, or a name is empty.
    """
    result: list[Tracker] = []
    if args.tensorboard:
        result.append(EventFiles())
    for flag, tracker in (("wandb", WeightsAndBiases), ("mlflow", MLflow)):
        name: Any = args[flag].value
        if name is not None:
            result.append(tracker(name))
    return result


def _imported(flag: str, package: str) -> Any:
    """The package of a flag.

    Raises:
      InputError: it is missing.
    """
    try:
        return importlib.import_module(package)
    except ImportError as error:
        raise pfl.InputError(
            f"--{flag} needs the package {package}, which the extra brings: "
            f"pip install 'fedjax_pfl[{flag}]' ({error})."
        ) from error


class EventFiles:
    """OUTPUT/tensorboard/ALGORITHM/seed_S; of a sweep settings come between."""

    key = flag = "tensorboard"
    goes_on = False

    def __init__(self):
        self.package = _imported("tensorboard", "tensorboardX")

    def open(self, stream: Stream, known: str | None) -> Opened:
        folder = stream.output / self.key / stream.key
        with writing(folder):
            shutil.rmtree(folder, ignore_errors=True)
            writer = self.package.SummaryWriter(str(folder), flush_secs=1)  # by a thread
        return _EventFile(stream.output / self.key, writer)


class _EventFile:
    def __init__(self, folder: Path, writer):
        self.id, self.where, self.folder, self.writer = "", f"--logdir={folder}", folder, writer

    def log(self, rows: Sequence[Row]) -> None:
        with writing(self.folder):
            for number, metric, value in rows:
                self.writer.add_scalar(metric, value, number)

    def close(self, whole: bool) -> None:
        with writing(self.folder):
            self.writer.close()


class WeightsAndBiases:
    """A run for each stream, in the project PROJECT or ENTITY/PROJECT, grouped by the folder.

    Rows have the round as a metric, which the others are drawn against: unlike W&B's own step it
    need not grow from one row to the next.
    """

    flag = "wandb"
    goes_on = True

    def __init__(self, project: str):
        self.package = _imported("wandb", "wandb")
        entity, slash, name = project.strip().rpartition("/")
        if not name or (slash and not entity):
            raise pfl.InputError(f"--wandb must be PROJECT or ENTITY/PROJECT, got {project!r}.")
        self.key, self.entity, self.project = f"wandb {project.strip()}", entity or None, name

    def open(self, stream: Stream, known: str | None) -> Opened:
        more: dict[str, Any] = {} if known else {"config": dict(stream.facts)}
        run = self.package.init(
            project=self.project,
            entity=self.entity,
            id=known,
            resume="allow",
            name=stream.title,
            group=stream.output.resolve().name,
            job_type=stream.place,
            dir=str(stream.output),
            reinit="create_new",  # one process has several runs
            settings=self.package.Settings(silent=True, console="off"),
            **more,
        )
        run.define_metric("round")
        run.define_metric("*", step_metric="round")
        return _WandbRun(run, str(stream.output / "wandb") if run.offline else run.url)


class _WandbRun:
    def __init__(self, run, where: str):
        self.id, self.where, self.run = run.id, where, run

    def log(self, rows: Sequence[Row]) -> None:
        for number, group in itertools.groupby(rows, key=lambda row: row[0]):
            self.run.log({"round": number, **{metric: value for _, metric, value in group}})

    def close(self, whole: bool) -> None:
        self.run.finish(exit_code=0 if whole else 1)


class MLflow:
    """A run for each stream, in an experiment at the place that MLFLOW_TRACKING_URI names."""

    flag = "mlflow"
    goes_on = True

    def __init__(self, experiment: str):
        self.package = _imported("mlflow", "mlflow")
        if not experiment.strip():
            raise pfl.InputError("--mlflow must be the name of an experiment, got ''.")
        self.key, self.experiment = f"mlflow {experiment.strip()}", experiment.strip()

    def open(self, stream: Stream, known: str | None) -> Opened:
        client = self.package.MlflowClient()
        where = f"experiment {self.experiment} at {self.package.get_tracking_uri()}"
        if known:
            client.update_run(known, status="RUNNING")
            return _MLflowRun(client, self.package.entities.Metric, known, where)
        found = client.get_experiment_by_name(self.experiment)
        place = found.experiment_id if found else client.create_experiment(self.experiment)
        tags = {"folder": stream.output.resolve().name, "algorithm": stream.place}
        run = client.create_run(place, tags=tags, run_name=stream.title).info.run_id
        for name, value in stream.facts.items():
            client.log_param(run, name, str(value)[:LONGEST])
        return _MLflowRun(client, self.package.entities.Metric, run, where)


class _MLflowRun:
    def __init__(self, client, metric: type, run: str, where: str):
        self.id, self.where, self.client, self.metric = run, where, client, metric

    def log(self, rows: Sequence[Row]) -> None:
        now = int(1000 * time.time())
        metrics = [self.metric(name, value, now, number) for number, name, value in rows]
        self.client.log_batch(self.id, metrics=metrics)

    def close(self, whole: bool) -> None:
        self.client.set_terminated(self.id, status="FINISHED" if whole else "KILLED")
