"""How a command is started and what it is called; nothing is loaded or done on import.

An installation brings it as `pfl-NAME`, a checkout has it as `python -m experiments.NAME`.
"""

import importlib
import os
import signal
import sys
from functools import partial
from pathlib import Path
from typing import NoReturn

PACKAGE = __name__.partition(".")[0]
INSTALLED = "fedjax_pfl_experiments"  # what setup.py installs this package as
MODULES = {"figures": "figures.__main__"}  # where that is no module of the command's name
# Where libraries' own callbacks may be what Ctrl-C interrupts, until a run has its own handler.
WITHOUT_INTERRUPT = ("run", "sweep")
TUNABLE = "glibc.malloc.hugetlb=1"
MODE = Path("/sys/kernel/mm/transparent_hugepage/enabled")


def called(name: str) -> str:
    """What one types for a command of ours, such as "run"."""
    return f"pfl-{name}" if PACKAGE == INSTALLED else f"python -m {PACKAGE}.{name}"


def words(name: str) -> list[str]:
    """The beginning of a command line that starts a command of ours in another process."""
    return [sys.executable, "-m", f"{PACKAGE}.{name}"]


def launch(name: str) -> NoReturn:
    """Starts a command in this process, which ends with it.

    While libraries are imported, Ctrl-C ends the process at once instead of raising
    `KeyboardInterrupt`: what is raised within a callback of theirs, such as JAX's on garbage
    collection, is dropped, and the request to stop with it.
    """
    ask_for_huge_pages(name)
    before = signal.getsignal(signal.SIGINT)
    if before is signal.default_int_handler:  # else it is ignored
        signal.signal(signal.SIGINT, signal.SIG_DFL)
    module = importlib.import_module(f"{PACKAGE}.{MODULES.get(name, name)}")
    from . import shell

    if name not in WITHOUT_INTERRUPT:
        signal.signal(signal.SIGINT, before)
    shell.leave(module.main)


def ask_for_huge_pages(name: str) -> None:
    """Starts this process anew with memory in pages of 2 MB, where that is a choice.

    Stacks of models are written two to four times faster in them. The allocator of Linux's C
    library reads its settings only when a process begins. Whoever has set `GLIBC_TUNABLES` keeps
    what is set; where huge pages are always or never there, nothing happens; and nothing does in a
    process that is another program, and merely plays this one.
    """
    place = len(sys.orig_argv) - len(sys.argv)  # of the program's name
    ours = sys.orig_argv[place:] in (sys.argv, [f"{PACKAGE}.{name}", *sys.argv[1:]])
    if not ours or "GLIBC_TUNABLES" in os.environ or not _is_a_choice():
        return
    environment = os.environ | {"GLIBC_TUNABLES": TUNABLE}
    try:
        os.execve(sys.executable, [sys.executable, *sys.orig_argv[1:]], environment)
    except OSError:  # then without
        return


def _is_a_choice() -> bool:
    try:
        return "[madvise]" in MODE.read_text()
    except OSError:
        return False


# What the installed commands call, see setup.py.
run = partial(launch, "run")
sweep = partial(launch, "sweep")
compare = partial(launch, "compare")
partition = partial(launch, "partition")
reproduce = partial(launch, "reproduce")
figures = partial(launch, "figures")
benchmark = partial(launch, "benchmark")
