"""Folders of class folders, and how images are brought to one size."""

import numpy as np
import pytest

from fedjax_pfl.data import image_decoding, limits
from fedjax_pfl.data.sources.source_registry import load_dataset
from fedjax_pfl.utils.errors import InputError
from tests.data.image_files import RNG, black, class_folders, colour, png, raw_png, write


@pytest.mark.parametrize("test", ["test", "val", "valid", "validation"])
def test_folder_of_class_folders(tmp_path, test):
    arrays = class_folders(tmp_path / "mine", ("train", test))
    (tmp_path / "mine/train/cat/.DS_Store").write_bytes(b"")
    (tmp_path / "mine/train/dog/Thumbs.db").write_bytes(b"")
    data = load_dataset(f"folder:{tmp_path / 'mine'}")
    assert (data.name, data.class_names, data.num_classes) == ("mine", ("cat", "dog"), 2)
    assert (data.train_y.tolist(), data.test_y.tolist()) == ([0, 0, 1, 1], [0, 0, 1, 1])
    np.testing.assert_array_equal(data.train_x[3], arrays["train/dog/1"])
    np.testing.assert_array_equal(data.test_x[0], arrays[f"{test}/cat/0"])


def test_folder_without_a_split_is_one_pool(tmp_path):
    arrays = class_folders(tmp_path, ("",))
    data = load_dataset("folder", tmp_path)
    assert (data.num_train, data.num_test, data.input_shape) == (4, 0, (4, 5, 3))
    np.testing.assert_array_equal(data.train_x[1], arrays["/cat/1"])


def test_sizes_and_channels(tmp_path):
    class_folders(tmp_path, ("",))
    write(tmp_path / "dog/9.png", colour((6, 5)))
    with pytest.raises(InputError, match=r"9\.png has 5x6 pixels .* but .*0\.png has 5x4: give im"):
        load_dataset("folder", tmp_path)
    assert load_dataset("folder", tmp_path, image_size=8).input_shape == (8, 8, 3)
    assert load_dataset("folder", tmp_path, image_size=(4, 5)).input_shape == (4, 5, 3)
    with pytest.raises(InputError, match=r"image_size must be an integer in 1\.\.4096 or two of"):
        load_dataset("folder", tmp_path, image_size=0)
    with pytest.raises(InputError, match=r"channels must be 1 \(grey\), 3 \(colour\) or None"):
        load_dataset("folder", tmp_path, channels=2)
    # A grey image among coloured ones becomes coloured, whichever comes first.
    grey = RNG.integers(0, 256, (4, 5)).astype(np.uint8)
    write(tmp_path / "dog/9.png", grey)
    data = load_dataset("folder", tmp_path)
    np.testing.assert_array_equal(data.train_x[-1], np.repeat(grey[..., None], 3, -1))
    write(tmp_path / "cat/0.png", grey)
    with_first = load_dataset("folder", tmp_path).train_x
    np.testing.assert_array_equal(with_first[0], with_first[-1])
    np.testing.assert_array_equal(with_first[1:], data.train_x[1:])
    assert load_dataset("folder", tmp_path, channels=1).input_shape == (4, 5, 1)
    assert load_dataset("folder", tmp_path, channels=3).input_shape == (4, 5, 3)


@pytest.mark.parametrize(
    ("file", "content", "message"),
    [
        ("x.png", b"", r"x\.png can't be read as an image"),
        ("x.png", b"%!PS-Adobe-3.0 EPSF-3.0\n", r"x\.png can't be read as an image"),
        ("x.png", png(colour(), "TIFF"), r"x\.png can't be read as an image"),
        ("x.png", raw_png(5000, 5000), r"x\.png has 5000x5000 pixels, the limit being 16,777,216"),
    ],
)
def test_bad_images(tmp_path, file, content, message):
    class_folders(tmp_path)
    write(tmp_path / "train/cat" / file, content)
    with pytest.raises(InputError, match=message):
        load_dataset("folder", tmp_path)


def test_all_images_together_must_fit_into_memory(tmp_path, monkeypatch):
    class_folders(tmp_path)
    monkeypatch.setattr(limits, "_SMALL", 0)
    monkeypatch.setattr(limits, "free", lambda: 479)
    with pytest.raises(
        InputError, match=r"8 images of 5x4 pixels would take 0.0 MB of memory, but"
    ):
        load_dataset("folder", tmp_path)


def test_bad_folders(tmp_path):
    with pytest.raises(InputError, match=r"No folder .*none: give a folder of class folders"):
        load_dataset("folder", tmp_path / "none")
    with pytest.raises(InputError, match="holds no class folders"):
        load_dataset("folder", tmp_path)
    (tmp_path / "train/cat").mkdir(parents=True)
    with pytest.raises(InputError, match="train holds no images in its class folders"):
        load_dataset("folder", tmp_path)
    class_folders(tmp_path)
    write(tmp_path / "test/fox/1.png", colour())
    with pytest.raises(InputError, match="has the class 'fox', which the training images lack"):
        load_dataset("folder", tmp_path)


@pytest.mark.parametrize("place", [".", "CINIC-10"])
def test_cinic10(tmp_path, place):
    class_folders(tmp_path / place, ("train", "valid", "test"), ("airplane", "bird"), 1)
    data = load_dataset("cinic10", tmp_path)
    assert (data.name, data.num_train, data.num_test) == ("cinic10", 2, 2)
    data = load_dataset("cinic10", tmp_path, valid="train")
    assert (data.num_train, data.train_y.tolist()) == (4, [0, 1, 0, 1])
    with pytest.raises(InputError, match="valid must be 'unused' or 'train', got 'test'"):
        load_dataset("cinic10", tmp_path, valid="test")


