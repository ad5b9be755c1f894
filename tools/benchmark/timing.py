"""Timing of contestants in turns, so that the machine's noise is the same for all."""

import contextlib
import ctypes
import gc
import os
import platform
import re
import resource
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Protocol

import jax
import jax.numpy as jnp
import numpy as np

import fedjax_pfl as pfl
from experiments.cli import devices


class Contestant(Protocol):
    """Runs communication rounds: `prepare` compiles or warms up and returns the seconds of that,
    `time_rounds` runs rounds and returns the seconds of one."""

    name: str

    def prepare(self) -> float: ...

    def time_rounds(self, rounds: int) -> float: ...


@dataclass
class Simulated:
    """An algorithm in this library."""

    name: str
    algorithm: pfl.Algorithm
    federation: pfl.Federation
    options: dict[str, Any] = field(default_factory=dict)

    def prepare(self) -> float:
        return self._simulate(1).compile_seconds

    def time_rounds(self, rounds: int) -> float:
        return self._simulate(rounds).seconds_per_round

    def _simulate(self, rounds: int) -> pfl.Result:
        return pfl.simulate(
            self.algorithm,
            self.federation,
            rounds,
            matrix_rounds=[rounds],
            chunk_seconds=1e9,
            **self.options,
        )


@dataclass
class MatrixProducts:
    """The machine's own rate: float products of square matrices that fit its caches.

    `time_rounds` returns the seconds that `flops` would take at that rate: the floor of a round.
    """

    name: str
    flops: float
    size: int = 1024
    dtype: str = "float32"

    def prepare(self) -> float:
        key = jax.random.key(0)
        self.operands = [jax.random.normal(key, (self.size, self.size), self.dtype)] * 2
        self.product = jax.jit(jnp.matmul)
        began = time.perf_counter()
        self.product(*self.operands).block_until_ready()
        return time.perf_counter() - began

    def time_rounds(self, rounds: int) -> float:
        rate = 0.0
        for _ in range(max(rounds, 3)):
            began = time.perf_counter()
            repeats = 8
            for _ in range(repeats):
                out = self.product(*self.operands)
            out.block_until_ready()
            rate = max(rate, repeats * 2 * self.size**3 / (time.perf_counter() - began))
        return self.flops / rate


@dataclass
class Timing:
    """One contestant's times: seconds a round at each turn, and before the first."""

    prepare: float
    seconds: list[float]

    @property
    def median(self) -> float:
        return float(np.median(self.seconds))


def contest(
    contestants: Sequence[Contestant],
    repeats: int,
    rounds: int,
    say: Callable[[str], None] = lambda line: None,
    prepared: Callable[[], None] = lambda: None,
) -> dict[str, Timing]:
    """Time contestants in turns, `repeats` times each; call `prepared` before the first turn."""
    timings = {}
    for contestant in contestants:
        timings[contestant.name] = Timing(contestant.prepare(), [])
        say(f"{contestant.name}: ready after {timings[contestant.name].prepare:.1f} s")
    prepared()
    for _ in range(repeats):
        for contestant in contestants:
            timings[contestant.name].seconds.append(contestant.time_rounds(rounds))
    for name, timing in timings.items():
        spread = f"{min(timing.seconds):.4g} to {max(timing.seconds):.4g}"
        say(f"{name}: {timing.median:.4g} s a round ({spread})")
    return timings


def peak_memory() -> int:
    """Return the peak bytes of this process in host memory, on Linux since `forget_peak`."""
    unit = 1 if platform.system() == "Darwin" else 1024
    return _status("VmHWM") or resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * unit


def resident_memory() -> int:
    """Return the bytes that this process holds, or the peak if unknown."""
    return _status("VmRSS") or peak_memory()


def forget_peak() -> None:
    """Return freed memory to the system and reset `peak_memory`, if possible."""
    gc.collect()
    with contextlib.suppress(OSError, AttributeError):
        ctypes.CDLL(None).malloc_trim(0)
    with contextlib.suppress(OSError):
        Path("/proc/self/clear_refs").write_text("5")


def peak_can_be_forgotten() -> bool:
    return os.access("/proc/self/clear_refs", os.W_OK) and _status("VmHWM") > 0


def _status(name: str) -> int:
    with contextlib.suppress(OSError):
        text = Path("/proc/self/status").read_text()
        value = re.search(rf"^{name}:\s+(\d+)", text, re.MULTILINE)
        return int(value[1]) * 1024 if value else 0
    return 0


def machine() -> dict[str, Any]:
    """Describe the machine of the measurements."""
    model = platform.processor()
    with contextlib.suppress(OSError):
        names = re.findall(
            r"^model name\s*: (.*)$", Path("/proc/cpuinfo").read_text(), re.MULTILINE
        )
        model = ", ".join(sorted(set(names))) or model
    return {
        "processor": model,
        "cores": devices.cores(),
        "devices": [f"{d.platform}: {d.device_kind}" for d in jax.devices()],
        "python": platform.python_version(),
        "jax": jax.__version__,
    }
