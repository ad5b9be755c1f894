"""Comparison of algorithms on one federation: `python -m experiments.run --help`."""

if __name__ == "__main__":  # before anything is loaded
    from .cli.start import launch

    launch("run")

import shutil
import sys
import tempfile
from collections.abc import Sequence
from functools import partial
from pathlib import Path

import jax
import numpy as np
from rich.console import Console

import fedjax_pfl as pfl
from fedjax_pfl.data.atomic_files import writing
from fedjax_pfl.data.files import as_path
from fedjax_pfl.engine.progress import Line
from fedjax_pfl.execution import processes
from fedjax_pfl.execution.platforms import cores
from fedjax_pfl.results.notes import named

from .cli import (
    algorithm_folders,
    console,
    data_flags,
    distributed,
    flags,
    new_clients,
    provenance,
    run_folder,
    shell,
)
from .cli.algorithms import describe_own_training
from .cli.build import Experiment, Folder, Inputs, load_inputs, prepare
from .cli.config import GROUPS, ExperimentConfig
from .cli.identity import check_alike
from .cli.simulating import Stopped, Stopper, run_algorithm
from .outputs import clients_table, comparison_table, run_files, tracking, training_line


@shell.script(shell.GOES_ON, "from what is kept")
def main(argv: list[str]) -> int:
    """Run the command."""
    config = flags.parse(argv, flags.distributed)
    groups = (*GROUPS, "flagfiles", "help")
    if flags.answered(config, flags.USAGE, groups, flags.distributed):
        return 0
    distributed.start(config.distributed, config.devices, config.mesh, config.num_clients)
    inputs = processes.agreed(lambda: load_inputs(config))
    check_alike(inputs.identity)
    state = processes.on_first(lambda: run_folder.inspect(config, inputs.identity))
    folder = Folder(**state)
    if not folder.finished:
        return run(processes.agreed(lambda: prepare(inputs, folder)))
    if not processes.is_first():
        return 0
    print(f"This run is finished. Its results, from {folder.output}:")
    output = Path(folder.output)
    results = {name: load(config, name, output) for name in config.instances}
    track(inputs, results, output)
    return report(results, config, output)


def run(experiment: Experiment, quiet: bool = False) -> int:
    """Simulate the algorithms in turn, write and print; return the exit code.

    Algorithms with a complete folder are read from it; one with checkpoints continues from them.
    With `quiet` only progress is shown, without header and table.
    """
    config, output, identity = experiment.config, experiment.output, experiment.identity
    if config.compilation_cache:
        cache_programs(config)
    if not quiet:
        print("\n".join(header(experiment)), flush=True)
    results: dict[str, pfl.Result] = {}
    blocks = experiment.folder.blocks
    for name in experiment.folder.pending:  # before a folder is made
        seeds = config.seeds[: max(blocks)]
        experiment.simulation(name, seeds, adapt=config.adaptation).check_memory()
    with distributed.in_first_process(lambda: run_folder.opened(output, identity)):
        pending = processes.on_first(lambda: run_folder.pending(config, output, blocks))
        processes.on_first(
            lambda: run_files.write_partition(output, experiment.partition, experiment.dataset)
        )
        facts = provenance.describe(experiment)
        try:
            with Stopper(partial(interrupted, experiment)) as stop:
                compiled: dict[str, float] = {}
                for name in config.instances:
                    if name in pending:
                        if name not in compiled:
                            compiled |= _compiled(experiment, pending[pending.index(name) :])
                        run_algorithm(experiment, name, facts, stop, results, compiled[name])
                    processes.on_first(partial(_finish, experiment, name, results))
            processes.on_first(lambda: _write_comparison(experiment, results, facts))
        except Stopped as error:  # all processes are, if only one got a signal
            return interrupted(experiment, max(processes.exchange(stop.signal)), error)
        except OSError:  # such as a full disk
            if results and processes.is_first():
                show(results, config)
            raise
    return 0 if quiet or not processes.is_first() else report(results, config, output)


def _compiled(experiment: Experiment, pending: Sequence[str]) -> dict[str, float]:
    """Compile the next algorithms' programs, one on each core; return the seconds of each."""
    seeds = experiment.config.seeds[: max(experiment.folder.blocks)]
    adapt, simulations = experiment.config.adaptation, {}
    for name in pending[: cores()]:
        simulations[name] = experiment.simulation(name, seeds, adapt=adapt)
    line = Line(", ".join(simulations))
    pfl.compile_all(simulations.values())
    line.on_run_end()
    return {name: one.compile_seconds for name, one in simulations.items()}


def _finish(experiment: Experiment, name: str, results: dict[str, pfl.Result]) -> None:
    """Read and track the result of an algorithm whose folder is complete."""
    if name not in results:
        results[name] = load(experiment.config, name, experiment.output)
    track(experiment, {name: results[name]}, experiment.output)


