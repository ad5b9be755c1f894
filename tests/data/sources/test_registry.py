"""Sources: real file formats, literal values, and a clear sentence for everything that is wrong."""

import gzip
import hashlib
import re
import struct
from pathlib import Path

import numpy as np
import pytest

from fedjax_pfl.data.scaling import SCALINGS, input_scaling
from fedjax_pfl.data.sources import idx
from fedjax_pfl.data.sources.registry import DATASETS, dataset_from_arrays, load_dataset, read_idx
from fedjax_pfl.errors import InputError
from fedjax_pfl.federation.build import federate

NAMES = (
    "train-images-idx3-ubyte",
    "train-labels-idx1-ubyte",
    "t10k-images-idx3-ubyte",
    "t10k-labels-idx1-ubyte",
)


@pytest.fixture(autouse=True)
def _nothing_of_this_machine(tmp_path_factory, monkeypatch):
    """Neither prepared data sets nor cache files of whoever runs the tests."""
    place = tmp_path_factory.mktemp("machine")
    monkeypatch.setenv("TFDS_DATA_DIR", str(place / "tfds"))
    monkeypatch.setenv("FEDJAX_PFL_CACHE", str(place / "cache"))
    monkeypatch.setattr(idx, "DEBIAN", Path("/nowhere/fashion-mnist"))


def idx_bytes(array, kind=8):
    """An array as an IDX file: two zero bytes, type, axes, big-endian lengths, values."""
    lengths = struct.pack(f">{array.ndim}I", *array.shape)
    return bytes([0, 0, kind, array.ndim]) + lengths + array.astype(np.uint8).tobytes()


def write_idx_folder(folder, compressed=True, labels=12):
    rng = np.random.default_rng(0)
    arrays = (
        rng.integers(0, 256, (12, 4, 3)),
        np.arange(labels) % 10,
        rng.integers(0, 256, (5, 4, 3)),
        np.arange(5),
    )
    folder.mkdir(parents=True, exist_ok=True)
    for name, array in zip(NAMES, arrays, strict=True):
        data = idx_bytes(array)
        if compressed:
            (folder / f"{name}.gz").write_bytes(gzip.compress(data))
        else:
            (folder / name).write_bytes(data)
    return arrays


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


@pytest.mark.parametrize("name", ["mnist", "fashion_mnist"])
@pytest.mark.parametrize("compressed", [True, False])
@pytest.mark.parametrize("nested", [True, False])
def test_idx_folder(tmp_path, name, compressed, nested):
    arrays = write_idx_folder(tmp_path / name if nested else tmp_path, compressed)
    data = load_dataset(name, tmp_path)
    np.testing.assert_array_equal(data.train_x[..., 0], arrays[0])
    np.testing.assert_array_equal(data.train_y, arrays[1])
    np.testing.assert_array_equal(data.test_x[..., 0], arrays[2])
    np.testing.assert_array_equal(data.test_y, arrays[3])
    assert data.train_x.dtype == np.uint8
    assert (data.name, data.num_classes, data.input_shape) == (name, 10, (4, 3, 1))
    x, y = data.pool()
    np.testing.assert_array_equal(x[12:], data.test_x)
    np.testing.assert_array_equal(y, np.concatenate([arrays[1], arrays[3]]))


def test_name_with_a_path(tmp_path):
    write_idx_folder(tmp_path)
    assert load_dataset(f"mnist:{tmp_path}").num_test == 5


def test_missing_data_says_where_it_looked_and_what_to_do(tmp_path):
    with pytest.raises(InputError) as caught:
        load_dataset("mnist", tmp_path)
    sentence = str(caught.value)
    for part in (str(tmp_path / "mnist"), f"{tmp_path})", f"{NAMES[0]}.gz", "npz:PATH", "'digits'"):
        assert part in sentence
    with pytest.raises(InputError, match=r"looked in: .*tfds/mnist\).*name it tfds:mnist"):
        load_dataset("mnist")


