"""Sweep over a grid of hyperparameters: `python -m experiments.sweep --help`."""

if __name__ == "__main__":  # before anything is loaded
    from .cli.start import launch

    launch("sweep")

import shutil
import sys
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

import absl.flags
import numpy as np

import fedjax_pfl as pfl
from fedjax_pfl.data.atomic_files import check_name, writing
from fedjax_pfl.results.model_names import TRAINED
from fedjax_pfl.results.notes import row_remarks, scored_clients

from .cli import algorithm_folders, flags, identity, run_folder, shell
from .cli.algorithms import parse_algorithms
from .cli.build import Folder, load_inputs, prepare
from .cli.config import ExperimentConfig
from .cli.flag_groups import Group
from .cli.simulating import Stopped, Stopper, simulate
from .cli.start import called
from .grid.axes import Program, changing_data, drawn, parse_grid, programs
from .grid.ranking import Outcome, footnotes, table, write
from .outputs import tracking, training_line

USAGE = f"""\
Run algorithms over a grid of hyperparameters and rank the settings by validation accuracy.

  {called("sweep")} --algorithms=feddwa --grid=feddwa.top_k=1,3,5 \\
      --grid=learning_rate=0.03,0.1 --dataset=digits --rounds=20

The NAME of a --grid is a hyperparameter ALGORITHM.NAME, an option of local training of one
algorithm such as feddwa.learning_rate, or a flag of {called("run")} on data, the
partition rule, training or uploads. An algorithm's own value, by --grid or --set, wins over the
flag of that name. Values that need no recompilation are simulated together in one program; the
others get a program each, one after the other. A fifth of every client's training samples is set
aside for validation unless --validation_fraction says otherwise; test samples are not used to
choose.
"""
BELOW = f"""
All other flags are those of {called("run")}; --moments=both adds a column. New clients
(--new_clients) take no part and are not scored; models are neither adapted nor kept."""
# Beginnings of flags for what a sweep does not do: adapt, score new clients, keep models.
UNUSED = ("adapt_", "keep_state", "matrix_rounds", "new_client_", "save_models")
VALIDATION = "--validation_fraction=0.2"  # unless it is given
RANKINGS = ("final", "last_tenth")
MODEL, SPLITS = "personalized", ("validation", "test")


class Plan(NamedTuple):
    """A sweep that can begin: its flags, programs, folder, identity, and sentences about it."""

    config: ExperimentConfig
    programs: list[Program]
    output: Path
    entries: dict[str, Any]
    heading: list[str]


def run_program(program: Program, output: Path, stop: Stopper) -> pfl.Result:
    """Simulate one program, or read its finished result.

    Raises:
      InputError: its data have changed since the sweep began.
    """
    config, content = program.config, program.content
    folder = output / "results" / program.folder
    if folder.exists():
        result = algorithm_folders.load_result(
            folder, program.algorithm, config.seeds, config.rounds, program.settings
        )
        facts = identity.run_identity(config, content)
        tracking.finish(config, output, program.folder, facts, result)
        return result
    inputs = load_inputs(config)
    changed = identity.difference(content, inputs.content)
    if changed:
        raise pfl.InputError(
            f"The sweep's inputs have changed since it began: {changed}. Give the same data to "
            "continue it."
        )
    experiment = prepare(inputs, Folder(str(output)), runs=config.num_seeds * len(program.inside))
    simulation = experiment.simulation(
        program.algorithm,
        config.seeds,
        settings=program.settings,
        adapt=adaptation(config),
    )
    result = simulate(
        experiment,
        program.algorithm,
        program.folder,
        output / algorithm_folders.CHECKPOINTS / program.folder,
        program.folder,
        stop,
        simulation,
        matrix_rounds=[],
    )
    result = replace(result, final=None)
    part = folder.with_name(f".part-{folder.name}")
    shutil.rmtree(part, ignore_errors=True)
    result.save(part)
    with writing(folder):
        part.replace(folder)
    return result


