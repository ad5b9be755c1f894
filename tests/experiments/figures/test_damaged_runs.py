"""Finished runs with damaged files: one sentence with the file and what to do, exit code 2."""

import json
import shutil

import numpy as np
import pytest

from experiments import compare, run, sweep
from experiments.figures.loading import find, read
from fedjax_pfl.utils.errors import InputError
from tests.experiments.small_runs import SMALL, assert_input_error, error_line, run_in
from tests.experiments.written_runs import write_run

# Two seeds, or two settings of one: one program of local for both.
SHARED = [*SMALL, "--num_clients=5", "--new_clients=1", "--validation_fraction=0.2"]
WORDS = ["--algorithms=fedavg,local", *SHARED, "--new_client_steps=0"]
SWEEP = [*SHARED, "--num_seeds=1", "--algorithms=local"]
SWEEP += ["--grid=learning_rate=0.1,0.3", "--grid=batch_size=10"]


def one_sentence(capsys, *parts) -> None:
    line = error_line(capsys)
    assert len(line) < 1500 and all(str(part) in line for part in parts), line


@pytest.fixture(scope="module")
def finished(tmp_path_factory):
    """A finished run, and a finished sweep."""
    root = tmp_path_factory.mktemp("made")
    assert run_in(root / "run", *WORDS) == 0
    assert sweep.main(["sweep", *SWEEP, f"--output_dir={root / 'sweep'}"]) == 0
    return root


@pytest.fixture
def copied(finished, tmp_path):
    return shutil.copytree(finished, tmp_path / "copied")


def edited(path, change) -> None:
    content = json.loads(path.read_text())
    change(content)
    path.write_text(json.dumps(content))