def test_fashion_mnist_of_debian(tmp_path, monkeypatch):
    with pytest.raises(
        InputError, match=r"/nowhere/fashion-mnist\).*install dataset-fashion-mnist"
    ):
        load_dataset("fashion_mnist", tmp_path)
    monkeypatch.setattr(idx, "DEBIAN", tmp_path / "debian")
    write_idx_folder(tmp_path / "debian")
    assert load_dataset("fashion_mnist", tmp_path).num_train == 12
    assert load_dataset("fashion_mnist").class_names[9] == "Ankle boot"


def test_one_file_missing(tmp_path):
    write_idx_folder(tmp_path)
    (tmp_path / f"{NAMES[3]}.gz").unlink()
    with pytest.raises(InputError, match=f"lacks the file {NAMES[3]}.gz"):
        load_dataset("mnist", tmp_path)


def test_images_and_labels_must_agree(tmp_path):
    write_idx_folder(tmp_path, labels=11)
    with pytest.raises(
        InputError, match=r"images-idx3-ubyte.gz holds 12 images but .*holds 11 lab"
    ):
        load_dataset("mnist", tmp_path)


IMAGES = idx_bytes(np.arange(24).reshape(2, 4, 3))


@pytest.mark.parametrize(
    ("data", "message"),
    [
        (b"PK\x03\x04" + IMAGES, "isn't an IDX file of unsigned bytes"),
        (b"", "isn't an IDX file of unsigned bytes"),
        (idx_bytes(np.zeros((2, 4, 3)), kind=13), "isn't an IDX file of unsigned bytes"),
        (idx_bytes(np.zeros(5)), "has 1 axes where 3 are expected"),
        (IMAGES[:-1], "announces 24 values but holds 23"),
        (IMAGES + b"\0", "announces 24 values but holds 25"),
        (IMAGES[:10], "announces 3 axis lengths"),
    ],
)
@pytest.mark.parametrize("suffix", ["", ".gz"])
def test_damaged_idx(tmp_path, data, message, suffix):
    path = tmp_path / f"images{suffix}"
    path.write_bytes(gzip.compress(data) if suffix else data)
    with pytest.raises(InputError, match=message) as caught:
        read_idx(path, 3)
    assert str(path) in str(caught.value)


@pytest.mark.parametrize("cut", [5, -9])
def test_truncated_gzip(tmp_path, cut):
    path = tmp_path / "images.gz"
    path.write_bytes(gzip.compress(IMAGES)[:cut])
    with pytest.raises(InputError, match=r"images.gz is truncated or isn't a gzip file"):
        read_idx(path, 3)
    path.write_bytes(IMAGES)
    with pytest.raises(InputError, match=r"images.gz is truncated or isn't a gzip file"):
        read_idx(path, 3)


def test_unknown_name_gives_the_nearest():
    with pytest.raises(
        InputError, match=r"Unknown data set 'fashion-mnist'. Did you mean 'fashion_"
    ):
        load_dataset("fashion-mnist")


def test_every_source_has_a_one_line_description():
    names = "digits mnist fashion_mnist npz tfds cifar10 cifar100 cifar10_jpeg parquet folder"
    names += " cinic10 tiny_imagenet ag_news text_csv emnist/byclass emnist/balanced emnist/letters"
    assert set(DATASETS) >= set(names.split())
    assert all(0 < len(row.description) < 80 for row in DATASETS.values())


def save(path, **arrays):
    np.savez(path, **arrays)
    return path


def test_npz(tmp_path):
    x = np.arange(4 * 6, dtype=np.float64).reshape(4, 2, 3)
    path = save(tmp_path / "mine.npz", x_train=x, y_train=[[0], [1], [2], [1]], other=np.zeros(3))
    for data in (load_dataset(f"npz:{path}"), load_dataset("npz", path)):
        assert (data.name, data.num_classes, data.num_test) == ("mine", 3, 0)
        assert data.train_x.shape == (4, 2, 3, 1)
        assert data.train_x.dtype == np.float32
        assert data.train_y.tolist() == [0, 1, 2, 1]
        assert data.input_scaling == "raw"
        assert data.test_x.shape == (0, 2, 3, 1)