def adaptation(config: ExperimentConfig) -> pfl.Adaptation | None:
    """Return the further local training of --moments=both, or None."""
    return config.adaptation if config.both_moments else None


def outcomes(program: Program, result: pfl.Result, rank_by: str) -> Iterator[Outcome]:
    """Yield each setting of a program."""
    measure = result.measure()
    last = 1 if rank_by == "final" else max(1, len(result.eval_rounds) // 10)

    def ranked(scores: Callable[[str, str], np.ndarray]) -> list[np.ndarray]:
        """Return the means over the last rounds, on validation and on test samples."""
        both = (measure.scale * scores(MODEL, split).astype(float) for split in SPLITS)
        return [one[:, :, -last:].mean(axis=2) for one in both]  # of [S, H, E, ...]

    (validation, test), clients = ranked(result.curve), ranked(result.values)
    after = None
    if program.config.both_moments:
        after = measure.scale * result.curve(TRAINED).astype(float)[:, :, -last:].mean(axis=2)
    for h, inside in enumerate(program.inside):
        setting, seeds = program.fixed | inside, tuple(int(seed) for seed in result.seeds)
        who, remarks = tuple(scored_clients(result, h)), tuple(row_remarks(result, h))
        scores, each = (validation[:, h], test[:, h]), (clients[0][:, h], clients[1][:, h])
        trained = None if after is None else after[:, h]
        yield Outcome(
            program.algorithm, setting, seeds, *scores, who, remarks, measure, each, trained
        )


def define(values: absl.flags.FlagValues) -> None:
    """Define the flags beside those of a run."""
    define_grid(Group(values, "sweep"))
    flags.distributed(values)


def define_grid(group: Group) -> None:
    """Define the flags of a grid."""
    group.pairs("grid", "values of a hyperparameter or flag, NAME=VALUE,VALUE")
    meaning = "combinations tried for each algorithm, drawn at random from its grid (default: all)"
    group.integer("budget", None, meaning, 1)
    meaning = (
        "validation accuracy after the last round ('final') or the mean of the last tenth of "
        "rounds ('last_tenth')"
    )
    group.text("rank_by", RANKINGS[0], meaning)


@shell.script(shell.GOES_ON)
def main(argv: list[str]) -> int:
    """Run the command."""
    config = flags.parse(argv, define)
    if flags.answered(config, USAGE, ["sweep"], define, BELOW):
        return 0
    if config.distributed is not None:
        raise pfl.InputError(
            "A sweep runs in one process, without --distributed: --mesh=runs:4 shares its "
            "seeds and settings between four devices of this machine."
        )
    if config["headline"].present:
        raise pfl.InputError("--headline is for tables of runs: a sweep ranks by --rank_by.")
    sweep(planned(argv, define))
    return 0


def planned(
    argv: Sequence[str],
    define_more: Callable[[absl.flags.FlagValues], None],
    grid_words: Sequence[str] | None = None,
) -> Plan:
    """Return a sweep of which every program is checked.

    Args:
      argv: the command line.
      define_more: as of `flags.parse`.
      grid_words: values of --grid; by default those of the command line.

    Raises:
      InputError: a program that can't run, or a folder of another sweep.
    """
    config = flags.parse(argv, define_more)
    if config.rank_by not in RANKINGS:
        raise pfl.core.unknown_name("--rank_by", config.rank_by, RANKINGS)
    set_aside = _validation_of_file(config)
    if not (set_aside or config["validation_fraction"].present):
        argv = [*argv, VALIDATION]
        config = flags.parse(argv, define_more)
    grid = parse_grid(config.grid if grid_words is None else grid_words)
    if "local_epochs" in grid and (config.local_steps is not None or "local_steps" in grid):
        raise pfl.InputError("--grid of local_epochs has no effect with local_steps: take one.")
    fractions = grid.get("validation_fraction", [config.validation_fraction])
    if not (set_aside or all(map(float, fractions))):
        raise pfl.InputError("--validation_fraction must be above 0: the ranking needs it.")
    own = {word.partition("=")[0].strip() for word in config.set}
    every = programs(parse_algorithms(config.algorithms, config.set), grid, own)
    queue, counts = [], set()
    for program in drawn(every, config.budget):  # all before the first begins
        check_name("The folder of a setting,", program.folder)
        inputs = load_inputs(program.parsed(argv, define_more))
        experiment = prepare(inputs, runs=config.num_seeds * len(program.inside))
        simulation = experiment.simulation(
            program.algorithm, settings=program.settings, adapt=adaptation(config)
        )
        simulation.check(patience=config.patience)
        counts.add(experiment.federation.num_clients)
        queue.append(replace(program, config=inputs.config, content=inputs.content))
    content = identity.merged({one.folder: one.content for one in queue})
    content |= {"grid": grid, "rank_by": config.rank_by}
    content |= {} if config.budget is None else {"budget": config.budget}
    entries = identity.run_identity(config, content)
    output = run_folder.output_folder(config, entries)
    run_folder.check(output, entries, False)
    count = counts.pop() if len(counts) == 1 else None
    heading = [
        f"Training: {training_line.describe_training(config, count, grid)}.",
        *left_out(config),
    ]
    if config.budget is not None:
        heading.append(f"Budget of each algorithm, drawn from its grid: {config.budget}.")
    return Plan(config, queue, output, entries, heading)


def _validation_of_file(config: ExperimentConfig) -> bool:
    """Return whether the partition's file has validation samples of its own."""
    if config.partition_file is None or config.validation_fraction:
        return False
    return bool(load_inputs(config, shared=True).partition.sizes("validation").sum())


def left_out(config: ExperimentConfig) -> list[str]:
    """Return sentences on flags of `experiments.run` that a sweep ignores."""
    messages = []
    if config.new_clients:
        messages.append("New clients take no part in the sweep and are not scored.")
    unused = [f"--{n}" for n in config if n.startswith(UNUSED) and config[n].present]
    if unused:
        messages.append(f"A sweep does not use {', '.join(unused)}.")
    return messages


def sweep(plan: Plan, quiet: bool = False) -> list[Outcome]:
    """Run the programs, write and print; return the settings' outcomes.

    With `quiet` only progress is shown.

    Raises:
      shell.Interrupted: the sweep was.
    """
    config, queue, output, entries, heading = plan
    ranked: list[Outcome] = []
    count = sum(len(program.inside) for program in queue)
    words = "1 program" if len(queue) == 1 else f"{len(queue)} programs"
    settings = "1 setting" if count == 1 else f"{count} settings"
    print(f"{settings} in {words}, {config.num_seeds} seed(s) each: {output}")
    if not quiet:
        print("\n".join(heading))
    with run_folder.opened(output, entries, False):
        with writing(output / "results"):
            (output / "results").mkdir(exist_ok=True)
        try:
            with Stopper(partial(interrupted, output)) as stop:
                for program in queue:
                    result = run_program(program, output, stop)
                    ranked += outcomes(program, result, config.rank_by)
        except Stopped:
            raise shell.Interrupted(interrupted(output, stop.signal)) from None
        data = changing_data(entries["grid"])
        write(output, ranked, config.rank_by, heading, data, flags.given_words(config))
        shutil.rmtree(output / algorithm_folders.CHECKPOINTS, ignore_errors=True)
    if not quiet:
        notes = "".join(f"\n{line}\n" for line in footnotes(ranked, data))
        print(f"\n{table(ranked).to_markdown()}\n{notes}\nTable, numbers and pictures: {output}")
    return ranked


def interrupted(output: Path, number: int) -> int:
    """Print where a sweep is kept; return the exit code after a signal."""
    message = f"Interrupted. Kept in {output}: the same command continues from there."
    print(message, file=sys.stderr)
    return 128 + number
