"""Settings and fixtures of all tests: XLA flags, a cache of compiled programs, bounded memory."""

import atexit
import ctypes
import gc
import importlib.metadata
import os
import shutil
import sys
import tempfile
from pathlib import Path

import psutil
import pytest

# Most of the suite's time is XLA's, compiling tiny programs. LLVM's optimizations gain nothing
# here, one module compiles faster than several, and the older emitters are faster still. XLA
# aborts on flags that its version does not know. They must be set before JAX starts.
FLAGS = ["--xla_backend_optimization_level=0", "--xla_cpu_parallel_codegen_split_count=1"]
if importlib.metadata.version("jaxlib").startswith("0.10."):
    FLAGS += ["--xla_cpu_use_fusion_emitters=false"]
    FLAGS += ["--xla_cpu_opt_preset=CPU_OPT_PRESET_FAST_COMPILE"]  # a fifth of XLA's time
os.environ["XLA_FLAGS"] = " ".join([*FLAGS, os.environ.get("XLA_FLAGS", "")])  # the last one wins

# Compiled programs are shared between test files and with processes that tests start. Each worker
# has a folder of its own because JAX does not write its files atomically.
CACHE, WORKER = "JAX_COMPILATION_CACHE_DIR", os.environ.get("PYTEST_XDIST_WORKER")
OURS = "fedjax-pfl-programs-"
if CACHE not in os.environ:
    os.environ[CACHE] = tempfile.mkdtemp(prefix=OURS)
    atexit.register(shutil.rmtree, os.environ[CACHE], ignore_errors=True)
    os.environ["JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS"] = "0.1"  # writing costs too
elif WORKER and Path(os.environ[CACHE]).name.startswith(OURS):
    os.environ[CACHE] = str(Path(os.environ[CACHE]) / WORKER)

import jax  # noqa: E402, after the flags

# Traced programs are many small objects that live long: with Python's default thresholds, garbage
# collection takes a twentieth of the suite's time.
gc.set_threshold(200_000, 50, 100)
jax.config.update("jax_num_cpu_devices", 2)

import fedjax_pfl as pfl  # noqa: E402, after the flags
from fedjax_pfl.engine import compiled  # noqa: E402

SIMULATIONS = [fn for fn in vars(compiled).values() if hasattr(fn, "clear_cache")]
BOUND, STEP = 1700 * 2**20, 200 * 2**20  # bytes
bound = BOUND


def resident():
    return psutil.Process().memory_info().rss


@pytest.fixture(autouse=True)
def bounded_memory():
    """Drops compiled programs once the process holds too much memory.

    A simulation's program takes about 40 MB and 400 memory maps, of which Linux allows a process
    65,530. The many small programs that all tests use are kept if that is enough.
    """
    global bound
    yield
    if resident() <= bound:
        return
    for fn in SIMULATIONS:
        fn.clear_cache()
    release()
    if resident() > bound - STEP:
        jax.clear_caches()
        release()
    bound = max(BOUND, resident() + STEP)


def release():
    """Returns freed memory to the system; glibc keeps it otherwise."""
    gc.collect()
    if hasattr(libc := ctypes.CDLL(None), "malloc_trim"):
        libc.malloc_trim(0)


REGISTRIES = (
    pfl.core.ALGORITHMS, pfl.data.DATASETS, pfl.data.RULES, pfl.models.METRICS, pfl.models.MODELS,
    pfl.training.LR_SCHEDULES, pfl.training.OPTIMIZERS,
)  # fmt: skip


@pytest.fixture(autouse=True)
def own_code_is_forgotten():
    """Unregisters what a test's own files have registered when the test ends.

    The fixture's value is a function that does so at once.
    """
    before, modules, path = [dict(registry) for registry in REGISTRIES], set(sys.modules), sys.path

    def forget():
        sys.path = [*path]
        own = [name for name in set(sys.modules) - modules if _is_own(name, sys.modules[name])]
        imported = getattr(sys.modules.get("experiments.cli.plugins"), "_loaded", {})
        for name in own:
            del sys.modules[name]
            imported.pop(name, None)
        if own:
            for registry, known in zip(REGISTRIES, before, strict=True):
                registry.clear()
                registry.update(known)

    forget()
    yield forget
    forget()
    sys.path = path


def _is_own(name, module):
    """Whether a module is a test's own; a checkout may be in the temporary folder too."""
    file = getattr(module, "__file__", None) or ""
    ours = file.startswith(str(Path(__file__).parents[1])) or "site-packages" in file
    temporary = file.startswith(tempfile.gettempdir()) and not ours
    return name.startswith("own_code_") or temporary


def pytest_addoption(parser):
    parser.addoption(
        "--matrix",
        action="store_true",
        help="algorithms in every participation, execution and variant, not only in those that differ",
    )


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_make_scheduler(config, log):
    """Distributes tests by file, except those that share compiled programs or finished runs.

    These are the tests of the figures, and an algorithm's contract and its comparison with the
    reference.
    """
    if config.getvalue("dist") != "loadfile":
        return None
    from xdist.scheduler import LoadFileScheduling

    here = Path(__file__).parent / "algorithms"

    class ByPrograms(LoadFileScheduling):
        def _split_scope(self, nodeid):
            folder, figures, _ = nodeid.partition("experiments/figures/")
            if figures:
                return folder + figures
            folder, contract, case = nodeid.partition("test_contract.py::test_contract")
            name = case.partition("[")[2].partition("-")[0]
            if contract and name in pfl.core.ALGORITHMS:  # several names may share a file
                module = pfl.core.ALGORITHMS[name].__module__.rpartition(".")[2]
                for own in (f"test_{name}.py", f"test_{module}.py"):
                    if (here / own).exists():
                        return folder + own
            return super()._split_scope(nodeid)

    return ByPrograms(config, log)
