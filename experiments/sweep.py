"""Tries a grid of hyperparameters: `python -m experiments.sweep --help`."""

if __name__ == "__main__":  # before anything is loaded
    from .cli.start import launch

    launch("sweep")

import contextlib
import hashlib
import itertools
import json
import re
import shutil
import signal
import sys
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, fields, replace
from pathlib import Path

import absl.flags
import numpy as np
from rich.console import Console

import fedjax_pfl as pfl
from fedjax_pfl.contract.registry import convert, is_static
from fedjax_pfl.data.whole_files import check_name, writing
from fedjax_pfl.errors import cut
from fedjax_pfl.results.remarks import row_remarks, scored_clients
from fedjax_pfl.simulation.runs import RATES

from .cli import build, flags, identity, kept, resume, shell
from .cli import console as shown
from .cli.algorithms import OWN, parse_algorithms, remarked
from .cli.start import called
from .outputs import tracking, training_line
from .sweeps.tables import Outcome, footnotes, table, write

USAGE = f"""\
Runs algorithms over a grid of hyperparameters and ranks the settings by validation accuracy.

  {called("sweep")} --algorithms=feddwa --grid=feddwa.top_k=1,3,5 \\
      --grid=learning_rate=0.03,0.1 --dataset=digits --rounds=20

--grid=NAME=VALUE,... may be given many times; NAME is a hyperparameter ALGORITHM.NAME, an option of
local training of one algorithm such as feddwa.learning_rate, or any other flag of
{called("run")} that takes one value. What an algorithm has of its own, by --grid or --set, wins
over the flag of that name. Settings that don't change the program run inside one; the others are a
queue of programs. A fifth of every client's training samples is set aside for validation unless
--validation_fraction says otherwise; test samples choose nothing.

  --rank_by    validation accuracy after the last round ('final') or the mean of the last tenth of
               rounds ('last_tenth') (default: final)

All other flags are those of {called("run")}."""
RANKINGS = ("final", "last_tenth")
MODEL = "personalized"


def _read(value: str) -> float | str:
    """A value of a grid as it counts: 0.1 and 0.10 are the same."""
    try:
        return float(value)
    except ValueError:
        return value


def parse_grid(words: Sequence[str]) -> dict[str, list[str]]:
    """Values by name, of words such as "feddwa.top_k=1,3,5"."""
    grid: dict[str, list[str]] = {}
    for word in words:
        name, text = flags.name_and_value("grid", word)
        values = [value.strip() for value in text.split(",")]
        if name in grid:
            raise pfl.InputError(f"--grid gives {name} twice.")
        if len(set(map(_read, values))) < len(values) or not all(values):
            raise pfl.InputError(f"--grid={cut(word, 100)} must list different values.")
        grid[name] = values
    if not grid:
        raise pfl.InputError("Give what to try, such as --grid=learning_rate=0.03,0.1.")
    return grid


def traced(name: str, algorithms: Mapping[str, pfl.Algorithm]) -> bool:
    """Whether a name of the grid varies inside the program.

    Raises:
      InputError: neither a hyperparameter of an algorithm here nor a flag.
    """
    if name in RATES:
        return True
    algorithm, dot, key = name.partition(".")
    if not dot:
        known = flags.parse(["sweep"])
        allowed = [n for g in ("data", "rule", "training") for n in flags.resolved(known)[g]]
        owners = [m for m, one in algorithms.items() if name in one.hyperparameters()]
        if name not in allowed and owners:
            raise pfl.InputError(
                f"{name!r} in --grid is a hyperparameter: write "
                f"{' or '.join(f'{owner}.{name}' for owner in owners)}."
            )
        if name not in allowed:
            raise pfl.unknown_name("name in --grid", name, allowed)
        return False
    if algorithm not in algorithms:
        raise pfl.unknown_name("algorithm in --grid", algorithm, algorithms)
    known = {field.name: field for field in fields(algorithms[algorithm])}
    if key not in known and key not in OWN:
        raise pfl.unknown_name(f"hyperparameter of {algorithm!r} in --grid", key, {*known, *OWN})
    return key in RATES if key in OWN else not is_static(known[key])


def changing_data(grid: Collection[str]) -> list[str]:
    """Names of the grid whose values are different data, not other ways with the same."""
    known = flags.resolved(flags.parse(["sweep"]))
    return [n for n in grid if n in {**known["data"], **known["rule"]} and n != "input_scaling"]


def _numbers(name: str, words: Sequence[str]) -> list[float]:
    return [convert(f"--grid={name}", word, float) for word in words]


