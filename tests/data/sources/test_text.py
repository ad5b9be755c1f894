"""Texts: the tokenizer, the vocabulary and CSV files, against literal values."""

import csv

import numpy as np
import pytest

from fedjax_pfl.data.sources.source_registry import load_dataset
from fedjax_pfl.data.vocabulary import Vocabulary, encode, token_ids, tokenize, whole_texts
from fedjax_pfl.utils.errors import InputError

TRAIN = '"1","Ford cuts","A cut, again."\n"4","The ""chip""","a chip; a cut"\n'
TEST = '"2","Unseen cut","A word"\n'


def fitted(data):
    """The texts with the ids of a vocabulary of all official training samples."""
    return data.with_vocabulary(data.token_ids(np.arange(data.num_train)))


@pytest.mark.parametrize(
    ("text", "joined"),
    [
        ("Don't stop!", "don ' t stop !"),
        ("U.S. (AP) - 5,000 said:", "u . s . ( ap ) - 5 , 000 said"),
        ('He said "no"; why?', "he said no why ?"),
        ("one<br />two  three\tfour\\five", "one two three four\\five"),
        ("É #36;10", "é #36 10"),
        ("", ""),
    ],
)
def test_tokens(text, joined):
    assert tokenize(text) == joined.split()


def test_token_ids_are_ranked_and_ties_keep_their_order():
    texts = np.array([[3, 2, 4], [2, 5, 1], [4, 0, 0], [6, 6, 6]])  # 6 only where nobody trains

    def ids(rows=(0, 1, 2), max_tokens=9, min_frequency=1):
        known = token_ids(Vocabulary(max_tokens, min_frequency), 7, lambda at: texts[at], rows)
        return known.tolist()

    assert ids() == [0, 1, 2, 4, 3, 5, 1]
    assert ids((2, 1, 0, 0)) == ids()
    assert ids(max_tokens=4) == [0, 1, 2, 1, 3, 1, 1]
    assert ids(min_frequency=2) == [0, 1, 2, 1, 3, 1, 1]
    assert ids((3,)) == [0, 1, 1, 1, 1, 1, 2]


def test_whole_texts_have_every_token_once():
    x, y = np.array([[2, 3, 4], [5, 0, 0]]), np.array([[3, 4, 6], [-1, -1, -1]])
    assert whole_texts(x, y).tolist() == [[2, 3, 4, 6], [5, -1, -1, -1]]
    assert whole_texts(x, np.array([0, 1])) is x


def test_ids_are_cut_and_padded():
    ids = encode([["a", "b", "x"], ["b"], []], {"a": 2, "b": 3}, 2)
    assert ids.dtype == np.int32
    assert ids.tolist() == [[2, 3], [3, 0], [0, 0]]


@pytest.mark.parametrize("place", ["", "ag_news", "ag_news_csv"])
def test_ag_news(tmp_path, place):
    folder = tmp_path / place
    folder.mkdir(exist_ok=True)
    (folder / "train.csv").write_text(TRAIN)
    (folder / "test.csv").write_text(TEST)
    data = load_dataset("ag_news", tmp_path, max_length=8)
    assert data.vocab_size == 2 + 11
    assert data.class_names == ("World", "Sports", "Business", "Sci/Tech")
    data = fitted(data)
    # Training tokens: a 3, cut 2, chip 2, then , . again cuts ford the (one each) in this order.
    assert data.vocab_size == 2 + 9
    assert data.train_x.tolist() == [[9, 8, 2, 4, 5, 7, 6, 0], [10, 3, 2, 3, 2, 4, 0, 0]]
    assert data.test_x.tolist() == [[1, 4, 2, 1, 0, 0, 0, 0]]
    assert (data.train_y.tolist(), data.test_y.tolist()) == ([0, 3], [1])
    assert (data.train_x.dtype, data.input_scaling, data.num_classes) == (np.int32, "raw", 4)
    assert load_dataset("ag_news", tmp_path).input_shape == (200,)


def test_new_texts_have_the_ids_of_the_stored_ones(tmp_path):
    (tmp_path / "train.csv").write_text(TRAIN)
    data = load_dataset("ag_news", tmp_path, max_length=5)
    texts = ["Ford cuts A cut, again.", 'The ""chip"" a chip; a cut']
    np.testing.assert_array_equal(data.encode(texts), data.train_x)
    own = fitted(data)
    np.testing.assert_array_equal(own.encode(texts), own.train_x)
    assert data.encode(np.array(["new cut"]))[0].tolist() == [1, data.words["cut"], 0, 0, 0]
    for wrong, said in (("new cut", "a list of texts"), ([*texts, None], r"texts\[\d\] must be a")):
        with pytest.raises(InputError, match=said):
            data.encode(wrong)
    with pytest.raises(InputError, match=r"Data set of new texts must be .*, got 'digits'"):
        load_dataset("digits").encode(texts)


