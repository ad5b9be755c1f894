"""Cells of tables that are written in several ways, missing, without a name or not wanted."""

import time

import numpy as np
import pandas as pd
import pyarrow as pa
import pyarrow.csv
import pyarrow.parquet as pq
import pytest

from fedjax_pfl.data.dataset import dataset_from_arrays
from fedjax_pfl.data.sources.source_registry import load_dataset
from fedjax_pfl.utils.errors import InputError

NAMES = ["", " ", "?", "NA", "N/A", "nan", "NaN", "null", "NULL", "None", "<NA>"]


def csv(folder, *rows, name="t.csv"):
    (folder / name).write_text("\n".join(rows) + "\n")
    return folder / name


@pytest.mark.parametrize("word", NAMES)
def test_words_for_missing_values_are_no_classes_and_no_clients(tmp_path, word):
    rows = ["a,who,label", "1,p,x", f"2,q,{word}"]
    with pytest.raises(InputError, match=r"Column 'label' of .*t\.csv .* in row 2"):
        load_dataset("table", csv(tmp_path, *rows))
    rows = ["a,who,label", "1,p,x", f"2,{word},y"]
    with pytest.raises(InputError, match=r"Column 'who' of .*t\.csv .* in row 2"):
        load_dataset("table", csv(tmp_path, *rows), id_columns="who")
    rows = ["a,who,label", "1,p,x", f"{word},q,y"]
    with pytest.raises(InputError, match=r"Column 'a' of .* must hold numbers, got .* in row 2"):
        load_dataset("table", csv(tmp_path, *rows), id_columns="who")
    with pytest.raises(InputError, match=r"The label of .*t\.csv .* in row 2"):
        load_dataset("text_csv", csv(tmp_path, "x,a b", f"{word},c"))
    with pytest.raises(InputError, match=r"Column 'who' of data set 'a' .* in row 2"):
        dataset_from_arrays("a", np.zeros((2, 1)), [0, 1], columns={"who": ["p", word]})


@pytest.mark.parametrize("value", [None, np.nan])
@pytest.mark.parametrize("column", ["a", "who", "label"])
def test_missing_values_of_parquet_columns(tmp_path, value, column):
    frame = pd.DataFrame({"a": [1.0, 2.0], "who": [5.0, 7.0], "label": [0.0, 1.0]})
    frame.loc[1, column] = value
    frame.to_parquet(tmp_path / "t.parquet")
    with pytest.raises(InputError, match=f"Column '{column}' of .*parquet .* in row 2"):
        load_dataset("table", tmp_path / "t.parquet", id_columns="who")


def test_whole_numbers_are_the_same_class_and_client_in_every_type(tmp_path):
    pd.DataFrame({"a": [1, 2], "who": [5, 7], "label": [0, 1]}).to_parquet(
        tmp_path / "train.parquet"
    )
    pd.DataFrame({"a": [3.0], "who": [7.0], "label": [1.0]}).to_parquet(tmp_path / "test.parquet")
    data = load_dataset("table", tmp_path, id_columns="who")
    assert data.columns["who"].tolist() == [5, 7, 7]
    assert (data.class_names, data.test_y.tolist()) == (("0", "1"), [1])


@pytest.mark.parametrize(
    ("one", "other"),
    [("1", "1.0"), ("7", "07"), ("1000", "1e3"), ("1", "\uff11"), ("caf\u00e9", "cafe\u0301")],
)
def test_one_value_written_in_two_ways(tmp_path, one, other):
    for rows, options in (
        (["a,label", f"1,{one}", f"2,{other}"], {}),
        (["a,who,label", f"1,{one},x", f"2,{other},y"], {"id_columns": "who"}),
    ):
        with pytest.raises(InputError, match=r"has \S+ also as \S+: write equal values"):
            load_dataset("table", csv(tmp_path, *rows), **options)


