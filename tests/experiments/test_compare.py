"""The table over finished runs: every number by hand."""

from dataclasses import replace

import numpy as np
import pytest

import fedjax_pfl as pfl
from experiments import compare
from experiments.figures.loading import find
from experiments.figures.run_table import compare_runs
from experiments.figures.scores import Choice, choice_of
from fedjax_pfl.utils.errors import InputError
from fedjax_pfl.utils.metric_names import ACCURACY, LOWER, Measure
from tests.experiments.small_runs import assert_input_error, assert_refused, error_line, read_rows
from tests.experiments.written_runs import SAME, finals, rewrite, write_run


@pytest.fixture
def runs(tmp_path):
    # Two seeds in common; 2 clients, 3 evaluations.
    fedavg = [[[0.2, 0.4], [0.5, 0.7], [0.6, 0.8]], [[0.1, 0.3], [0.3, 0.5], [0.5, 0.7]]]
    local = np.array([[0.5, 0.8, 0.6], [0.6, 0.8, 0.7], [0.1, 0.2, 0.2]])[..., None].repeat(2, -1)
    root = tmp_path / "r"
    write_run(root / "fedavg", "fedavg", fedavg, [0, 1], eval_every=2, flops=7e9)
    write_run(root / "local", "local", local, [1, 0, 7], sent=0.0, eval_every=2)
    return find([str(tmp_path / "r")])


def row_of(rows, label):
    return next(row for row in rows if row["label"] == label)


def test_numbers_of_compare_runs(runs):
    table, said = compare_runs(runs, baseline="Fed-AVG", target=60.0)
    assert said == "personalized model, test samples, after the last round, mean over clients"
    assert table.notes[0].startswith("Difference: over the seeds that a run has in common")
    assert [row["seeds"] for row in table.rows] == [2, 3]
    assert not any({"clients", "data", "rounds"} & row.keys() for row in table.rows)
    fedavg, local = row_of(table.rows, "fedavg"), row_of(table.rows, "local")
    assert fedavg["accuracy"] == pytest.approx(65.0)
    half = 12.7062 * np.std([70, 60], ddof=1) / 2**0.5
    assert fedavg["interval"] == pytest.approx(half, rel=1e-4)
    assert fedavg["difference"] == 0 and fedavg["difference_interval"] == 0
    assert fedavg["worst"] == pytest.approx((60 + 50) / 2)
    assert fedavg["megabytes"] == pytest.approx(6 * 2 * 30)
    # Seed 0 reaches 60 % at round 4 of 6, seed 1 at round 6.
    assert (fedavg["rounds_to"], fedavg["reached"]) == (5.0, "2/2")
    assert fedavg["megabytes_to"] == pytest.approx(5 * 2 * 30)
    assert (fedavg["gflop"], fedavg["gflop_to"]) == pytest.approx((6 * 2 * 7, 5 * 2 * 7))
    assert fedavg["seconds_to"] == pytest.approx(10.0)
    # Paired by seed, not by place: seed 0 is 70 - 70, seed 1 is 60 - 60.
    assert local["accuracy"] == pytest.approx(50.0)
    assert local["difference"] == pytest.approx(0.0)
    assert local["difference_interval"] == pytest.approx(0.0, abs=1e-4)
    assert (local["rounds_to"], local["reached"]) == (3.0, "2/3")  # round 4, and round 2
    assert local["megabytes_to"] == 0
    assert not {"gflop", "gflop_to"} & local.keys()  # run before FLOPs were counted
    heading, *_ = table.cells
    assert "GFLOP, all clients" in heading and "GFLOP to" in heading
    assert "GFLOP" not in replace(table, rows=[local]).to_markdown()


