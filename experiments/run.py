"""Compares methods on one federation: `python -m experiments.run --help`."""

import os
import sys
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import absl.flags
import jax
from rich.console import Console

import fedjax_pfl as pfl
from experiments import console as shown
from experiments import flags, outputs, provenance
from experiments.build import Experiment, prepare

INTERRUPTED = 130


def main(argv: Sequence[str] | None = None) -> int:
    """Runs the script with `argv` (the program's name first); returns its exit code."""
    try:
        args = flags.parse(sys.argv if argv is None else argv)
        if args["help"].value or args["helpfull"].value:
            print(flags.help_text(args))
        elif args["list"].value:
            print(shown.catalogue())
        else:
            return run(prepare(args))
    except (pfl.InputError, absl.flags.Error) as error:
        print(f"error: {str(error).removeprefix('ERROR:: ')}", file=sys.stderr)
        return 2
    except KeyboardInterrupt:
        print("Interrupted before anything was computed.", file=sys.stderr)
        return INTERRUPTED
    return 0


def run(experiment: Experiment) -> int:
    """Simulates the methods one after the other, writes and prints; returns the exit code."""
    args, output = experiment.args, experiment.output
    if args.compilation_cache:
        cache = str(Path(args.compilation_cache).expanduser())
        jax.config.update("jax_compilation_cache_dir", cache)
        jax.config.update("jax_persistent_cache_min_compile_time_secs", 0.5)
    console = Console()
    print("\n".join(header(experiment)), flush=True)
    output.mkdir(parents=True)
    outputs.write_partition(output, experiment.partition, experiment.dataset)
    facts = provenance.describe(experiment)
    results: dict[str, pfl.Result] = {}
    interrupted = False
    try:
        with shown.progress_display(console) as display:
            for name, method in experiment.methods.items():
                result = pfl.simulate(
                    method,
                    experiment.federation,
                    args.rounds,
                    seeds=experiment.seeds,
                    eval_every=args.eval_every,
                    matrix_rounds=experiment.matrix_rounds,
                    adapt=experiment.adapt,
                    score_clients=experiment.score_clients,
                    progress=display.method(name, args.rounds),
                )
                models = result.final.models() if args.save_models else None
                result = replace(result, final=None)  # its device memory is the next one's
                config = provenance.configuration(experiment, result, facts)
                outputs.write_method(output / name, result, config, facts["summary"], models)
                del models
                results[name] = result
    except KeyboardInterrupt:
        interrupted = True
    if results:
        title = f"{', '.join(results)} on {facts['summary']['dataset']}"
        if experiment.score_clients is not None:
            title += f", scored on client {', '.join(map(str, experiment.score_clients))}"
        outputs.write_comparison(output, results, title)
        print()
        shown.print_table(console, outputs.comparison_rows(results))
        print(f"\n{outputs.HEADLINE}\n")
    if interrupted:
        done = ", ".join(results) or "none"
        print(f"Interrupted. Finished methods: {done}; kept in {output}.", file=sys.stderr)
        return INTERRUPTED
    print(f"Table, pictures and a folder for each method: {output}")
    return 0


def header(experiment: Experiment) -> list[str]:
    """A few lines on what is about to run."""
    federation, dataset, args = experiment.federation, experiment.dataset, experiment.args
    shape = "x".join(map(str, dataset.input_shape))
    efficiency = pfl.padding_efficiency(
        federation.data.train, federation.schedule, federation.execution
    )
    device = jax.devices()[0]
    return [
        f"data set   {dataset.name}: {dataset.num_train} training and {dataset.num_test} test "
        f"samples of {shape}, {dataset.num_classes} classes",
        *(
            f"{'partition' if k == 0 else '':10} {line}"
            for k, line in enumerate(experiment.partition.summary().splitlines())
        ),
        f"model      {args.model}: {federation.plan.num_parameters:,} parameters",
        f"run        {args.rounds} rounds, {len(experiment.seeds)} seed(s); clients by "
        f"{federation.execution}, seeds by {federation.execution.seeds}; padding efficiency "
        f"{efficiency:.3f}",
        f"device     {jax.device_count()} x {device.device_kind} ({jax.default_backend()})",
        f"output     {experiment.output}",
    ]


if __name__ == "__main__":
    code = main()
    if code == INTERRUPTED:  # leaving in an orderly way can crash where XLA is still compiling
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(code)
    sys.exit(code)
