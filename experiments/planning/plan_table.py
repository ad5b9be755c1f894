"""The table of plans, its notes and its file."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict
from importlib import metadata
from pathlib import Path
from typing import Any

import jax
import pandas as pd

from fedjax_pfl.results.table import Column, Table
from fedjax_pfl.utils.errors import gigabytes
from fedjax_pfl.utils.typing import Device

from ..cli.build import Experiment
from ..outputs.run_files import write_json, write_text
from .costs import Costs
from .plans import HOST, Plan
from .targets import Target, chips

COMPILERS = ("libtpu", "jax-cuda13-plugin", "jax-cuda12-plugin")


def catalogue() -> str:
    """Return the text of --list: targets and their facts."""
    lines = ["Targets (--target): NAME is one device, NAME:TOPOLOGY all devices of an arrangement."]
    for chip in chips().values():
        speed = "" if chip.clock is None else f", {chip.clock / 1e9:g} GHz"
        shapes = ", ".join(f"{chip.name}:{topology}" for topology in chip.topologies)
        lines += [
            f"  {chip.name:6} {gigabytes(chip.memory)} for programs{speed}; {shapes}",
            f"  {'':6} {chip.source}",
        ]
    return "\n".join(lines)


def _size(count: int) -> str:
    """Format bytes to three digits with their unit."""
    for unit, name in ((1e9, "GB"), (1e6, "MB"), (1e3, "kB")):
        value = count / unit
        if value >= 0.9995:
            return f"{value:.{2 - (value >= 9.995) - (value >= 99.95)}f} {name}"
    return f"{count:.0f} bytes"


def _millions(count: float) -> str:
    """Format a number in millions; small ones have two digits."""
    return f"{count / 1e6:.3f}" if count >= 1e4 or not count else f"{count / 1e6:.2g}"


def _column(key: str, title: str, text: Callable[[Any], str] = str) -> Column:
    return Column(key, title, lambda row: text(row[key]))


COLUMNS = [
    _column("algorithm", "algorithm"),
    _column("fits", "fits"),
    _column("lanes", "lanes"),
    _column("compile_seconds", "compiling s", "{:.1f}".format),
    _column("memory_bytes", "memory", _size),
    _column("transfers", "transfers"),
    _column("transfer_bytes", "transferred", _size),
    _column("local_steps", "local steps", "{:.0f}".format),
    _column("step_cycles", "step Mcycles", _millions),
    _column("step_floor_cycles", "floor Mcycles", _millions),
    _column("evaluation_cycles", "evaluation Mcycles", _millions),
    _column("rest_cycles", "rest Mcycles", _millions),
    _column("rounds_per_second", "rounds/s", "{:.2f}".format),
]
WITHOUT_ZERO = ("lanes", "compile_seconds", "transfers", "transfer_bytes")  # of printed columns


def rows(by_name: Mapping[str, Plan]) -> list[dict[str, Any]]:
    """Return a row of plain values for each algorithm: columns of the CSV file."""
    result = []
    for name, plan in by_name.items():
        costs = plan.costs or Costs()
        timed = plan.costs if plan.cycles else None
        row = {
            "algorithm": name,
            "fits": plan.fits,
            "lanes": plan.lanes,
            "compile_seconds": plan.compile_seconds,
            "memory_bytes": plan.planned.get("total"),
            "transfers": "; ".join(f"{n:g} {kind}" for kind, (n, _) in costs.transfers.items()),
            "transfer_bytes": plan.costs and sum(size for _, size in costs.transfers.values()),
            "local_steps": plan.costs and costs.steps,
            "step_cycles": timed and timed.step,
            "step_floor_cycles": plan.step_floor,
            "evaluation_cycles": timed and timed.evaluation,
            "rest_cycles": timed and timed.rest,
            "round_cycles": timed and plan.cycles,
            "rounds_per_second": plan.rounds_per_second,
        }
        if any(one.host for one in by_name.values()):
            row |= {f"host_{kind}_bytes": plan.host.get(kind) for kind in HOST}
        result.append(row)
    return result


def table(by_name: Mapping[str, Plan]) -> Table:
    """Return the printed table, without empty columns."""
    lines = []
    for row in rows(by_name):
        known = {k: v for k, v in row.items() if v is not None and (v or k not in WITHOUT_ZERO)}
        lines.append(known | {"fits": {True: "yes", False: "no", None: "failed"}[row["fits"]]})
    return Table(COLUMNS, lines)


def notes(by_name: Mapping[str, Plan], experiment: Experiment, target: Target) -> list[str]:
    """Return notes on the table and the compilers' messages."""
    seeds, chip = len(experiment.config.seeds), target.chip
    lines = [
        f"Memory and transfers are of one device, which has {gigabytes(chip.memory)} for programs; "
        f"lanes are clients that it trains side by side{', of each seed' if seeds > 1 else ''}.",
    ]
    if any(plan.rounds_per_second for plan in by_name.values()):
        every = experiment.config.eval_every
        scored = "each" if every == 1 else f"one in {every} of them"
        lines.append(
            f"Cycles are the compiler's estimate, of all lanes of {seeds} seed(s) together; a "
            f"round is local steps x step + rest, and evaluation in {scored}. Sorting, transfers "
            "between devices and waiting are not in them: rounds/s is an estimate of the compiler."
        )
    unknown = [name for name, plan in by_name.items() if plan.costs and plan.costs.unknown]
    if unknown and chip.clock is not None:
        lines.append(f"Loops of unknown length count once in: {', '.join(unknown)}.")
    for name, plan in by_name.items():
        if plan.host:
            rows, samples, up, down = (_size(plan.host[kind]) for kind in HOST)
            lines.append(
                f"{name} keeps clients' state in host memory, up to {rows}, and samples, "
                f"{samples}. A round moves {up} to the devices and {down} back; its memory is with "
                "the next cohort's."
            )
        if plan.message and not plan.fits:
            lines.append(f"{name}: {plan.message}")
        if plan.error:
            lines.append(f"{name} can't be compiled: {plan.error}")
    return lines


def write(
    path: Path,
    by_name: Mapping[str, Plan],
    experiment: Experiment,
    target: Target,
    devices: Sequence[Device],
) -> None:
    """Write everything as JSON, or the rows as CSV, by the file's ending."""
    if path.suffix.lower() == ".csv":
        write_text(path, pd.DataFrame(rows(by_name), dtype=object).to_csv(index=False))
        return
    federation, chip = experiment.federation, target.chip
    facts = {
        "target": target.name,
        "device": devices[0].device_kind,
        "devices": len(devices),
        "memory_bytes": chip.memory,
        "clock": chip.clock,
        "source": chip.source,
        "jax": jax.__version__,
        "compiler": _compilers(),
        "dataset": experiment.dataset.name,
        "clients": federation.num_clients,
        "parameters": federation.plan.num_parameters,
        "flags": experiment.config.by_group(),
        "algorithms": {name: asdict(plan) for name, plan in by_name.items()},
    }
    write_json(path, facts)


def _compilers() -> dict[str, str]:
    """Return the versions of installed compilers."""
    installed = {one.metadata["Name"]: one.version for one in metadata.distributions()}
    return {name: installed[name] for name in COMPILERS if name in installed}