def test_a_target_below_one_percent_where_lower_is_better(tmp_path):
    folder = tmp_path / "a" / "local"
    write_run(folder, "local", [[[0.03, 0.03], [0.01, 0.006]]], [0], **SAME)
    scores = pfl.Result.load(folder).scores
    ece = {"personalized/test/ece": scores["personalized/test/accuracy"]}
    rewrite(folder, scores=scores | ece, measures=(ACCURACY, Measure("ece", LOWER)))
    found = find([str(tmp_path)], metric="ece")
    (row,) = compare_runs(found, target=0.8)[0].rows
    assert (row["rounds_to"], row["reached"]) == (2.0, "1/1")
    with pytest.raises(InputError, match=r"target must be a percentage in \[0, 100\], such as 5"):
        compare_runs(found, target=-1.0)


def test_a_baseline_pools_the_seeds_of_several_folders(tmp_path):
    write_run(tmp_path / "a" / "fedavg", "fedavg", finals([0.5, 0.7]), [0], **SAME)
    more = ["--seed=1", "--num_seeds=2"]
    two, three = finals([0.4, 0.4], [0.2, 0.4]), finals([0.9, 0.9], [0.5, 0.5], [0.3, 0.5])
    write_run(tmp_path / "b" / "fedavg", "fedavg", two, [1, 2], words=more, **SAME)
    more = ["--num_seeds=3"]
    write_run(tmp_path / "c" / "local", "local", three, [0, 1, 2], words=more, **SAME)
    result = find([str(tmp_path)])
    table, _ = compare_runs(result, baseline="fedavg")
    assert row_of(table.rows, "c/local")["difference"] == pytest.approx((30 + 10 + 10) / 3)
    more = ["--seed=3", "--learning_rate=0.3"]
    write_run(tmp_path / "d" / "fedavg", "fedavg", finals([0.5, 0.7]), [3], words=more, **SAME)
    with pytest.raises(InputError, match="is 3 runs that are not one with several seeds"):
        compare_runs(find([str(tmp_path)]), baseline="fedavg")
    write_run(tmp_path / "e" / "fedavg", "fedavg", finals([0.5, 0.7]), [0], **SAME)
    folders = [str(tmp_path / name) for name in "ae"]
    with pytest.raises(InputError, match="is 2 runs that are not one with several seeds"):
        compare_runs(find(folders), baseline="fedavg")


def test_best_and_single_clients(runs):
    table, said = compare_runs(runs, Choice(score="best", clients="1"))
    assert said.endswith("best round, client 1")
    assert "Best round: chosen on the samples that it is scored on." in table.notes
    assert "Worst tenth: after the last round." in table.notes
    assert row_of(table.rows, "fedavg")["accuracy"] == pytest.approx((80 + 70) / 2)
    assert row_of(table.rows, "local")["accuracy"] == pytest.approx((80 + 80 + 20) / 3)
    assert "difference" not in row_of(table.rows, "local")
    assert "Difference" not in table.to_markdown() and "Reached" not in table.to_markdown()


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["--baseline=fedavgg"], "Unknown baseline 'fedavgg'. Did you mean 'fedavg'?"),
        (["--headline=pflib"], "Unknown headline 'pflib'. Did you mean 'pfllib'"),
        (["--target=0.8"], "target must be a percentage in (1, 100], such as 80, got 0.8."),
        (["--model=global"], "None of the runs has test scores of the model 'global'"),
        (["--runs="], "Give the folders of finished runs"),
    ],
)
def test_compare_refused(runs, words, said, capsys):
    folder = str(runs[0].folder.parent)
    assert_refused(compare.main(["compare", f"--runs={folder}", *words]), said, capsys)


def test_an_algorithm_that_serves_one_client(tmp_path):
    """WAFFLE's Alice is compared with the others' models of her, not with their mean."""
    write_run(tmp_path / "r" / "local", "local", finals([0.9, 0.3]), [0], **SAME)
    write_run(tmp_path / "r" / "waffle", "waffle", finals([0.8, np.nan]), [0], **SAME)
    folder = str(tmp_path / "r")
    table, said = compare_runs(find([folder]))
    assert said.endswith("after the last round, client 0")
    assert [row["accuracy"] for row in table.rows] == pytest.approx([90, 80])
    assert ["clients" in row for row in table.rows] == [False, False]
    with pytest.raises(InputError, match=r"client 1 is not scored in .*waffle, which"):
        compare_runs(find([folder]), Choice(clients="0,1"))
    write_run(tmp_path / "r" / "other", "waffle", finals([np.nan, 0.8]), [0], **SAME)
    assert_input_error("No client is scored in all of these runs", compare_runs, find([folder]))