def test_next_tokens_keep_the_classes_as_a_column(tmp_path):
    for split, rows in (("train", TRAIN), ("test", TEST)):
        (tmp_path / f"{split}.csv").write_text(rows)
    plain = load_dataset("ag_news", tmp_path, max_length=20)
    data = load_dataset("ag_news", tmp_path, max_length=4, task="next_token")
    assert (data.task, data.vocab_size) == ("next_token", plain.vocab_size)
    np.testing.assert_array_equal(data.train_x, plain.train_x[:, :4])
    np.testing.assert_array_equal(data.train_y, plain.train_x[:, 1:5])
    assert data.columns["label"].tolist() == ["World", "Sci/Tech", "Sports"]
    long = fitted(load_dataset("ag_news", tmp_path, task="next_token")).train_y[0]
    assert long[5:8].tolist() == [6, -1, -1]
    with pytest.raises(InputError, match="task of texts must be 'classification' or 'next_token'"):
        load_dataset("ag_news", tmp_path, task="regression")


def test_ag_news_without_its_training_file_says_so(tmp_path):
    (tmp_path / "test.csv").write_text(TRAIN)
    data = load_dataset("ag_news", tmp_path, max_tokens=4)
    assert (data.num_train, data.num_test, data.vocab_size) == (2, 0, 11)
    assert fitted(data).vocab_size == 4
    assert "train.csv isn't there: the texts of test.csv are the pool" in data.note


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (b'"1","a","b"\n"1","a","b","c"\n', "got 4 in the row that ends in line 2"),
        (b"", "train.csv holds no texts"),
        (b'"1","a","b" c\n', r"train\.csv can't be read as a CSV file in UTF-8"),
        (b'"1","a","' + b"x" * 200_000, r"train\.csv can't be read as a CSV file in UTF-8"),
    ],
)
def test_bad_ag_news(tmp_path, content, message):
    (tmp_path / "train.csv").write_bytes(content)
    with pytest.raises(InputError, match=message):
        load_dataset("ag_news", tmp_path)


def test_missing_texts(tmp_path):
    with pytest.raises(InputError, match=r"'ag_news' was not found.*train\.csv and test\.csv"):
        load_dataset("ag_news", tmp_path)
    with pytest.raises(InputError, match=r"No file .*none\.csv"):
        load_dataset(f"text_csv:{tmp_path}/none.csv")
    with pytest.raises(InputError, match=r"lacks train\.csv"):
        load_dataset("text_csv", tmp_path)


@pytest.mark.parametrize(
    ("content", "classes", "labels", "ids"),
    [
        ("10,a b\n2,b\n", ("2", "10"), [1, 0], [[3, 2], [2, 0]]),
        ("spam,a,b\nham,b,b\n", ("ham", "spam"), [1, 0], [[3, 2], [2, 2]]),
        ("id,Text,Label\n7,a b,x\n8,b,w\n\n", ("w", "x"), [1, 0], [[3, 2], [2, 0]]),
        ("title,label,body\na,1,b\nb,0,\n", ("0", "1"), [1, 0], [[3, 2], [2, 0]]),
        ("\ufeff1,a b\n0,b\n", ("0", "1"), [1, 0], [[3, 2], [2, 0]]),
    ],
)
def test_text_csv(tmp_path, content, classes, labels, ids):
    path = tmp_path / "mine.csv"
    path.write_text(content, encoding="utf-8")
    data = load_dataset(f"text_csv:{path}", max_length=2)
    assert (data.name, data.class_names, data.num_test) == ("mine", classes, 0)
    assert (data.train_y.tolist(), fitted(data).train_x.tolist()) == (labels, ids)


def test_text_csv_with_a_test_file(tmp_path):
    (tmp_path / "train.csv").write_text("spam,a b\nham,b\n")
    (tmp_path / "test.csv").write_text("ham,b c\n")
    data = fitted(load_dataset("text_csv", tmp_path, max_length=2))
    assert (data.vocab_size, data.test_x.tolist(), data.test_y.tolist()) == (4, [[2, 1]], [0])
    (tmp_path / "test.csv").write_text("eggs,b c\n")
    with pytest.raises(InputError, match=r"test\.csv has the label 'eggs', which .*train\.csv lac"):
        load_dataset("text_csv", tmp_path)


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ("a\n", r"must have 2 columns \(label first\) in every row, got 1"),
        ("label,text\n", "holds no texts below its header"),
        (" ,b\n", r"The label of .* is empty in row 1"),
        ("label\ttext\nx\ty\n", "Cells of .*a.csv must be separated by commas, .*, got '.t'"),
    ],
)
def test_bad_text_csv(tmp_path, content, message):
    (tmp_path / "a.csv").write_text(content)
    with pytest.raises(InputError, match=message):
        load_dataset("text_csv", tmp_path / "a.csv")


