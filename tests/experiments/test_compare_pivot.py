"""The table of algorithms by data sets and settings: `--pivot`, and `--tests` over it."""

import numpy as np
import pytest

import fedjax_pfl as pfl
from experiments import compare
from experiments.figures.loading import find
from experiments.figures.pivots import pivoted
from experiments.figures.run_table import baseline_runs
from experiments.figures.scores import Choice
from experiments.figures.settings import against_setting
from tests.experiments.small_runs import assert_refused, error_line, read_rows
from tests.experiments.written_runs import rewrite, write_run


@pytest.fixture
def by_data(tmp_path):
    """Two data sets; three algorithms on the first, two on the second, whose network differs."""
    for data, model, level in (("mnist", "cnn", 0.0), ("digits", "mlp", 0.2)):
        for name, score in (("fedavg", 0.4), ("local", 0.5), ("feddwa", 0.6)):
            if (data, name) != ("digits", "local"):
                values = [[[score + level + 0.01 * seed] * 2] for seed in (0, 1, 2)]
                write_run(
                    tmp_path / data / name, name, values, [0, 1, 2],
                    words=[f"--dataset={data}", f"--model={model}"],
                    dataset=data, dataset_hash=data, partition_hash="p",
                )  # fmt: skip
    return tmp_path


def test_algorithms_by_data_sets(by_data, tmp_path, capsys):
    (tmp_path / "labels.txt").write_text("# ours\nfeddwa=FedDWA (ours)\nmnist = MNIST\n")
    words = [f"--runs={by_data}", "--pivot=dataset", f"--labels={tmp_path / 'labels.txt'}"]
    assert compare.main(["compare", *words, f"--output_dir={tmp_path / 'out'}"]) == 0
    lines = (tmp_path / "out" / "table.md").read_text().splitlines()
    table = [line for line in lines if line.startswith("|")]
    heading = [cell.strip() for cell in table[0].strip("|").split("|")]
    at = {name: heading.index(name) for name in ("MNIST", "digits")}
    split = [[cell.strip() for cell in line.strip("|").split("|")] for line in table[2:]]
    rows = {cells[0]: cells for cells in split}
    assert rows["FedDWA (ours)"][at["MNIST"]] == "**61.00 ± 1.00**"
    assert rows["local"][at["MNIST"]] == "<u>51.00 ± 1.00</u>"
    assert rows["fedavg"][at["MNIST"]] == "41.00 ± 1.00"
    assert rows["fedavg"][at["digits"]] == "<u>61.00 ± 1.00</u>"
    assert rows["local"][at["digits"]] == "-"
    assert "±: standard deviation over seeds, 3 of them." in lines
    assert lines[0].endswith("after the last round, mean over clients, %, by dataset")
    tex = (tmp_path / "out" / "table.tex").read_text()
    assert r"\textbf{61.00 $\pm$ 1.00}" in tex and r"\underline{51.00 $\pm$ 1.00}" in tex
    assert len(read_rows(tmp_path / "out" / "seeds.csv")) == 15
    assert "FedDWA (ours)" in capsys.readouterr().out


def test_pivot_by_paths_of_data_sets(tmp_path, capsys):
    for at, (path, name) in enumerate([("a/mine", "mine"), ("b/two", "same"), ("c/two", "same")]):
        write_run(
            tmp_path / str(at), "local", [[[0.5] * 2]], [0],
            words=[f"--dataset=npz:{path}.npz"], dataset=name, dataset_hash=path,
        )  # fmt: skip
    assert compare.main(["compare", f"--runs={tmp_path}", "--pivot=dataset"]) == 0
    assert "|  | mine | npz:b/two.npz | npz:c/two.npz |" in capsys.readouterr().out


def test_wide_intervals_of_a_pivot_are_explained(by_data, capsys):
    for seed, path in enumerate(sorted(by_data.glob("*/*/result.npz"))):
        ((name, values),) = pfl.Result.load(path.parent).scores.items()
        values[0] = 0.01 * seed
        rewrite(path.parent, scores={name: values})
    words = [f"--runs={by_data}", "--pivot=dataset", "--spread=interval"]
    assert compare.main(["compare", *words]) == 0
    out = capsys.readouterr().out
    assert "* extends beyond the scale: such an interval is uninformative" in out and "* |" in out


