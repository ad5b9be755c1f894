"""Scripts with methods from the user's own files."""

import json
from pathlib import Path

import numpy as np
import pytest

import fedjax_pfl as pfl
from experiments import flags, own_code, resume, run, sweep
from fedjax_pfl.testing import check_method

ROOT = Path(__file__).resolve().parents[2]
EXAMPLE = ROOT / "experiments/examples/kept_average.py"
SMALL = (
    "--dataset=digits",
    "--model=softmax",
    "--num_clients=4",
    "--num_seeds=1",
    "--rounds=2",
    "--compilation_cache=",
)


def test_a_run_of_the_example(tmp_path, capsys):
    """Its limits: all kept is local training, nothing kept is FedAvg."""
    for keep, like in ((1, "local"), (0, "fedavg")):
        words = (f"--import_file={EXAMPLE}", f"--algorithms={like},kept_average")
        own = (f"--set=kept_average.keep={keep}", f"--output_dir={tmp_path / like}")
        assert run.main(["run", *SMALL, *words, *own]) == 0, capsys.readouterr().err
        ours, theirs = (
            pfl.Result.load(tmp_path / like / name).scores["personalized/test/loss"]
            for name in ("kept_average", like)
        )
        np.testing.assert_allclose(ours, theirs, rtol=1e-5)


def test_a_sweep_of_the_example(tmp_path, capsys):
    words = (f"--import_file={EXAMPLE}", "--algorithms=kept_average", "--validation_fraction=0.2")
    grid = ("--grid=kept_average.keep=0,0.5", f"--output_dir={tmp_path / 'sweep'}")
    assert sweep.main(["sweep", *SMALL, *words, *grid]) == 0, capsys.readouterr().err
    assert "kept_average" in capsys.readouterr().out


@pytest.mark.parametrize("check", ["partial_participation", "permutation"])
def test_the_example_passes_the_suite(check):
    own_code.load([str(EXAMPLE)])
    check_method(pfl.make_method("kept_average"), only=check)


def test_an_unknown_check():
    with pytest.raises(pfl.InputError, match=r"Unknown check 'permutations'\. Did you mean"):
        check_method(pfl.make_method("local"), only="permutations")


def test_another_content_is_another_run(tmp_path):
    file = tmp_path / "mine.py"
    file.write_text("RATE = 1\n")
    words = ["run", f"--import_file={file}"]
    before = resume.configuration(flags.parse(words))
    assert resume.configuration(flags.parse(words)) == before
    folder = resume.default_folder(flags.parse(words))
    file.write_text("RATE = 2\n")
    now = resume.configuration(flags.parse(words))
    assert {name for name in now if now[name] != before[name]} == {"import_file"}
    assert resume.default_folder(flags.parse(words)) != folder
    json.dumps(now)
    assert "import_file" not in resume.configuration(flags.parse(["run"]))
    moved = tmp_path / "elsewhere" / "mine.py"
    moved.parent.mkdir()
    moved.write_text("RATE = 2\n")
    assert resume.configuration(flags.parse(["run", f"--import_file={moved}"])) == now


@pytest.mark.parametrize(
    ("name", "content", "message"),
    [
        ("none.py", None, "must be a Python file"),
        ("text.txt", "x = 1", "must be a Python file"),
        ("wrong.py", "x = (", "does not run: SyntaxError"),
        ("fails.py", "import nowhere", "does not run: ModuleNotFoundError"),
    ],
)
def test_files_that_can_not_be(name, content, message, tmp_path, capsys):
    if content is not None:
        (tmp_path / name).write_text(content)
    assert run.main(["run", f"--import_file={tmp_path / name}"]) == 2
    error = capsys.readouterr().err
    assert message in error
    assert "Traceback" not in error
