"""Compilation of every algorithm for TPUs and GPUs that need not exist here.

`python -m tools.accelerators FOLDER` compiles all cases, prints seconds and XLA's own
`memory_analysis` of each, and keeps them in FOLDER: an interrupted command continues. The case
"small" is a small model with eight ragged clients, for all algorithms; the others are networks of
usual size. `--only=WORD` selects cases with the word in their name, such as "small/v5e/" or
"/feddwa". The exit code is 1 if a program does not compile.

Needs `pip install 'fedjax_pfl[aot-tpu,aot-gpu]'`, the compilers without devices.
"""

import argparse
import json
import os
import sys
import time
from collections.abc import Sequence
from functools import cache
from pathlib import Path
from typing import Any, NamedTuple

import jax
from jax.experimental import topologies

import fedjax_pfl as pfl
from experiments.cli import shell
from experiments.outputs.run_files import write_json
from experiments.reproduction.datasets import blank
from fedjax_pfl.core.algorithm_registry import ALGORITHMS
from fedjax_pfl.testing.toys import toy_for

TARGETS = ("v5e", "v5e:2x2", "h100")
WITH_CNN = ("fedavg", "feddwa", "cwfedavg", "pfedla")
SMALL = "small"
SIZES = (7, 3, 1, 10, 4, 4, 4, 4)  # training samples of the small case's clients
H100 = Path(__file__).parent / "h100.txtpb"
# For libtpu, which otherwise queries the cloud's metadata server about its machine.
QUIET = {
    "TPU_SKIP_MDS_QUERY": "1",
    "TPU_ACCELERATOR_TYPE": "v5litepod-4",
    "TPU_WORKER_HOSTNAMES": "localhost",
    "TPU_LIBRARY_LOG_LEVEL": "3",
    "ALLOW_MULTIPLE_LIBTPU_LOAD": "1",  # no chip is held: several processes may describe one
}
# Without a GPU no kernel can be tried.
COMPILER_OPTIONS = {"tpu": {}, "gpu": {"xla_gpu_autotune_level": 0}}


class Case(NamedTuple):
    """An algorithm's program for a target.

    Attributes:
      size: "small", or a key of `LARGE`.
    """

    size: str
    target: str
    algorithm: str

    @property
    def name(self) -> str:
        return f"{self.size}/{self.target.replace(':', '-')}/{self.algorithm}"

    @property
    def platform(self) -> str:
        return "gpu" if self.target.startswith("h100") else "tpu"


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


def devices(target: str) -> list[Any]:
    """Return described devices: one for "v5e" or "h100", all of "v5e:2x2" or "h100:8"."""
    chip, _, arrangement = target.partition(":")
    for name, value in QUIET.items():
        os.environ.setdefault(name, value)
    jax.config.update("jax_platforms", "cpu")  # unless JAX runs already
    jax.local_devices()  # makes the plugins known
    if chip == "h100":
        topology = topologies.get_topology_desc(
            platform="cuda",
            topology_name=target,
            topology=f"1x1x{arrangement or 1}",  # partitions x hosts x GPUs of a host
            target_config=H100.read_text(encoding="utf-8"),
        )
    else:  # libtpu describes no topology of one chip
        name = f"{chip}:{arrangement or '2x2'}"
        topology = topologies.get_topology_desc(platform="tpu", topology_name=name)
    return list(topology.devices)[: None if arrangement else 1]


def federation(case: Case, algorithm: pfl.Algorithm) -> pfl.Federation:
    """Return the clients of a case, for devices of its platform."""
    options: dict[str, Any] = {"platform": case.platform}
    if case.size == SMALL:
        return toy_for(algorithm, SIZES, dtype="float32", client_execution="auto", **options)
    clients = LARGE[case.size]
    images = _images(clients.images, clients.count)
    options["client_execution"] = clients.execution
    return pfl.federate(*images, clients.network, batch_size=10, **options)


@cache
def _images(name: str, count: int) -> tuple[pfl.Dataset, pfl.Partition]:
    """Return blank images in the data set's number; a program depends on no pixel."""
    dataset = blank(name)
    partition = pfl.make_partition("iid", dataset, count, 0, train_samples=450, test_samples=100)
    return dataset, partition


def compiled(case: Case) -> dict[str, Any]:
    """Return seconds of compiling and bytes of a device by kind, or the compiler's error."""
    algorithm = pfl.make_algorithm(case.algorithm)
    simulation = pfl.Simulation(algorithm, federation(case, algorithm))
    lowered = simulation.lower(devices(case.target), 1)
    begun = time.perf_counter()
    try:
        program = lowered.rounds.compile(compiler_options=COMPILER_OPTIONS[case.platform])
    except jax.errors.JaxRuntimeError as error:
        return {"error": str(error).splitlines()[0]}
    stats: Any = program.memory_analysis()
    return {
        "seconds": time.perf_counter() - begun,
        "arguments": stats.argument_size_in_bytes,
        "outputs": stats.output_size_in_bytes - stats.alias_size_in_bytes,
        "temporaries": stats.temp_size_in_bytes,
        "code": stats.generated_code_size_in_bytes,
    }


def described(found: dict[str, Any]) -> str:
    """Return the facts of a program, or its error, in one line."""
    if "error" in found:
        return found["error"]
    kinds = ", ".join(
        f"{kind} {size / 1e6:.3f} MB" for kind, size in found.items() if kind != "seconds"
    )
    return f"{found['seconds']:.1f} s, {kinds}"


def main(argv: Sequence[str] | None = None) -> int:
    """Compile missing programs and print what is known of each."""
    parser = argparse.ArgumentParser(prog="python -m tools.accelerators")
    parser.add_argument("folder", type=Path)
    parser.add_argument("--only", default="", metavar="WORD")
    args = parser.parse_args(None if argv is None else argv[1:])
    jax.config.update("jax_enable_compilation_cache", False)  # seconds are of compiling
    failed = []
    for case in cases():
        path = args.folder / f"{case.name}.json"
        if args.only not in case.name:
            continue
        if not path.exists():
            path.parent.mkdir(parents=True, exist_ok=True)
            write_json(path, compiled(case))
            jax.clear_caches()  # programs add up to gigabytes
        found = json.loads(path.read_text(encoding="utf-8"))
        failed += [case.name] if "error" in found else []
        print(f"{case.name}: {described(found)}", flush=True)
    if failed:
        print(f"not compiled: {', '.join(failed)}.", file=sys.stderr)
    return 1 if failed else 0


if __name__ == "__main__":
    shell.leave(main)
