"""Notes of a run's table: the clients of a mean, local steps before scoring, and intervals."""

import csv
import re
from dataclasses import replace

import numpy as np
import pytest

import fedjax_pfl as pfl
from experiments import run
from experiments.cli import console, flags
from experiments.outputs import comparison_table, training_line
from tests.experiments.small_runs import SMALL, read_rows, run_in, stamps

# Client 5 has fewer than 30 training samples.
MIXED = (
    *SMALL, "--num_clients=10", "--alpha=0.1", "--nosave_models", "--batch_size=30", "--drop_last",
    "--algorithms=local,fedavg,waffle", "--set=waffle.alice=3", "--participation=0.5",
)  # fmt: skip
TRAINING = (
    "1 local epoch, minibatches of 30, incomplete ones left out, learning rate 0.1, "
    "participation 0.5 (5 of 10 in a round), with waffle.alice=3"
)


@pytest.fixture(scope="module")
def finished(tmp_path_factory):
    """Folder of a run whose rows are over different clients."""
    folder = tmp_path_factory.mktemp("tables") / "mixed"
    assert run_in(folder, *MIXED) == 0
    return folder


@pytest.fixture(scope="module")
def results(finished):
    return {name: pfl.Result.load(finished / name) for name in ("local", "fedavg", "waffle")}


def lines_of(finished):
    return (finished / "comparison.md").read_text(encoding="utf-8").splitlines()


def test_rows_over_different_clients_say_so(finished, results):
    text = "\n".join(lines_of(finished))
    heading, _, *rows = [
        [cell.strip() for cell in line.strip("|").split("|")]
        for line in lines_of(finished)
        if line.startswith("|")
    ]
    assert heading[3:5] == ["Mean over", "Common %"]
    assert [row[3] for row in rows] == ["10 clients", "10 clients", "client 3"]
    for row, result in zip(rows, results.values(), strict=True):
        hers = 100 * result.accuracy()[:, 0, -1, 3].mean()
        assert float(row[4]) == pytest.approx(hers, abs=0.006)
    assert rows[2][1] == rows[2][4] and rows[0][1] != rows[0][4]
    assert "the clients of the column 'Mean over', not the same in all rows" in text
    assert "'Common %', over client 3, which all rows score; --score_clients=3 restricts" in text
    error = results["local"].measure()._replace(better="lower", fraction=False)
    errors = {name: replace(result, measures=(error,)) for name, result in results.items()}
    assert "Compare rows by 'Common ↓', over client 3" in comparison_table.caption(errors)
    table = read_rows(finished / "comparison.csv")
    ids = [row["mean_over_client_ids"] for row in table]
    assert ids == ["0 1 2 3 4 5 6 7 8 9"] * 2 + ["3"]


def test_metrics_name_the_number_of_clients(finished):
    """Curves of several algorithms in one TensorBoard are means over different clients too."""
    for name, count in (("fedavg", "10"), ("waffle", "1")):
        rows = [r for r in read_rows(finished / name / "metrics.csv")
                if r["metric"] == "personalized/test/accuracy_clients"]  # fmt: skip
        assert len(rows) == 4 and {float(row["value"]) for row in rows} == {float(count)}


def test_rows_over_the_same_clients_need_no_column(results):
    same = {name: results[name] for name in ("local", "fedavg")}
    heading, *_ = comparison_table.comparison(same).cells
    assert not {"Mean over", "Common %"} & set(heading)
    assert "plain mean over all 10 clients, after" in comparison_table.caption(same)
    assert comparison_table.labelled(same) == same
    alone = {"waffle": results["waffle"]}
    assert "over client 3, those of 10 that are scored" in comparison_table.caption(alone)


def test_rows_without_a_common_client(results):
    """Two Alices: nothing compares, and no option would help."""
    accuracy = "personalized/test/accuracy"
    other = np.full_like(results["waffle"].scores[accuracy], np.nan)
    other[..., 4] = 0.5
    other = replace(results["waffle"], scores={accuracy: other})
    both = {"waffle": results["waffle"], "other": other}
    assert "No client is scored in all rows" in comparison_table.caption(both)
    heading, *rows = comparison_table.comparison(both).cells
    assert [row[heading.index("Mean over")] for row in rows] == ["client 3", "client 4"]
    assert "Common %" not in heading
    assert list(comparison_table.labelled(both)) == ["waffle (client 3)", "other (client 4)"]


def test_notes_below_the_table(finished, results, capsys):
    wanted = [
        "local: all clients train in every round, drawn or not.",
        "All rows: client 5 took part without a local step.",
        "fedavg: in each seed 2 of 10 clients scored took part in no round.",
    ]
    table = comparison_table.comparison(results)
    notes = table.notes
    assert notes[:3] == wanted
    assert set(notes) <= set(lines_of(finished))
    assert [row["never_drawn"] for row in table.rows] == [0, 2, 0]
    # The same command shows the same finished results.
    assert run_in(finished, *MIXED) == 0
    out = capsys.readouterr().out
    assert f"Training: {TRAINING}." in out
    assert all(note in out for note in notes)


