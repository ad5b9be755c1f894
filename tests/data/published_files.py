"""Tiny files of MNIST, EMNIST and CIFAR in the published formats."""

import gzip
import io
import struct
import tarfile
import zipfile

import numpy as np
import pytest

from fedjax_pfl.data.sources import cifar
from fedjax_pfl.data.sources.source_registry import load_dataset
from fedjax_pfl.utils.errors import InputError

NAMES = (
    "train-images-idx3-ubyte",
    "train-labels-idx1-ubyte",
    "t10k-images-idx3-ubyte",
    "t10k-labels-idx1-ubyte",
)


def idx_bytes(array, magic=b"\0\0\x08"):
    """An array as an IDX file: two zero bytes, type, axes, big-endian lengths, values."""
    lengths = struct.pack(f">{array.ndim}I", *array.shape)
    return magic + bytes([array.ndim]) + lengths + array.astype(np.uint8).tobytes()


def emnist_arrays(labels=(1, 5, 10), train=6, test=3):
    rng = np.random.default_rng(3)
    pairs = []
    for count in (train, test):
        pairs += [rng.integers(0, 256, (count, 28, 28)), np.resize(labels, count)]
    return pairs


def emnist_files(config, arrays):
    names = [f"{part}-{kind}" for part in ("train", "test") for kind in ("images", "labels")]
    return {
        f"emnist-{config}-{name}-idx{array.ndim}-ubyte.gz": gzip.compress(idx_bytes(array))
        for name, array in zip(names, arrays, strict=True)
    }


def write_emnist_zip(path, config, arrays):
    with zipfile.ZipFile(path, "w") as archive:
        for name, data in emnist_files(config, arrays).items():
            archive.writestr(f"gzip/{name}", data)


def cifar_files(name, count=2):
    """Files of the binary version, and the images and labels that they hold."""
    layout = cifar.LAYOUTS[name]
    rng = np.random.default_rng(7)
    files, images, labels = {}, [], []
    for file in (*layout.train, *layout.test):
        x = rng.integers(0, 256, (count, 32, 32, 3)).astype(np.uint8)
        y = rng.integers(0, layout.num_classes, count).astype(np.uint8)
        coarse = [y // 5] if name == "cifar100" else []
        rows = [*np.stack([*coarse, y], 1)], x.transpose(0, 3, 1, 2).reshape(count, -1)
        files[file] = b"".join(a.tobytes() + b.tobytes() for a, b in zip(*rows, strict=True))
        images.append(x)
        labels.append(y)
    for file, size in zip(
        layout.names, (20, 100) if len(layout.names) == 2 else (10,), strict=True
    ):
        files[file] = "".join(f"{file[0]}{i}\n" for i in range(size)).encode() + b"\n"
    return files, np.concatenate(images), np.concatenate(labels)


def write_tar(path, files, folder, mode="w:gz"):
    with tarfile.open(path, mode) as archive:
        for name, data in files.items():
            info = tarfile.TarInfo(f"{folder}/{name}" if folder else name)
            info.size = len(data)
            archive.addfile(info, io.BytesIO(data))


ARRAY_RECORD = {"file_format": "array_record"}


def load_error(name, data_dir):
    with pytest.raises(InputError) as caught:
        load_dataset(name, data_dir)
    return str(caught.value)
