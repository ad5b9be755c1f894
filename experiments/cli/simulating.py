"""The simulation of one algorithm of a run or sweep, which can be stopped and continued."""

import contextlib
import signal
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import fedjax_pfl as pfl
from fedjax_pfl.data.atomic_files import writing
from fedjax_pfl.execution import processes

from ..outputs import live, run_files, tracking
from . import algorithm_folders, distributed, new_clients, provenance, run_folder
from .algorithms import remarked
from .build import Experiment

CHUNK = 50  # rounds between two looks at `Stopper`, at most
# Makes the callback of a simulation's progress, from its name and number of rounds.
Display = Callable[[str, int], Callable[[pfl.Progress], None]]


class Stopped(Exception):
    """Error: a simulation ended early on request.

    Attributes:
      round: rounds done; the checkpoints hold them.
    """

    def __init__(self, done: int):
        super().__init__(f"Stopped after round {done}.")
        self.round = done


class Stopper:
    """SIGINT and SIGTERM as a request to stop after the current chunk; a second one interrupts.

    Attributes:
      signal: number of the signal that came, or 0.
    """

    def __init__(self):
        self.signal = 0

    def __call__(self, progress: pfl.Progress) -> bool:
        return bool(self.signal)

    def __enter__(self) -> "Stopper":
        self._before = {}
        for number in (signal.SIGINT, signal.SIGTERM):
            with contextlib.suppress(ValueError):  # not the main thread: nothing to catch there
                self._before[number] = signal.signal(number, self._handle)
        return self

    def __exit__(self, *_) -> None:
        for number, handler in self._before.items():
            signal.signal(number, handler)

    def _handle(self, number, frame) -> None:
        if self.signal:
            raise KeyboardInterrupt
        self.signal = number
        print(
            "\nStopping: the rounds in progress are finished and kept. Once more stops at once.",
            file=sys.stderr,
            flush=True,
        )


def simulate(
    experiment: Experiment,
    name: str,
    place: str,
    checkpoints: Path,
    show: Callable[[pfl.Progress], None],
    stop: Callable[..., bool],
    *,
    seeds: Sequence[int],
    settings: Mapping[str, Sequence] | None = None,
    grows: bool = False,
    **options: Any,
) -> tuple[pfl.Result, live.Live]:
    """Simulate an algorithm, from its latest checkpoint if any.

    Args:
      place: its name in the folder, or that of a sweep's program.
      checkpoints: their folder.
      show: called with the progress.
      settings: swept inside the program.
      grows: whether the result is a run's own: metrics.csv is appended to while it runs, and
        --keep_state keeps a state that more rounds continue.
      options: further ones of `pfl.simulate`.

    Returns:
      (the result, with remarks for its row, and its growing file).

    Raises:
      Stopped: the simulation was asked to end.
    """
    config, output = experiment.config, experiment.output
    algorithm = config.instances[name]
    facts = experiment.identity | algorithm.hyperparameters()
    streams = tracking.Tracking(config, output, place, facts, settings, seeds)
    growing = live.Live(output, place, streams, grows)

    def progress(chunk: pfl.Progress) -> None:
        show(chunk)
        processes.on_first(lambda: growing.add(chunk))

    saved = pfl.Checkpoints(
        checkpoints, config.checkpoint_seconds, extendable=grows and config.keep_state
    )
    with distributed.in_first_process(lambda: growing), contextlib.closing(saved):
        result = pfl.simulate(
            algorithm,
            experiment.federation_of(name),
            config.rounds,
            seeds=seeds,
            settings=settings,
            eval_every=config.eval_every,
            score_clients=config.scored_clients,
            progress=progress,
            checkpoints=saved,
            stop=stop,
            chunk=CHUNK,
            patience=config.patience,
            **options,
        )
        processes.on_first(lambda: streams.add(result, last=True))
    if result.stopped == "asked":
        raise Stopped(result.rounds)
    remarks = processes.on_first(lambda: run_folder.remarks(output, name))
    return remarked(result, config.training_of[name], remarks), growing


