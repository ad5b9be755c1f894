"""Compilation of an experiment for a described device: `python -m experiments.plan --help`.

It reports, for every algorithm, compile time, memory of a device, transfers between devices and, on
TPU, the compiler's estimate of cycles. Nothing is run.
"""

if __name__ == "__main__":  # before anything is loaded
    from .cli.start import launch

    launch("plan")

import contextlib
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import absl.flags
import jax
from rich.console import Console

import fedjax_pfl as pfl
from fedjax_pfl.execution import shares
from fedjax_pfl.utils.conversions import decimal
from fedjax_pfl.utils.errors import gigabytes, shown
from fedjax_pfl.utils.typing import Device

from .cli import console, flags, shell
from .cli.build import Experiment, load_inputs
from .cli.build import prepare as prepare_inputs
from .cli.config import ExperimentConfig
from .cli.flag_groups import Group, new_path
from .cli.start import called
from .outputs import training_line
from .planning import plan_table, plans, targets

USAGE = f"""\
Compile an experiment for a device that this machine may lack, without running it: whether it fits,
with how many clients side by side, its compilation time and, on TPU, an estimate of its speed.

  {called("plan")} --target=v5e --algorithms=fedavg,feddwa --dataset=digits
  {called("plan")} --target=v5e:2x2 --num_clients=100 --output=plan.json
  {called("plan")} --list
"""
BELOW = f"""
All other flags are those of {called("run")}: what is compiled is the program that it would run on
that device. Flags that only write results, such as --output_dir, are not used. --devices is how
many of the target's devices are used (default: all, at most one a client)."""
ENDINGS = (".json", ".csv")


def define(values: absl.flags.FlagValues) -> None:
    """Define the flags beside those of a run."""
    group = Group(values, "plan")
    meaning = "device to compile for: a chip such as v5e or h100, or several such as v5e:2x2"
    group.text("target", None, meaning)
    meaning = "file to write, .json (everything) or .csv (the table); must not exist yet"
    group.text("output", None, meaning)


def parse(argv: Sequence[str]) -> ExperimentConfig:
    """Return the flags of a command line, the program's name first."""
    return flags.parse(argv, define)


@shell.script()
def main(argv: list[str]) -> int:
    """Run the command."""
    args = parse(argv)
    if args.help:
        print(f"{USAGE}\n{flags.define(define).module_help('plan')}\n{BELOW}")
        return 0
    if args.list:
        print(plan_table.catalogue())
        return 0
    if args.target is None:
        raise pfl.InputError("--target must name a device, such as v5e; --list shows them.")
    target = targets.parse(args.target)
    output = new_path("output", args.output, ENDINGS, in_folder=True)
    targets.check_installed(target)
    args.check()
    with _uncached():
        return plan(args, target, output)


def plan(args: ExperimentConfig, target: targets.Target, output: Path | None) -> int:
    """Compile everything, print the table and write the file; return the exit code."""
    devices = target.devices()
    experiment = prepare(args, target)
    count = _count(args, len(devices), experiment.federation.num_clients)
    devices = devices[:count]
    print("\n".join(header(experiment, target, devices)), flush=True)
    by_name = {}
    for name in args.instances:
        print(f"{name}: compiling", flush=True)
        by_name[name] = plans.widest(
            args.instances[name],
            experiment.federation_of(name),
            target,
            devices,
            mesh=args.mesh,
            rounds=args.rounds,
            eval_every=args.eval_every,
            seeds=args.seeds,
            adapt=args.adaptation,
            score_clients=args.scored_clients,
        )
    print()
    console.print_table(Console(), plan_table.table(by_name))
    print("".join(f"\n{line}" for line in plan_table.notes(by_name, experiment, target)))
    if output is not None:
        plan_table.write(output, by_name, experiment, target, devices)
        print(f"\nWritten to {output}.")
    return shell.FAULT if any(one.error for one in by_name.values()) else 0


def prepare(args: ExperimentConfig, target: targets.Target) -> Experiment:
    """Build the experiment for the target, without its mesh of devices."""
    options = {"devices": 1, "mesh": "auto", "platform": target.chip.platform}
    return prepare_inputs(load_inputs(args), options=options)


def header(experiment: Experiment, target: targets.Target, devices: Sequence[Device]) -> list[str]:
    """Return a few lines on what is compiled."""
    federation, dataset, args = experiment.federation, experiment.dataset, experiment.config
    shape = "x".join(map(str, dataset.input_shape))
    chip = target.chip
    speed = "" if chip.clock is None else f", {chip.clock / 1e9:g} GHz"
    return [
        f"target     {target.name}: {len(devices)} x {devices[0].device_kind}, "
        f"{gigabytes(chip.memory)} each{speed}",
        f"data set   {dataset.name}: samples of {shape}, {dataset.num_classes} classes",
        f"clients    {federation.num_clients}, at most {federation.data.train.capacity} training "
        f"and {federation.data.test.capacity} test samples each",
        f"model      {args.model}: {federation.plan.num_parameters:,} parameters",
        f"training   {training_line.describe_training(args, federation.num_clients)}",
    ]


def _count(args: ExperimentConfig, most: int, clients: int) -> int:
    """Return the number of used devices of the target; without --mesh at most one per client.

    Raises:
      InputError: more than it has, or no number; a mesh of another number.
    """
    wanted = most if args.devices == "auto" else decimal(args.devices)
    if not wanted or wanted > most:
        raise pfl.InputError(
            f"--devices must be 'auto' or in 1..{most}, the devices of the target, got "
            f"{shown(args.devices)}."
        )
    if args.mesh == shares.AUTO:
        return min(wanted, clients)
    asked = shares.parsed(args.mesh)
    if args.devices != "auto" or asked.devices > most:
        shares.check(asked, wanted, f"{wanted} of the target's are to be used")
    return asked.devices


@contextlib.contextmanager
def _uncached() -> Iterator[None]:
    """Context in which JAX caches no programs, so that compile times are measured."""
    config: Any = jax.config
    before = config.jax_enable_compilation_cache
    jax.config.update("jax_enable_compilation_cache", False)
    try:
        yield
    finally:
        jax.config.update("jax_enable_compilation_cache", before)
