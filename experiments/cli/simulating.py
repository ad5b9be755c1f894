"""The simulation of one algorithm of a run or sweep, which can be stopped and continued."""

import contextlib
import os
import signal
import socket
import sys
import threading
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import fedjax_pfl as pfl
from fedjax_pfl.engine.callbacks import ProgressCallback
from fedjax_pfl.engine.progress import Line
from fedjax_pfl.execution import processes
from fedjax_pfl.results.joining import join_seeds

from ..outputs import run_files, tracking
from . import algorithm_folders, distributed, new_clients, provenance
from .algorithms import remarked
from .build import Experiment

if TYPE_CHECKING:
    import pandas as pd  # slow imports: only where they are used

CHUNK = 50  # rounds between two looks at `Stopper`, at most
LATE = 4.0  # seconds after a signal, within which a run stops by itself
SIGNALS = (signal.SIGINT, signal.SIGTERM)
STOPPING = "\nStopping after the rounds in progress{}. Once more stops at once."


class Stopped(Exception):
    """Error: a simulation ended early on request.

    Attributes:
      round: rounds done; the checkpoints hold them.
    """

    def __init__(self, done: int):
        super().__init__(f"Stopped after round {done}.")
        self.round = done


class Stopper:
    """SIGINT and SIGTERM as a request to stop after the rounds in progress.

    If the block of a single process doesn't end within `LATE` seconds after the signal, as while
    XLA compiles, or at a second signal, the process ends at once. All files are complete or absent.

    Args:
      say: prints what is kept, given the number of the signal.

    Attributes:
      signal: number of the signal that came, or 0.
    """

    def __init__(self, say: Callable[[int], object]):
        self.signal, self._say = 0, say

    def __call__(self, progress: pfl.Progress) -> bool:
        return bool(self.signal)

    def __enter__(self) -> "Stopper":
        self._before, self._caught = {}, socket.socketpair()
        self._caught[1].setblocking(False)  # as Python requires
        with contextlib.suppress(ValueError):  # not the main thread: nothing to catch there
            # A Python handler waits until XLA returns; a thread that reads the numbers doesn't.
            self._wakeup = signal.set_wakeup_fd(self._caught[1].fileno())
            for number in SIGNALS:
                self._before[number] = signal.signal(number, self._handle)
        self._watch = threading.Thread(target=self._watched, daemon=True)
        self._watch.start()
        return self

    def __exit__(self, *_) -> None:
        for number, handler in self._before.items():
            signal.signal(number, handler)
        if self._before:
            signal.set_wakeup_fd(self._wakeup)
        self._caught[1].close()
        self._watch.join()
        self._caught[0].close()

    def _handle(self, number, frame) -> None:
        self.signal = number

    def _watched(self) -> None:
        """End the process if it has to stop and doesn't."""
        first = self._next(None)
        if not first:
            return
        with contextlib.suppress(OSError):  # a closed terminal
            soon = "" if processes.is_distributed() else f", or in {LATE:g} seconds"
            print(STOPPING.format(soon), file=sys.stderr, flush=True)
        # Several processes stop together, after rounds of any length.
        if self._next(None if processes.is_distributed() else LATE) != 0:
            try:
                self._say(first)
                sys.stdout.flush()
                sys.stderr.flush()
            finally:
                os._exit(128 + first)

    def _next(self, seconds: float | None) -> int | None:
        """Return the next signal's number, 0 at the end of the block, or None after that time."""
        self._caught[0].settimeout(seconds)
        with contextlib.suppress(TimeoutError):
            while number := self._caught[0].recv(1):
                if number[0] in SIGNALS:
                    return number[0]
            return 0
        return None


def simulate(
    experiment: Experiment,
    name: str,
    place: str,
    checkpoints: Path,
    shown: str,
    stop: Callable[..., bool],
    simulation: pfl.Simulation,
    *,
    extendable: bool = False,
    **options: Any,
) -> pfl.Result:
    """Run an algorithm's simulation, from its latest checkpoint if any.

    Args:
      place: its name in the folder, or that of a sweep's program.
      checkpoints: their folder.
      shown: its name in the lines of its progress.
      extendable: whether a state is kept that more rounds continue.
      options: further ones of `Simulation.run`.

    Returns:
      The result, with remarks for its row.

    Raises:
      Stopped: the simulation was asked to end.
    """
    config = experiment.config
    facts = experiment.identity | vars(simulation.algorithm)
    streams = tracking.Tracking(
        config, experiment.output, place, facts, simulation.settings, simulation.seeds
    )

    def follow(chunk: pfl.Progress) -> None:
        processes.on_first(lambda: streams.follow(chunk))

    saved = pfl.Checkpoints(checkpoints, config.checkpoint_seconds, extendable=extendable)
    with distributed.in_first_process(lambda: streams), contextlib.closing(saved):
        result = simulation.run(
            config.rounds,
            progress=Line(shown),
            callbacks=[ProgressCallback(follow)],
            checkpoints=saved,
            stop=stop,
            chunk=CHUNK,
            patience=config.patience,
            **options,
        )
        processes.on_first(lambda: streams.add(result, last=True))
    if result.stopped == "asked":
        raise Stopped(result.rounds)
    return remarked(result, config.training_of[name])


