"""Settings and fixtures of all tests: XLA flags, a cache of compiled programs, bounded memory."""

import atexit
import ctypes
import gc
import hashlib
import importlib.metadata
import os
import shutil
import sys
import tempfile
import time
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

# Compiled programs are kept in a folder of each process, because JAX does not write its files
# atomically, and processes that tests start share it. A folder that the user names gives what
# earlier runs have compiled, and gets what this one has compiled.
CACHE, KEPT = "JAX_COMPILATION_CACHE_DIR", "FEDJAX_PFL_TEST_PROGRAMS"
os.environ.setdefault(KEPT, os.environ.get(CACHE, ""))
os.environ[CACHE] = tempfile.mkdtemp(prefix="fedjax-pfl-programs-")
os.environ["JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS"] = "0.1"  # writing costs too
os.environ["JAX_PERSISTENT_CACHE_ENABLE_XLA_CACHES"] = "none"  # else keys depend on the folder
atexit.register(shutil.rmtree, os.environ[CACHE], ignore_errors=True)


def link_programs(source, target):
    """Links the compiled programs of a folder into another one; those that are there stay."""
    target.mkdir(parents=True, exist_ok=True)
    known = {file.name for file in target.iterdir()}
    for file in source.glob("*-cache") if source.is_dir() else ():
        if file.name not in known:
            try:
                os.link(file, target / file.name)
            except FileExistsError:
                pass
            except OSError:  # another file system
                shutil.copy(file, target / f".{file.name}.{os.getpid()}")
                os.replace(target / f".{file.name}.{os.getpid()}", target / file.name)


def kept_programs():
    return Path(os.environ[KEPT]) if os.environ[KEPT] else None


if kept_programs():
    link_programs(kept_programs(), Path(os.environ[CACHE]))


def pytest_sessionfinish():
    if kept_programs():
        link_programs(Path(os.environ[CACHE]), kept_programs())
    shutil.rmtree(os.environ[CACHE], ignore_errors=True)


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
    for fn in (*SIMULATIONS, compiled.starter("cpu"), compiled.first_leaves_of("cpu")):
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


@pytest.fixture
def double_precision():
    with jax.enable_x64(True):
        yield


REGISTRIES = (
    pfl.core.ALGORITHMS, pfl.data.DATASETS, pfl.data.RULES, pfl.models.METRICS, pfl.models.MODELS,
    pfl.training.LR_SCHEDULES, pfl.training.OPTIMIZERS,
)  # fmt: skip


@pytest.fixture(autouse=True)
def own_code_is_forgotten():
    """Unregisters what a test has registered, and forgets its own files, when it ends.

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


# Quick tests that may take longer than `--cpu-limit`: the only ones of what they show.
COSTLY_BUT_QUICK = (
    "tests/core/",  # privacy: what leaves clients, and a mistake of each kind in an algorithm
    "tests/docs/",  # pages' commands and links
    "tests/engine/test_host_program.py",  # clients' state on the host
    "tests/engine/test_resume.py",
    "tests/engine/test_simulate.py",
    "tests/engine/test_stopping.py",
    "tests/experiments/cli/test_resume.py",
    "tests/experiments/test_kills.py::test_run_continues_after_a_kill",
    "tests/experiments/test_run.py",
    "tests/experiments/test_sweep.py",
    "tests/fuzz/",
    "tests/models/test_mixtures.py::test_blend_keeps_counters",
    "tests/testing/test_audit.py",  # audits that can fail
    "tests/uploads/",  # clipping and noise
    "tests/training/",  # local steps: batches, keys, optimizers, private gradients
)


def pytest_addoption(parser):
    parser.addoption(
        "--matrix",
        action="store_true",
        help="algorithms in every participation, execution and variant",
    )
    parser.addoption(
        "--cpu-limit", type=float, help="fail tests that are not costly and take more CPU-seconds"
    )
    parser.addoption(
        "--until", type=float, help="skip what has not begun by then (seconds of time.time())"
    )


def pytest_collection_modifyitems(config, items):
    """With `--until`, files come in another order each time, so that none is always left out."""
    if until := config.getoption("until"):

        def lot(item):
            return hashlib.sha256(f"{until}{item.path}".encode()).digest()

        items.sort(key=lot)


def pytest_runtest_setup(item):
    until = item.config.getoption("until")
    if until and time.time() > until:
        pytest.skip("no time left")


def cpu_seconds():
    """CPU time of this process and of those that it waited for."""
    return sum(os.times()[:4])


@pytest.hookimpl(wrapper=True)
def pytest_runtest_call(item):
    """Keeps the quick tests quick. The base comparisons and contracts compile: see tests/README."""
    before, limit = cpu_seconds(), item.config.getoption("cpu_limit")
    result = yield
    spent = cpu_seconds() - before
    known = item.get_closest_marker("costly") or hasattr(item.function, "cases")
    if limit and spent > limit and not known and not item.nodeid.startswith(COSTLY_BUT_QUICK):
        pytest.fail(f"{spent:.1f} CPU-seconds: mark it costly, or make it cheaper", pytrace=False)
    return result


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_make_scheduler(config, log):
    """Distributes tests by file, and those of figures, which share finished runs, as one."""
    if config.getvalue("dist") != "loadfile":
        return None
    from xdist.scheduler import LoadFileScheduling

    class ByPrograms(LoadFileScheduling):
        def _split_scope(self, nodeid):
            folder, figures, _ = nodeid.partition("experiments/figures/")
            return folder + figures if figures else super()._split_scope(nodeid)

    return ByPrograms(config, log)
