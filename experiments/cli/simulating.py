"""The simulation of one algorithm of a run, and the folder of its result."""

import contextlib
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import fedjax_pfl as pfl
from fedjax_pfl.data.whole_files import writing
from fedjax_pfl.execution import processes

from ..outputs import live, run_files, tracking
from . import distributed, growth, new_clients, provenance, resume
from .algorithms import remarked
from .build import Experiment
from .flagfiles import value_of

# Makes the callback of a simulation's progress, from its name and number of rounds.
Display = Callable[[str, int], Callable[[pfl.Progress], None]]


def memory_of(experiment: Experiment, name: str, num_seeds: int) -> pfl.engine.Memory | None:
    """The most memory that simulating an algorithm with so many seeds takes.

    Raises:
      InputError: there is less.
    """
    return pfl.Simulation(
        experiment.algorithms[name],
        experiment.federation_of(name),
        seeds=experiment.seeds[:num_seeds],
        adapt=experiment.adapt,
        score_clients=experiment.score_clients,
    ).estimate_memory(fit=True)


def run_algorithm(
    experiment: Experiment,
    name: str,
    counts: Sequence[int],
    facts: Mapping[str, Any],
    display: Display,
    stop: Callable[..., bool],
) -> pfl.Result | None:
    """Simulates an algorithm, from its checkpoints if there are any, and writes its folder.

    Args:
      counts: how many seeds are simulated together, see `growth.seed_parts`.
      facts: of `provenance.describe`.

    Returns:
      The result; None where it joins several parts and is in its folder.

    Raises:
      Stopped: the simulation was asked to end.
    """
    output, rounds, first = experiment.output, experiment.args.rounds, experiment.seeds[0]
    if len(counts) == 1:
        shown = display(name, rounds)
        return _simulate(experiment, name, experiment.seeds, output / name, facts, shown, stop)
    parts = processes.on_first(lambda: list(growth.plan(output, name, counts, first, rounds)))
    for seeds, finished in parts:
        if not finished:
            shown = display(f"{name}, seeds {seeds[0]}-{seeds[-1]}", rounds)
            place = growth.part_folder(output, name, seeds, rounds)
            _simulate(experiment, name, seeds, place, {**facts, "seeds": seeds}, shown, stop)
    processes.on_first(lambda: _join(experiment, name, [seeds for seeds, _ in parts], facts))
    return None


def _simulate(
    experiment: Experiment,
    name: str,
    seeds: Sequence[int],
    folder: Path,
    facts: Mapping[str, Any],
    shown: Callable[[pfl.Progress], None],
    stop: Callable[..., bool],
) -> pfl.Result:
    """Simulates an algorithm with some of the seeds, and writes the result's folder."""
    args, output = experiment.args, experiment.output
    algorithm = experiment.algorithms[name]
    said = resume.configuration(args) | algorithm.hyperparameters()
    streams = tracking.Tracking(args, output, name, said, seeds=seeds)
    growing = live.Live(output, name, streams)

    def measured(chunk: pfl.Progress) -> None:
        shown(chunk)
        processes.on_first(lambda: growing.add(chunk))

    kept_for_more = pfl.Checkpoints(
        growth.checkpoint_folder(output, name, seeds, experiment.seeds[0]),
        args.checkpoint_seconds,
        extendable=value_of(args, "keep_state"),
    )
    with distributed.held(lambda: growing), contextlib.closing(kept_for_more) as checkpoints:
        result = pfl.simulate(
            algorithm,
            experiment.federation_of(name),
            args.rounds,
            seeds=seeds,
            eval_every=args.eval_every,
            matrix_rounds=experiment.matrix_rounds,
            adapt=experiment.adapt,
            score_clients=experiment.score_clients,
            progress=measured,
            checkpoints=checkpoints,
            stop=stop,
            chunk=resume.CHUNK,
            patience=value_of(args, "patience"),
        )
        processes.on_first(lambda: growing.end(result))
    result = resume.went_on(result)
    models = final_models(result) if args.save_models else None
    more = None
    if experiment.new_clients is not None:
        own = experiment.training[name]
        rows = new_clients.score(experiment.new_clients, result, own)
        more = partial(new_clients.write, rows=rows, measure=result.measure())
    said = processes.on_first(lambda: resume.remarks(output, name))
    # Without `final`, which frees device memory for the next algorithm.
    result = remarked(replace(result, final=None), experiment.training[name], said)
    config = provenance.configuration(experiment, result, facts)

    def write() -> None:
        if folder.parent != output:  # of some of the seeds
            with writing(folder.parent):
                folder.parent.mkdir(parents=True, exist_ok=True)
        run_files.write_algorithm(folder, result, config, facts["summary"], models, more)
        growing.remove()

    processes.on_first(write)
    return result


def _join(
    experiment: Experiment, name: str, parts: Sequence[range], facts: Mapping[str, Any]
) -> None:
    """Writes the folder of an algorithm whose parts are finished."""
    args, output = experiment.args, experiment.output
    folders = {growth.part_folder(output, name, seeds, args.rounds): seeds for seeds in parts}
    result = growth.joined(folders, name, args.rounds)
    models = growth.joined_models(folders) if args.save_models else None
    more = None
    if experiment.new_clients is not None:
        rows = new_clients.rows_of(folders, result.measure())
        more = partial(new_clients.write, rows=rows, measure=result.measure())
    config = provenance.configuration(experiment, result, facts)
    run_files.write_algorithm(output / name, result, config, facts["summary"], models, more)


def final_models(result: pfl.Result) -> dict[str, Any]:
    """The models after the last round, by name, and the leaves that none of them holds."""
    backbone = result.final.backbone()
    beside = {} if backbone is None else {"backbone": pfl.Broadcast(backbone)}
    return {**result.final.models(), **beside}
