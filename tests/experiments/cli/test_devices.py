"""Devices of a run: what `--devices` means, and that two give the bits of one."""

import pytest

import fedjax_pfl as pfl
from experiments.cli import devices
from fedjax_pfl.execution import processes
from tests.experiments.small_runs import assert_input_error

START = devices._start  # which the tests of commands replace


def test_devices_auto_where_jax_runs():
    assert devices.prepare("auto", 20) == 1


def test_devices_auto_by_cores_and_clients(monkeypatch):
    monkeypatch.setattr(devices, "_start", lambda count: True)
    monkeypatch.setattr(devices, "cores", lambda: 6)
    assert devices.prepare("auto", 20) == 6
    assert devices.prepare("auto", 4) == 4
    assert devices.prepare("3", 20) == 3
    assert devices.prepare("99", 2) == 2  # there are two
    assert devices.prepare("99", 20) == 99  # which `federate` refuses by this number


@pytest.mark.parametrize("word", ["0", "-1", "two", "", "1.5"])
def test_devices_refused(word):
    assert_input_error("--devices must be 'auto' or a whole number", devices.prepare, word, 20)


def test_mesh_of_too_many_devices(monkeypatch):
    monkeypatch.setattr(devices, "_start", START)
    monkeypatch.delenv("JAX_NUM_CPU_DEVICES", raising=False)
    for mesh in ("clients:100000", "runs:1000000"):
        with pytest.raises(pfl.InputError, match="can have 1024 devices at most, got 10"):
            devices.prepare("auto", 20, mesh)


def test_devices_are_shared_by_all_processes(monkeypatch):
    started = []
    monkeypatch.setattr(processes, "count", lambda: 2)
    monkeypatch.setattr(processes, "exchange", lambda mine: [mine, mine])
    monkeypatch.setattr(devices, "_start", started.append)
    monkeypatch.setattr(devices, "cores", lambda: 4)
    monkeypatch.delenv("JAX_NUM_CPU_DEVICES", raising=False)
    assert devices.prepare("6", 20) == 6
    for words in (("6", "auto", 2, 20), ("auto", "runs:4", 2, 20), ("auto", "auto", 2, 20),
                  ("auto", "auto", 2, 5), ("2", "auto", 2, 20)):  # fmt: skip
        devices.start_share(*words)
    assert started == [3, 2, 4, 3]  # one device is there in any case
    assert_input_error("'auto' or a multiple of 2", devices.start_share, "3", "auto", 2, 20)
    with pytest.raises(pfl.InputError, match="--mesh must take a multiple of 2 devices"):
        devices.start_share("auto", "clients:3", 2, 20)
    monkeypatch.setattr(processes, "exchange", lambda mine: [mine, "--devices=2 --mesh=auto"])
    with pytest.raises(pfl.InputError, match="process 1 has '--devices=2 --mesh=auto' and process"):
        devices.prepare("4", 20)