DAMAGES = {
    "empty": lambda path: path.write_bytes(b""),
    "cut": lambda path: path.write_bytes(path.read_bytes()[: path.stat().st_size // 2]),
    "list": lambda path: path.write_text("[1, 2]"),
    "null": lambda path: path.write_text("null"),
    "deep": lambda path: path.write_text("[" * 100_000),
    "folder": lambda path: (path.unlink(), path.mkdir()),
    "loop": lambda path: (path.unlink(), path.symlink_to(path)),
    "gone": lambda path: path.unlink(),
}


@pytest.mark.parametrize("damage", ["empty", "list", "loop", "gone"])
def test_same_command_on_a_damaged_result(copied, capsys, damage):
    """Of a run and of a sweep; nothing is written over, and the remedy is the one that helps."""
    folder, sweep_folder = copied / "run" / "fedavg", copied / "sweep"
    (cell,) = (sweep_folder / "results").iterdir()
    for name in ("result.json", "result.npz"):
        whole = [(at / name).read_bytes() for at in (folder, cell)]
        DAMAGES[damage](folder / name)
        DAMAGES[damage](cell / name)
        before = {path for path in copied.rglob("*") if path.name != ".lock"}
        assert run_in(copied / "run", *WORDS) == 2
        one_sentence(capsys, folder / name, f"Delete the folder {folder}")
        assert sweep.main(["sweep", *SWEEP, f"--output_dir={sweep_folder}"]) == 2
        one_sentence(capsys, cell / name, f"Delete the folder {cell}")
        assert before <= {*copied.rglob("*")}
        for at, content in zip((folder, cell), whole, strict=True):
            (at / name).unlink(missing_ok=True)
            (at / name).write_bytes(content)


def test_a_result_of_another_algorithm_seed_or_length(copied, capsys):
    folder = copied / "run" / "fedavg"
    for name in ("result.json", "result.npz"):
        shutil.copy(copied / "run" / "local" / name, folder / name)
    assert run_in(copied / "run", *WORDS) == 2
    one_sentence(capsys, folder / "result.json", "algorithm: local there, fedavg in this run")


def test_an_algorithms_folder_without_its_last_file(copied, capsys):
    """Said before anything runs: it used to be found out when the run was to be written."""
    (copied / "run" / "fedavg" / "summary.json").unlink()
    assert run_in(copied / "run", *WORDS) == 2
    one_sentence(capsys, "fedavg has no summary.json, so it is not whole", "Delete the folder")


RECORDS = ["", "[]", "null", "{}", '{"flags": []}', '{"flags": null}', "[" * 100_000, '"flags"']


def test_records_of_another_form(copied, capsys):
    for text in RECORDS:
        for script, words, name in ((run, WORDS, "run"), (sweep, SWEEP, "sweep")):
            record = copied / name / "run.json"
            record.write_text(text)
            assert script.main([name, *words, f"--output_dir={record.parent}"]) == 2
            one_sentence(capsys, record, "Choose another --output_dir")


def test_tables_of_held_out_clients(copied, capsys):
    path = copied / "run" / "fedavg" / "new_clients.csv"
    whole = path.read_text()
    heading = whole.splitlines()[0]
    for text in ("", "a,b\n1,2\n", whole.replace("0.", "x."), heading + "\n0,1\n", "\0"):
        path.write_text(text)
        (copied / "run" / "comparison.md").unlink(missing_ok=True)
        assert run_in(copied / "run", *WORDS) == 2
        one_sentence(capsys, path, "Delete the folder")
    path.unlink()
    assert run_in(copied / "run", *WORDS) == 2
    one_sentence(capsys, path)


@pytest.fixture
def runs(tmp_path):
    for name in ("fedavg", "local"):
        values = np.random.default_rng(0).uniform(size=(2, 3, 4))
        write_run(tmp_path / "r" / name, name, values, [0, 1])
    return tmp_path / "r"


def test_damaged_run_of_a_command(runs, capsys):
    """The other commands read runs in the same way."""
    assert compare.main(["compare", f"--runs={runs}"]) == 0
    DAMAGES["cut"](runs / "fedavg" / "summary.json")
    capsys.readouterr()
    assert compare.main(["compare", f"--runs={runs}"]) == 2
    one_sentence(capsys, runs / "fedavg" / "summary.json", "Delete the folder")


@pytest.mark.parametrize("name", ["config.json", "summary.json", "result.json", "result.npz"])
def test_damaged_files_of_a_run(runs, name):
    path = runs / "fedavg" / name
    whole = path.read_bytes()
    for damage in ("empty", "cut", "list", "null", "deep", "folder"):
        DAMAGES[damage](path)
        with pytest.raises(InputError, match="Delete the folder") as caught:
            find([str(runs)])
        assert str(path) in str(caught.value) and len(str(caught.value)) < 1500
        if path.is_dir():
            path.rmdir()
        path.write_bytes(whole)


OTHER = {
    "config.json": {
        "algorithm": (None, 3, ["a"]),
        "hyperparameters": (None, [], "a"),
        "seeds": (None, [], ["a"], 3, {}, [1.5]),
        "flags": (None, [], {}, {"rule": {}}, {"rule": [], "comparison": {}, "data": {}}),
        "partition": (None, {}, {"rule": 1, "options": {}}, {"rule": "iid", "options": []}),
        "model": (None, []),
    },
    "summary.json": {"partition_hash": (3,)},
}


def test_values_of_another_form_in_a_run(runs):
    for name, values in OTHER.items():
        path = runs / "fedavg" / name
        whole = path.read_bytes()
        for key, others in values.items():
            for other in others:
                edited(path, lambda content, k=key, v=other: content.__setitem__(k, v))
                with pytest.raises(InputError, match="is damaged") as caught:
                    find([str(runs)])
                assert str(path) in str(caught.value), (key, other)
                path.write_bytes(whole)
            if key != "partition_hash":
                edited(path, lambda content, k=key: content.pop(k))
                assert_input_error("is damaged", read, path.parent)
                path.write_bytes(whole)
    edited(runs / "fedavg" / "config.json", lambda content: content.update(seeds=[0, 7]))
    said = r"result.json is damaged: seeds is \[0, 1\] there and \[0, 7\] in config.json"
    assert_input_error(said, find, [str(runs)])
    edited(runs / "fedavg" / "config.json", lambda content: content.pop("seeds"))
    said = "config.json is damaged: it lacks seeds, perhaps as another version's"
    assert_input_error(said, find, [str(runs)])
