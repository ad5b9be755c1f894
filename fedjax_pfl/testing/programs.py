"""Programs of toys, which are compiled in a fraction of the time and run a few rounds."""

import importlib.metadata
from dataclasses import fields
from functools import cache
from typing import Any

import jax

from fedjax_pfl.engine import compiled
from fedjax_pfl.engine.program import Program

# LLVM's optimizations gain nothing here, and XLA's older emitters compile faster. XLA refuses
# options that its version does not know.
QUICK: dict[str, Any] = {"xla_backend_optimization_level": "0"}
if importlib.metadata.version("jaxlib").startswith("0.10."):
    QUICK["xla_cpu_use_fusion_emitters"] = False


@cache
def _quick(name: str) -> Any:
    options = compiled.ADVANCE if name == "advance" else {}
    return jax.jit(getattr(compiled, name).__wrapped__, compiler_options=QUICK, **options)


class QuickProgram(Program):
    """A program of which XLA compiles rounds for CPUs in less than half the time."""

    def function(self, name: str) -> Any:
        on_cpu = self.federation.execution.platform == "cpu"
        return _quick(name) if on_cpu else super().function(name)


def quick(program: Program) -> Program:
    """Return a program with all state on the devices as a `QuickProgram`, others as they are."""
    if type(program) is not Program:
        return program
    return QuickProgram(**{f.name: getattr(program, f.name) for f in fields(program)})