def test_npz_with_a_test_split(tmp_path):
    x = np.zeros((3, 5), np.uint8)
    path = save(tmp_path / "a.npz", x_train=x, y_train=[0, 1, 0], x_test=x[:1], y_test=[2])
    data = load_dataset(f"npz:{path}")
    assert (data.num_test, data.num_classes, data.input_shape) == (1, 3, (5,))
    assert data.input_scaling == "half"


GOOD = {"x_train": np.zeros((3, 5)), "y_train": np.array([0, 1, 1])}


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"x_train": np.zeros((3, 5), np.int64)}, "got 'int64'"),
        ({"x_train": np.array([[0, 1, np.nan]] * 3)}, "got '3 NaN or infinite values'"),
        ({"x_train": np.full((3, 5), 1e300)}, "got '15 NaN or infinite values'"),
        ({"x_train": np.zeros(3)}, r"\[n, d\], \[n, h, w\] or \[n, h, w, c\], got \(3,\)"),
        ({"x_train": np.zeros((3, 0))}, "without an empty axis"),
        ({"x_train": np.zeros((0, 5)), "y_train": np.zeros(0, int)}, "must be at least 1, got 0"),
        ({"y_train": np.array([0.0, 1, 1])}, "must be integer, got 'float64'"),
        ({"y_train": np.array([0, 1])}, r"must be \(3,\), one per sample, got \(2,\)"),
        ({"y_train": np.array([0, -1, 1])}, "must be integers 0..C-1, got '-1..1'"),
        ({"y_train": np.array([1, 2, 3])}, "label 0 never occurs while label 3 does"),
        ({"x_test": np.zeros((1, 5))}, "both of x_test and y_test or neither"),
        ({"x_test": np.zeros((1, 4)), "y_test": np.zeros(1, int)}, "both must be the same"),
        ({"y_train": np.array([0, 1, None])}, "can't be read as an NPZ file of plain arrays"),
    ],
)
def test_bad_npz(tmp_path, change, message):
    path = save(tmp_path / "bad.npz", **(GOOD | change))
    with pytest.raises(InputError, match=message):
        load_dataset(f"npz:{path}")


def test_npz_files_that_are_not(tmp_path):
    with pytest.raises(InputError, match="needs the path of a file: write npz:PATH"):
        load_dataset("npz")
    with pytest.raises(InputError, match=r"No file .*none\.npz"):
        load_dataset(f"npz:{tmp_path}/none.npz")
    np.save(tmp_path / "one.npy", np.zeros(3))
    with pytest.raises(InputError, match=r"one\.npy isn't an NPZ file"):
        load_dataset(f"npz:{tmp_path}/one.npy")
    path = save(tmp_path / "names.npz", X_train=np.zeros((3, 5)), y_train=np.zeros(3, int))
    with pytest.raises(InputError, match="lacks x_train; arrays found: X_train, y_train"):
        load_dataset(f"npz:{path}")
    data = bytearray(save(tmp_path / "torn.npz", **GOOD).read_bytes())
    data[200:210] = b"\xff" * 10
    (tmp_path / "torn.npz").write_bytes(data)
    with pytest.raises(InputError, match="can't be read as an NPZ file"):
        load_dataset(f"npz:{tmp_path}/torn.npz")


def test_number_of_classes_given():
    data = dataset_from_arrays("a", np.zeros((2, 3)), [1, 3], num_classes=6)
    assert data.num_classes == 6
    with pytest.raises(InputError, match=r"must be in 0\.\.2, got '0\.\.3'"):
        dataset_from_arrays("a", np.zeros((2, 3)), [1, 3], num_classes=3)


def scaled(name, dataset):
    scale, shift = input_scaling(name, dataset)
    assert scale.dtype == shift.dtype == np.float32
    assert scale.ndim == shift.ndim == 1
    return dataset.train_x * scale + shift


