"""Every algorithm compiled for accelerators that need not be there, as tables.

`python -m tools.accelerators FOLDER [docs/performance.md]` compiles all cases, keeps what each gave
in FOLDER, and fills the table between the file's marks. What FOLDER has already is not compiled
again: an interrupted command continues. `--only=WORD` keeps to cases with the word in their name,
such as "small/v5e/" or "/feddwa". The exit code is 1 if a compiler failed.
"""

import json
import sys
from collections.abc import Iterator, Mapping, Sequence
from functools import cache
from pathlib import Path
from typing import Any, NamedTuple

import jax

import fedjax_pfl as pfl
from experiments.cli import shell
from experiments.outputs.run_files import write_json, write_text
from experiments.planning import plans, targets
from fedjax_pfl.contract.registry import ALGORITHMS
from fedjax_pfl.testing.toys import toy_for
from tools.settings_table import stand_in

TARGETS = ("v5e", "v5e:2x2", "h100")
WITH_CNN = ("fedavg", "feddwa", "cwfedavg", "pfedla")
MARKS = ("<!-- accelerators -->\n", "\n<!-- end of accelerators -->")
SIZES = (7, 3, 1, 10, 4, 4, 4, 4)  # training samples of the small case's clients
Found = Mapping[str, Mapping[str, Any]]  # plans in JSON's types, by case


class Case(NamedTuple):
    """An algorithm's program for a target.

    Attributes:
      size: "small", a few numbers and ragged clients; or "cnn", 20 clients of 450 training and 100
        test images 28x28 each.
    """

    size: str
    target: str
    algorithm: str

    @property
    def name(self) -> str:
        return f"{self.size}/{self.target.replace(':', '-')}/{self.algorithm}"


def cases() -> Iterator[Case]:
    for target in TARGETS:
        yield from (Case("small", target, name) for name in ALGORITHMS)
        yield from (Case("cnn", target, name) for name in WITH_CNN)


def federation(size: str, algorithm: pfl.Algorithm, platform: str) -> pfl.Federation:
    """The clients of a size, for devices of a platform."""
    options: dict[str, Any] = {"platform": platform, "client_execution": "auto"}
    if size == "small":
        return toy_for(algorithm, SIZES, dtype="float32", **options)
    return pfl.federate(*_images(), "cnn", batch_size=10, **options)


@cache
def _images() -> tuple[pfl.Dataset, pfl.Partition]:
    """Blank images, as many as Fashion-MNIST has: a program depends on no pixel."""
    dataset = stand_in("fashion_mnist")
    partition = pfl.make_partition("iid", dataset, 20, 0, train_samples=450, test_samples=100)
    return dataset, partition


def compiled(case: Case) -> plans.Plan:
    """The plan of a case, or what its compiler had against it."""
    target = targets.parse(case.target)
    algorithm = pfl.make_algorithm(case.algorithm)
    clients = federation(case.size, algorithm, target.chip.platform)
    return plans.widest(algorithm, clients, target, target.devices())


def collect(folder: Path, only: str = "") -> dict[str, dict[str, Any]]:
    """All plans of the folder, those that it lacks compiled."""
    found = {}
    for case in cases():
        path = folder / f"{case.name}.json"
        if not path.exists():
            if only not in case.name:
                continue
            print(f"{case.name}: compiling", flush=True)
            path.parent.mkdir(parents=True, exist_ok=True)
            write_json(path, compiled(case).plain())
        found[case.name] = json.loads(path.read_text(encoding="utf-8"))
    return found


def table(found: Found) -> str:
    """All tables: of the small cases, then of the CNN."""
    return "\n".join([*_small(found), "", *_cnn(found)])


