"""Folders of class folders with images, also by domain; CINIC-10 and Tiny-ImageNet."""

import contextlib
import os
import re
from dataclasses import replace
from pathlib import Path

import numpy as np

from fedjax_pfl.data.cache import cached_arrays, hash_of_listing
from fedjax_pfl.data.dataset import Dataset, dataset_from_arrays
from fedjax_pfl.data.files import read_bytes
from fedjax_pfl.data.image_decoding import SUFFIXES, ImageSize, decode_images, parse_size
from fedjax_pfl.data.sources.source_registry import folders, not_found, register_dataset
from fedjax_pfl.data.sources.splits import TEST, VALIDATION, Splits, notes, split_of, splits
from fedjax_pfl.utils.errors import InputError, require

# Files that file managers create.
_IGNORED = ("thumbs.db", "desktop.ini", "__macosx")


@register_dataset(
    "folder",
    "your own images, folder:PATH with one folder per class",
    needs="the path of a folder",
)
def load_folder(
    data_dir: Path,
    image_size: ImageSize = None,
    channels: int | None = None,
) -> Dataset:
    """Any folder of class folders: train/CLASS/IMAGE and test/CLASS/IMAGE, or only CLASS/IMAGE.

    Classes are the names of folders with images, in alphabetical order. Folders may have other
    usual names, such as Training, val or validation; the data set's note names what is not used.
    Without a train folder all images are one pool.

    Args:
      data_dir: the folder.
      image_size: size of all images (see `fedjax_pfl.data.image_decoding.decode_images`).
      channels: 1 (grey), 3 (colour), or None: grey if all images are.
    """
    if not data_dir.is_dir():
        raise InputError(f"No folder {data_dir}: give a folder of class folders with images.")
    inside, note = [data_dir / name for name in _subfolders(data_dir)], ""
    # A split has class folders; a class may be called "train", too.
    parts = splits([path for path in inside if _subfolders(path)], whole=True)
    if len(parts.train) > 1:
        raise InputError(f"{data_dir} holds {_few(p.name for p in parts.train)}: keep one.")
    if parts.train:
        held_out = parts.held_out[:1]
        unused = [path for path in inside if path not in (*parts.train, *held_out)]
        parts = Splits(parts.train, held_out, unused)
    elif inside and all(path.name.isalpha() and split_of(path.name) for path in inside):
        raise InputError(
            f"{data_dir} holds {_few(p.name for p in inside)} but no folder train of class folders "
            "with the training images. (Without train and test its folders would be the classes.)"
        )
    else:
        parts = Splits([data_dir], [], [])
        words = (path.name for path in inside if path.name.isalpha())
        held = [name for name in words if split_of(name) in (TEST, VALIDATION)]
        note = f"{_few(held)}: taken for a class, as there is no folder train" if held else ""
    name = data_dir.resolve().name
    return _class_folders(name, data_dir, parts, image_size, channels, note)


@register_dataset(
    "domains",
    "your own images of several domains, domains:PATH with DOMAIN/CLASS/IMAGE",
    natural=True,
    needs="the path of a folder",
)
def load_domains(
    data_dir: Path,
    image_size: ImageSize = None,
    channels: int | None = None,
) -> Dataset:
    """A folder for each domain, such as photos and sketches, with the same class folders in each.

    DomainNet, Office-Caltech, PACS and Digit5 can be unpacked to this form. All images are one
    pool, and the column `domain` has each image's folder.

    Args:
      data_dir: the folder.
      image_size, channels: as of `folder`.
    """
    if not data_dir.is_dir():
        raise InputError(
            f"No folder {data_dir}: give a folder of domains, each with class folders."
        )
    domains = _subfolders(data_dir)
    classes = _classes([data_dir / domains[0]]) if domains else ()
    if not classes:
        raise InputError(f"{data_dir} holds no domains (folders of class folders with images).")
    for name in domains[1:]:
        own = _classes([data_dir / name])
        if own != classes:
            raise InputError(
                f"All domains of {data_dir} need the same classes: {domains[0]} has "
                f"{_few(classes)}, and {name} {_few(own) or 'none'}."
            )
    rows = [_labelled([data_dir / name], classes) for name in domains]
    column = np.repeat(domains, list(map(len, rows)))
    name, every = data_dir.resolve().name, [row for part in rows for row in part]
    dataset = _decoded(name, data_dir, every, [], classes, image_size, channels)
    return replace(dataset, columns={"domain": column})


