"""Prepared TFDS data that is read, ours too, and what can't be read."""

import json
import os

import numpy as np
import pytest
import tensorflow_datasets as tfds
from PIL import Image

from fedjax_pfl.data.sources.source_registry import load_dataset
from tests.data.published_files import ARRAY_RECORD, NAMES, emnist_arrays, idx_bytes, load_error


def prepare(folder, name, features, examples, splits=("train",), keys=None, config=None):
    """Prepares a data set of our own in TFDS's formats."""

    class Mine(tfds.core.GeneratorBasedBuilder, skip_registration=True):
        VERSION = tfds.core.Version("1.0.0")
        BUILDER_CONFIGS = [tfds.core.BuilderConfig(name=config)] if config else []

        def _info(self):
            return self.dataset_info_from_configs(
                features=tfds.features.FeaturesDict(features), supervised_keys=keys
            )

        def _split_generators(self, dl_manager):
            return {split: self._generate_examples() for split in splits}

        def _generate_examples(self):
            yield from enumerate(examples)

    Mine.name = name
    Mine.pkg_dir_path = folder
    builder = Mine(data_dir=folder, **ARRAY_RECORD)
    tfds.disable_progress_bar()
    builder.download_and_prepare()
    return builder.data_path


def picture(size=(4, 5)):
    array = np.random.default_rng(0).integers(0, 256, (*size, 3)).astype(np.uint8)
    return Image.fromarray(array)


def test_anything_prepared_is_read(tmp_path):
    features = {
        "picture": tfds.features.Image(shape=(None, None, 3)),
        "kind": tfds.features.ClassLabel(names=["cat", "dog"]),
    }
    rows = [{"picture": picture(), "kind": label} for label in (1, 0, 1)]
    keys = ("picture", "kind")
    folder = prepare(tmp_path, "mine", features, rows, ("train", "test"), keys)
    data = load_dataset("tfds:mine", tmp_path)
    assert (data.class_names, data.num_train, data.num_test) == (("cat", "dog"), 3, 3)
    assert sorted(data.train_y) == [0, 1, 1]
    np.testing.assert_array_equal(data.train_x[0], np.asarray(picture()))
    assert load_dataset("tfds:mine:1.0.0", tmp_path).fingerprint() == data.fingerprint()
    assert "'mine:2.0.0' isn't prepared" in load_error("tfds:mine:2.0.0", tmp_path)
    # A record file that is cut, and a description that is none.
    (record,) = folder.glob("*train.array_record*")
    record.write_bytes(record.read_bytes()[:-100])
    assert "can't be read as a prepared TFDS data set: " in load_error("tfds:mine", tmp_path)
    (folder / "dataset_info.json").write_text("{")
    assert "can't be read as a prepared TFDS data set" in load_error("tfds:mine", tmp_path)


def images_of(name, splits, count=5, **more):
    """Prepares grey images whose pixels and labels are their numbers."""

    def prepared(folder):
        features = {"image": tfds.features.Image(shape=(None, None, 1)),
                    "label": tfds.features.ClassLabel(num_classes=26), **more}  # fmt: skip
        rows = [
            {"image": Image.fromarray(np.full((4, 4), k, np.uint8)), "label": k}
            | ({"id": f"train_{k:05d}"} if more else {})
            for k in range(1, count + 1)
        ]
        name_, _, config = name.partition("/")
        return prepare(folder, name_, features, rows, splits, config=config or None)

    return prepared


@pytest.mark.parametrize("name", ["cifar10", "cifar100"])
def test_cifar_is_in_the_order_of_its_files(tmp_path, name):
    images_of(name, ("train", "test"), id=tfds.features.Text())(tmp_path)
    data = load_dataset(f"tfds:{name}", tmp_path)
    assert (data.train_y.tolist(), data.note) == ([1, 2, 3, 4, 5], "")
    assert data.train_x[:, 0, 0, 0].tolist() == [1, 2, 3, 4, 5]
    assert load_dataset(name, tmp_path).fingerprint() == data.fingerprint()


def test_emnist_is_upright_and_counted_from_0(tmp_path):
    images_of("emnist/letters", ("train", "test"))(tmp_path)
    data = load_dataset("tfds:emnist/letters", tmp_path)
    assert sorted(data.train_y) == [0, 1, 2, 3, 4]
    assert (data.num_classes, data.note) == (26, "in the order of TFDS")


@pytest.mark.parametrize(
    ("splits", "tests", "note"),
    [
        (("train", "validation"), 5, ""), (("train", "test", "validation"), 5, "validation"),
        (("train", "unlabelled"), 0, "unlabelled"),
    ],
)  # fmt: skip
def test_splits_are_used_or_named(tmp_path, splits, tests, note):
    images_of("mine", splits)(tmp_path)
    data = load_dataset("tfds:mine", tmp_path)
    assert data.num_test == tests
    assert data.note == "in the order of TFDS" + (f"; not used: {note}" if note else "")


