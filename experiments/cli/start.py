"""Entry points and names of the commands; importing it loads nothing.

An installation has `pfl-NAME`, a checkout `python -m experiments.NAME`.
"""

import contextlib
import importlib
import os
import signal
import sys
from functools import partial
from pathlib import Path
from typing import NoReturn

PACKAGE = __name__.partition(".")[0]
INSTALLED = "fedjax_pfl_experiments"  # this package's name when setup.py installs it
MODULES = {"figures": "figures.__main__"}  # modules that are not named like their command
TUNABLE = "glibc.malloc.hugetlb=1"
MODE = Path("/sys/kernel/mm/transparent_hugepage/enabled")


def called(name: str) -> str:
    """Return the words to type for a command, such as "run"."""
    return f"pfl-{name}" if PACKAGE == INSTALLED else f"python -m {PACKAGE}.{name}"


def words(name: str) -> list[str]:
    """Return the first words of a command line that starts a command in another process."""
    return [sys.executable, "-m", f"{PACKAGE}.{name}"]


def launch(name: str) -> NoReturn:
    """Run a command, then end this process.

    While libraries are imported, Ctrl-C ends the process at once instead of raising
    `KeyboardInterrupt`: Python drops exceptions in some callbacks, such as JAX's on garbage
    collection, and with them the request to stop.
    """
    request_huge_pages(f"{PACKAGE}.{name}")
    before = signal.getsignal(signal.SIGINT)
    if before is signal.default_int_handler:  # else it is ignored
        signal.signal(signal.SIGINT, signal.SIG_DFL)
    module = importlib.import_module(f"{PACKAGE}.{MODULES.get(name, name)}")
    from . import shell

    if name not in ("run", "sweep"):  # which have handlers of their own
        signal.signal(signal.SIGINT, before)
    shell.leave(module.main)


def request_huge_pages(module: str) -> None:
    """Restart this process with memory in pages of 2 MB, if the system allows the choice.

    Stacks of models are written two to four times faster in them. The allocator of Linux's C
    library reads its settings only when a process begins. Nothing happens if `GLIBC_TUNABLES` is
    set, if huge pages are always or never used, or if this process is another program that calls
    this one.
    """
    place = len(sys.orig_argv) - len(sys.argv)  # of the program's name
    ours = sys.orig_argv[place:] in (sys.argv, [module, *sys.argv[1:]])
    if ours and "GLIBC_TUNABLES" not in os.environ:
        with contextlib.suppress(OSError):  # no such system: without
            if "[madvise]" in MODE.read_text():
                environment = os.environ | {"GLIBC_TUNABLES": TUNABLE}
                os.execve(sys.executable, [sys.executable, *sys.orig_argv[1:]], environment)


# Entry points of the installed commands, see setup.cfg.
run = partial(launch, "run")
sweep = partial(launch, "sweep")
compare = partial(launch, "compare")
partition = partial(launch, "partition")
reproduce = partial(launch, "reproduce")
figures = partial(launch, "figures")
study = partial(launch, "study")
pretrain = partial(launch, "pretrain")