def test_fixed_scalings():
    data = dataset_from_arrays("a", np.array([[0, 51, 255, 16]], np.uint8), [0])
    np.testing.assert_allclose(scaled("half", data), [[-1, -0.6, 1, 16 / 127.5 - 1]], atol=1e-6)
    np.testing.assert_allclose(scaled("unit", data), [[0, 0.2, 1, 16 / 255]], atol=1e-6)
    np.testing.assert_allclose(scaled("digits", data)[0, 3], 1)
    np.testing.assert_array_equal(scaled("raw", data), data.train_x)
    np.testing.assert_array_equal(scaled("default", data), scaled("half", data))


# Mean and deviation of x/255 for each channel, as the papers and their codes print them.
PUBLISHED = {
    "mnist": ([0.1307], [0.3081]),
    "cifar": ([0.4914, 0.4822, 0.4465], [0.247, 0.243, 0.261]),
    "feddwa_cifar": ([0.4914, 0.4822, 0.4465], [0.2023, 0.1994, 0.2010]),
    "half": ([0.5], [0.5]),
}


@pytest.mark.parametrize("name", PUBLISHED)
def test_published_scalings(name):
    mean, deviation = PUBLISHED[name]
    x = np.arange(0, 256, 15, np.uint8)[:, None, None, None] * np.ones(len(mean), np.uint8)
    data = dataset_from_arrays("a", x, np.zeros(len(x), int))
    np.testing.assert_allclose(scaled(name, data), (x / 255 - mean) / deviation, atol=1e-6)


def test_default_of_digits_is_sixteenths():
    digits = load_dataset("digits")
    assert scaled("default", digits).max() == 1


@pytest.mark.parametrize("offset", [0, 1e4])
def test_standard_is_per_channel_and_guards_constants(offset):
    rng = np.random.default_rng(1)
    x = rng.normal(size=(2500, 2, 2, 3)) * [1, 5, 0] + [0, 7, 3] + offset
    data = dataset_from_arrays("a", x, np.zeros(2500, int), x[:5] * 100, np.zeros(5, int))
    z = scaled("standard", data)
    np.testing.assert_allclose(z.mean((0, 1, 2), dtype=float), 0, atol=2e-3)
    np.testing.assert_allclose(z.std((0, 1, 2), dtype=float), [1, 1, 0], atol=2e-3)


def test_standard_does_not_blow_up_rounding_noise():
    x = np.full((100, 1), 1e4, np.float32)
    x[::2] = np.nextafter(x[0, 0], np.float32(2e4))
    z = scaled("standard", dataset_from_arrays("a", x, np.zeros(100, int)))
    assert np.abs(z).max() < 0.01


def test_unknown_scaling():
    assert "standard" in SCALINGS
    data = dataset_from_arrays("a", np.zeros((1, 2)), [0])
    with pytest.raises(
        InputError, match=r"Unknown input scaling 'standart'. Did you mean 'standard"
    ):
        input_scaling("standart", data)


def test_unknown_options():
    with pytest.raises(InputError, match="Data set 'digits' takes no options, got 'image_size'"):
        load_dataset("digits", image_size=3)
    with pytest.raises(InputError, match=r"Unknown option of data set 'folder' 'imagesize'. Did"):
        load_dataset("folder", "/tmp", imagesize=3)


def test_unreadable_files(tmp_path):
    (tmp_path / "images.gz").mkdir()
    with pytest.raises(InputError, match=r"images\.gz must be a regular file, but it is a folder"):
        read_idx(tmp_path / "images.gz", 3)


