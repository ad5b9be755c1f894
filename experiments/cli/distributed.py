"""A run in several processes: how they start and end together."""

import contextlib
import errno
import hashlib
import os
import socket
import sys
import warnings
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager
from typing import Any

import jax

import fedjax_pfl as pfl
from fedjax_pfl.execution import processes
from fedjax_pfl.utils.conversions import decimal
from fedjax_pfl.utils.errors import sentence, shown

from . import devices

FORM = "--distributed must be 'auto' or HOST:PORT,COUNT,INDEX such as 10.0.0.1:1234,2,0"
SILENT = 40  # seconds without a sign of life until a process counts as gone
LATE = 300  # seconds until all processes must have come
LEAVING = 20  # seconds that one waits for the others at its end
_reserved: list[socket.socket] = []


def start(
    word: str | None, device_flag: str = "auto", mesh: str = "auto", num_clients: int = 1
) -> None:
    """Connect the processes of --distributed before a device is used, if the flag is given.

    All but the first print nothing from then on, except errors.

    Args:
      word: "auto" or HOST:PORT,COUNT,INDEX.
      device_flag, mesh: --devices and --mesh of all processes; devices of a CPU are made here.
      num_clients: the most devices with "auto".

    Raises:
      pfl.InputError: no such word, no cluster, a taken port, or the others don't come.
    """
    if word is None:
        return
    options = {} if word == "auto" else _parsed(word)
    if options:
        devices.start_share(device_flag, mesh, options["num_processes"], num_clients)
    where = f"at {options['coordinator_address']}" if options else "of this job"
    print(f"--distributed={word}: meeting the other processes {where}, in {LATE} seconds at most.",
          file=sys.stderr, flush=True)  # fmt: skip
    jax.config.update("jax_enable_preemption_service", False)  # it would take SIGTERM from us
    # JAX's default for CPUs leaves processes without a way to exchange values.
    jax.config.update("jax_cpu_collectives_implementation", "gloo")
    try:
        jax.distributed.initialize(
            **options,
            initialization_timeout=LATE,
            heartbeat_timeout_seconds=SILENT,
            shutdown_timeout_seconds=LEAVING,
        )
        counts = Counter(device.process_index for device in jax.devices())
    except (ValueError, RuntimeError) as error:
        if word == "auto":
            raise pfl.InputError(
                "--distributed=auto found no cluster that JAX knows, such as Slurm, Open MPI or a "
                f"TPU pod ({sentence(error)}): give HOST:PORT,COUNT,INDEX."
            ) from error
        raise pfl.InputError(
            f"--distributed={word}: {sentence(error)} Give all processes the same COUNT, each "
            "another INDEX, and a free port of the machine of process 0."
        ) from error
    if len(set(counts.values())) > 1:
        listed = ", ".join(f"process {k} has {counts[k]}" for k in sorted(counts))
        raise pfl.InputError(f"All processes need the same number of devices, but {listed}.")
    if processes.index():
        sys.stdout.flush()
        sys.stdout = open(os.devnull, "w")  # noqa: SIM115 - for as long as the process runs
        warnings.simplefilter("ignore")  # the first process has the same ones


def _parsed(word: str) -> dict[str, Any]:
    """Return the arguments of `jax.distributed.initialize` for HOST:PORT,COUNT,INDEX."""
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
    if number == 0 and (host in ("localhost", "[::1]") or host.startswith("127.")):
        options["coordinator_bind_address"] = f"{host}:{port}"  # other machines can't reach it
    _reserve(host, port, number)
    return options


def _reserve(host: str, port: int, number: int) -> None:
    """Reserve this number at this address for the life of the process, on Linux.

    JAX ends all processes of a run if two have the same number.

    Raises:
      InputError: another process of this machine has it.
    """
    if sys.platform != "linux":
        return
    name = hashlib.sha256(f"{host}:{port},{number}".encode()).hexdigest()
    mine = socket.socket(socket.AF_UNIX)
    try:
        mine.bind(f"\0fedjax_pfl/{name}")  # no file: Linux forgets it with the process
    except OSError as error:
        mine.close()
        if error.errno != errno.EADDRINUSE:
            return
        raise pfl.InputError(
            f"--distributed: process {number} of a run that meets at {host}:{port} is running on "
            "this machine already: take another port for another run, and give every process "
            "another INDEX."
        ) from error
    _reserved.append(mine)


@contextlib.contextmanager
def in_first_process(make: Callable[[], AbstractContextManager]) -> Iterator[None]:
    """Context that only the first process enters; all processes run its body."""
    with contextlib.ExitStack() as stack:

        def enter() -> None:
            stack.enter_context(make())

        processes.on_first(enter)
        yield


def end(code: int) -> None:
    """End together with the other processes, with the same exit code.

    Where one of them is gone already, this process ends at once.
    """
    if not jax.distributed.is_initialized():
        return
    if processes.is_broken():
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(code)
    jax.distributed.shutdown()
