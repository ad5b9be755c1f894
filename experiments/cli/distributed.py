"""A run in several processes: how it starts, ends, and says that another process is gone."""

import contextlib
import os
import subprocess
import sys
import threading
import warnings
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager
from typing import Any

import jax

import fedjax_pfl as pfl
from fedjax_pfl.execution import processes
from fedjax_pfl.utils.conversions import decimal
from fedjax_pfl.utils.errors import sentence, shown

from . import addresses

FORM = "--distributed must be 'auto' or HOST:PORT,COUNT,INDEX such as 10.0.0.1:1234,2,0"
SILENT = 40  # seconds without a sign of life until a process counts as gone
LATE = 300  # seconds until all processes must have come
LEAVING = 20  # seconds that one waits for the others at its end
PATIENT = 15  # seconds until a process that waits for the others says so
# A process of its own: whoever is ended by a signal, or by JAX, can't say anything any more. It
# says the last line that it was told.
WITNESS = (
    "import sys; said = sys.stdin.read().split('\\n')[-1]; said and print(said, file=sys.stderr)"
)
_witness: list[subprocess.Popen] = []


def start(word: str | None) -> None:
    """Joins the processes of --distributed; before a device is used. Nothing without the flag.

    All but the first are silent from then on, errors apart.

    Raises:
      pfl.InputError: no such word, no cluster, a taken port, or the others don't come.
    """
    if word is None:
        return
    options = {} if word == "auto" else _parsed(word)
    where = f"at {options['coordinator_address']}" if options else "of this job"
    jax.config.update("jax_enable_preemption_service", False)  # it would take SIGTERM from us
    # JAX's default for CPUs leaves processes without a way to exchange values.
    jax.config.update("jax_cpu_collectives_implementation", "gloo")
    _begin_witness(
        f"error: --distributed={word}: ended before all processes had met {where}, for which they "
        f"have {LATE} seconds: start as many as COUNT says, each with another INDEX, and look at "
        "what process 0 says."
    )
    waiting = threading.Timer(PATIENT, _say_waiting, [word, where])
    waiting.daemon = True
    waiting.start()
    try:
        jax.distributed.initialize(
            **options,
            initialization_timeout=LATE,
            heartbeat_timeout_seconds=SILENT,
            shutdown_timeout_seconds=LEAVING,
        )
    except (ValueError, RuntimeError) as error:
        _dismiss()
        if word == "auto":
            raise pfl.InputError(
                "--distributed=auto found no cluster that JAX knows, such as Slurm, Open MPI or a "
                f"TPU pod ({sentence(error)}): give HOST:PORT,COUNT,INDEX."
            ) from error
        raise pfl.InputError(f"--distributed={word}: {sentence(error)}") from error
    except BaseException:
        _dismiss()
        raise
    finally:
        waiting.cancel()
    number, count = processes.index(), processes.count()
    _tell_witness(
        f"error: Process {number} of {count} has ended, most likely since another one did: see "
        "what that one says. Finished work is kept; the same command continues from there."
    )
    processes.check_count()
    if number:
        sys.stdout.flush()
        sys.stdout = open(os.devnull, "w")  # noqa: SIM115 - for as long as the process runs
        warnings.simplefilter("ignore")  # the first process has the same ones


def _say_waiting(word: str, where: str) -> None:
    text = f"--distributed={word}: waiting for the other processes {where}, {LATE} seconds at most."
    print(text, file=sys.stderr, flush=True)


def _begin_witness(line: str) -> None:
    """Starts a process that says the line once this one is gone, unless it is dismissed before."""
    _witness.append(
        subprocess.Popen(
            [sys.executable, "-I", "-S", "-c", WITNESS],
            stdin=subprocess.PIPE,
            start_new_session=True,  # Ctrl-C is not for it
        )
    )
    _tell_witness(line)


def _tell_witness(line: str) -> None:
    """It says this line instead."""
    for witness in _witness:
        assert witness.stdin is not None  # it is a pipe
        witness.stdin.write(f"\n{line}".encode())
        witness.stdin.flush()


def _parsed(word: str) -> dict[str, Any]:
    """Arguments of `jax.distributed.initialize` for HOST:PORT,COUNT,INDEX."""
    parts = word.split(",")
    host, colon, port = parts[0].strip().rpartition(":")
    numbers = [decimal(part) for part in (port, *parts[1:])]
    if len(parts) != 3 or not host or not colon or None in numbers:
        raise pfl.InputError(f"{FORM}, got {shown(word)}.")
    port, count, number = (int(n or 0) for n in numbers)
    if not (1 <= port < 2**16 and count >= 1 and number < count):
        raise pfl.InputError(
            f"{FORM}, with PORT in 1..65535 and INDEX in 0..COUNT-1, got {shown(word)}."
        )
    options = {
        "coordinator_address": f"{host}:{port}",
        "num_processes": count,
        "process_id": number,
        "cluster_detection_method": "deactivate",
    }
    if number:
        addresses.check_first(host, port)
    else:
        addresses.check_free(host, port)
        if _is_loopback(host):  # let nobody else in
            options["coordinator_bind_address"] = f"{host}:{port}"
    addresses.hold(host, port, number)
    return options


def _is_loopback(host: str) -> bool:
    return host in ("localhost", "[::1]") or host.startswith("127.")


@contextlib.contextmanager
def held(make: Callable[[], AbstractContextManager]) -> Iterator[None]:
    """A context that the first process alone is in, while all are inside."""
    with contextlib.ExitStack() as stack:

        def enter() -> None:
            stack.enter_context(make())

        processes.on_first(enter)
        yield


def end(code: int) -> None:
    """Leaves together with the others, which end with the same code.

    Where one of them is gone already, this process ends at once.
    """
    if not jax.distributed.is_initialized():
        return
    _dismiss()
    if processes.is_broken():
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(code)
    jax.distributed.shutdown()


def leave_at_once() -> None:
    """Lets this process end without the others; they notice."""
    if processes.several():
        _dismiss()
        processes.lost()


def _dismiss() -> None:
    for witness in _witness:
        witness.communicate(b"\n")
    _witness.clear()
