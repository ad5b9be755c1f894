"""Tables of numbers, and the columns that readers keep beside the samples."""

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from fedjax_pfl.data.csv_files import check_header
from fedjax_pfl.data.sources.source_registry import load_dataset
from fedjax_pfl.utils.errors import InputError
from tests.data.image_files import colour, write_parquet

CSV = "hospital,age,dose,label\n7,50,1.5,ill\n12,60,2,well\n7,70,-1e3,ill\n"


def table(folder, text=CSV, name="t.csv"):
    (folder / name).write_text(text)
    return folder / name


def test_csv(tmp_path):
    data = load_dataset(f"table:{table(tmp_path)}", id_columns="hospital")
    np.testing.assert_array_equal(data.train_x, np.float32([[50, 1.5], [60, 2], [70, -1000]]))
    assert data.train_y.tolist() == [0, 1, 0]
    assert (data.class_names, data.feature_names) == (("ill", "well"), ("age", "dose"))
    assert (data.input_scaling, data.num_test) == ("standard", 0)
    assert data.columns["hospital"].tolist() == [7, 12, 7]
    without = load_dataset("table", tmp_path / "t.csv", skip_columns=["dose"])
    assert without.train_x[:, 0].tolist() == [7, 12, 7]  # a number like others, if nobody says
    assert without.columns == {}


def test_numbers_to_predict(tmp_path):
    """A column of numbers is what a model predicts if the task says so; not a class for each."""
    rows = "age,cost\n" + "".join(f"{age},{age / 4 + 0.1}\n" for age in range(6))
    path = table(tmp_path, rows)
    data = load_dataset(f"table:{path}", label_column="cost", task="regression")
    assert (data.task, data.class_names, data.input_scaling) == ("regression", (), "standard")
    np.testing.assert_allclose(data.train_y[:, 0], np.arange(6) / 4 + 0.1, rtol=1e-6)
    assert data.train_x[:, 0].tolist() == [0, 1, 2, 3, 4, 5]
    with pytest.raises(
        InputError, match=r"6 different values such as '0\.1' in 6 rows: numbers to"
    ):
        load_dataset(f"table:{path}", label_column="cost")
    with pytest.raises(
        InputError, match="task of a table must be 'classification' or 'regression'"
    ):
        load_dataset(f"table:{path}", label_column="cost", task="multi_label")
    words = {"label_column": "label", "id_columns": "hospital", "task": "regression"}
    with pytest.raises(InputError, match=r"'label' .* got 'ill' in row 1: a regression predicts n"):
        load_dataset(f"table:{table(tmp_path)}", **words)
    halves = "age,stars\n" + "1,0.5\n2,1.5\n" * 3  # few values: classes
    assert (
        load_dataset(f"table:{table(tmp_path, halves, 'h.csv')}", label_column="stars").num_classes
        == 2
    )


def test_parquet_in_a_folder_with_test_samples(tmp_path):
    rows = {"who": ["a", "b", "c"], "x": [1, 2, 3], "y": [0.5, 1.0, 2.0], "kind": [10, 9, 10]}
    rows["ward"] = [10, 9, 10]
    pq.write_table(pa.table(rows), tmp_path / "train.parquet")
    pq.write_table(pa.table(rows).slice(0, 1), tmp_path / "test.parquet")
    data = load_dataset("table", tmp_path, label_column="kind", id_columns="who,ward")
    assert data.train_y.tolist() == [1, 0, 1]
    assert data.test_x.tolist() == [[1, 0.5]]
    assert data.class_names == ("9", "10")
    assert data.columns["who"].tolist() == ["a", "b", "c", "a"]
    assert data.columns["ward"].tolist() == [10, 9, 10, 10]  # numbers, in whose order clients are


@pytest.mark.parametrize(
    ("names", "column", "message"),
    [
        (["x", "x"], pa.array([0, 1]), "has 2 columns called 'x'"),
        (["x", "y"], pa.array([0, 1], pa.timestamp("s")), "'y' .* must hold numbers or text"),
        (["x", "y"], pa.array([0.0, np.nan]), "'y' .* is empty in row 2"),
        (["x", "y"], pa.array([b"a", b"\xff"]).view(pa.string()), "be read as a Parquet file"),
    ],
)
def test_bad_parquet_tables(tmp_path, names, column, message):
    pq.write_table(pa.table([pa.array([0.0, 1.0]), column], names), tmp_path / "t.parquet")
    with pytest.raises(InputError, match=message):
        load_dataset("table", tmp_path / "t.parquet", label_column=names[1])


