"""The words of --distributed, and numbers of processes that are in use."""

import socket
import sys

import pytest

from experiments.cli import distributed
from tests.experiments.small_runs import assert_input_error


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
def test_distributed_refused(word, said):
    assert_input_error(said, distributed.start, word)


@pytest.mark.skipif(sys.platform != "linux", reason="elsewhere nobody knows of the other run")
def test_process_number_is_reserved(monkeypatch):
    held: list[socket.socket] = []
    monkeypatch.setattr(distributed, "_reserved", held)
    host = "127.0.0.1" + "." * 200  # names are longer than a path of a socket may be
    for number in (1, 2):
        distributed._reserve(host, 1234, number)
    assert_input_error("process 1 of a run that meets at", distributed._reserve, host, 1234, 1)
    for each in held:
        each.close()
    distributed._reserve(host, 1234, 1)
    held[-1].close()