ROWS = "".join(f"{k % 2},some text of {k} words\n" for k in range(10))


def test_headers_that_have_no_column_label(tmp_path):
    path = tmp_path / "a.csv"
    path.write_text("Class Index,Text\n" + ROWS)
    with pytest.raises(InputError, match=r"row of .* like a header, .* label 'Class Index': give"):
        load_dataset("text_csv", path)
    assert load_dataset("text_csv", path, label_column="class index").num_train == 10
    path.write_text("rare,a sample of four words\n" + ROWS)
    assert load_dataset("text_csv", path).num_classes == 3
    path.write_text("label,text\nrare,one\n" + ROWS)
    assert load_dataset("text_csv", path).num_classes == 3


def test_texts_are_no_labels(tmp_path):
    path = tmp_path / "a.csv"
    path.write_text("".join(f"text {k},{k % 2}\n" for k in (0, 0, *range(9))))
    with pytest.raises(InputError, match="has 9 different labels in 11 rows: label_column names"):
        load_dataset("text_csv", path)
    data = load_dataset("text_csv", path, task="next_token")
    assert len(set(data.columns["label"])) == 9


@pytest.mark.parametrize(
    ("train", "test", "message"),
    [
        ("label,title,text\na,x,y\n", "a,x,y\n", "Unknown column of .*test.csv"),
        ("label,title,body\na,x,y\n", "label,body\na,y\n", "column of .*test.csv: 'title'"),
        ("label,text\na,x\n", "label,body\na,x\n", "column of .*test.csv: 'text'"),
        ("a,x\n", "a,title,x\n", "test.csv must have 2 columns"),
    ],
)
def test_files_of_other_columns(tmp_path, train, test, message):
    (tmp_path / "train.csv").write_text(train)
    (tmp_path / "test.csv").write_text(test)
    with pytest.raises(InputError, match=message):
        load_dataset("text_csv", tmp_path)


def test_a_test_file_may_have_more_columns_in_another_order(tmp_path):
    (tmp_path / "train.csv").write_text("label,title,body\na,x,y\n")
    (tmp_path / "test.csv").write_text("body,id,title,label\ny,7,x,a\n")
    data = load_dataset("text_csv", tmp_path)
    np.testing.assert_array_equal(data.train_x, data.test_x)


@pytest.mark.parametrize("option", ["max_tokens", "max_length", "min_frequency"])
@pytest.mark.parametrize("value", [0, True])
def test_bad_options(tmp_path, option, value):
    (tmp_path / "a.csv").write_text("1,a\n0,b\n")
    message = rf"{option} must be a whole number in [13]\.\.16777216, got {value}"
    with pytest.raises(InputError, match=message):
        load_dataset("text_csv", tmp_path / "a.csv", **{option: value})


@pytest.mark.parametrize("name", ["", "Unnamed: 0"])
def test_a_column_without_a_name_is_no_text(tmp_path, name):
    (tmp_path / "t.csv").write_text(f"{name},label,title\n7,0,x\n8,1,x\n")
    assert load_dataset("text_csv", tmp_path / "t.csv").train_x[:, :2].tolist() == [[2, 0], [2, 0]]


def test_long_texts(tmp_path):
    path = tmp_path / "a.csv"
    path.write_text("0," + "word " * 40_000 + "\n1,b\n")
    csv.field_size_limit(limit := 2**17)
    data = load_dataset("text_csv", path, max_length=2)
    assert data.train_x.shape == (2, 2) and csv.field_size_limit() == limit


def test_labels_of_many_digits(tmp_path):
    path = tmp_path / "a.csv"
    path.write_text(f"{'9' * 5000},a\n10,b\n9,c\n")
    assert load_dataset("text_csv", path).class_names == ("10", "9", "9" * 5000)


@pytest.mark.parametrize("header", ["label,Label,text", "label,text,text", "label,a,b, A "])
def test_two_columns_of_one_name(tmp_path, header):
    path = tmp_path / "a.csv"
    path.write_text(f"{header}\n" + ",".join("1" * (header.count(",") + 1)) + "\n")
    with pytest.raises(InputError, match=r"has 2 columns called '(label|text|a)': rename all but"):
        load_dataset("text_csv", path)


@pytest.mark.parametrize("column", ["label", "text"])
def test_columns_of_ids_are_further_ones(tmp_path, column):
    path = tmp_path / "a.csv"
    path.write_text("label,text,user\n0,a,b\n1,c,d\n")
    with pytest.raises(InputError, match=f"id_columns must be columns other than '{column}'"):
        load_dataset("text_csv", path, id_columns=column, text_column="text")