def _small(found: Found) -> list[str]:
    """How long each algorithm compiles, and the transfers of a round; of the targets there are."""
    given = [target for target in TARGETS
             if any(Case("small", target, name).name in found for name in ALGORITHMS)]  # fmt: skip
    lines = [
        "| Algorithm | " + " | ".join(f"{target}, s" for target in given) + " | transfers |",
        "| --- |" + " ---: |" * len(given) + " --- |",
    ]
    for name in sorted(ALGORITHMS):
        own = [found.get(Case("small", target, name).name) for target in given]
        if any(own):
            seconds = " | ".join("-" if one is None else _seconds(one) for one in own)
            lines.append(f"| `{name}` | {seconds} | {_transfers(own) or '-'} |")
    return lines


def _transfers(own: Sequence[Mapping[str, Any] | None]) -> str:
    """Of the one target that has several devices."""
    costs = [one["costs"]["transfers"] for one in own if one and one["costs"]]
    return ", ".join(f"{n:g} {kind}" for each in costs for kind, (n, _) in each.items())


def _seconds(plan: Mapping[str, Any]) -> str:
    return "fails" if plan["error"] else f"{plan['trace_seconds'] + plan['compile_seconds']:.0f}"


def _cnn(found: Found) -> list[str]:
    """Memory and cycles of the CNN's programs."""
    lines = [
        "| CNN | on | memory GB | of it estimated | local steps | step Mcycles | evaluation "
        "Mcycles | rest Mcycles | rounds/s |",
        "| --- | --- | ---: | ---: | ---: | ---: | ---: | ---: | ---: |",
    ]
    for target in TARGETS:
        for name in WITH_CNN:
            plan = found.get(Case("cnn", target, name).name)
            if plan is None:
                continue
            if not plan["planned"] or plan["costs"] is None:
                lines.append(f"| `{name}` | {target} |" + " fails |" * 7)
                continue
            costs, total = plan["costs"], plan["planned"]["total"]
            parts = [f"{costs[part] / 1e6:.2f}" for part in ("step", "evaluation", "rest")]
            speed = plan["rounds_per_second"]
            cells = [
                f"{total / 1e9:.3f}",
                f"{plan['estimated'] / total:.2f}" if plan["estimated"] else "-",
                f"{costs['steps']:.0f}",
                *(parts if speed else ["-"] * 3),
                f"{speed:.1f}" if speed else "-",
            ]
            lines.append(f"| `{name}` | {target} | {' | '.join(cells)} |")
    return lines


def filled(page: str, found: Found) -> str:
    """A page with the tables between its marks.

    Raises:
      InputError: it has no marks.
    """
    head, first, rest = page.partition(MARKS[0])
    _, last, tail = rest.partition(MARKS[1])
    if not last:
        raise pfl.InputError(f"The page has no marks {MARKS[0].strip()}, {MARKS[1].strip()}.")
    return head + first + table(found) + last + tail


def main(argv: Sequence[str] | None = None) -> int:
    """Compiles what the folder lacks; fills the page, if one is named."""
    words = list(sys.argv if argv is None else argv)[1:]
    only = [word.removeprefix("--only=") for word in words if word.startswith("--only=")]
    paths = [Path(word) for word in words if not word.startswith("--")]
    if len(paths) not in (1, 2) or len(paths) + len(only) != len(words) or len(only) > 1:
        print(
            "usage: python -m tools.accelerators FOLDER [docs/performance.md] [--only=WORD]",
            file=sys.stderr,
        )
        return 2
    for target in TARGETS:
        targets.check_installed(targets.parse(target))
    jax.config.update("jax_enable_compilation_cache", False)  # seconds are of compiling
    found = collect(paths[0], *only)
    for page in paths[1:]:
        write_text(page, filled(page.read_text(encoding="utf-8"), found))
    failed = {name: plan["error"] or plan["said"] for name, plan in found.items()
              if not plan["fits"]}  # fmt: skip
    for name, said in failed.items():
        print(f"{name}: {said}", file=sys.stderr)
    print(f"{len(found)} programs compiled, {len(failed)} of them failed or too large.")
    return 1 if failed else 0


if __name__ == "__main__":
    shell.leave(main)