def test_infinite_numbers_are_no_classes(tmp_path):
    with pytest.raises(InputError, match="has 'inf' among numbers"):
        load_dataset("table", csv(tmp_path, "a,label", "1,0", "2,inf"))
    assert load_dataset("table", csv(tmp_path, "a,label", "1,x", "2,inf")).num_classes == 2


def test_identifiers_that_only_look_like_equal_numbers():
    ids = ["12345678901234567890", "12345678901234567891", "1e2", "100", "a0"]
    data = dataset_from_arrays("a", np.zeros((5, 1)), [0, 0, 0, 0, 0], columns={"who": ids})
    assert data.columns["who"].tolist() == ids


@pytest.mark.parametrize("cell", ['"1,5"', '"1,000"', '"1.000,5"', "1 000", "1'000"])
def test_decimal_commas_and_marks_between_thousands(tmp_path, cell):
    advice = "write a decimal point, and nothing between thousands"
    with pytest.raises(InputError, match=f"'a' of .* must hold numbers, got .* row 1: {advice}"):
        load_dataset("table", csv(tmp_path, "a,label", f"{cell},x", "2,y"))
    with pytest.raises(InputError, match=f"'label' of .* has .*: {advice}"):
        load_dataset("table", csv(tmp_path, "a,label", f"1,{cell}", "2,2"))


def test_numbers_as_programs_write_them(tmp_path):
    path = csv(tmp_path, "a,label", " 3 ,x", "1e3,x", "+.5,x", "-2.,y", '"7",y')
    assert load_dataset("table", path).train_x[:, 0].tolist() == [3, 1000, 0.5, -2, 7]
    with pytest.raises(InputError, match="must hold numbers, got '2021_03' in row 1"):
        load_dataset("table", csv(tmp_path, "a,label", "2021_03,x"))
    data = load_dataset("table", csv(tmp_path, "a,label", "1,2021_03", "2,21"))
    assert data.class_names == ("2021_03", "21")  # words, in alphabetical order


@pytest.mark.parametrize("ending", ["csv", "parquet"])
@pytest.mark.parametrize("begin", [1_700_000_000, -1_700_000_000.5])
def test_numbers_that_float32_would_make_equal(tmp_path, ending, begin):
    frame = pd.DataFrame({"time": [begin, begin + 50, begin + 1], "label": [1, 2, 1]})
    getattr(frame, f"to_{ending}")(path := tmp_path / f"t.{ending}")
    with pytest.raises(
        InputError, match=r"'time' of .* numbers in -?1\d+.*: subtract the smallest"
    ):
        load_dataset("table", path)
    for times in ([begin] * 3, [0, begin, 1], [8e6, 8e6 + 50, 8e6], [30.3, 10.1 * 3, 30.3]):
        getattr(frame.assign(time=times), f"to_{ending}")(path := tmp_path / f"train.{ending}")
        getattr(frame, f"to_{ending}")(tmp_path / f"test.{ending}")
        assert load_dataset("table", tmp_path).train_x[0] == np.float32(times[0])


@pytest.mark.parametrize("mark", [";", "\t", "|"])
def test_cells_that_are_not_separated_by_commas(tmp_path, mark):
    with pytest.raises(InputError, match=r"must be separated by commas, with points in numbers"):
        load_dataset("table", csv(tmp_path, f"a{mark}label", f"1,5{mark}x"))


@pytest.mark.parametrize("ending", ["csv", "parquet"])
def test_a_column_without_a_name_is_no_input(tmp_path, ending):
    frame = pd.DataFrame({"a": [3.0, 4.0], "label": [0, 1]}, index=[7, 9])
    path = tmp_path / f"t.{ending}"
    getattr(frame, f"to_{ending}")(path)
    data = load_dataset("table", path)
    assert data.train_x.tolist() == [[3], [4]]
    assert "without the nameless column" in data.note
    name = {"csv": "Unnamed: 0", "parquet": "__index_level_0__"}[ending]
    assert load_dataset("table", path, skip_columns=name).note == ""
    kept = load_dataset("table", path, id_columns=name)
    assert kept.columns[name].tolist() == [7, 9]