def test_raw_files_come_before_prepared_ones(tmp_path):
    images_of("mnist", ("train", "test"))(tmp_path)
    assert load_dataset("mnist", tmp_path).note == "in the order of TFDS"
    for file, array in zip(NAMES, emnist_arrays((1, 2, 7)), strict=True):
        (tmp_path / "mnist" / file).write_bytes(idx_bytes(array))
    assert load_dataset("mnist", tmp_path).note == ""


def test_prepared_data_of_other_kinds(tmp_path):
    image = tfds.features.Image(shape=(None, None, 3))
    label = tfds.features.ClassLabel(num_classes=2)
    good = {"image": image, "label": label}
    text = {"text": tfds.features.Text(), "label": label}
    prepare(tmp_path, "texts", text, [{"text": "a", "label": 0}])
    assert "must have an image and a class label, got the features" in load_error(
        "tfds:texts", tmp_path
    )
    rows = [{"image": picture(), "label": 0}, {"image": picture((9, 9)), "label": 1}]
    prepare(tmp_path, "sizes", good, rows)
    assert "must be uint8 of one shape, got" in load_error("tfds:sizes", tmp_path)
    prepare(tmp_path, "untrained", good, rows[:1], ("validation",))
    assert "has no split 'train'; splits found: validation" in load_error(
        "tfds:untrained", tmp_path
    )
    prepare(tmp_path, "two", good, rows[:1], config="big")
    prepare(tmp_path, "two", good, rows[:1], config="small")
    assert "in 2 configurations: name one, such as two/big" in load_error("tfds:two", tmp_path)
    assert load_dataset("tfds:two/small", tmp_path).num_train == 1
    # What TensorFlow wrote in its own format.
    folder = prepare(tmp_path, "records", good, rows[:1])
    info = json.loads((folder / "dataset_info.json").read_text())
    (folder / "dataset_info.json").write_text(json.dumps(info | {"fileFormat": "tfrecord"}))
    for path in folder.glob("*.array_record*"):
        path.rename(folder / path.name.replace("array_record", "tfrecord"))
    assert "is stored as tfrecord, which needs TensorFlow to read" in load_error(
        "tfds:records", tmp_path
    )


@pytest.mark.parametrize("key", ["pythonClassName", "python_class_name", "type"])
def test_descriptions_do_not_import_what_they_name(key, tmp_path, monkeypatch):
    monkeypatch.syspath_prepend(tmp_path)
    (tmp_path / "stranger.py").write_text("raise SystemExit('it ran')\n")
    folder = tmp_path / "mine" / "1.0.0"
    folder.mkdir(parents=True)
    (folder / "dataset_info.json").write_text('{"name": "mine", "version": "1.0.0"}')
    (folder / "features.json").write_text(json.dumps({"a": [{key: "stranger.X", "content": {}}]}))
    message = load_error("tfds:mine", tmp_path)
    assert "features.json names the class 'stranger.X', which isn't TFDS's own" in message


def test_pipes_in_a_prepared_folder(tmp_path):
    folder = tmp_path / "mine" / "1.0.0"
    folder.mkdir(parents=True)
    (folder / "dataset_info.json").write_text("{}")
    os.mkfifo(folder / "mine-train.array_record-00000-of-00001")
    assert "must be a regular file, but it is a named pipe" in load_error("tfds:mine", tmp_path)


def test_damage_that_shows_only_when_a_split_is_opened(tmp_path):
    features = {"image": tfds.features.Image(), "label": tfds.features.ClassLabel(num_classes=2)}
    folder = prepare(tmp_path, "mine", features, [{"image": picture(), "label": 0}])
    info = folder / "dataset_info.json"
    info.write_text(info.read_text().replace("{DATASET}", "{D'ATASET}"))
    assert "can't be read as a prepared TFDS data set: Could not format" in load_error(
        "tfds:mine", tmp_path
    )


def test_names_that_are_not_there(tmp_path):
    assert "'kmnist' isn't prepared in" in load_error("tfds:kmnist", tmp_path)
    assert "needs TensorFlow. Prepare it once where" in load_error("tfds:mnist", tmp_path)
    assert "isn't prepared in" in load_error("tfds:no_such_data", None)
    assert "A TFDS name is NAME, NAME/CONFIG" in load_error("tfds:huggingface:mnist", tmp_path)
    assert "A TFDS name is NAME, NAME/CONFIG" in load_error("tfds:../mnist", tmp_path)
    assert "needs a name: write tfds:NAME" in load_error("tfds", tmp_path)