def test_the_header_and_the_file_say_how_clients_train(finished, tmp_path, monkeypatch, capsys):
    assert f"Training: {TRAINING}." in lines_of(finished)

    def ended(*args, **options):
        raise SystemExit

    monkeypatch.setattr(run.run_folder, "opened", ended)
    with pytest.raises(SystemExit):
        own = ["--set=fedavg.learning_rate=0.3", "--set=fedavg.local_epochs=2"]
        run_in(tmp_path / "o", *MIXED, *own)
    out = capsys.readouterr().out
    assert f"training   {TRAINING}, fedavg.learning_rate=0.3" in out
    own = [line for line in out.splitlines() if "its own" in line]
    assert own == ["           fedavg: its own local epochs 2, learning rate 0.3"]
    assert "no step    client 5: too few training samples for a local step\n" in out


@pytest.mark.parametrize(
    ("words", "said"),
    [
        ([], "1 local epoch, minibatches of 10, learning rate 0.1, participation 1 (all 7 clients"),
        (["--local_steps=5"], "5 local steps, minibatches"),
        (["--momentum=0.9", "--weight_decay=0.01"], "in a round), momentum 0.9, weight decay 0.01"),
        (
            ["--clip_norm=0.5", "--keep_optimizer_state"],
            "0.5, optimizer states kept between rounds",
        ),
        (["--stragglers=0:1,3:2"], "in a round), stragglers 0:1 3:2"),
        (["--participation=0.5"], "participation 0.5 (4 of 7 in a round)"),
        (["--participation=0.5", "--sampling=poisson"], "(3.5 of 7 in a round on average), sampl"),
    ],
)
def test_describe_training(words, said):
    assert said in training_line.describe_training(flags.parse(["run", *words]), 7)


def test_describe_training_names_every_flag():
    """Those left out have a place of their own in the header or the notes."""
    config = flags.parse(["run"])
    elsewhere = {"model", "model_option", "objective", "rounds"}
    said = {"local_epochs", "local_steps", "batch_size", "drop_last", "learning_rate"}
    said |= {"learning_rate_decay", "participation", *training_line.EXTRAS}
    assert set(config.by_group()["training"]) - said == elsewhere


def test_describe_training_without_what_varies():
    args = flags.parse(["run", "--momentum=0.5"])
    said = training_line.describe_training(args, 7, ("learning_rate", "momentum", "local_epochs"))
    assert said == "minibatches of 10, participation 1 (all 7 clients in a round)"
    said = training_line.describe_training(args, None)
    assert said.startswith("1 local epoch, minibatches of 10, learning")
    assert "participation 1, momentum" in said


def test_intervals_wider_than_the_scale_are_marked(results):
    heading, *rows = comparison_table.comparison(results).cells
    at = heading.index("± 95 %")
    assert {row[at][-1] == "*" for row in rows} == {True, False}
    note = comparison_table.comparison(results).notes[-1]
    assert note.startswith("With 2 seeds") and "* extends beyond the scale" in note


def test_columns_of_a_narrow_terminal(results, capsys):
    table = comparison_table.comparison(results)
    narrow = console.Console(width=80, force_terminal=True, color_system=None)
    console.print_comparison(narrow, table)
    out = capsys.readouterr().out
    assert "Mean" in out and "Never" in out and "Diverged" not in out
    assert "10 clients" in out and "…" not in out
    left_out = int(re.search(r"\((\d+) more columns in", out)[1])
    titles = [one.strip() for one in out.splitlines() if "10 clients" in one]
    assert left_out + len(re.split(r" {2,}", titles[0])) == len(table.cells[0])
    table.rows[0]["diverged_clients"] = 1
    console.print_comparison(narrow, table)
    out = capsys.readouterr().out
    assert "Diverged" in out and "10 clients" in out and "…" not in out


def test_headline_of_the_table(finished, results, capsys):
    """Of a finished run: nothing is written."""
    before = stamps(finished)
    assert run_in(finished, *MIXED, "--headline=pfllib") == 0
    out = capsys.readouterr().out
    assert stamps(finished) == before
    assert "Headline (pfllib): the personalized model, the best round's accuracy over all" in out
    (heading,) = [line for line in out.splitlines() if line.startswith("Algorithm")]
    columns = ["Algorithm", "Headline %", "± 95 %", "Accuracy %", "± 95 %"]
    assert re.split(r"\s{2,}", heading)[:5] == columns
    (row,) = [line for line in out.splitlines() if line.startswith("fedavg ")]
    result = results["fedavg"]
    known = np.isfinite(result.accuracy()[:, 0])
    right = np.where(known, result.accuracy()[:, 0] * result.test_sizes, 0).sum(axis=-1)
    best = (right / (known * result.test_sizes).sum(axis=-1)).max(axis=-1)  # [S]
    assert float(row.split()[1]) == pytest.approx(100 * best.mean(), abs=0.006)
    np.testing.assert_allclose(result.headline("pfllib")[:, 0], best, rtol=1e-6)
    np.testing.assert_allclose(result.headline("last_tenth"), result.curve()[..., -1], rtol=1e-6)
    text = comparison_table.comparison(results, "flower").to_csv()
    names, *cells = csv.reader(text.splitlines())
    assert names[1] == "personalized_test_accuracy_headline_flower"
    assert float(cells[1][1]) == pytest.approx(result.pooled()[:, 0, -1].mean())
