"""Benchmark of speed: `python -m tools.benchmark --help`.

Every case runs in its own process and its contestants take turns, so that they are measured within
the same minutes. Nothing is downloaded: images are random.
"""

if __name__ == "__main__":  # before anything is loaded
    from experiments.cli.start import request_huge_pages

    request_huge_pages("tools.benchmark")

import importlib.util
import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path

import jax
from absl import flags
from rich.box import SIMPLE_HEAD
from rich.console import Console
from rich.table import Table

import fedjax_pfl as pfl
from experiments.cli import devices, shell
from experiments.cli.flag_groups import Group, new_path
from experiments.cli.parsing import FlagValues, parse_words
from experiments.outputs.run_files import atomic_write

from .cases import CASES, Plan, Report
from .timing import machine

USAGE = """\
Measure the speed of simulations, beside a PyTorch loop over the clients.

  python -m tools.benchmark --case=a,c --output=speed.json
  python -m tools.benchmark --list

Every case runs in its own process; the compared programs take turns. Nothing is downloaded: images
are random.
"""


def parse(argv: Sequence[str]) -> flags.FlagValues:
    """Return the flags of a command line (the program's name first)."""
    values = FlagValues()
    group = Group(values, "benchmark")
    group.names("case", ["a"], "cases to measure, or all")
    group.switch("list", False, "list the cases")
    group.help()
    group.integer("repeats", 5, "turns of each compared program", 1)
    group.integer("rounds", 2, "rounds of a turn; their median is reported", 1)
    group.switch("quick", False, "tiny workloads that only show that everything runs")
    group.switch("torch", True, "measure the PyTorch loop as well")
    meaning = "strategies of the client axis to compare in cases a, b and g; others use the first"
    group.names("client_execution", ["auto"], meaning)
    meaning = "devices that share the client axis; 'auto': a CPU's cores, else 1"
    group.text("devices", "auto", meaning)
    group.text("output", None, "JSON file to write; must not exist yet")
    parse_words(values, argv)
    return values


@shell.script()
def main(argv: list[str]) -> int:
    """Run the command."""
    args = parse(argv)
    if args["help"].value:
        print(USAGE)
        print(args.module_help("benchmark"))
        return 0
    if args["list"].value:
        print("\n".join(f"{name:6} {_about(name)}" for name in CASES))
        return 0
    names = list(CASES) if args.case == ["all"] else args.case
    for name in names:
        if name not in CASES:
            raise pfl.core.unknown_name("benchmark case", name, [*CASES, "all"])
    output = new_path("output", args.output)
    torch = args.torch and importlib.util.find_spec("torch") is not None
    if args.torch and not torch:
        print("PyTorch is not installed: pip install -e '.[benchmark]'. Measuring without.")
    measured, failed = {}, []
    for name in names:
        one = _measure(name, args, torch) if len(names) == 1 else _in_process(name, args)
        if one is None:
            failed.append(name)
            continue
        measured[name] = one
        if output is not None:
            with atomic_write(output) as path:
                path.write_text(json.dumps(measured, indent=2) + "\n")
    if measured and output is not None:
        print(f"Written to {output}.")
    for name in failed:
        print(f"error: case {name} failed.", file=sys.stderr)
    return 1 if failed else 0


def _measure(name: str, args: flags.FlagValues, torch: bool) -> dict:
    """Measure and print a case in this process; return plain data."""
    print(f"Case {name}: {_about(name)}", flush=True)
    over = devices.prepare(args.devices, 4 if args.quick else 20)
    plan = Plan(
        repeats=args.repeats,
        rounds=args.rounds,
        quick=args.quick,
        torch=torch,
        device="cuda" if jax.default_backend() == "gpu" else "cpu",
        executions=tuple(args.client_execution),
        devices=over,
        say=lambda line: print(f"  {line}", flush=True),
    )
    report = CASES[name](plan)
    show(report)
    timings = {key: {**asdict(t), "median": t.median} for key, t in report.timings.items()}
    ratios = [{**asdict(ratio), "met": ratio.met} for ratio in report.ratios]
    return {
        "about": _about(name),
        "machine": machine(),
        "quick": args.quick,
        "timings": timings,
        "ratios": ratios,
        "facts": report.facts,
    }


def _in_process(name: str, args: flags.FlagValues) -> dict | None:
    """Measure a case in its own process; return None if it fails."""
    with tempfile.TemporaryDirectory() as folder:
        same, file = Path(folder) / "same.flags", Path(folder) / "case.json"
        same.write_text(args.flags_into_string())
        words = [f"--flagfile={same}", f"--case={name}", f"--output={file}"]
        done = subprocess.run(
            [sys.executable, "-m", "tools.benchmark", *words], check=False, env=os.environ
        )
        return None if done.returncode else json.loads(file.read_text())[name]


def show(report: Report) -> None:
    """Print the table of a case, and its ratios with their targets."""
    table = Table(box=SIMPLE_HEAD)
    for column in ("", "s a round", "least", "most", "compiling, s"):
        table.add_column(column, justify="left" if not column else "right")
    for name, timing in report.timings.items():
        numbers = (timing.median, min(timing.seconds), max(timing.seconds), timing.prepare)
        table.add_row(name, *(f"{number:.4g}" for number in numbers))
    Console().print(table)
    for ratio in report.ratios:
        bound = ""
        if ratio.target is not None:
            word = "at least" if ratio.at_least else "at most"
            bound = f" (target: {word} {ratio.target:g}: {'met' if ratio.met else 'MISSED'})"
        print(f"  {ratio.value:8.3f}  {ratio.what}{bound}")
    for name, fact in report.facts.items():
        print(f"  {name}: {fact}")


def _about(name: str) -> str:
    case = CASES[name]
    documented = (getattr(case, "func", case).__doc__ or "").strip().splitlines()[0]
    keywords = getattr(case, "keywords", {})
    return documented + "".join(f" ({key}={value})" for key, value in keywords.items())


if __name__ == "__main__":
    shell.leave(lambda: main(sys.argv))