def test_other_data_only_if_asked_for(tmp_path, capsys):
    other = SAME | {"partition_hash": "ffff"}
    write_run(tmp_path / "a" / "local", "local", finals([0.9, 0.3]), [0], **SAME)
    write_run(tmp_path / "b" / "local", "local", finals([0.5, 0.6, 0.7]), [0], **other)
    words = ["compare", f"--runs={tmp_path}/a,{tmp_path}/b"]
    assert compare.main(words) == 2
    err = error_line(capsys)
    assert "are not on the same data" in err and "digits, iid 1a2b3c4d, 2 clients" in err
    assert "--different_data puts them into one table" in err
    assert compare.main([*words, "--different_data"]) == 0
    out = capsys.readouterr().out
    assert "mean over clients, not the same ones in all runs" in out
    table = [line.strip("| ").split(" | ") for line in out.splitlines() if "|" in line]
    heading, _, *rows = table
    assert heading[2:4] == ["Mean over", "Data"]
    assert rows[0][2:4] == ["clients 0, 1", "digits, iid 1a2b3c4d, 2 clients"]
    assert rows[1][2:4] == ["clients 0, 1, 2", "digits, iid ffff, 3 clients"]


def test_other_samples_under_the_same_name(tmp_path, capsys):
    """A file of the same name and labels is dealt alike: only its content tells it apart."""
    for folder, mark in (("a", "0a0a0a0a0a"), ("b", "0b0b0b0b0b")):
        held = SAME | {"dataset_hash": mark}
        write_run(tmp_path / folder / "local", "local", finals([0.9, 0.3]), [0], **held)
    words = ["compare", f"--runs={tmp_path}/a,{tmp_path}/b"]
    assert compare.main(words) == 2
    err = capsys.readouterr().err
    assert "digits 0a0a0a0a, iid 1a2b3c4d" in err and "digits 0b0b0b0b, iid 1a2b3c4d" in err


def test_other_names_of_the_same_samples(tmp_path, capsys):
    for seed, name in enumerate(("north", "south")):
        facts = SAME | {"partition_names_hash": name}
        write_run(tmp_path / name / "local", "local", finals([0.5, 0.5]), [seed], **facts)
    words = ["compare", f"--runs={tmp_path}/*"]
    assert_refused(compare.main(words), "with other names or samples; --different_data", capsys)
    assert compare.main([*words, "--different_data", "--baseline=local"]) == 2
    assert "is 2 runs that are not one" in capsys.readouterr().err


def test_the_same_rows_of_other_data_are_other_clients(tmp_path):
    """Alice of one partition is another client than that of her row in another partition."""
    other = SAME | {"partition_hash": "ffff"}
    write_run(tmp_path / "a" / "waffle", "waffle", finals([0.8, np.nan]), [0], **SAME)
    write_run(tmp_path / "b" / "local", "local", finals([0.9, 0.3]), [0], **other)
    table, said = compare_runs(find([str(tmp_path)]), Choice(different_data=True))
    assert [row["accuracy"] for row in table.rows] == pytest.approx([80, 60])
    assert [row["clients"] for row in table.rows] == ["client 0", "clients 0, 1"]
    assert said.endswith("mean over clients, not the same ones in all runs")