def test_missing_splits(tmp_path):
    for name in ("cinic10", "tiny_imagenet"):
        with pytest.raises(InputError, match=f"Data set '{name}' was not found"):
            load_dataset(name, tmp_path)
    class_folders(tmp_path, ("train",))
    with pytest.raises(InputError, match=r"'tiny_imagenet' in .* lacks the folder val"):
        load_dataset("tiny_imagenet", tmp_path)


def tiny_imagenet(root):
    arrays = {}
    for name in ("n01443537", "n01629819"):
        arrays[name] = colour((64, 64))
        write(root / f"train/{name}/images/{name}_0.JPEG", png(arrays[name], "JPEG"))
        write(root / f"train/{name}/{name}_boxes.txt", b"")
    write(
        root / "val/images/val_0.JPEG", png(RNG.integers(0, 9, (64, 64)).astype(np.uint8), "JPEG")
    )
    write(root / "val/val_annotations.txt", b"val_0.JPEG\tn01629819\t0\t32\t44\t62\n")
    (root / "test/images").mkdir(parents=True)


def test_tiny_imagenet(tmp_path):
    tiny_imagenet(tmp_path / "tiny-imagenet-200")
    data = load_dataset("tiny_imagenet", tmp_path)
    assert (data.train_y.tolist(), data.test_y.tolist()) == ([0, 1], [1])
    assert (data.input_shape, data.class_names[0]) == ((64, 64, 3), "n01443537")
    assert load_dataset("tiny_imagenet", tmp_path, image_size=32).input_shape == (32, 32, 3)
    notes = tmp_path / "tiny-imagenet-200/val/val_annotations.txt"
    notes.write_text(notes.read_text().replace("n01629819", "n01443537"))
    assert load_dataset("tiny_imagenet", tmp_path).test_y.tolist() == [0]


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (b"val_0.JPEG\tn0000\t0\n", "Line 1 of .* one of the 2 training classes, got 'val_0"),
        (b"../val_0.JPEG\tn01629819\n", "Line 1 of .* must name an image"),
        (b"", "names no images"),
        (b"val_1.JPEG\tn01629819\n", r"val_1\.JPEG can't be read: No such file"),
    ],
)
def test_bad_annotations(tmp_path, content, message):
    tiny_imagenet(tmp_path)
    write(tmp_path / "val/val_annotations.txt", content)
    with pytest.raises(InputError, match=message):
        load_dataset("tiny_imagenet", tmp_path)


@pytest.mark.parametrize(
    ("text", "size"), [("6", (6, 6)), ("3x8", (3, 8)), (" 4X4096 ", (4, 4096)), ((2, 9), (2, 9))]
)
def test_sizes_as_text(text, size):
    assert image_decoding.parse_size(text) == size


@pytest.mark.parametrize(
    "text", ["", "x", "3x", "3x4x5", "0x3", "4097", "-3", "3.0", "\u0663", True, (3, True)]
)
def test_sizes_that_are_none(text):
    with pytest.raises(InputError, match="or two of them, height and width, as text 32x48, got"):
        image_decoding.parse_size(text)


@pytest.mark.parametrize(
    ("parts", "classes"),
    [
        (("test",), ("cat", "dog")),
        (("val", "test"), ("cat", "dog")),
        (("Valid",), ("cat", "dog")),
        (("",), ("test", "train")),  # images in the folders of parts themselves
    ],
)
def test_parts_without_class_folders_to_train_on_are_no_classes(tmp_path, parts, classes):
    class_folders(tmp_path, parts, classes)
    held = parts[0] or "test, train"
    with pytest.raises(InputError, match=f"holds .*{held}.* but no folder train of class"):
        load_dataset("folder", tmp_path)


def test_a_class_with_the_name_of_a_split_is_named(tmp_path):
    for name in ("a", "b", "test"):
        (tmp_path / name).mkdir()
        (tmp_path / name / "0.png").write_bytes(black())
    data = load_dataset("folder", tmp_path)
    assert data.class_names == ("a", "b", "test")
    assert data.note == "test: taken for a class, as there is no folder train"


def test_folders_and_images_that_are_not_used_are_named(tmp_path):
    class_folders(tmp_path, ("train", "test", "val", "more"))
    write(tmp_path / "train/0.png", colour())
    data = load_dataset("folder", tmp_path)
    assert data.note == "not used: 1 images beside the class folders; not used: more, val"


@pytest.mark.parametrize("empty", ["__MACOSX", "ant", "zebra"])
def test_class_folders_without_images_are_no_classes(tmp_path, empty):
    class_folders(tmp_path)
    (tmp_path / "train" / empty).mkdir()
    (tmp_path / "train" / empty / "._0.png").write_bytes(b"\0")
    data = load_dataset("folder", tmp_path)
    assert data.class_names == ("cat", "dog")
    assert np.unique(data.train_y).tolist() == [0, 1]
    assert data.note == ("" if empty == "__MACOSX" else f"no images in {empty}")


def test_a_class_may_be_called_train(tmp_path):
    class_folders(tmp_path, ("",), ("Train", "Bus"))
    assert load_dataset("folder", tmp_path).class_names == ("Bus", "Train")
