"""Described devices: names, facts and compilers."""

import importlib.util
import os
import re
import tomllib
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

import jax
from jax.experimental import topologies

import fedjax_pfl as pfl
from fedjax_pfl.utils.errors import first_line, shown
from fedjax_pfl.utils.name_matching import suggestions
from fedjax_pfl.utils.typing import Device

FOLDER = Path(__file__).parent
# For libtpu, which otherwise queries the cloud's metadata server about its machine.
QUIET = {
    "TPU_SKIP_MDS_QUERY": "1",
    "TPU_ACCELERATOR_TYPE": "v5litepod-4",
    "TPU_WORKER_HOSTNAMES": "localhost",
    "TPU_LIBRARY_LOG_LEVEL": "3",
    "ALLOW_MULTIPLE_LIBTPU_LOAD": "1",  # no chip is held: several processes may describe one
}
PLUGINS = ("xla_cuda13", "xla_cuda12")  # JAX's for CUDA, in the package jax_plugins
# Without a GPU no kernel can be tried.
OPTIONS = {"tpu": {}, "gpu": {"xla_gpu_autotune_level": 0}}


@dataclass(frozen=True)
class Chip:
    """A kind of device, as `chips.toml` has it."""

    name: str
    platform: str
    topologies: Sequence[str]
    memory: int
    source: str
    clock: float | None = None
    bandwidth: float | None = None
    description: str | None = None


@dataclass(frozen=True)
class Target:
    """What to compile for: a chip, and how many of them are arranged in what way.

    Attributes:
      name: as the user gave it.
      chip: its kind.
      topology: arrangement of chips; the smallest where only one device of it is meant.
      single: whether one device of the topology is meant.
    """

    name: str
    chip: Chip
    topology: str
    single: bool

    def devices(self) -> list[Device]:
        """Return described devices, which need not exist.

        Raises:
          InputError: the compiler is not installed, or knows no such topology.
        """
        check_installed(self)
        for name, value in QUIET.items():
            os.environ.setdefault(name, value)
        jax.config.update("jax_platforms", "cpu")  # unless JAX runs already
        jax.local_devices()  # makes the plugins known
        try:
            topology = self._describe()
        except (RuntimeError, ValueError, NotImplementedError) as error:
            raise pfl.InputError(
                f"--target={shown(self.name)} can't be described ({first_line(error)}); "
                f"topologies of {self.chip.name} are such as {', '.join(self.chip.topologies)}."
            ) from error
        return list(topology.devices)[: 1 if self.single else None]

    def _describe(self) -> Any:
        if self.chip.platform == "tpu":
            name = f"{self.chip.name}:{self.topology}"
            return topologies.get_topology_desc(platform="tpu", topology_name=name)
        assert self.chip.description is not None
        return topologies.get_topology_desc(
            platform="cuda",
            topology_name=self.name,
            topology=f"1x1x{self.topology}",  # partitions x hosts x GPUs of a host
            target_config=(FOLDER / self.chip.description).read_text(encoding="utf-8"),
        )

    @property
    def compiler_options(self) -> dict[str, Any]:
        return OPTIONS[self.chip.platform]


@cache
def chips() -> dict[str, Chip]:
    """Return the chips of `chips.toml` by name."""
    facts = tomllib.loads((FOLDER / "chips.toml").read_text(encoding="utf-8"))
    return {name: Chip(name, **known) for name, known in facts.items()}


def names() -> list[str]:
    """Return the targets to suggest."""
    pairs = [f"{chip.name}:{shape}" for chip in chips().values() for shape in chip.topologies]
    return [*chips(), *pairs]


def parse(text: str) -> Target:
    """Return the target of a word such as "v5e", one chip, or "v5e:2x2", four.

    Raises:
      InputError: no such chip, or a topology that is not written like one.
    """
    name, colon, topology = text.strip().lower().partition(":")
    chip = chips().get(name)
    if chip is None or (colon and not re.fullmatch(r"[1-9]\d{0,3}(x[1-9]\d{0,3}){0,2}", topology)):
        chip_names = ", ".join(chips())
        hint = f"A chip is one of {chip_names}; four of them are such as v5e:2x2 or h100:4."
        near = suggestions(text, names())
        raise pfl.core.unknown_name(
            "--target", text, names(), listed="--list", hint=None if near else hint
        )
    single = not colon or set(topology.split("x")) == {"1"}  # libtpu describes no topology of one
    return Target(text.strip(), chip, chip.topologies[0] if single else topology, single)


def check_installed(target: Target) -> None:
    """Raise `InputError` unless the target's compiler is installed."""
    if target.chip.platform == "tpu":
        installed, what, extra = _found("libtpu"), "libtpu, the compiler of TPUs", "aot-tpu"
    else:
        installed = any(_found(f"jax_plugins.{name}") for name in PLUGINS)
        what, extra = "JAX's plugin for CUDA, which has the compiler of GPUs", "aot-gpu"
    if not installed:
        raise pfl.InputError(
            f"--target={target.name} needs {what}, which is not installed: pip install "
            f"'fedjax_pfl[{extra}]'. No {extra.removeprefix('aot-').upper()} is needed."
        )


def _found(module: str) -> bool:
    try:
        return importlib.util.find_spec(module) is not None
    except ModuleNotFoundError:  # of the package that it is in
        return False
