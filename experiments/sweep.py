"""Tries a grid of hyperparameters: `python -m experiments.sweep --help`."""

if __name__ == "__main__":  # before anything is loaded
    from .cli.start import launch

    launch("sweep")

import contextlib
import shutil
import signal
import sys
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path

import absl.flags
import numpy as np
from rich.console import Console

import fedjax_pfl as pfl
from fedjax_pfl.data.whole_files import check_name, writing
from fedjax_pfl.results.notes import row_remarks, scored_clients

from .cli import build, flags, growth, identity, resume, run_cache, shell
from .cli import console as shown
from .cli.algorithms import parse_algorithms, remarked
from .cli.flagfiles import given_words, value_of
from .cli.start import called
from .outputs import tracking, training_line
from .sweeps.grid import Cell, cells, changing_data, parse_grid
from .sweeps.sweep_files import Outcome, footnotes, table, write

USAGE = f"""\
Runs algorithms over a grid of hyperparameters and ranks the settings by validation accuracy.

  {called("sweep")} --algorithms=feddwa --grid=feddwa.top_k=1,3,5 \\
      --grid=learning_rate=0.03,0.1 --dataset=digits --rounds=20

--grid=NAME=VALUE,... may be given many times; NAME is a hyperparameter ALGORITHM.NAME, an option of
local training of one algorithm such as feddwa.learning_rate, or any other flag of
{called("run")} that takes one value. An algorithm's own value, by --grid or --set, wins
over the flag of that name. Settings that don't change the program run inside one; the others are a
queue of programs. A fifth of every client's training samples is set aside for validation unless
--validation_fraction says otherwise; test samples are not used to choose.

  --rank_by    validation accuracy after the last round ('final') or the mean of the last tenth of
               rounds ('last_tenth') (default: final)

All other flags are those of {called("run")}. New clients (--new_clients) take no part and are not
scored; models are neither adapted nor kept."""
# Beginnings of flags for what a sweep does not do: adapt, score new clients, keep models.
UNUSED = ("adapt_", "keep_state", "matrix_rounds", "new_client_", "save_models")
GROWS = (growth.ROUNDS,)  # ways in which the same command may be a larger sweep
RANKINGS = ("final", "last_tenth")
MODEL = "personalized"


def run_cell(
    cell: Cell, argv: Sequence[str], output: Path, display, stop, described: Mapping
) -> pfl.Result:
    """Simulates one program, or reads its finished result.

    Raises:
      InputError: it differs from `described`, its identity when the sweep began.
    """
    folder = output / "results" / cell.folder
    args = cell.parsed(argv)
    if folder.exists():
        seeds = range(args.seed, args.seed + args.num_seeds)
        result = run_cache.result(folder, cell.algorithm, seeds, args.rounds, cell.settings)
        tracking.finish(args, output, cell.folder, resume.configuration(args), result)
        return result
    experiment = build.prepare(args, output, runs=args.num_seeds * len(cell.inside))
    changed = identity.difference(described, experiment.identity)
    if changed:
        raise pfl.InputError(
            f"The sweep's inputs have changed since it began: {changed}. Give the same data to "
            "continue it."
        )
    checkpoints = pfl.Checkpoints(
        output / growth.CHECKPOINTS / cell.folder, args.checkpoint_seconds
    )
    algorithm = experiment.algorithms[cell.algorithm]
    said = resume.configuration(args) | algorithm.hyperparameters()
    streams = tracking.Tracking(args, output, cell.folder, said, cell.settings)
    show = display.algorithm(cell.folder, args.rounds)

    def measured(chunk: pfl.Progress) -> None:
        show(chunk)
        streams.look(chunk)

    with streams, contextlib.closing(checkpoints):
        result = pfl.simulate(
            algorithm,
            experiment.federation_of(cell.algorithm),
            args.rounds,
            seeds=experiment.seeds,
            settings=cell.settings or None,
            eval_every=args.eval_every,
            matrix_rounds=[],
            score_clients=experiment.score_clients,
            progress=measured,
            checkpoints=checkpoints,
            stop=stop,
            chunk=resume.CHUNK,
            patience=value_of(args, "patience"),
        )
        streams.add(result, last=True)
    result = resume.went_on(result)
    said = resume.remarks(output, cell.algorithm)
    result = remarked(replace(result, final=None), experiment.training[cell.algorithm], said)
    part = folder.with_name(f".part-{folder.name}")
    shutil.rmtree(part, ignore_errors=True)
    result.save(part)
    with writing(folder):
        part.replace(folder)
    return result


