"""What all tests share: two virtual CPU devices, and a bound on compiled programs.

Every executable of XLA's CPU backend holds a few memory maps; Linux allows a process 65,530 of
them, and the compilation that asks for one more ends in a segmentation fault. So programs are
dropped between tests once there are many: those of simulations, which hold most of them. The many
small ones that all tests use, such as an addition of two numbers, stay.
"""

import atexit
import gc
import importlib.metadata
import itertools
import os
import shutil
import sys
import tempfile
from pathlib import Path

import psutil
import pytest

# The suite's cost is XLA compiling tiny programs. LLVM's optimizations are most of it and gain them
# nothing, and one module compiles faster than its parts. The older emitters are faster still, where
# XLA knows that flag: it aborts on unknown ones. All before JAX starts.
FLAGS = ["--xla_backend_optimization_level=0", "--xla_cpu_parallel_codegen_split_count=1"]
if importlib.metadata.version("jaxlib").startswith("0.10."):
    FLAGS.append("--xla_cpu_use_fusion_emitters=false")
os.environ["XLA_FLAGS"] = " ".join([*FLAGS, os.environ.get("XLA_FLAGS", "")])  # the last one wins

# What was compiled once is not compiled again, in another file or in a process that a test starts.
# Each worker has a folder of its own, for JAX writes its files in place: two writers could meet.
CACHE, WORKER = "JAX_COMPILATION_CACHE_DIR", os.environ.get("PYTEST_XDIST_WORKER")
OURS = "fedjax-pfl-programs-"
if CACHE not in os.environ:
    os.environ[CACHE] = tempfile.mkdtemp(prefix=OURS)
    atexit.register(shutil.rmtree, os.environ[CACHE], ignore_errors=True)
    os.environ["JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS"] = "0.1"  # writing costs too
elif WORKER and Path(os.environ[CACHE]).name.startswith(OURS):
    os.environ[CACHE] = str(Path(os.environ[CACHE]) / WORKER)

import jax  # noqa: E402, after the flags

# Traced programs are many small objects that live long. To look through them for garbage as often
# as Python does by default is a twentieth of the suite's time.
gc.set_threshold(200_000, 50, 100)

ENOUGH = 25_000
MORE = 2**30  # bytes that a process may grow by until it forgets what it compiled
EVERY = 5  # tests between two looks: reading so many lines takes tens of milliseconds
jax.config.update("jax_num_cpu_devices", 2)

import fedjax_pfl as pfl  # noqa: E402, after the flags
from fedjax_pfl.engine import program  # noqa: E402
from fedjax_pfl.execution import memory_maps  # noqa: E402

PROGRAMS = [fn for fn in vars(program).values() if hasattr(fn, "clear_cache")]
tests_run = itertools.count(1)
resident = [psutil.Process().memory_info().rss]


@pytest.fixture(autouse=True, scope="module")
def bounded_memory():
    """Compiled programs stay as long as a file's tests, and with room for more than that."""
    yield
    now = psutil.Process().memory_info().rss
    if now - resident[0] > MORE:
        jax.clear_caches()
        gc.collect()
        resident[0] = psutil.Process().memory_info().rss


@pytest.fixture(autouse=True)
def bounded_memory_maps():
    yield
    if next(tests_run) % EVERY or memory_maps.held() <= ENOUGH:
        return
    for fn in PROGRAMS:
        fn.clear_cache()
    if memory_maps.held() > ENOUGH // 2:
        jax.clear_caches()


REGISTRIES = (
    pfl.core.ALGORITHMS, pfl.data.DATASETS, pfl.data.RULES, pfl.models.METRICS, pfl.models.MODELS,
    pfl.training.LR_SCHEDULES, pfl.training.OPTIMIZERS,
)  # fmt: skip


@pytest.fixture(autouse=True)
def own_code_is_forgotten():
    """What a test's own files have registered stays with that test.

    The fixture's value does it at once, as if the rest of the test were another process.
    """
    before, modules, path = [dict(registry) for registry in REGISTRIES], set(sys.modules), sys.path

    def forget():
        sys.path = [*path]
        own = [name for name in set(sys.modules) - modules if _is_own(name, sys.modules[name])]
        for name in own:
            del sys.modules[name]
        if own:
            for registry, known in zip(REGISTRIES, before, strict=True):
                registry.clear()
                registry.update(known)

    forget()
    yield forget
    forget()
    sys.path = path


def _is_own(name, module):
    """A checkout, or an environment, may lie in the folder of temporary files too."""
    file = getattr(module, "__file__", None) or ""
    ours = file.startswith(str(Path(__file__).parents[1])) or "site-packages" in file
    temporary = file.startswith(tempfile.gettempdir()) and not ours
    return name.startswith("own_code_") or temporary


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_make_scheduler(config, log):
    """By file, but tests that share programs or finished runs in one process: those of the figures,
    and an algorithm's contract with its comparison with the reference."""
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