@pytest.mark.parametrize(
    "values",
    [
        pd.date_range("2020", periods=3), pd.Categorical(["p", "q", "p"]), ["x", None, "z"],
        [[1], [2], [3]], [b"1", b"2", b"3"],
    ],
)  # fmt: skip
def test_skipped_columns_are_not_read(tmp_path, values):
    frame = pd.DataFrame({"a": [1.0, 2.0, 3.0], "extra": values, "label": [0, 1, 0]})
    frame.to_parquet(tmp_path / "t.parquet")
    assert load_dataset("table", tmp_path / "t.parquet", skip_columns="extra").input_shape == (1,)
    frame.to_csv(tmp_path / "t.csv", index=False)
    assert load_dataset("table", tmp_path / "t.csv", skip_columns="extra").input_shape == (1,)


def test_categories_are_classes(tmp_path):
    frame = pd.DataFrame({"a": [1.0, 2.0, 3.0], "label": pd.Categorical(["q", "p", "q"])})
    frame.to_parquet(tmp_path / "t.parquet")
    data = load_dataset("table", tmp_path / "t.parquet")
    assert (data.class_names, data.train_y.tolist()) == (("p", "q"), [1, 0, 1])


def test_quotation_marks_never_join_rows(tmp_path):
    for rows in (['1,"2,x', "3,4,y"], ['1,"2,x', '3,4",y'], ['1,"2"3,x'], ['1,2,"x', '3,4,"y']):
        with pytest.raises(InputError, match=r"t\.csv"):
            load_dataset("table", csv(tmp_path, "a,b,label", *rows))
    data = load_dataset("table", csv(tmp_path, "a,b,label", '"1",2,"x, or ""y"""', '3,4,"z', 'w"'))
    assert data.class_names == ('x, or "y"', "z\nw")
    assert data.train_x.tolist() == [[1, 2], [3, 4]]


def test_lines_before_the_header_and_other_ends_of_lines(tmp_path):
    for text in ("\n\na,label\n1,x\n\n2,y", "\ufeffa,label\r\n1,x\r\n2,y\r\n", "a,label\r1,x\r2,y"):
        (tmp_path / "t.csv").write_bytes(text.encode())
        assert load_dataset("table", tmp_path / "t.csv").train_x.tolist() == [[1], [2]]


def test_rows_that_a_parquet_file_announces(tmp_path):
    path = tmp_path / "t.parquet"
    pq.write_table(pa.table({"a": [1.0, 2.0, 3.0], "label": [0, 1, 0]}), path)
    content = path.read_bytes()
    assert content.count(b"\x16\x06") > 2  # three, as a varint, in each place of the metadata
    for place in range(len(content) - 1):
        if content[place : place + 2] == b"\x16\x06":
            path.write_bytes(content[:place] + b"\x16\x05" + content[place + 2 :])  # -3
            try:
                assert load_dataset("table", path).num_train == 3
            except InputError as error:
                assert str(path) in str(error)


@pytest.mark.costly
@pytest.mark.parametrize("ending", ["csv", "parquet"])
def test_tables_are_read_at_the_speed_of_pyarrow(tmp_path, ending):
    rng = np.random.default_rng(0)
    frame = pd.DataFrame({f"c{k}": rng.normal(size=60_000) for k in range(28)})
    frame["label"] = rng.integers(0, 5, len(frame))
    path = tmp_path / f"t.{ending}"
    pa_table = pa.Table.from_pandas(frame)
    write, read = {
        "csv": (pyarrow.csv.write_csv, pyarrow.csv.read_csv),
        "parquet": (pq.write_table, pq.read_table),
    }[ending]
    write(pa_table, path)
    read(path)

    def seconds(call):
        start = time.process_time()
        call()
        return time.process_time() - start

    own = min(seconds(lambda: load_dataset("table", path)) for _ in range(3))
    theirs = min(seconds(lambda: read(path).to_pandas()) for _ in range(3))
    assert own < 4 * theirs + 0.2  # measured: about as long; by hand it took 20 to 35 times that