@register_dataset("cinic10", "CINIC-10: 270,000 images 32x32 in class folders")
def load_cinic10(
    data_dir: Path | None, valid: str = "unused", image_size: ImageSize = None
) -> Dataset:
    """CINIC-10 as published: train, valid and test with 90,000 images 32x32x3 each.

    Args:
      data_dir: the folder, or one with CINIC-10, cinic-10 or cinic10 in it.
      valid: "unused", or "train" to add the validation images to the training samples, as the data
        set's authors suggest for final results.
      image_size: size of all images; None means as stored.
    """
    require(valid in ("unused", "train"), "valid", valid, "'unused' or 'train'")
    train = ["train", "valid"] if valid == "train" else ["train"]
    way = "set data_dir to CINIC-10's folder, which holds train, valid and test"
    places = folders(data_dir, "CINIC-10", "cinic-10", "cinic10")
    root = _root("cinic10", places, [*train, "test"], way)
    parts = [root / name for name in train]
    return _class_folders("cinic10", root, Splits(parts, [root / "test"], []), image_size, 3)


@register_dataset("tiny_imagenet", "Tiny-ImageNet: 110,000 images 64x64 of 200 classes in folders")
def load_tiny_imagenet(data_dir: Path | None, image_size: ImageSize = None) -> Dataset:
    """Tiny-ImageNet-200 as published; its validation images are the test samples here.

    train/CLASS/images/*.JPEG are the training samples, val/images with val_annotations.txt the
    test samples (the labels of the official test images were never published).

    Args:
      data_dir: the folder, or one with tiny-imagenet-200 or tiny_imagenet in it.
      image_size: size of all images; None means as stored (64x64).
    """
    way = "set data_dir to the folder tiny-imagenet-200, which holds train and val"
    places = folders(data_dir, "tiny-imagenet-200", "tiny_imagenet")
    root = _root("tiny_imagenet", places, ["train", "val"], way)
    classes = _classes([root / "train"], inner="images")
    train = _labelled([root / "train"], classes, inner="images")
    test = _annotated(root / "val", classes)
    note = "its validation images are the test samples"
    return _decoded("tiny_imagenet", root, train, test, classes, image_size, 3, note)


def _root(name: str, places: list[Path], required: list[str], way: str) -> Path:
    """Return the first place with a folder `train`, which must have all required folders."""
    root = next((place for place in places if (place / "train").is_dir()), None)
    if root is None:
        raise not_found(name, places, way)
    missing = [folder for folder in required if not (root / folder).is_dir()]
    if missing:
        raise InputError(f"Data set {name!r} in {root} lacks the folder {', '.join(missing)}.")
    return root


def _class_folders(name, root, parts: Splits, image_size, channels, note: str = "") -> Dataset:
    classes = _classes(parts.train)
    if not classes:
        what = "class folders (one folder of images per class)"
        if _subfolders(parts.train[0]):
            what = "images in its class folders"
        raise InputError(f"{parts.train[0]} holds no {what}.")
    rows = _labelled(parts.train, classes), _labelled(parts.held_out, classes)
    empty = {path for place in parts.train for path in _subfolders(place)} - {*classes}
    without = f"no images in {_few(sorted(empty))}" if empty else ""
    beside = [
        path
        for place in (*parts.train, *parts.held_out)
        for path in place.iterdir()
        if path.suffix.casefold() in SUFFIXES and path.is_file()
    ]
    outside = f"not used: {len(beside)} images beside the class folders" if beside else ""
    note = notes(without, outside, parts.note(), note)
    return _decoded(name, root, *rows, classes, image_size, channels, note)


