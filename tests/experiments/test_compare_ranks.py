"""Tests over data sets and settings: `--tests`."""

import numpy as np
import pytest

from experiments import compare
from experiments.figures.loading import find
from experiments.figures.pivots import pivoted
from tests.experiments.small_runs import error_line, read_rows
from tests.experiments.written_runs import write_run

LEVELS = {"local": 0.3, "fedavg": 0.5, "feddwa": 0.6}


def blocks(folder, count=5, rows=LEVELS):
    """Runs of each row on `count` data sets, two values of the batch size each."""
    for b in range(count):
        for size in (5, 10):
            for name, level in rows.items():
                values = [[[level + 0.02 * b + 0.01 * size + 0.01 * seed] * 2] for seed in (0, 1)]
                write_run(
                    folder / f"{b}-{size}" / name, name, values, [0, 1],
                    words=[f"--dataset=data{b}", f"--batch_size={size}"],
                    dataset=f"data{b}", dataset_hash=f"{b}", partition_hash=f"{b}{size}",
                )  # fmt: skip
    return folder


@pytest.fixture(scope="module")
def runs(tmp_path_factory):
    return blocks(tmp_path_factory.mktemp("blocks"))


@pytest.mark.costly
def test_ranks_and_files(runs, tmp_path, capsys):
    output = tmp_path / "out"
    words = [f"--runs={runs}", "--pivot=dataset,batch_size", "--tests", "--baseline=FedAvg"]
    assert compare.main(["compare", *words, f"--output_dir={output}"]) == 0
    out = capsys.readouterr().out
    assert "| data0, 5 | data0, 10 |" in out and "%, by dataset,batch_size" in out
    assert "Mean ranks over 10 blocks (data0, 5, " in out
    assert "Some blocks share a data set and are not independent" in out
    assert "ranks.md, .csv, .tex" in out
    lines = read_rows(output / "ranks.csv")
    assert [(one["row"], float(one["mean_rank"])) for one in lines] == [
        ("feddwa", 1), ("fedavg", 2), ("local", 3)
    ]  # fmt: skip
    assert float(lines[0]["wilcoxon_p"]) == pytest.approx(2 / 2**10)
    assert float(lines[2]["wilcoxon_p_holm"]) == pytest.approx(4 / 2**10)
    assert "| p vs fedavg |" in (output / "ranks.md").read_text()
    assert "Friedman" in (output / "ranks.tex").read_text()
    assert (output / "ranks.png").read_bytes().startswith(b"\x89PNG")


def test_scores_are_means_over_seeds(runs):
    made, notes = pivoted(find([str(runs)]), "dataset,batch_size").ranking()
    assert made.scores.shape == (10, 3)
    at = list(made.names).index("local")
    assert made.scores[:2, at] == pytest.approx([35.5, 40.5], abs=1e-4)
    assert len(notes) == 1


@pytest.mark.parametrize(("words", "said"), [
    (["--tests"], "--tests needs runs on at least 5 data sets or settings, and --pivot with"),
    (["--tests", "--pivot=dataset,seed"], "and seed is none: runs of several seeds are not"),
    (["--tests", "--pivot=dataset,batch_size", "--baseline=fedavgg"], "Did you mean 'fedavg'?"),
    (["--pivot=dataset,batch_size", "--baseline=fedavg"], "--baseline has no column in the table"),
    (["--tests", "--pivot=batch_size", "--different_data", "--algorithms=local"], "got 2"),
    (["--tests", "--pivot=dataset,batch_siz"], "Did you mean 'batch_size'?"),
])  # fmt: skip
def test_ranks_refused(runs, words, said, capsys, tmp_path):
    folder = f"--runs={runs}"
    if words[1:2] == ["--pivot=batch_size"]:
        folder = f"--runs={runs}/0-*"
    output = tmp_path / "out"
    assert compare.main(["compare", folder, *words, f"--output_dir={output}"]) == 2
    assert said in error_line(capsys)
    assert not output.exists()


@pytest.mark.costly
def test_a_baseline_by_its_own_name_or_its_label(runs, tmp_path, capsys):
    (tmp_path / "labels.txt").write_text("local=Local 100%\n")
    words = [f"--runs={runs}", "--pivot=dataset,batch_size", "--tests"]
    words += [f"--labels={tmp_path / 'labels.txt'}"]
    for name in ("local", "Local", "Local 100%"):
        assert compare.main(["compare", *words, f"--baseline={name}"]) == 0
        assert "| p vs Local 100% |" in capsys.readouterr().out


def test_ranks_of_a_row_that_failed(runs):
    """A mean that is not a number makes its column no block."""
    made = pivoted(find([str(runs)]), "dataset,batch_size")
    made.scores.loc[0, made.scores.columns[-1]] = np.nan
    ranking, notes = made.ranking()
    assert len(ranking.blocks) == 9 and notes[0].startswith("Left out")