class Block(NamedTuple):
    """Results of some seeds, with models and rows of new clients where there are any."""

    result: pfl.Result
    models: dict[str, Any] | None
    rows: "pd.DataFrame | None"


def run_algorithm(
    experiment: Experiment,
    name: str,
    facts: Mapping[str, Any],
    stop: Callable[..., bool],
    results: dict[str, pfl.Result],
    compile_seconds: float = 0.0,
) -> None:
    """Simulate the seeds that an algorithm's folder lacks, and write the folder anew.

    Args:
      facts: of `provenance.describe`.
      results: gets the result of all seeds, in the first process, before the folder is written.
      compile_seconds: what `compile_all` took for it before.

    Raises:
      Stopped: the simulation was asked to end.
    """
    folder, counts, config = experiment.output / name, experiment.folder.blocks, experiment.config
    missing = processes.on_first(lambda: algorithm_folders.missing_blocks(folder, config, counts))
    several, made = len(counts) > 1, []
    for seeds in missing:
        which = f"seed {seeds[0]}" if len(seeds) == 1 else f"seeds {seeds[0]}-{seeds[-1]}"
        shown = f"{name}, {which}" if several else name
        simulation = experiment.simulation(name, seeds, adapt=config.adaptation)
        simulation.compile_seconds, compile_seconds = compile_seconds, 0.0
        block = _simulate_block(experiment, name, shown, stop, simulation)
        if several and block.models is not None:
            block = block._replace(models=algorithm_folders.as_read(block.models))
        made.append(block)

    def write() -> None:
        blocks = [*made]
        if len(missing) < len(counts):
            there = [s for s in config.seeds if not any(s in seeds for seeds in missing)]
            blocks.insert(0, _read_block(experiment, name, there))
        result = join_seeds([one.result for one in blocks]) if several else made[0].result
        results[name] = result
        models, rows = made[0].models, made[0].rows
        if models is not None and several:
            models = algorithm_folders.joined_models([one.models for one in blocks])
        if rows is not None:
            import pandas as pd

            rows = pd.concat([one.rows for one in blocks])
        description = provenance.configuration(experiment, result, facts)
        run_files.write_algorithm(folder, result, description, facts["summary"], models, rows)

    processes.on_first(write)


def _simulate_block(
    experiment: Experiment,
    name: str,
    shown: str,
    stop: Callable[..., bool],
    simulation: pfl.Simulation,
) -> Block:
    """Simulate an algorithm with some of the seeds."""
    config, output, seeds = experiment.config, experiment.output, simulation.seeds
    result = simulate(
        experiment,
        name,
        name,
        algorithm_folders.checkpoint_folder(output, name, seeds, config.seeds[0]),
        shown,
        stop,
        simulation,
        extendable=config.keep_state,
        matrix_rounds=config.recorded_rounds,
    )
    models = final_models(result) if config.save_models else None
    rows = None
    if experiment.new_clients is not None:
        rows = new_clients.score(experiment.new_clients, result, config.training_of[name])
    # Without `final`, which frees device memory for the next algorithm.
    return Block(replace(result, final=None), models, rows)


def _read_block(experiment: Experiment, name: str, seeds: Sequence[int]) -> Block:
    """Read the seeds that an algorithm's folder has."""
    config, folder = experiment.config, experiment.output / name
    result = algorithm_folders.load_result(folder, name, seeds, config.rounds)
    models = algorithm_folders.models_of(folder) if config.save_models else None
    rows = None
    if experiment.new_clients is not None:
        rows = new_clients.read_rows(folder, result.measure())
    return Block(result, models, rows)


def final_models(result: pfl.Result) -> dict[str, Any]:
    """Return the models after the last round by name, and the leaves outside all models."""
    backbone = result.final.backbone()
    frozen = {} if backbone is None else {"backbone": pfl.Broadcast(backbone)}
    return {**result.final.models(), **frozen}
