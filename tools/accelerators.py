"""Compilation of every algorithm for accelerators that need not exist here, as tables.

`python -m tools.accelerators FOLDER [docs/engineering_log.md]` compiles all cases, keeps what
each gave in FOLDER, and fills the tables between the file's marks. What FOLDER has already is not
compiled again: an interrupted command continues. `--only=WORD` keeps to cases with the word in
their name, such as "small/v5e/" or "/feddwa"; the page's other numbers stay. The exit code is 1
if a program fails to compile or does not fit.
"""

import argparse
import json
import sys
from collections.abc import Sequence
from dataclasses import asdict
from functools import cache
from pathlib import Path
from typing import Any, NamedTuple

import jax

import fedjax_pfl as pfl
from experiments.cli import shell
from experiments.outputs.run_files import write_json, write_text
from experiments.planning import plans, targets
from experiments.reproduction.datasets import blank
from fedjax_pfl.core.algorithm_registry import ALGORITHMS
from fedjax_pfl.testing.toys import toy_for
from tools.accelerator_tables import SMALL, Case, filled

TARGETS = ("v5e", "v5e:2x2", "h100")
WITH_CNN = ("fedavg", "feddwa", "cwfedavg", "pfedla")
SIZES = (7, 3, 1, 10, 4, 4, 4, 4)  # training samples of the small case's clients


class Clients(NamedTuple):
    """Clients of equal size with minibatches of 10, and their network.

    Attributes:
      network, images: names of the network, and of the data set whose shape and classes count.
      count: of the clients; each has 450 training images and 100 test images.
      algorithms: that are compiled for them.
      targets: on which.
      execution: of the clients.
    """

    network: str
    images: str = "fashion_mnist"
    count: int = 20
    algorithms: Sequence[str] = ("fedavg",)
    targets: Sequence[str] = ("v5e", "h100")
    execution: str = "auto"


LARGE = {
    "cnn": Clients("cnn", algorithms=WITH_CNN, targets=TARGETS),
    "cnn-100": Clients("cnn", count=100),
    "cnn-100-by-20": Clients("cnn", count=100, targets=("v5e",), execution="20"),
    "mlp": Clients("mlp"),
    "softmax": Clients("softmax"),
    "resnet18": Clients("resnet18", "cifar10"),
}


def cases() -> list[Case]:
    small = [Case(SMALL, target, name) for target in TARGETS for name in ALGORITHMS]
    large = [Case(size, target, name) for size, clients in LARGE.items()
             for target in clients.targets for name in clients.algorithms]  # fmt: skip
    return small + large


def federation(size: str, algorithm: pfl.Algorithm, platform: str) -> pfl.Federation:
    """Return the clients of a size, for devices of a platform."""
    options: dict[str, Any] = {"platform": platform}
    if size == SMALL:
        return toy_for(algorithm, SIZES, dtype="float32", client_execution="auto", **options)
    clients = LARGE[size]
    images = _images(clients.images, clients.count)
    options["client_execution"] = clients.execution
    return pfl.federate(*images, clients.network, batch_size=10, **options)


@cache
def _images(name: str, count: int) -> tuple[pfl.Dataset, pfl.Partition]:
    """Return blank images in the data set's number; a program depends on no pixel."""
    dataset = blank(name)
    partition = pfl.make_partition("iid", dataset, count, 0, train_samples=450, test_samples=100)
    return dataset, partition


def compiled(case: Case) -> plans.Plan:
    """Return the plan of a case, or its compiler's error."""
    target = targets.parse(case.target)
    algorithm = pfl.make_algorithm(case.algorithm)
    clients = federation(case.size, algorithm, target.chip.platform)
    return plans.widest(algorithm, clients, target, target.devices())


def collect(folder: Path, only: str = "") -> dict[str, dict[str, Any]]:
    """Return all plans of the folder, compiling missing ones."""
    result = {}
    for case in cases():
        path = folder / f"{case.name}.json"
        if not path.exists():
            if only not in case.name:
                continue
            print(f"{case.name}: compiling", flush=True)
            path.parent.mkdir(parents=True, exist_ok=True)
            write_json(path, asdict(compiled(case)))
            jax.clear_caches()  # programs add up to gigabytes
        result[case.name] = json.loads(path.read_text(encoding="utf-8"))
    return result


def main(argv: Sequence[str] | None = None) -> int:
    """Compile missing programs; update the page, if one is named."""
    parser = argparse.ArgumentParser(prog="python -m tools.accelerators")
    parser.add_argument("folder", type=Path)
    parser.add_argument("page", type=Path, nargs="?")
    parser.add_argument("--only", default="", metavar="WORD")
    args = parser.parse_args(None if argv is None else argv[1:])
    for target in TARGETS:
        targets.check_installed(targets.parse(target))
    jax.config.update("jax_enable_compilation_cache", False)  # seconds are of compiling
    found = collect(args.folder, args.only)
    if args.page is not None:
        write_text(args.page, filled(args.page.read_text(encoding="utf-8"), cases(), found))
    failed = {
        name: plan["error"] or plan["message"] or "it does not fit"
        for name, plan in found.items()
        if not plan["fits"]
    }
    for name, message in failed.items():
        print(f"{name}: {message}", file=sys.stderr)
    print(f"{len(found)} programs compiled, {len(failed)} of them failed or too large.")
    return 1 if failed else 0


if __name__ == "__main__":
    shell.leave(main)
