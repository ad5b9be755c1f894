"""Compares algorithms on one federation: `python -m experiments.run --help`."""

if __name__ == "__main__":  # before anything is loaded
    from .cli.start import launch

    launch("run")

import shutil
import signal
import sys
import tempfile
from functools import partial
from pathlib import Path

import jax
import numpy as np
from rich.console import Console

import fedjax_pfl as pfl
from fedjax_pfl.data.files import as_path
from fedjax_pfl.data.whole_files import writing
from fedjax_pfl.execution import processes
from fedjax_pfl.results.notes import named

from .cli import console as shown
from .cli import distributed, flags, growth, new_clients, provenance, resume, run_cache, shell
from .cli.algorithms import own_words, remarked
from .cli.build import Experiment, Material, material, output_folder, prepare
from .cli.help import help_text
from .cli.simulating import memory_of, run_algorithm
from .outputs import clients_table, comparison_table, run_files, tracking, training_line


@shell.script(shell.GOES_ON, "from what is kept")
def main(argv: list[str]) -> int:
    """Runs the script."""
    args = flags.parse(argv, flags.distributed)
    if args["help"].value or args["helpfull"].value:
        print(help_text(args))
    elif args["list"].value:
        print(shown.catalogue())
    else:
        distributed.start(args.distributed)
        made = processes.agreed(lambda: material(args))  # the data's content identifies the run
        distributed.check_alike(resume.configuration(args, **made.identity))
        output = Path(processes.on_first(lambda: str(output_folder(args, made.identity))))
        if processes.on_first(lambda: is_finished(args, output, made)):
            if not processes.is_first():
                return 0
            print(f"This run is finished. Its results, from {output}:")
            results = {name: load(args, name, output) for name in made.algorithms}
            track(args, results, output)
            return report(results, args, output)
        return run(processes.agreed(lambda: prepare(args, output, made)))
    return 0


def run(experiment: Experiment, quiet: bool = False) -> int:
    """Simulates the algorithms one after the other, writes and prints; returns the exit code.

    Algorithms with a complete folder are read from it; one with checkpoints continues from them.
    With `quiet` only progress is shown, without header and table.
    """
    args, output = experiment.args, experiment.output
    if args.compilation_cache:
        _keep_programs(args)
    console = Console()
    if not quiet:
        print("\n".join(header(experiment)), flush=True)
    results: dict[str, pfl.Result] = {}
    pending = processes.on_first(lambda: unfinished(experiment))
    parts = processes.on_first(lambda: resume.parts(output, args, **experiment.identity))
    # Before a folder is made.
    memory = {name: memory_of(experiment, name, max(parts)) for name in pending}
    with distributed.held(lambda: resume.opened(output, args, **experiment.identity)):
        done = processes.on_first(
            lambda: [name for name in experiment.algorithms if run_cache.is_complete(output / name)]
        )
        processes.on_first(
            lambda: run_files.write_partition(output, experiment.partition, experiment.dataset)
        )
        facts = provenance.describe(experiment)
        try:
            with resume.Stopper() as stop, shown.progress_display(console) as display:
                for name in experiment.algorithms:
                    if name not in done:
                        begin = partial(display.algorithm, memory=memory.get(name))
                        result = run_algorithm(experiment, name, parts, facts, begin, stop)
                        results |= {} if result is None else {name: result}
                    processes.on_first(partial(_found, args, name, results, output))
        except (resume.Stopped, KeyboardInterrupt) as error:
            return interrupted(error, stop, results, output)
        processes.on_first(lambda: _write_comparison(experiment, results, facts, output))
    return 0 if quiet or not processes.is_first() else report(results, args, output)


def is_finished(args, output: Path, made: Material) -> bool:
    """Whether the folder has all results of these flags."""
    larger = resume.grown(output, args, **made.identity)
    return not larger and resume.finished(output, made.algorithms)


def unfinished(experiment: Experiment) -> list[str]:
    """The algorithms to simulate."""
    args, output = experiment.args, experiment.output
    way = resume.grown(output, args, **experiment.identity)
    every = way is not None and way != growth.ALGORITHMS
    return [n for n in experiment.algorithms if every or not run_cache.is_complete(output / n)]


def _found(args, name: str, results: dict[str, pfl.Result], output: Path) -> None:
    """An algorithm's result is in its folder: reads it if need be, and tracks it."""
    if name not in results:
        results[name] = load(args, name, output)
    track(args, {name: results[name]}, output)


def _write_comparison(
    experiment: Experiment, results: dict[str, pfl.Result], facts: dict, output: Path
) -> None:
    args = experiment.args
    if experiment.new_clients is not None:
        measure = next(iter(results.values())).measure()
        print(f"\n{new_clients.write_table(output, results, measure)}")
    title = f"{', '.join(results)} on {facts['summary']['dataset']}"
    if experiment.score_clients is not None:
        title += f", scored on client {', '.join(map(str, experiment.score_clients))}"
    if not args.keep_state:
        shutil.rmtree(output / growth.CHECKPOINTS, ignore_errors=True)
    clients_table.write(output, experiment.partition, results)
    line = training_line.describe_training(args, experiment.federation.num_clients)
    # Last: with it the run is finished.
    run_files.write_comparison(output, results, title, line, args.headline)