def outcomes(cell: Cell, result: pfl.Result, rank_by: str) -> Iterator[Outcome]:
    """Each setting of a program."""

    measure = result.measure()

    def of(split: str) -> np.ndarray:
        curve = measure.scale * result.curve(MODEL, split).astype(float)  # [S, H, E]
        last = 1 if rank_by == "final" else max(1, curve.shape[-1] // 10)
        return curve[..., -last:].mean(axis=-1)

    validation, test = of("validation"), of("test")
    for h, inside in enumerate(cell.inside):
        setting, seeds = cell.fixed | inside, tuple(int(seed) for seed in result.seeds)
        who, said = tuple(scored_clients(result, h)), tuple(row_remarks(result, h))
        scores = validation[:, h], test[:, h]
        yield Outcome(cell.algorithm, setting, seeds, *scores, who, said, measure)


def own_words(argv: Sequence[str]) -> tuple[list[str], list[str], str]:
    """(the flags of experiments.run, the words of --grid, the ranking)."""
    rest, grid, rank_by = [], [], RANKINGS[0]
    words = iter(argv)
    for word in words:
        name, equals, value = word.partition("=")
        if name == "--distributed":
            raise pfl.InputError(
                "A sweep runs in one process, without --distributed: --mesh=runs:4 shares its "
                "seeds and settings between four devices of this machine."
            )
        if name not in ("--grid", "--rank_by"):
            rest.append(word)
            continue
        value = value if equals else next(words, "")  # "--grid=a=1" or "--grid a=1"
        if name == "--grid":
            grid.append(value)
        else:
            rank_by = value
    if rank_by not in RANKINGS:
        raise pfl.core.unknown_name("--rank_by", rank_by, RANKINGS)
    return rest, grid, rank_by


@shell.script(shell.GOES_ON)
def main(argv: list[str]) -> int:
    """Runs the script."""
    if any(word in ("--help", "-h") for word in argv):
        print(USAGE)
        return 0
    argv, words, rank_by = own_words(argv)
    args = flags.parse(argv)
    if args["headline"].present:
        raise pfl.InputError("--headline is for tables of runs: a sweep ranks by --rank_by.")
    if not args["validation_fraction"].present:
        argv.append("--validation_fraction=0.2")
        args = flags.parse(argv)
    grid = parse_grid(words)
    if not all(map(float, grid.get("validation_fraction", [args.validation_fraction]))):
        raise pfl.InputError("--validation_fraction must be above 0: the ranking needs it.")
    chosen = value_of(args, "set")
    own = {word.partition("=")[0].strip() for word in chosen}
    queue = cells(parse_algorithms(args.algorithms, chosen), grid, own)
    found, counts = {}, set()
    for cell in queue:  # all before the first begins
        check_name("The folder of a setting,", cell.folder)
        one = build.prepare(cell.parsed(argv), Path(), runs=args.num_seeds * len(cell.inside))
        pfl.Simulation(
            one.algorithms[cell.algorithm],
            one.federation_of(cell.algorithm),
            settings=cell.settings or None,
            score_clients=one.score_clients,
        ).check(patience=value_of(args, "patience"))
        found[cell.folder] = one.identity
        counts.add(one.federation.num_clients)
    more = identity.merged(found) | {"grid": grid, "rank_by": rank_by}
    output = build.output_folder(args, more, GROWS)
    count = counts.pop() if len(counts) == 1 else None
    heading = [f"Training: {training_line.describe_training(args, count, grid)}.", *left_out(args)]
    return sweep(argv, args, queue, output, rank_by, more, heading, found)


def left_out(args: absl.flags.FlagValues) -> list[str]:
    """Sentences on flags of `experiments.run` that a sweep does not use."""
    messages = []
    if args.new_clients:
        messages.append("New clients take no part in the sweep and are not scored.")
    given = [f"--{name}" for name in args if name.startswith(UNUSED) and args[name].present]
    if given:
        messages.append(f"A sweep does not use {', '.join(given)}.")
    return messages


def sweep(
    argv,
    args,
    queue: Sequence[Cell],
    output: Path,
    rank_by: str,
    more: dict,
    heading: Sequence[str],
    described: Mapping[str, Mapping],
) -> int:
    """Runs the queue, writes and prints; returns the exit code.

    `heading` are sentences on all settings, `described` has each program's identity by its folder.
    """
    found = []
    count = sum(len(cell.inside) for cell in queue)
    programs = "1 program" if len(queue) == 1 else f"{len(queue)} programs"
    print(f"{count} settings in {programs}, {args.num_seeds} seed(s) each: {output}")
    print("\n".join(heading))
    with resume.opened(output, args, GROWS, **more):
        with writing(output / "results"):
            (output / "results").mkdir(exist_ok=True)
        try:
            with resume.Stopper() as stop, shown.progress_display(Console()) as display:
                for cell in queue:
                    result = run_cell(cell, argv, output, display, stop, described[cell.folder])
                    found += outcomes(cell, result, rank_by)
        except (resume.Stopped, KeyboardInterrupt):
            message = f"Interrupted. Kept in {output}: the same command continues from there."
            print(message, file=sys.stderr)
            return 128 + (stop.signal or signal.SIGINT)
        data = changing_data(more["grid"])
        write(output, found, rank_by, heading, data, given_words(args))
        shutil.rmtree(output / growth.CHECKPOINTS, ignore_errors=True)
    notes = "".join(f"\n{line}\n" for line in footnotes(found, data))
    print(f"\n{table(found).to_markdown()}\n{notes}\nTable, numbers and pictures: {output}")
    return 0