def _classes(places: list[Path], inner: str = "") -> tuple[str, ...]:
    """Return the names of folders with images; empty ones are no classes."""
    names = {name for place in places for name in _subfolders(place)}
    return tuple(
        name for name in sorted(names) if any(_images(place / name / inner) for place in places)
    )


def _subfolders(folder: Path) -> tuple[str, ...]:
    visible = (
        path
        for path in folder.iterdir()
        if path.is_dir() and not path.name.startswith(".") and path.name.lower() not in _IGNORED
    )
    names = sorted(path.name for path in visible)
    for name in names:
        with contextlib.suppress(UnicodeEncodeError):
            name.encode()
            continue
        raise InputError(f"Names of classes in {folder} must be UTF-8, got {name!r}.")
    return tuple(names)


def _labelled(places: list[Path], classes: tuple[str, ...], inner: str = "") -> list:
    """Return image files with their labels, in alphabetical order of classes and files."""
    rows = []
    for folder in places:
        strange = sorted(set(_classes([folder], inner)) - set(classes))
        if strange:
            raise InputError(
                f"{folder} has the class {strange[0]!r}, which the training images lack; their "
                f"classes: {_few(classes)}."
            )
        for label, name in enumerate(classes):
            rows += [(file, label) for file in _images(folder / name / inner)]
    if places and not rows:
        raise InputError(f"{places[0]} holds no images in its class folders.")
    return rows


def _images(folder: Path) -> list[Path]:
    """Return the images of a folder, which may not exist, in alphabetical order."""
    if not folder.is_dir():
        return []
    # Names, not paths: those of 100,000 files take seconds to sort.
    seen = (name for name in os.listdir(folder) if not name.startswith("."))
    files = sorted(name for name in seen if name.lower() not in _IGNORED)
    strange = [name for name in files if os.path.splitext(name)[1].lower() not in SUFFIXES]
    if strange:
        raise InputError(
            f"{folder} holds {len(strange)} entries that aren't images: {_few(strange)}. Images "
            f"end in {', '.join(SUFFIXES)}."
        )
    return [folder / name for name in files]


def _few(names) -> str:
    names = list(names)
    return ", ".join(names[:5]) + (", ..." if len(names) > 5 else "")


def _annotated(val: Path, classes: tuple[str, ...]) -> list:
    """Return Tiny-ImageNet's validation images with their labels, from the tab-separated list."""
    listing = val / "val_annotations.txt"
    number = {name: label for label, name in enumerate(classes)}
    rows = []
    for i, line in enumerate(read_bytes(listing).decode("utf-8", "replace").splitlines(), 1):
        cells = line.split("\t")
        good = len(cells) >= 2 and cells[1] in number and re.fullmatch(r"[\w-]+\.\w+", cells[0])
        if not good:
            raise InputError(
                f"Line {i} of {listing} must name an image and one of the {len(classes)} training "
                f"classes, got {line[:80]!r}."
            )
        rows.append((val / "images" / cells[0], number[cells[1]]))
    if not rows:
        raise InputError(f"{listing} names no images.")
    return rows


def _decoded(name, root, train, test, classes, image_size, channels, note="") -> Dataset:
    size = parse_size(image_size)

    def make():
        images = ((str(file), file) for file in files)
        x = decode_images(images, len(files), size, channels)
        return {"train_x": x[: len(train)], "test_x": x[len(train) :]}

    files = [file for file, _ in train + test]
    key = hash_of_listing(files, root, f"{size} {channels} {classes} {len(train)}")
    arrays = cached_arrays(name, root, key, make, ("train_x", "test_x"))
    # Labels aren't cached: those of Tiny-ImageNet may be corrected without a change of its images.
    for split, rows in (("train", train), ("test", test)):
        arrays[f"{split}_y"] = np.array([label for _, label in rows], np.int32)
    return dataset_from_arrays(
        name, **arrays, num_classes=len(classes), class_names=classes, note=note
    )