def _keep_programs(args) -> None:
    """Lets JAX keep compiled programs in a folder, if it can be written; the first process does.

    Raises:
      InputError: --compilation_cache was given, and is no path.
    """
    try:
        cache = as_path("--compilation_cache", args.compilation_cache)
    except pfl.InputError as error:  # without a home folder the default leads nowhere
        if args["compilation_cache"].present:
            raise
        print(f"warning: no compiled programs are kept: {error}", file=sys.stderr)
        return
    try:
        if processes.is_first():
            with writing(cache):
                cache.mkdir(parents=True, exist_ok=True)
                tempfile.TemporaryFile(dir=cache).close()
    except pfl.OutputError as error:
        print(f"warning: no compiled programs are kept: {error}", file=sys.stderr)
        return
    jax.config.update("jax_compilation_cache_dir", str(cache))
    jax.config.update("jax_persistent_cache_min_compile_time_secs", 0.5)


def load(args, name: str, output: Path) -> pfl.Result:
    """A finished algorithm's result."""
    seeds = range(args.seed, args.seed + args.num_seeds)
    result = run_cache.result(output / name, name, seeds, args.rounds)
    return remarked(result, {}, provenance.of_other_code(args, output / name, name))


def track(args, results: dict[str, pfl.Result], output: Path) -> None:
    """Sends the trackers asked for what they lack of finished algorithms."""
    for name, result in results.items():
        tracking.finish(args, output, name, resume.configuration(args), result)


def interrupted(error, stop: "resume.Stopper", results: dict, output: Path) -> int:
    """Prints what is kept and how to continue; returns the exit code."""
    number = stop.signal
    if isinstance(error, resume.Stopped):  # all processes are, if only one got a signal
        number = max(processes.exchange(number))
    else:
        distributed.leave_at_once()
    done = ", ".join(results) or "none"
    where = f", and the next one after round {error.round}" if hasattr(error, "round") else ""
    print(
        f"Interrupted. Finished algorithms: {done}{where}. Kept in {output}: the same command "
        "continues from there.",
        file=sys.stderr if processes.is_first() else sys.stdout,
    )
    return 128 + (number or signal.SIGINT)


def report(results: dict[str, pfl.Result], args, output: Path) -> int:
    """Prints the table and its notes."""
    print()
    table = comparison_table.comparison(results, args.headline)
    shown.print_comparison(Console(), table)
    print("".join(f"\n{line}" for line in table.notes) + "\n" * bool(table.notes))
    clients = max(result.num_clients for result in results.values())
    said = comparison_table.headline_notes(results, args.headline)
    said += [comparison_table.headline(results)]
    training = f"Training: {training_line.describe_training(args, clients)}."
    print("\n".join([training, *said]) + "\n")
    print(f"Table, pictures and a folder for each algorithm: {output}")
    return 0


def header(experiment: Experiment) -> list[str]:
    """The header: a few lines on the run."""
    federation, dataset, args = experiment.federation, experiment.dataset, experiment.args
    shape = "x".join(map(str, dataset.input_shape))
    efficiency = pfl.engine.padding_efficiency(federation.steps(), federation.execution)
    device = jax.devices()[0]
    ids = np.asarray(federation.data.ids)
    idle = ids[federation.steps() == 0].tolist()
    fixed, match = federation.num_frozen, federation.initial_match
    own = {name: own_words(options) for name, options in experiment.training.items() if options}
    return [
        f"data set   {dataset.name}: {dataset.num_train} training and {dataset.num_test} test "
        f"samples of {shape}, {dataset.labelling}",
        *(
            f"{'partition' if k == 0 else '':10} {line}"
            for k, line in enumerate(experiment.partition.summary().splitlines())
        ),
        f"model      {args.model}: {federation.plan.num_parameters:,} parameters"
        + (f", and {fixed:,} frozen ones, kept once" if fixed else ""),
        *([f"initial    {args.init_from}: {match}"] if match is not None else []),
        f"training   {training_line.describe_training(args, federation.num_clients)}",
        *(f"{'':10} {name}: its own {words}" for name, words in own.items()),
        *([f"no step    {named(idle)}: too few training samples for a local step"] if idle else []),
        f"run        {args.rounds} rounds, {len(experiment.seeds)} seed(s); clients by "
        f"{federation.execution}, seeds by {federation.execution.seeds}; padding efficiency "
        f"{efficiency:.3f}",
        f"device     {jax.device_count()} x {device.device_kind} ({jax.default_backend()})"
        + (f" in {processes.count()} processes" if processes.several() else ""),
        f"output     {experiment.output}",
    ]