@dataclass(frozen=True)
class Cell:
    """One program: an algorithm with structural settings, and the traced ones inside it."""

    algorithm: str
    fixed: dict[str, str]
    inside: list[dict[str, str]]

    def words(self) -> list[str]:
        """The flags that make its program."""
        words = [f"--algorithms={self.algorithm}"]
        for name, value in self.fixed.items():
            words.append(f"--set={name}={value}" if "." in name else f"--{name}={value}")
        return words

    def parsed(self, argv: Sequence[str]) -> absl.flags.FlagValues:
        """The flags of its program, out of the sweep's: what --set gives others is theirs.

        Raises:
          InputError, absl.flags.Error: see `flags.parse`.
        """
        args = flags.parse([*argv, *self.words()])
        args["set"].value = [
            word for word in args["set"].value if word.partition(".")[0].strip() == self.algorithm
        ]
        return args

    @property
    def folder(self) -> str:
        """A name that no other algorithm or setting has, on any file system.

        As it reads where that can be told apart: names of settings have no "-" and no "=", values
        here no "=" and nothing of capitals, so the words can be found again. Else it ends in "~"
        and a digest.
        """
        name = "-".join([self.algorithm, *(f"{k}={v}" for k, v in self.fixed.items())])
        values = "".join(self.fixed.values())
        plain = re.fullmatch(r"[a-z0-9][a-z0-9_.+-]*", self.algorithm)
        plain = plain and re.fullmatch(r"[a-z0-9_.]*", "".join(self.fixed))
        if plain and re.fullmatch(r"[a-z0-9_.+-]*", values) and len(name) <= 100:
            return name
        exact = json.dumps([self.algorithm, sorted(self.fixed.items())])
        digest = hashlib.sha256(exact.encode()).hexdigest()[:16]
        return f"{re.sub(r'[^a-z0-9_.+=-]', '_', name.lower().lstrip('.'))[:80]}~{digest}"

    @property
    def settings(self) -> dict[str, list]:
        """What `simulate` sweeps inside the program, or nothing."""
        swept = {}
        for name in self.inside[0]:
            values = [one[name] for one in self.inside]
            key = name.rpartition(".")[2]
            swept[key] = _numbers(name, values) if key in RATES else values
        return swept


def cells(
    algorithms: Mapping[str, pfl.Algorithm],
    grid: Mapping[str, Sequence[str]],
    given: Collection[str] = (),
) -> list[Cell]:
    """The queue of programs: structural settings times algorithms.

    What an algorithm is given of its own, in the grid or by --set (`given`, names such as
    "feddwa.learning_rate"), takes the place of the flag of that name.

    Raises:
      InputError: the grid and --set have an option of local training of one algorithm.
    """
    twice = [name for name in grid if name in given and name.partition(".")[2] in OWN]
    if twice:
        raise pfl.InputError(f"Both --grid and --set give {twice[0]}: leave one of them out.")
    inside = {name: traced(name, algorithms) for name in grid}
    queue = []
    for algorithm in algorithms:
        mine = [n for n in grid if "." not in n or n.partition(".")[0] == algorithm]
        mine = [n for n in mine if not {f"{algorithm}.{n}"} & {*grid, *given}]

        def combinations(names):
            values = itertools.product(*(grid[name] for name in names))
            return [dict(zip(names, chosen, strict=True)) for chosen in values]

        own = combinations([name for name in mine if inside[name]])
        for fixed in combinations([name for name in mine if not inside[name]]):
            queue.append(Cell(algorithm, fixed, own))
    return queue


def run_cell(
    cell: Cell, argv: Sequence[str], output: Path, display, stop, described: Mapping
) -> pfl.Result:
    """Simulates one program, or reads its result where it is finished.

    Raises:
      InputError: it is no longer what `described` says, which the sweep began with.
    """
    folder = output / "results" / cell.folder
    args = cell.parsed(argv)
    if folder.exists():
        seeds = range(args.seed, args.seed + args.num_seeds)
        result = kept.result(folder, cell.algorithm, seeds, args.rounds, cell.settings)
        if args.tensorboard:
            tracking.write(folder, result)
        return result
    experiment = build.prepare(args, output)
    changed = identity.difference(described, experiment.identity)
    if changed:
        raise pfl.InputError(
            f"What the sweep began with has changed meanwhile: {changed}. Give the same data to go "
            "on with it."
        )
    checkpoints = pfl.Checkpoints(
        output / resume.CHECKPOINTS / cell.folder, args.checkpoint_seconds
    )
    with contextlib.closing(checkpoints):
        result = pfl.simulate(
            experiment.algorithms[cell.algorithm],
            experiment.federation_of(cell.algorithm),
            args.rounds,
            seeds=experiment.seeds,
            settings=cell.settings or None,
            eval_every=args.eval_every,
            matrix_rounds=[],
            score_clients=experiment.score_clients,
            progress=display.algorithm(cell.folder, args.rounds),
            checkpoints=checkpoints,
            stop=stop,
        )
    result = remarked(replace(result, final=None), experiment.training[cell.algorithm])
    part = folder.with_name(f".part-{folder.name}")
    shutil.rmtree(part, ignore_errors=True)
    result.save(part)
    if args.tensorboard:
        tracking.write(part, result)
    with writing(folder):
        part.replace(folder)
    return result


