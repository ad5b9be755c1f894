"""The address at which the processes of a run meet: who may listen there, and who is there."""

import contextlib
import errno
import hashlib
import socket
import sys

import fedjax_pfl as pfl

SECONDS = 20  # that a process which listens has to say what it is; JAX waits as long
SETTINGS = b"\x04"  # the type of the first HTTP/2 frame, with which JAX greets
_held: list[socket.socket] = []


def check_free(host: str, port: int) -> None:
    """Raises `InputError` unless process 0 can listen at this address of its machine."""
    try:
        family, address = _resolved(host, port)
        with socket.socket(family, socket.SOCK_STREAM) as probe:
            probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            probe.bind(address)
    except OSError as error:
        raise pfl.InputError(
            f"--distributed: process 0 can't listen at {host}:{port} ({error.strerror}): take "
            "another port, and an address of the machine that process 0 runs on."
        ) from error


def check_first(host: str, port: int) -> None:
    """Raises `InputError` where another program than a process 0 listens at this address.

    Where nobody listens, process 0 may yet come.
    """
    try:
        _, address = _resolved(host, port)
        there = socket.create_connection(address[:2], timeout=SECONDS)
    except OSError:
        return
    said = b""
    with there, contextlib.suppress(OSError):
        while len(said) < 4 and (more := there.recv(4 - len(said))):
            said += more
    if said[3:] != SETTINGS:
        raise pfl.InputError(
            f"--distributed: another program listens at {host}:{port}, where process 0 should: "
            "take another port."
        )


def hold(host: str, port: int, number: int) -> None:
    """Keeps others with this number from this address, as long as this process lives; on Linux.

    JAX ends all processes of a run if one comes whose number another one has.

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
    _held.append(mine)


def _resolved(host: str, port: int) -> tuple:
    """(family, address) of a host by name or number."""
    family, *_, address = socket.getaddrinfo(host.strip("[]"), port, type=socket.SOCK_STREAM)[0]
    return family, address
