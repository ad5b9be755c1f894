"""Scripts on top of the library."""

import signal

from . import _start


def end_at_ctrl_c() -> None:
    """Makes Ctrl-C end this process at once, from here on, instead of raising `KeyboardInterrupt`.

    For the seconds in which libraries are imported: what is raised within a callback of theirs,
    such as JAX's on garbage collection, is dropped, and the request to stop with it.
    """
    if signal.getsignal(signal.SIGINT) is signal.default_int_handler:  # else it is ignored
        signal.signal(signal.SIGINT, signal.SIG_DFL)


_start.ask()
