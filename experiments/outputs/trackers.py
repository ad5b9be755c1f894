"""Trackers: TensorBoard's event files, Weights & Biases, MLflow.

A tracker opens a stream for each algorithm, setting and seed, and gets rows (round, metric, value).
Its package is an extra, imported where it is first used.
"""

import importlib
import itertools
import re
import shutil
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple, Protocol

import fedjax_pfl as pfl
from fedjax_pfl.data.atomic_files import writing

Row = tuple[int, str, float]  # round, metric, value
LONGEST = 500  # characters of a parameter that every MLflow takes
MOST = 100  # parameters that it takes at once


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
        """Log rows, ascending by round; all of them or, with an exception, none."""
        ...

    def close(self, complete: bool) -> None: ...


class Tracker(NamedTuple):
    """A kind of tracker.

    Attributes:
      key: names it in the record of what was logged.
      flag: that asks for it.
      goes_on: whether a stream is continued by its id; otherwise each process begins it anew.
      open: opens a stream, perhaps with the id that it had before.
    """

    key: str
    flag: str
    goes_on: bool
    open: Callable[[Stream, str | None], Opened]


def from_flags(args: Any) -> list[Tracker]:
    """Return the trackers that the flags ask for.

    Raises:
      InputError: a package is missing, or a name is empty.
    """
    result: list[Tracker] = []
    if args.tensorboard:
        files = partial(EventFile, _imported("tensorboard", "tensorboardX"))
        result.append(Tracker("tensorboard", "tensorboard", False, files))
    if args.wandb is not None:
        project = args.wandb.strip()
        entity, slash, name = project.rpartition("/")
        if not name or (slash and not entity):
            raise pfl.InputError(f"--wandb must be PROJECT or ENTITY/PROJECT, got {args.wandb!r}.")
        runs = partial(WandbRun, _imported("wandb", "wandb"), entity or None, name)
        result.append(Tracker(f"wandb {project}", "wandb", True, runs))
    if args.mlflow is not None:
        experiment = args.mlflow.strip()
        if not experiment:
            raise pfl.InputError("--mlflow must be the name of an experiment, got ''.")
        runs = partial(MLflowRun, _imported("mlflow", "mlflow"), experiment)
        result.append(Tracker(f"mlflow {experiment}", "mlflow", True, runs))
    return result


def _imported(flag: str, package: str) -> Any:
    """Import the package of a flag.

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


class EventFile:
    """OUTPUT/tensorboard/ALGORITHM/seed_S; of a sweep settings come between."""

    def __init__(self, package: Any, stream: Stream, known: str | None):
        self.folder = stream.output / "tensorboard"
        self.id, self.where, folder = "", f"--logdir={self.folder}", self.folder / stream.key
        with writing(folder):
            shutil.rmtree(folder, ignore_errors=True)
            self.writer = package.SummaryWriter(str(folder), flush_secs=1)  # by a thread

    def log(self, rows: Sequence[Row]) -> None:
        with writing(self.folder):
            for number, metric, value in rows:
                self.writer.add_scalar(metric, value, number)

    def close(self, complete: bool) -> None:
        with writing(self.folder):
            self.writer.close()


class WandbRun:
    """A run for each stream, in the project PROJECT or ENTITY/PROJECT, grouped by the folder.

    Rows have the round as a metric, which the others are drawn against: unlike W&B's own step it
    need not grow from one row to the next.
    """

    def __init__(
        self, package: Any, entity: str | None, project: str, stream: Stream, known: str | None
    ):
        more: dict[str, Any] = {} if known else {"config": dict(stream.facts)}
        self.run = package.init(
            project=project,
            entity=entity,
            id=known,
            resume="allow",
            name=stream.title,
            group=stream.output.resolve().name,
            job_type=stream.place,
            dir=str(stream.output),
            reinit="create_new",  # one process has several runs
            settings=package.Settings(silent=True, console="off"),
            **more,
        )
        self.run.define_metric("round")
        self.run.define_metric("*", step_metric="round")
        self.id = self.run.id
        self.where = str(stream.output / "wandb") if self.run.offline else self.run.url

    def log(self, rows: Sequence[Row]) -> None:
        for number, group in itertools.groupby(rows, key=lambda row: row[0]):
            self.run.log({"round": number, **{metric: value for _, metric, value in group}})

    def close(self, complete: bool) -> None:
        self.run.finish(exit_code=0 if complete else 1)


class MLflowRun:
    """A run for each stream, in an experiment at the place that MLFLOW_TRACKING_URI names."""

    def __init__(self, package: Any, experiment: str, stream: Stream, known: str | None):
        self.client, self.metric = package.MlflowClient(), package.entities.Metric
        self.where = f"experiment {experiment} at {package.get_tracking_uri()}"
        if known:
            self.id = known
            self.client.update_run(known, status="RUNNING")
            return
        place = self.client.get_experiment_by_name(experiment)
        place = place.experiment_id if place else self.client.create_experiment(experiment)
        tags = {"folder": stream.output.resolve().name, "algorithm": stream.place}
        self.id = self.client.create_run(place, tags=tags, run_name=stream.title).info.run_id
        facts = [  # names may have no other characters
            package.entities.Param(re.sub(r"[^\w\-. /]", "_", name), str(value)[:LONGEST])
            for name, value in stream.facts.items()
        ]
        for k in range(0, len(facts), MOST):
            self.client.log_batch(self.id, params=facts[k : k + MOST])

    def log(self, rows: Sequence[Row]) -> None:
        now = int(1000 * time.time())
        metrics = [self.metric(name, value, now, number) for number, name, value in rows]
        self.client.log_batch(self.id, metrics=metrics)

    def close(self, complete: bool) -> None:
        self.client.set_terminated(self.id, status="FINISHED" if complete else "KILLED")
