"""Files of 0.2 are refused in a sentence that names the version; results of 0.3 are read."""

import json
import shutil

import numpy as np
import pytest

import fedjax_pfl as pfl
from experiments import compare
from fedjax_pfl._version import ENGINE_REVISION
from fedjax_pfl.engine.fingerprint import JAX, check_same
from fedjax_pfl.engine.fingerprint import VERSION as VERSION_ENTRY
from fedjax_pfl.results.result_files import digest
from tests.experiments.small_runs import SMALL, assert_refused, read_json, run_in

WORDS = (*SMALL, "--algorithms=local")


@pytest.fixture(scope="module")
def finished(tmp_path_factory):
    folder = tmp_path_factory.mktemp("finished") / "run"
    assert run_in(folder, *WORDS) == 0
    return folder


@pytest.fixture
def old(finished, tmp_path):
    """The finished run as 0.2 would have left it."""
    folder = tmp_path / "run"
    shutil.copytree(finished, folder)

    def edit(path, change):
        content = json.loads(path.read_text())
        change(content)
        path.write_text(json.dumps(content))

    edit(folder / "run.json", lambda record: record.pop("version"))
    edit(folder / "local/config.json", lambda one: one["versions"].update(fedjax_pfl="0.2.0"))
    return folder


def test_run_of_0_2_does_not_go_on(old, capsys):
    assert run_in(old, *WORDS) == 2
    assert f"{old / 'run.json'} was written by fedjax_pfl 0.2, and {pfl.__version__} reads" in (
        capsys.readouterr().err
    )


def test_a_finished_run_is_not_compared(old, capsys):
    assert compare.main(["compare", f"--runs={old}"]) == 2
    text = f"{old / 'local/config.json'} was written by fedjax_pfl 0.2.0, and {pfl.__version__}"
    assert text in capsys.readouterr().err


def test_checkpoints_are_not_gone_on_with(tmp_path):
    now = {VERSION_ENTRY: pfl.__version__, "rounds": "6"}
    check_same(now, now, tmp_path)
    with pytest.raises(pfl.InputError, match=r"was written by fedjax_pfl 0\.2\.0, and"):
        check_same(now | {VERSION_ENTRY: "0.2.0"}, now, tmp_path)
    with pytest.warns(match=r"are of JAX 0\.1 and go on with JAX 0\.2: the last digits"):
        check_same(now | {JAX: "0.1"}, now | {JAX: "0.2"}, tmp_path)
    later = f"{pfl.__version__.rpartition('.')[0]}.99"
    with pytest.warns(match=f"are of fedjax_pfl {later} and go on with fedjax_pfl"):
        check_same(now | {VERSION_ENTRY: later}, now, tmp_path)


@pytest.fixture
def of_0_4(finished, tmp_path):
    """The finished run as 0.4 would have left it."""
    folder = tmp_path / "of_0_4"
    shutil.copytree(finished, folder)
    for path in (folder / "run.json", folder / "local/result.json"):
        plain = read_json(path) | {"version": "0.4.0"}
        if "digest" in plain:
            del plain["digest"]
            with np.load(folder / "local/result.npz") as arrays:
                plain["digest"] = digest(plain, dict(arrays))
        path.write_text(json.dumps(plain))
    path = folder / "local/config.json"
    path.write_text(path.read_text().replace(pfl.__version__, "0.4.0"))
    return folder


def test_results_of_0_4_are_read(of_0_4, capsys):
    assert pfl.Result.load(of_0_4 / "local").algorithm == "local"
    assert compare.main(["compare", f"--runs={of_0_4}"]) == 0
    assert "| local |" in capsys.readouterr().out


def test_a_run_of_0_4_does_not_go_on(of_0_4, capsys):
    assert_refused(run_in(of_0_4, *WORDS), "run.json was written by fedjax_pfl 0.4.0, and", capsys)


def test_another_revision_does_not_go_on(finished, capsys, monkeypatch):
    monkeypatch.setattr(pfl.core.ALGORITHMS["local"], "revision", 2)
    assert run_in(finished, *WORDS) == 2
    before, now = (f"{ENGINE_REVISION}.{k}" for k in (1, 2))
    text = f"is another run: local.revision was '{before}' and is '{now}'. Continue it with the"
    assert text in capsys.readouterr().err
