"""Small commands, and what tests read of their output and folders."""

import csv
import json

import pytest

from experiments import run
from experiments.figures import loading
from fedjax_pfl.utils.errors import InputError

# A run that compiles in a second or two; later flags override these.
SMALL = (
    "--dataset=digits", "--model=softmax", "--num_clients=4", "--num_seeds=2", "--rounds=2",
    "--compilation_cache=",
)  # fmt: skip
# The same with three local steps in an epoch.
TINY = (
    *SMALL, "--partition=iid", "--train_samples=21", "--test_samples=10",
    "--validation_fraction=0.2", "--devices=1", "--nosave_models",
)  # fmt: skip


def run_in(folder, *words) -> int:
    """Call `experiments.run` with an output folder; return its exit code."""
    return run.main(["run", *words, f"--output_dir={folder}"])


def read_rows(path) -> list[dict]:
    """Read a CSV file, a dictionary for each row."""
    with path.open(newline="", encoding="utf-8") as file:
        return list(csv.DictReader(file))


def arrays(folder):
    """Scores and records of a finished algorithm by name, [seed, round, client]."""
    made = loading.read(folder)
    return made.records | {name: one[:, 0] for name, one in made.result.scores.items()}


def read_json(path):
    return json.loads(path.read_text())


def error_line(capsys) -> str:
    """Return the only line on standard error."""
    lines = [line for line in capsys.readouterr().err.splitlines() if line]
    assert len(lines) == 1 and lines[0].startswith("error: "), lines
    return lines[0]


def assert_refused(code, text, capsys) -> None:
    """A command ended with exit code 2 and one line that has the text."""
    assert code == 2
    assert text in f"{error_line(capsys)}\n"


def assert_input_error(pattern, function, *args, **options) -> None:
    """The call raises an `InputError` with the pattern."""
    with pytest.raises(InputError, match=pattern):
        function(*args, **options)


def stamps(folder) -> dict:
    """Return the time of change of every file and folder."""
    return {path: path.stat().st_mtime_ns for path in folder.rglob("*")}