def _write_comparison(experiment: Experiment, results: dict[str, pfl.Result], facts: dict) -> None:
    config, output = experiment.config, experiment.output
    if experiment.new_clients is not None:
        measure = next(iter(results.values())).measure()
        new_clients.write_table(output, results, measure)
    title = f"{', '.join(results)} on {facts['summary']['dataset']}"
    if config.scored_clients is not None:
        title += f", scored on {named(config.scored_clients, most=len(config.scored_clients))}"
    if not config.keep_state:
        shutil.rmtree(output / algorithm_folders.CHECKPOINTS, ignore_errors=True)
    clients_table.write(output, experiment.partition, results)
    line = training_line.describe_training(config, experiment.federation.num_clients)
    # Last: with it the run is finished.
    run_files.write_comparison(output, results, title, line, config.headline)


def cache_programs(config: ExperimentConfig) -> None:
    """Let JAX cache compiled programs in a folder, which the first process checks.

    Raises:
      InputError: --compilation_cache was given, and is not a path.
    """
    try:
        cache = as_path("--compilation_cache", config.compilation_cache)
        if processes.is_first():
            with writing(cache):
                cache.mkdir(parents=True, exist_ok=True)
                tempfile.TemporaryFile(dir=cache).close()
    except (pfl.InputError, pfl.OutputError) as error:
        # Without a home folder the default leads nowhere.
        if isinstance(error, pfl.InputError) and config["compilation_cache"].present:
            raise
        print(f"warning: no compiled programs are kept: {error}", file=sys.stderr)
        return
    jax.config.update("jax_compilation_cache_dir", str(cache))
    jax.config.update("jax_persistent_cache_min_compile_time_secs", 0.5)


def load(config: ExperimentConfig, name: str, output: Path) -> pfl.Result:
    """Return a finished algorithm's result."""
    return algorithm_folders.load_result(output / name, name, config.seeds, config.rounds)


def track(made: Inputs, results: dict[str, pfl.Result], output: Path) -> None:
    """Send finished algorithms' missing measurements to the trackers."""
    for name, result in results.items():
        tracking.finish(made.config, output, name, made.identity, result)


def interrupted(experiment: Experiment, number: int, error: Stopped | None = None) -> int:
    """Print what is saved and how to continue; return the exit code."""
    config, output = experiment.config, experiment.output
    missing = run_folder.pending(config, output, experiment.folder.blocks)
    done = ", ".join(name for name in config.instances if name not in missing) or "none"
    where = f", and the next one after round {error.round}" if error is not None else ""
    print(
        f"Interrupted. Finished algorithms: {done}{where}. Kept in {output}: the same command "
        "continues from there.",
        file=sys.stderr if processes.is_first() else sys.stdout,
    )
    return 128 + number


def report(results: dict[str, pfl.Result], config: ExperimentConfig, output: Path) -> int:
    """Print the table, its notes and where the files are; return the exit code."""
    show(results, config)
    if config.new_clients:
        print((output / new_clients.TABLE).read_text(encoding="utf-8"))
    print(f"Table, pictures and a folder for each algorithm: {output}")
    return 0


def show(results: dict[str, pfl.Result], config: ExperimentConfig) -> None:
    """Print the table and its notes."""
    print()
    table = comparison_table.comparison(results, config.headline)
    console.print_comparison(Console(), table)
    print("".join(f"\n{line}" for line in table.notes) + "\n" * bool(table.notes))
    clients = max(result.num_clients for result in results.values())
    lines = [f"Training: {training_line.describe_training(config, clients)}."]
    lines += comparison_table.headline_notes(results, config.headline)
    print("\n".join([*lines, comparison_table.caption(results)]) + "\n")


def header(experiment: Experiment) -> list[str]:
    """Format a few lines on the run."""
    federation, dataset, args = experiment.federation, experiment.dataset, experiment.config
    shape = "x".join(map(str, dataset.input_shape))
    efficiency = pfl.engine.padding_efficiency(federation.steps(), federation.execution)
    device = jax.devices()[0]
    ids = np.asarray(federation.data.ids)
    idle = ids[federation.steps() == 0].tolist()
    fixed, match = federation.num_frozen, federation.initial_match
    own = {
        name: describe_own_training(options)
        for name, options in args.training_of.items()
        if options
    }
    partition_lines = data_flags.partition_summary(experiment.partition, dataset).splitlines()
    return [
        f"data set   {dataset.name}: {dataset.num_train} training and {dataset.num_test} test "
        f"samples of {shape}, {dataset.labelling}",
        *(f"{'partition' if k == 0 else '':10} {line}" for k, line in enumerate(partition_lines)),
        f"model      {args.model}: {federation.plan.num_parameters:,} parameters"
        + (f", and {fixed:,} frozen ones, kept once" if fixed else ""),
        *([f"initial    {args.init_from}: {match}"] if match is not None else []),
        f"training   {training_line.describe_training(args, federation.num_clients)}",
        *(f"{'':10} {name}: its own {words}" for name, words in own.items()),
        *([f"no step    {named(idle)}: too few training samples for a local step"] if idle else []),
        f"run        {args.rounds} rounds, {args.num_seeds} seed(s); clients by "
        f"{federation.execution}, seeds by {federation.execution.seeds}; padding efficiency "
        f"{efficiency:.3f}",
        f"device     {jax.device_count()} x {device.device_kind} ({jax.default_backend()})"
        + (f" in {processes.count()} processes" if processes.is_distributed() else ""),
        f"output     {experiment.output}",
    ]