@pytest.mark.parametrize(
    ("choice", "rows"),
    [
        (Choice(model="adapted"), ["local, adapt_steps=1", "local, adapt_steps=20"]),
        (Choice(score="best"), ["local, eval_every=1", "local, eval_every=2"]),
        (Choice(), ["local"]),
    ],
)
def test_measurements_that_move_the_scores_are_no_repetitions(tmp_path, choice, rows):
    for seed, (steps, every) in enumerate([(1, 1), (20, 2)]):
        folder, words = tmp_path / f"{seed}", [f"--adapt_steps={steps}", f"--eval_every={every}"]
        write_run(folder, "local", [[[0.5] * 2] * 2], [seed], words=words)
        ((key, values),) = pfl.Result.load(folder).scores.items()
        rewrite(folder, scores={key: values, "adapted/test/accuracy": values})
    runs = find([str(tmp_path)])
    assert [row for row, _ in pivoted(runs, "dataset", choice).cells] == rows
    if len(rows) > 1:
        with pytest.raises(pfl.InputError, match="2 runs that are not one with several seeds"):
            baseline_runs("local", runs, rows, choice)


def test_settings_that_differ_between_columns_unseen(tmp_path, by_data):
    for name, words in (("a", ["--participation=1"]), ("b", ["--participation=0.5", "--rounds=7"])):
        for rate in (0.1, 0.2):
            more = [*words, f"--learning_rate={rate}", f"--model_option=hidden={len(words)}"]
            write_run(tmp_path / "c" / f"{name}{rate}", "local", [[[0.5] * 2]], [0], words=more)
    runs = find([str(tmp_path / "c")])
    made = pivoted(runs, "participation")
    assert made.notes[-1] == "Columns also differ in model_option, rounds."
    assert {row for row, _ in made.cells} == {
        "local, learning_rate=0.1", "local, learning_rate=0.2"
    }  # fmt: skip
    title = " ".join(against_setting(runs, x="participation").figure.get_suptitle().split())
    assert title.endswith("columns also differ in model_option, rounds")
    assert not pivoted(runs, "participation,rounds,model_option").hidden
    assert pivoted(find([f"{by_data}/mnist", f"{by_data}/digits"]), "dataset").hidden == ["model"]


def test_pivot_refused(by_data, tmp_path, capsys):
    for words, said in (
        (["--pivot=dataset", "--target=50"], "--target has no column in the table of --pivot"),
        (["--pivot=dataset", "--spread=var"], "Unknown --spread 'var'"),
        (["--pivot=model", "--labels=nowhere"], "nowhere can't be read"),
        (["--spread=std"], "--spread is for --pivot"),
        (["--pivot=seed"], "over which cells average, got 'seed'"),
    ):
        assert_refused(compare.main(["compare", f"--runs={by_data}", *words]), said, capsys)
    write_run(tmp_path / "again" / "fedavg", "fedavg", [[[0.1] * 2]], [0],
              words=["--dataset=mnist", "--model=cnn"],
              dataset="mnist", dataset_hash="mnist", partition_hash="p")  # fmt: skip
    assert compare.main(["compare", f"--runs={tmp_path}", "--pivot=dataset"]) == 2
    assert "and seed 0, which another run is, too" in capsys.readouterr().err
    (tmp_path / "same.txt").write_text("mnist=digits\n")
    words = [f"--runs={by_data}/mnist,{by_data}/digits", "--pivot=dataset"]
    assert compare.main(["compare", *words, f"--labels={tmp_path / 'same.txt'}"]) == 2
    assert "--labels makes both 'mnist' and 'digits' 'digits'" in capsys.readouterr().err
    (tmp_path / "bad.txt").write_text("feddwa\n")
    assert compare.main(["compare", f"--runs={by_data}", f"--labels={tmp_path / 'bad.txt'}"]) == 2
    assert "Line 1 of" in capsys.readouterr().err


LEVELS = {"local": 0.3, "fedavg": 0.5, "feddwa": 0.6}


def blocks(folder):
    """Runs of each row on five data sets, two values of the batch size each."""
    for b in range(5):
        for size in (5, 10):
            for name, level in LEVELS.items():
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
