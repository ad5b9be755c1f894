"""The address at which processes meet: words for it, and who else may be there."""

import contextlib
import socket
import sys
import threading

import pytest

import fedjax_pfl as pfl
from experiments.cli import addresses, distributed


@pytest.mark.parametrize(
    ("word", "said"),
    [
        ("host:1,2", "must be 'auto' or HOST:PORT,COUNT,INDEX"),
        ("1234,2,0", "must be 'auto' or HOST:PORT,COUNT,INDEX"),
        ("host:1,2,2", "INDEX in 0..COUNT-1"),
        ("host:65536,2,1", "PORT in 1..65535"),
        ("AUTO", "must be 'auto' or HOST:PORT,COUNT,INDEX"),
    ],
)
def test_words_that_name_no_process(word, said):
    with pytest.raises(pfl.InputError, match=said):
        distributed.start(word)


def test_a_taken_port():
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = taken.getsockname()[1]
        with pytest.raises(pfl.InputError, match=f"can't listen at 127.0.0.1:{port}"):
            distributed.start(f"127.0.0.1:{port},2,0")


@pytest.mark.parametrize(
    ("greeting", "other"),
    [(b"", True), (b"SSH-2.0", True), (b"\0\0\x18\x04\0\0\0\0\0", False)],
    ids=["silent", "other", "HTTP/2"],
)
def test_another_program_at_the_address_is_no_process_0(monkeypatch, greeting, other):
    monkeypatch.setattr(addresses, "SECONDS", 0.5)
    with socket.create_server(("127.0.0.1", 0)) as there:
        port = there.getsockname()[1]

        def greet():
            connection = there.accept()[0]
            connection.sendall(greeting)
            with contextlib.suppress(ConnectionError):
                connection.recv(1)  # until the other side has gone

        threading.Thread(target=greet).start()
        refused = pytest.raises(pfl.InputError, match=f"another program listens at .*:{port}")
        with refused if other else contextlib.nullcontext():
            addresses.check_first("127.0.0.1", port)
    addresses.check_first("127.0.0.1", port)  # nobody: process 0 may come


@pytest.mark.skipif(sys.platform != "linux", reason="elsewhere nobody knows of the other run")
def test_a_number_has_one_process_at_an_address(monkeypatch):
    monkeypatch.setattr(addresses, "_held", held := [])
    host = "127.0.0.1" + "." * 200  # names are longer than a path of a socket may be
    for number in (1, 2):
        addresses.hold(host, 1234, number)
    with pytest.raises(pfl.InputError, match="process 1 of a run that meets at"):
        addresses.hold(host, 1234, 1)
    for each in held:
        each.close()
    addresses.hold(host, 1234, 1)
    held[-1].close()