def run_algorithm(
    experiment: Experiment,
    name: str,
    counts: Sequence[int],
    facts: Mapping[str, Any],
    display: Display,
    stop: Callable[..., bool],
) -> pfl.Result | None:
    """Simulate an algorithm of a run and write its folder.

    Args:
      counts: how many seeds are simulated together, see `algorithm_folders.seed_parts`.
      facts: of `provenance.describe`.

    Returns:
      The result; None where it joins several parts and is in its folder.

    Raises:
      Stopped: the simulation was asked to end.
    """
    output, config = experiment.output, experiment.config
    if len(counts) == 1:
        show = display(name, config.rounds)
        return _run_seeds(experiment, name, config.seeds, output / name, facts, show, stop)
    first, rounds = config.seeds[0], config.rounds
    parts = processes.on_first(
        lambda: list(algorithm_folders.plan(output, name, counts, first, rounds))
    )
    for seeds, finished in parts:
        if not finished:
            which = f"seed {seeds[0]}" if len(seeds) == 1 else f"seeds {seeds[0]}-{seeds[-1]}"
            show = display(f"{name}, {which}", rounds)
            place = algorithm_folders.part_folder(output, name, seeds, rounds)
            _run_seeds(experiment, name, seeds, place, {**facts, "seeds": seeds}, show, stop)
    processes.on_first(lambda: _join(experiment, name, [seeds for seeds, _ in parts], facts))
    return None


def _run_seeds(
    experiment: Experiment,
    name: str,
    seeds: Sequence[int],
    folder: Path,
    facts: Mapping[str, Any],
    show: Callable[[pfl.Progress], None],
    stop: Callable[..., bool],
) -> pfl.Result:
    """Simulate an algorithm with some of the seeds and write the result's folder."""
    config, output = experiment.config, experiment.output
    result, growing = simulate(
        experiment,
        name,
        name,
        algorithm_folders.checkpoint_folder(output, name, seeds, config.seeds[0]),
        show,
        stop,
        seeds=seeds,
        grows=True,
        matrix_rounds=config.recorded_rounds,
        adapt=config.adaptation,
    )
    models = final_models(result) if config.save_models else None
    rows = None
    if experiment.new_clients is not None:
        rows = new_clients.score(experiment.new_clients, result, config.training_of[name])
    # Without `final`, which frees device memory for the next algorithm.
    result = replace(result, final=None)
    description = provenance.configuration(experiment, result, facts)

    def write() -> None:
        if folder.parent != output:  # of some of the seeds
            with writing(folder.parent):
                folder.parent.mkdir(parents=True, exist_ok=True)
        run_files.write_algorithm(folder, result, description, facts["summary"], models, rows)
        growing.remove()

    processes.on_first(write)
    return result


def _join(
    experiment: Experiment, name: str, parts: Sequence[range], facts: Mapping[str, Any]
) -> None:
    """Join the finished parts of an algorithm into its folder."""
    config, output = experiment.config, experiment.output
    folders = {algorithm_folders.part_folder(output, name, s, config.rounds): s for s in parts}
    result = algorithm_folders.joined(folders, name, config.rounds)
    models = algorithm_folders.joined_models(folders) if config.save_models else None
    rows = None
    if experiment.new_clients is not None:
        rows = new_clients.rows_of(folders, result.measure())
    description = provenance.configuration(experiment, result, facts)
    run_files.write_algorithm(output / name, result, description, facts["summary"], models, rows)


def final_models(result: pfl.Result) -> dict[str, Any]:
    """Return the models after the last round by name, and the leaves outside all models."""
    backbone = result.final.backbone()
    frozen = {} if backbone is None else {"backbone": pfl.Broadcast(backbone)}
    return {**result.final.models(), **frozen}