@pytest.mark.parametrize(
    ("text", "options", "message"),
    [
        (CSV, {"id_columns": "hospitals"}, "column of .*: 'hospitals'. Did you mean 'hospital'"),
        (CSV, {"label_column": "lable"}, "label_column of .*: 'lable'. Did you mean 'label'"),
        (CSV, {"id_columns": "label"}, "'label' can't be the label and one that is kept aside"),
        (CSV, {"id_columns": "age,age"}, "id_columns names 'age' 2 times"),
        (CSV, {"skip_columns": "age,dose,hospital"}, "has no column of numbers beside"),
        (CSV.replace("age", "dose"), {}, "has 2 columns called 'dose'"),
        (CSV.replace("12,60", "60"), {}, "must have 4 columns in every row, got 3 in .* line 3"),
        ("hospital,age,label\n", {}, "has no rows"),
        ("", {}, "t.csv is empty: its first row must name the columns"),
    ],
)
def test_bad_tables(tmp_path, text, options, message):
    with pytest.raises(InputError, match=message):
        load_dataset("table", table(tmp_path, text), **options)


def test_no_table(tmp_path):
    with pytest.raises(InputError, match=r"t\.tsv must end in \.csv, with commas between cells"):
        load_dataset("table", table(tmp_path, CSV.replace(",", "\t"), "t.tsv"))
    for place, message in (
        (tmp_path, "lacks train.csv or .* --partition=by_column"),
        (tmp_path / "t.csv", "No table"),
    ):
        with pytest.raises(InputError, match=message):
            load_dataset("table", place)


def test_texts_keep_columns(tmp_path):
    text = "label,user,text\npos,ann,good film\nneg,bob,bad film\n"
    data = load_dataset("text_csv", table(tmp_path, text), id_columns="user", max_length=3)
    assert data.columns["user"].tolist() == ["ann", "bob"]
    without_column = load_dataset(
        "text_csv", table(tmp_path, text.replace("text", "words")), max_length=3
    )
    data = load_dataset(
        "text_csv", tmp_path / "t.csv", id_columns="user", text_column="words", max_length=3
    )
    assert without_column.vocab_size == data.vocab_size + 2  # the users are words of the texts
    with pytest.raises(InputError, match=r"'usr'\. Did you mean 'user'"):
        load_dataset("text_csv", tmp_path / "t.csv", id_columns="usr")


def test_npz_keeps_columns(tmp_path):
    arrays = {"x_train": np.zeros((3, 2)), "y_train": [0, 1, 0], "user_train": [4, 5, 4]}
    arrays |= {"x_test": np.zeros((1, 2)), "y_test": [1], "user_test": [5]}
    np.savez(tmp_path / "a.npz", **arrays)
    data = load_dataset("npz", tmp_path / "a.npz", id_columns="user")
    assert data.columns["user"].tolist() == [4, 5, 4, 5]
    with pytest.raises(InputError, match=r"'usr'\. Did you mean 'user'"):
        load_dataset("npz", tmp_path / "a.npz", id_columns="usr")
    del arrays["user_test"]
    np.savez(tmp_path / "a.npz", **arrays)
    with pytest.raises(InputError, match="lacks user_test"):
        load_dataset("npz", tmp_path / "a.npz", id_columns="user")


def test_images_keep_columns(tmp_path):
    for part, writers in (("train-0", ["f1", "f2"]), ("train-1", ["f1"]), ("test", ["f2"])):
        path = tmp_path / f"{part}.parquet"
        write_parquet(path, [colour()] * len(writers), [0] * len(writers))
        pq.write_table(pq.read_table(path).append_column("writer_id", pa.array(writers)), path)
    data = load_dataset("parquet", tmp_path, id_columns="writer_id")
    assert data.columns["writer_id"].tolist() == ["f1", "f2", "f1", "f2"]
    with pytest.raises(InputError, match=r"'writer'\. Did you mean 'writer_id'"):
        load_dataset("parquet", tmp_path, id_columns="writer")


def test_a_long_text_does_not_fill_the_memory(tmp_path):
    """One text of 30,000 characters would make all others of its column as long."""
    text = "note,label\n" + "1,a\n" * 2000 + "1," + "b" * 30_000 + "\n"
    with pytest.raises(InputError, match="at most 1,000 characters, got 30,000 in row 2001"):
        load_dataset("table", table(tmp_path, text))
    text = "note,age,label\n" + "1,2,a\n" * 3 + "c" * 30_000 + ",2,b\n"
    with pytest.raises(InputError, match=r"'note' of .* leave it out with skip_columns"):
        load_dataset("table", table(tmp_path, text))
    data = load_dataset("table", table(tmp_path, text), skip_columns="note")
    assert data.class_names == ("a", "b")


def test_a_header_of_many_columns_is_checked_at_once(tmp_path):
    names = [f"c{k}" for k in range(50_000)]
    check_header(tmp_path, names)
    with pytest.raises(InputError, match="has 2 columns called 'c7'"):
        check_header(tmp_path, [*names, "c7"])