def test_notes_on_differing_runs(tmp_path, capsys):
    """Other rounds, remarks, too many settings for a name, intervals beyond the scale."""
    words = ("--batch_size=5", "--learning_rate=1", "--momentum=0.5", "--weight_decay=1")
    remarks = ["all clients train in every round, drawn or not"]
    last = finals([0.1, 0.2], [0.9, 0.4])
    write_run(tmp_path / "a" / "local", "local", last, [0, 1], remarks=remarks, **SAME)
    twice = [[[0.2, 0.1], [0.1, 0.2]]] * 2
    more = {"words": words, "eval_every": 5, "remarks": []}
    write_run(tmp_path / "b" / "fedavg", "fedavg", twice, [0, 1], **more, **SAME)
    folder = tmp_path / "table"
    words = ["compare", f"--runs={tmp_path}/a,{tmp_path}/b", f"--output_dir={folder}"]
    assert compare.main(words) == 0
    out = capsys.readouterr().out
    assert "| Rounds |" in out and "| 1 |" in out and "| 10, scored every 5 |" in out
    assert "a/local: all clients train in every round, drawn or not." in out
    assert "The runs also differ in " in out and "batch_size" in out
    assert "* |" in out and "* extends beyond the scale" in out
    for name in ("table.md", "table.tex"):
        assert "drawn or not." in (folder / name).read_text()


def test_runs_that_are_left_out_are_named(tmp_path):
    write_run(tmp_path / "b" / "fedavg", "fedavg", finals([0.1, 0.2]), [0], **SAME)
    write_run(tmp_path / "c" / "feddwa", "feddwa", finals([0.1, 0.2]), [0], **SAME)
    folder = tmp_path / "c" / "feddwa"
    (values,) = pfl.Result.load(folder).scores.values()
    names = ("personalized/test/accuracy", "global/test/accuracy")
    rewrite(folder, scores=dict.fromkeys(names, values))
    table, _ = compare_runs(find([str(tmp_path)]), Choice(model="global"))
    assert [row["label"] for row in table.rows] == ["feddwa"]
    left = f"Left out, without test scores of the model 'global': {tmp_path}/b/fedavg."
    assert left in table.notes


def test_a_client_named_twice_counts_once(tmp_path):
    write_run(tmp_path / "a" / "local", "local", finals([0.1, 0.2, 0.6, 0.9]), [0], **SAME)
    for average, said, mean in (
        ("clients", "mean over 2 of 4 clients", 40),
        ("samples", "mean over samples of 2 of 4 clients", (2 * 20 + 3 * 60) / 5),
    ):
        table, caption = compare_runs(
            find([str(tmp_path)]), Choice(clients="2,1,1", average=average)
        )
        assert caption.endswith(said)
        assert table.rows[0]["accuracy"] == pytest.approx(mean)


def test_files(runs, tmp_path, capsys):
    folder, output = str(runs[0].folder.parent), tmp_path / "table"
    words = ["compare", f"--runs={folder}", "--baseline=fedavg", f"--output_dir={output}"]
    assert compare.main(words) == 0
    assert "| fedavg | **65.00** |" in capsys.readouterr().out
    assert "| fedavg | **65.00** |" in (output / "table.md").read_text()
    tex = (output / "table.tex").read_text()
    assert r"fedavg & \textbf{65.00} &" in tex and r"Accuracy \%" in tex
    assert tex.count(r"\\") == 3
    seeds = read_rows(output / "seeds.csv")
    assert [(s["label"], s["seed"]) for s in seeds][:2] == [("fedavg", "0"), ("fedavg", "1")]
    assert_refused(compare.main(words), "nothing is ever overwritten", capsys)


def test_a_headline_is_score_and_average(runs, capsys):
    folder = str(runs[0].folder.parent)
    args = compare.parse(["compare", f"--runs={folder}", "--headline=pfllib"])
    assert choice_of(args) == Choice(score="best", average="samples")
    words = [f"--runs={folder}", "--headline=pfllib", "--score=best"]
    assert_refused(compare.main(["compare", *words]), "--headline says what --score does", capsys)


def test_import_file_of_compare(runs, tmp_path, capsys):
    own = tmp_path / "own.py"
    own.write_text("print('imported')\n")
    folder = f"--runs={tmp_path / 'r'}"
    args = compare.parse(["compare", folder, f"--import_file={own}"])
    assert args.runs and "imported" in capsys.readouterr().out
    flagfile = tmp_path / "flags"
    flagfile.write_text(f"--import_file={own}\n")
    assert_input_error("import_file", compare.parse, ["compare", folder, f"--flagfile={flagfile}"])
