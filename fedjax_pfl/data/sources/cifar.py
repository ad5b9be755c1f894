"""CIFAR-10 and CIFAR-100 from the binary version, a folder or a .tar.gz; nothing is unpickled."""

import io
import tarfile
from pathlib import Path, PurePosixPath
from typing import NamedTuple

import numpy as np

from fedjax_pfl.data.dataset import Dataset, dataset_from_arrays
from fedjax_pfl.data.files import gunzip, read_bytes
from fedjax_pfl.data.places import folders, not_found
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


class CifarParts(NamedTuple):
    """What the files hold: images [n, 32, 32, 3], label columns [n, 1 or 2], lists of names."""

    train_x: np.ndarray
    train_labels: np.ndarray
    test_x: np.ndarray
    test_labels: np.ndarray
    names: tuple[tuple[str, ...], ...]


def cifar_dataset(name: str, data_dir: Path | None) -> Dataset | None:
    """CIFAR with its (fine) labels from the first place that holds the binary version, or None."""
    layout = LAYOUTS[name]
    if data_dir is not None and data_dir.is_file():
        return _dataset(name, read_cifar_archive(name, data_dir))
    for place in folders(name, data_dir):
        for folder in (place / layout.folder, place):
            if any((folder / file).is_file() for file in (*layout.train, *layout.test)):
                return _dataset(name, _read_folder(name, folder))
        if (place / layout.archive).is_file():
            return _dataset(name, read_cifar_archive(name, place / layout.archive))
    return None


def cifar_not_found(name: str, looked: list[Path]) -> InputError:
    """The sentence for `name` where `cifar_dataset` found nothing."""
    layout = LAYOUTS[name]
    for place in looked:
        for file in layout.pickled:
            if (place / file).exists():
                return InputError(
                    f"{place / file} is the Python version of {name}, which holds pickles: they "
                    f"can run any code and are never opened. Take the binary version, "
                    f"{layout.archive}."
                )
    ways = [
        f"set data_dir to a folder with {layout.archive} or {layout.folder}/",
        f"let TFDS download it (name it tfds:{name})",
    ]
    return not_found(name, looked, ways)


def _dataset(name: str, parts: CifarParts) -> Dataset:
    return dataset_from_arrays(
        name,
        parts.train_x,
        parts.train_labels[:, -1],
        parts.test_x,
        parts.test_labels[:, -1],
        num_classes=LAYOUTS[name].num_classes,
        class_names=parts.names[-1],
    )


def _read_folder(name: str, folder: Path) -> CifarParts:
    layout = LAYOUTS[name]
    wanted = (*layout.train, *layout.test, *layout.names)
    content = {file: read_bytes(folder / file) for file in wanted if (folder / file).is_file()}
    return _parts(name, str(folder), content)


def read_cifar_archive(name: str, path: Path) -> CifarParts:
    """Reads the .tar.gz of the binary version; nothing is written to disk.

    Raises:
      InputError: truncated, not such an archive, or one that names files outside its folder.
    """
    layout = LAYOUTS[name]
    wanted = {f"{layout.folder}/{file}" for file in (*layout.train, *layout.test, *layout.names)}
    content = {}
    # Unpacked as a whole: no member's header makes tarfile read more than there is.
    unpacked = gunzip(read_bytes(path), str(path), "a .tar.gz archive")
    try:
        with tarfile.open(fileobj=io.BytesIO(unpacked), mode="r:") as archive:
            for member in archive:
                inner = PurePosixPath(member.name)
                if inner.is_absolute() or ".." in inner.parts:
                    raise InputError(
                        f"{path} names a file outside its own folder, {member.name!r}: it isn't "
                        f"the published {layout.archive} and is not opened."
                    )
                if inner.as_posix() not in wanted:
                    continue
                if not member.isreg() or member.issparse() or inner.name in content:
                    raise InputError(f"{member.name} in {path} isn't a plain file or comes twice.")
                file = archive.extractfile(member)
                assert file is not None  # as it is a plain file
                content[inner.name] = file.read()
    except InputError:
        raise
    except Exception as error:  # a damaged header leads tarfile to anything
        raise InputError(f"{path} is truncated or isn't a .tar.gz archive: {error}") from error
    if not content:
        raise InputError(f"{path} holds no {layout.folder}/: take {layout.archive}.")
    return _parts(name, str(path), content)


def _parts(name: str, where: str, content: dict[str, bytes]) -> CifarParts:
    layout = LAYOUTS[name]
    missing = [file for file in (*layout.train, *layout.test) if file not in content]
    if missing:
        raise InputError(f"Data set {name!r} in {where} lacks {', '.join(missing)}.")
    columns = len(layout.names)
    train = _records([(file, content[file]) for file in layout.train], where, columns)
    test = _records([(file, content[file]) for file in layout.test], where, columns)
    names = tuple(_names(content.get(file, b"")) for file in layout.names)
    if len(names[-1]) != layout.num_classes:
        names = ((),) * columns
    return CifarParts(*train, *test, names)


def _records(files: list[tuple[str, bytes]], where: str, columns: int):
    size = columns + 3 * 32 * 32
    for file, data in files:
        if not data or len(data) % size:
            raise InputError(
                f"{file} in {where} must hold records of {size} bytes, got {len(data)} bytes: it "
                "is truncated or not of the binary version."
            )
    rows = np.concatenate([np.frombuffer(data, np.uint8).reshape(-1, size) for _, data in files])
    images = rows[:, columns:].reshape(-1, 3, 32, 32).transpose(0, 2, 3, 1)
    return np.ascontiguousarray(images), rows[:, :columns].copy()


def _names(data: bytes) -> tuple[str, ...]:
    return tuple(line for line in data.decode("utf-8", "replace").split() if line)
