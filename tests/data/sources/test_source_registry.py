"""Sources by name: what there is, digits, and names, paths and options that are wrong."""

import numpy as np
import pytest

from fedjax_pfl.data.sources import source_registry
from fedjax_pfl.data.sources.source_registry import DATASETS, SAVEZ, load_dataset
from fedjax_pfl.utils.errors import InputError


def test_digits():
    digits = load_dataset("digits")
    assert digits.train_x.shape == (1797, 8, 8, 1)
    assert digits.train_x.dtype == np.uint8
    assert digits.train_y.dtype == np.int32
    assert (digits.train_x.min(), digits.train_x.max()) == (0, 16)
    assert digits.train_y[:12].tolist() == [0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 0, 1]
    assert (digits.num_train, digits.num_test, digits.num_classes) == (1797, 0, 10)
    assert digits.input_shape == (8, 8, 1)
    assert digits.pool()[0] is digits.train_x


def test_unknown_name_gives_the_nearest():
    with pytest.raises(InputError, match=r"set 'fashion-mnits'. Did you mean 'fashion_"):
        load_dataset("fashion-mnits")


def test_an_unknown_name_that_is_a_path_says_whether_it_is_there(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    for name in ("mine.npz", "mine.csv", "mine.bin"):
        (tmp_path / name).write_bytes(b"")
    (tmp_path / "mydigits").mkdir()
    there = "There is such a path: write what it holds, as in"
    for name, message in {
        "mine.npz": f"{there} npz:mine.npz or recordings:mine.npz.",
        "mine.csv": f"{there} table:mine.csv or text_csv:mine.csv.",
        "mine.bin": f"None reads this file by its path: write arrays by {SAVEZ}, a table as CSV.",
        "mydigits": f"{there} folder:mydigits.",
        "mien.npz": "There is no such path either.",
        "my/digits": "There is no such path either.",
    }.items():
        with pytest.raises(InputError) as caught:
            load_dataset(name)
        assert f"{name}'. {message} Valid: " in str(caught.value)


def test_every_source_has_a_one_line_description():
    names = "digits mnist fashion_mnist npz tfds cifar10 cifar100 cifar10_jpeg parquet folder"
    names += " cinic10 tiny_imagenet ag_news text_csv emnist/byclass emnist/balanced emnist/letters"
    assert set(DATASETS) >= set(names.split())
    assert all(0 < len(row.description) < 80 for row in DATASETS.values())


def test_unknown_options():
    with pytest.raises(InputError, match="Data set 'digits' takes no options, got 'image_size'"):
        load_dataset("digits", image_size=3)
    with pytest.raises(InputError, match=r"Unknown option of data set 'folder' 'imagesize'. Did"):
        load_dataset("folder", "/tmp", imagesize=3)


@pytest.mark.parametrize("name", [name for name, source in DATASETS.items() if source.needs])
def test_sources_of_files_need_a_path(name):
    message = f"Data set '{name}' needs {DATASETS[name].needs}: write {name}:PATH or set data_dir"
    with pytest.raises(InputError, match=message):
        load_dataset(name)


def test_nothing_may_follow_digits():
    with pytest.raises(InputError, match="'digits' needs no file: write digits, got 'digits:foo'"):
        load_dataset("digits:foo")


def test_endings_name_sources():
    assert {name for names in source_registry.BY_ENDING.values() for name in names} <= set(DATASETS)
