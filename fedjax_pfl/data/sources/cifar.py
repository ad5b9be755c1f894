"""Binary version of CIFAR-10 and CIFAR-100, from a folder or a .tar.gz archive."""

import io
import tarfile
from pathlib import Path, PurePosixPath
from typing import NamedTuple

import numpy as np

from fedjax_pfl.data.dataset import Dataset, dataset_from_arrays
from fedjax_pfl.data.files import gunzip, read_bytes, reading
from fedjax_pfl.utils.errors import InputError


class _Layout(NamedTuple):
    folder: str
    archive: str
    pickled: tuple[str, str]
    train: tuple[str, ...]
    test: tuple[str, ...]
    names: tuple[str, ...]
    num_classes: int


# Each record is one byte per list of names (the last one is the label used) and 3 x 32 x 32 pixels.
LAYOUTS = {
    "cifar10": _Layout(
        "cifar-10-batches-bin",
        "cifar-10-binary.tar.gz",
        ("cifar-10-python.tar.gz", "cifar-10-batches-py"),
        tuple(f"data_batch_{i}.bin" for i in range(1, 6)),
        ("test_batch.bin",),
        ("batches.meta.txt",),
        10,
    ),
    "cifar100": _Layout(
        "cifar-100-binary",
        "cifar-100-binary.tar.gz",
        ("cifar-100-python.tar.gz", "cifar-100-python"),
        ("train.bin",),
        ("test.bin",),
        ("coarse_label_names.txt", "fine_label_names.txt"),
        100,
    ),
}


def read_cifar(name: str, place: Path) -> Dataset | None:
    """Return the data set in an archive, or in a folder with the files, their folder or archive.

    None if there is none of these.
    """
    layout = LAYOUTS[name]
    if place.is_file():
        return read_cifar_archive(name, place)
    for folder in (place / layout.folder, place):
        if any((folder / file).is_file() for file in (*layout.train, *layout.test)):
            files = (*layout.train, *layout.test, *layout.names)
            there = [file for file in files if (folder / file).is_file()]
            return _decoded(name, folder, {file: read_bytes(folder / file) for file in there})
    archive = place / layout.archive
    return read_cifar_archive(name, archive) if archive.is_file() else None


def read_cifar_archive(name: str, path: Path) -> Dataset:
    """Read the .tar.gz of the binary version; nothing is written to disk."""
    layout, content, kind = LAYOUTS[name], {}, "a .tar.gz archive"
    # Unpacked first: then no member's header makes tarfile read more than there is.
    unpacked = gunzip(read_bytes(path), str(path), kind)
    with reading(path, kind), tarfile.open(fileobj=io.BytesIO(unpacked), mode="r:") as archive:
        for member in archive:
            inner = PurePosixPath(member.name)
            plain = member.isreg() and not member.issparse()
            if plain and inner.parent == PurePosixPath(layout.folder):
                file = archive.extractfile(member)
                content[inner.name] = file.read() if file else b""
    if not content:
        raise InputError(f"{path} holds no {layout.folder}/: take {layout.archive}.")
    return _decoded(name, path, content)


def _decoded(name: str, where: Path, content: dict[str, bytes]) -> Dataset:
    layout = LAYOUTS[name]
    missing = [file for file in (*layout.train, *layout.test) if file not in content]
    if missing:
        raise InputError(f"Data set {name!r} in {where} lacks {', '.join(missing)}.")
    columns = len(layout.names)
    arrays = [
        array
        for files in (layout.train, layout.test)
        for array in _records({file: content[file] for file in files}, where, columns)
    ]
    names = tuple(content.get(layout.names[-1], b"").decode("utf-8", "replace").split())
    return dataset_from_arrays(
        name,
        *arrays,
        num_classes=layout.num_classes,
        class_names=names if len(names) == layout.num_classes else (),
    )


def _records(files: dict[str, bytes], where: Path, columns: int) -> tuple[np.ndarray, np.ndarray]:
    """Return images [n, 32, 32, 3] and the last of the columns of labels [n]."""
    size = columns + 3 * 32 * 32
    for file, data in files.items():
        if not data or len(data) % size:
            raise InputError(
                f"{file} in {where} must hold records of {size} bytes, got {len(data)} bytes: it "
                "is truncated or not of the binary version."
            )
    rows = np.frombuffer(b"".join(files.values()), np.uint8).reshape(-1, size)
    images = rows[:, columns:].reshape(-1, 3, 32, 32).transpose(0, 2, 3, 1)
    return np.ascontiguousarray(images), rows[:, columns - 1].copy()