def outcomes(cell: Cell, result: pfl.Result, rank_by: str) -> Iterator[Outcome]:
    """Each setting of a program."""

    def of(split: str) -> np.ndarray:
        curve = 100 * result.curve(MODEL, split).astype(float)  # [S, H, E]
        last = 1 if rank_by == "final" else max(1, curve.shape[-1] // 10)
        return curve[..., -last:].mean(axis=-1)

    validation, test = of("validation"), of("test")
    for h, inside in enumerate(cell.inside):
        setting, seeds = cell.fixed | inside, tuple(int(seed) for seed in result.seeds)
        who, said = tuple(scored_clients(result, h)), tuple(row_remarks(result, h))
        yield Outcome(cell.algorithm, setting, seeds, validation[:, h], test[:, h], who, said)


def own_words(argv: Sequence[str]) -> tuple[list[str], list[str], str]:
    """(the flags of experiments.run, the words of --grid, the ranking)."""
    rest, grid, rank_by = [], [], RANKINGS[0]
    words = iter(argv)
    for word in words:
        name, equals, value = word.partition("=")
        if name not in ("--grid", "--rank_by"):
            rest.append(word)
            continue
        value = value if equals else next(words, "")  # "--grid=a=1" or "--grid a=1"
        if name == "--grid":
            grid.append(value)
        else:
            rank_by = value
    if rank_by not in RANKINGS:
        raise pfl.unknown_name("--rank_by", rank_by, RANKINGS)
    return rest, grid, rank_by


def main(argv: Sequence[str] | None = None) -> int:
    """Runs the script with `argv` (the program's name first); returns its exit code."""
    try:
        argv = list(sys.argv if argv is None else argv)
        if any(word in ("--help", "-h") for word in argv):
            print(USAGE)
            return 0
        argv, words, rank_by = own_words(argv)
        args = flags.parse(argv)
        if not args["validation_fraction"].present:
            argv.append("--validation_fraction=0.2")
            args = flags.parse(argv)
        if not args.validation_fraction:
            raise pfl.InputError("--validation_fraction must be above 0: the ranking needs it.")
        grid = parse_grid(words)
        chosen = args["set"].value
        given = {word.partition("=")[0].strip() for word in chosen}
        queue = cells(parse_algorithms(args.algorithms, chosen), grid, given)
        found, counts = {}, set()
        for cell in queue:  # all of them before the first begins
            check_name("The folder of a setting,", cell.folder)
            one = build.prepare(cell.parsed(argv), Path())
            pfl.check_simulation(
                one.algorithms[cell.algorithm],
                one.federation_of(cell.algorithm),
                settings=cell.settings or None,
                score_clients=one.score_clients,
            )
            found[cell.folder] = one.identity
            counts.add(one.federation.num_clients)
        more = identity.merged(found) | {"grid": grid, "rank_by": rank_by}
        output = build.output_folder(args, more)
        count = counts.pop() if len(counts) == 1 else None
        line = training_line.described(args, count, grid)
        return sweep(argv, args, queue, output, rank_by, more, line, found)
    except (pfl.InputError, absl.flags.Error) as error:
        return shell.refuse(error)
    except OSError as error:
        return shell.fault(error, shell.GOES_ON)


def sweep(
    argv,
    args,
    queue: Sequence[Cell],
    output: Path,
    rank_by: str,
    more: dict,
    line: str,
    described: Mapping[str, Mapping],
) -> int:
    """Runs the queue, writes and prints; returns the exit code.

    `line` is how clients train, `described` what each program is made of, by its folder.
    """
    found = []
    count = sum(len(cell.inside) for cell in queue)
    programs = "1 program" if len(queue) == 1 else f"{len(queue)} programs"
    print(f"{count} settings in {programs}, {args.num_seeds} seed(s) each: {output}")
    print(f"Training: {line}.")
    with resume.opened(output, args, **more):
        with writing(output / "results"):
            (output / "results").mkdir(exist_ok=True)
        try:
            with resume.Stopper() as stop, shown.progress_display(Console()) as display:
                for cell in queue:
                    result = run_cell(cell, argv, output, display, stop, described[cell.folder])
                    found += outcomes(cell, result, rank_by)
        except (pfl.Interrupted, KeyboardInterrupt):
            message = f"Interrupted. Kept in {output}: the same command goes on from there."
            print(message, file=sys.stderr)
            return 128 + (stop.signal or signal.SIGINT)
        data = changing_data(more["grid"])
        write(output, found, rank_by, line, data)
        shutil.rmtree(output / resume.CHECKPOINTS, ignore_errors=True)
    notes = "".join(f"\n{line}\n" for line in footnotes(found, data))
    print(f"\n{table(found)}{notes}\nTable, numbers and pictures: {output}")
    return 0
