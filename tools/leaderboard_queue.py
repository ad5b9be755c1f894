"""The queue of the leaderboard: `python -m tools.leaderboard_queue FOLDER [FLAGS]`.

Measures the cells that FOLDER (docs/leaderboard/cells) lacks, or whose algorithm or flags have
changed, in the order of `leaderboard.toml`, one setting after the other. FLAGS are further ones of
`experiments.sweep`, such as --data_dir. It may be stopped and killed at any time: a cell is written
when it is complete. A cell that fails is kept with its error; delete its file to repeat it.
"""

import argparse
import shlex
import shutil
import sys
import tempfile
import time
from collections.abc import Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path

import numpy as np

import fedjax_pfl as pfl
from experiments import sweep
from experiments.cli import shell
from experiments.cli.simulating import Stopper
from experiments.grid.axes import Program, setting_words
from experiments.run import cache_programs
from fedjax_pfl.results.notes import aggregation_remarks, last_self_weight, nonfinite_remarks
from tools.leaderboard_cells import (
    MOMENTS,
    SEED,
    SEEDS,
    Cell,
    Scores,
    Task,
    explicit,
    kept,
    missing,
    tasks,
)  # fmt: skip


def measured(task: Task, words: Sequence[str], folder: Path, stop: Stopper) -> Cell:
    """Tune an algorithm in a setting for each moment, and score the choices with other seeds.

    Args:
      words: further flags, of places.
      folder: for the results, which are not kept.

    Raises:
      InputError: it can't run there.
      Stopped: it was asked to end.
    """
    began = time.process_time()
    argv = ["sweep", *task.words, *words, f"--output_dir={folder / 'tuning'}"]
    plan = sweep.planned(argv, sweep.define)
    cache_programs(plan.config)
    tried: list[tuple[Program, dict[str, str]]] = []
    validation: dict[str, list[float]] = {moment: [] for moment in MOMENTS}
    (plan.output / "results").mkdir(parents=True)
    for program in plan.programs:
        result = sweep.run_program(program, plan.output, stop)
        tried += [(program, inside) for inside in program.inside]
        for moment, model in MOMENTS.items():
            values = 100 * result.curve(model, "validation")[0, :, -1].astype(float)
            validation[moment] += np.round(values, 3).tolist()
    best = {name: int(np.nan_to_num(one, nan=-1).argmax()) for name, one in validation.items()}
    finals = {
        moment: scored(*tried[k], moment, folder / str(k), stop) for moment, k in best.items()
    }
    result, scores = finals["received"][0], {moment: one for moment, (_, one) in finals.items()}
    sent, names = result.traffic_mb_per_client_round(), scores["received"].chosen
    return Cell(
        task.algorithm, task.setting, task.revision, pfl.__version__, task.command,
        {name: [{**p.fixed, **inside}[name] for p, inside in tried] for name in names},
        validation, scores, list(result.seeds), np.asarray(result.test_sizes).tolist(),
        round(sent["up"], 4), round(sent["down"], 4), round(time.process_time() - began, 1),
    )  # fmt: skip


def scored(
    program: Program, inside: dict[str, str], moment: str, output: Path, stop: Stopper
) -> tuple[pfl.Result, Scores]:
    """Run a combination with the seeds of the scores, alone, as its command does.

    Args:
      output: for the result, or with it.
    """
    config = program.config.replace(seed=SEED + 1, num_seeds=SEEDS)
    (output / "results").mkdir(parents=True, exist_ok=True)
    result = sweep.run_program(replace(program, inside=[inside], config=config), output, stop)
    own = last_self_weight(result)
    return result, Scores(
        {**program.fixed, **inside},
        f"python -m experiments.run {shlex.join([*explicit(config), *setting_words(inside)])}",
        np.round(result.values(MOMENTS[moment])[:, 0, -1].astype(float), 4).tolist(),
        None if own is None else round(own, 3),
        aggregation_remarks(result) + nonfinite_remarks(result),
        result.computation()["local_steps_per_client_round"],
    )


def _interrupted(place: str, number: int) -> None:
    """Remove the results so far, as the process ends at once, without the end of any block."""
    print("Interrupted: the same command goes on with this cell.", file=sys.stderr)
    shutil.rmtree(place, ignore_errors=True)


@shell.script(shell.GOES_ON)
def main(argv: list[str]) -> int:
    """Run the command."""
    parser = argparse.ArgumentParser(
        prog="python -m tools.leaderboard_queue", description=__doc__, allow_abbrev=False,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )  # fmt: skip
    parser.add_argument("folder", type=Path)
    parser.add_argument("--hours", type=float, default=float("inf"), help="no cell begins later")
    parser.add_argument("--only", default="", help="an algorithm, a setting, or both: NAME,NAME")
    args, words = parser.parse_known_args(argv[1:])
    asked, end = tasks(), time.monotonic() + 3600 * args.hours
    for word in filter(None, args.only.split(",")):
        known = dict.fromkeys(name for one in asked for name in (one.setting, one.algorithm))
        if word not in known:
            raise pfl.core.unknown_name("name in --only", word, known)
        asked = [task for task in asked if word in (task.setting, task.algorithm)]
    queue = missing(asked, kept(args.folder))
    for number, task in enumerate(queue, start=1):
        if time.monotonic() > end:
            break
        print(f"\n[{number}/{len(queue)}] {task.algorithm}, {task.setting}", flush=True)
        with tempfile.TemporaryDirectory() as place, Stopper(partial(_interrupted, place)) as stop:
            try:
                cell = measured(task, words, Path(place), stop)
            except Exception as error:  # any: the other cells can still be measured
                if stop.signal:  # `Stopped`, or its folder is gone
                    raise shell.Interrupted(128 + stop.signal) from None
                text = f"{type(error).__name__}: {error}"[:500]
                cell = Cell(task.algorithm, task.setting, task.revision, pfl.__version__,
                            task.command, error=text)  # fmt: skip
                print(text, file=sys.stderr)
        cell.write(args.folder)
    return 0


if __name__ == "__main__":
    shell.leave(main)