def test_what_a_data_set_says_of_itself():
    x = np.arange(24, dtype=np.uint8).reshape(4, 2, 3)
    one = dataset_from_arrays("a", x, [0, 1, 0, 1])
    # The hash of what it hashes, spelt out: class count and vocabulary, then each array.
    said = hashlib.sha256(b"2 None")
    said.update(b"|u1 (4, 2, 3, 1)" + x.tobytes())
    said.update(b"<i4 (4,)" + np.array([0, 1, 0, 1], "<i4").tobytes())
    said.update(b"|u1 (0, 2, 3, 1)" + b"<i4 (0,)")
    assert one.fingerprint() == said.hexdigest()
    assert dataset_from_arrays("b", x, [0, 1, 0, 1], note="n").fingerprint() == one.fingerprint()
    others = [
        dataset_from_arrays("a", x[::-1], [0, 1, 0, 1]),
        dataset_from_arrays("a", x, [0, 1, 1, 1]),
        dataset_from_arrays("a", x, [0, 1, 0, 1], num_classes=3),
        dataset_from_arrays("a", x[:3], [0, 1, 0], x[3:], [1]),
        dataset_from_arrays("a", x.astype(np.float32), [0, 1, 0, 1]),
    ]
    assert len({data.fingerprint() for data in [one, *others]}) == 6
    assert one.describe() == "a: 4 training samples 2x3x1, 2 classes"
    assert others[3].describe() == "a: 3 training and 1 test samples 2x3x1, 2 classes"


def test_token_ids():
    ids = np.array([[2, 3, 0], [1, 0, 0]], np.uint16)
    data = dataset_from_arrays("t", ids, [0, 1], vocab_size=4, note="short")
    assert (data.train_x.dtype, data.input_shape, data.vocab_size) == (np.int32, (3,), 4)
    np.testing.assert_array_equal(data.train_x, ids)
    np.testing.assert_array_equal(scaled("default", data), ids)
    assert data.describe() == "t: 2 training texts of 3 tokens out of 4, 2 classes; short"
    for name in ("half", "standard"):
        with pytest.raises(InputError, match=r"are token ids, which are never scaled: .* got"):
            input_scaling(name, data)
    bad = [
        ({"vocab_size": 3}, r"Token ids of the training .* must be in 0\.\.2, got '0\.\.3'"),
        ({"vocab_size": 2**25}, r"vocab_size must be an integer in 1\.\."),
        ({"vocab_size": 4, "train_x": ids / 1}, "must be integer token ids, got 'float64'"),
        ({"vocab_size": 4, "train_x": ids[0]}, r"must be \[n, length\]"),
    ]
    for change, message in bad:
        with pytest.raises(InputError, match=message):
            dataset_from_arrays("t", **({"train_x": ids, "train_y": [0, 1]} | change))


def test_class_names_must_be_as_many_as_classes():
    with pytest.raises(InputError, match="class_names of data set 'a' must be 2 names or none"):
        dataset_from_arrays("a", np.zeros((2, 2)), [0, 1], class_names=("x",))


def test_nothing_may_follow_digits():
    with pytest.raises(InputError, match="'digits' needs no file: write digits, got 'digits:foo'"):
        load_dataset("digits:foo")


def test_every_scaling_is_named_where_it_is_chosen():
    said = federate.__doc__.partition("input_scaling: ")[2].partition("client_ids")[0]
    assert set(re.findall("'([a-z_]+)'", said)) == set(SCALINGS)


@pytest.mark.parametrize("given", [1, [], {}, np.zeros(2), b"a", "a\0b"])
def test_paths_of_another_type(given):
    for name in ("npz", "folder", "mnist", "text_csv"):
        with pytest.raises(InputError, match="data_dir must be a path"):
            load_dataset(name, given)


@pytest.mark.parametrize("given", [[1], None, np.zeros(2), "halve"])
def test_scalings_of_another_type(given):
    data = load_dataset("digits")
    with pytest.raises(InputError, match="Unknown input scaling"):
        input_scaling(given, data)


@pytest.mark.parametrize("given", [1.5, "ab", {"x": 1}, None])
def test_class_names_that_are_no_list(given):
    with pytest.raises(InputError, match="class_names of data set 'a' must be 2 names or none"):
        dataset_from_arrays("a", np.zeros((2, 2)), [0, 1], class_names=given)
