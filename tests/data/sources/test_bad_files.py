"""The message for each bad file, as in the table of docs/data_sources.md."""

import gzip
import io
import re
import tarfile
import zipfile
from pathlib import Path

import numpy as np
import pytest

from fedjax_pfl.data.sources.source_registry import load_dataset
from fedjax_pfl.utils.errors import InputError
from tests.data.image_files import black, colour, parquet, pictures, png, raw_png
from tests.data.published_files import idx_bytes

PAGE = Path(__file__).resolve().parents[3] / "docs" / "data_sources.md"


def mnist(folder, **changes):
    """The four files of MNIST in small; `changes` by what a file is of."""
    for split, count in (("train", 6), ("t10k", 2)):
        files = {
            f"{split}-images-idx3-ubyte.gz": idx_bytes(np.zeros((count, 28, 28))),
            f"{split}-labels-idx1-ubyte.gz": idx_bytes(np.arange(count) % 2),
        }
        for name, content in files.items():
            part = name.partition("-idx")[0].replace("-", "_")
            content = gzip.compress(changes.get(part, content))
            if f"{part}_gz" in changes:
                content = changes[f"{part}_gz"](content)
            if content:
                (folder / name).write_bytes(content)
    return "mnist", folder


def cut_cifar(folder):
    with tarfile.open(folder / "archive.tar.gz", "w:gz") as archive:
        info = tarfile.TarInfo("cifar-10-batches-bin/data_batch_1.bin")
        info.size = 3073 * 50
        data = np.random.default_rng(0).integers(0, 10, info.size, np.uint8)
        archive.addfile(info, io.BytesIO(data.tobytes()))
    content = (folder / "archive.tar.gz").read_bytes()
    return file(folder, "cifar10", "cifar-10-binary.tar.gz", content[:5000])


def empty_zip(folder):
    with zipfile.ZipFile(folder / "gzip.zip", "w") as archive:
        archive.writestr("gzip/readme.txt", "")
    return "emnist/digits", folder


def file(folder, dataset, name, content):
    (folder / name).write_bytes(content)
    return dataset, folder


def npz(folder, x):
    np.savez(folder / "mine.npz", x_train=x, y_train=np.arange(2))
    return "npz", folder / "mine.npz"


# What is bad, and a function of a folder that writes it and returns the arguments of load_dataset.
CASES = {
    "an IDX file whose gzip stream is cut off": lambda d: mnist(
        d, train_images_gz=lambda content: content[:40]
    ),
    "an IDX file with a wrong magic number": lambda d: mnist(
        d, train_images=idx_bytes(np.zeros((6, 28, 28)), b"\0\0\x0d")
    ),
    "an IDX file shorter than its header requires": lambda d: mnist(
        d, t10k_images=idx_bytes(np.zeros((2, 28, 28)))[:-5]
    ),
    "a missing file of four": lambda d: mnist(d, t10k_labels_gz=lambda content: b""),
    "another number of labels than samples": lambda d: mnist(
        d, train_labels=idx_bytes(np.arange(5) % 2)
    ),
    "a label beyond the classes": lambda d: mnist(d, train_labels=idx_bytes(np.arange(6) + 5)),
    "an empty folder": lambda d: ("cifar10", d),
    "CIFAR as pickles": lambda d: file(d, "cifar10", "cifar-10-python.tar.gz", b""),
    "a CIFAR archive that is cut off": cut_cifar,
    "EMNIST's archive that is not a ZIP file": lambda d: file(
        d, "emnist/digits", "gzip.zip", b"<html>"
    ),
    "EMNIST's archive without the split": empty_zip,
    "a file among images that is not an image": lambda d: pictures(d, notes_txt=b"to do"),
    "an image whose data is cut off": lambda d: pictures(d, a_png=png(colour((64, 64)))[:600]),
    "a huge image (a decompression bomb)": lambda d: pictures(d, a_png=raw_png(60_000, 60_000)),
    "an image of another size": lambda d: pictures(d, a_png=black((5, 4))),
    "CINIC-10 without a split": lambda d: ("cinic10", pictures(d, ("train", "valid"))[1]),
    "a file that is not Parquet": lambda d: file(
        d, "parquet", "train.parquet", b"PAR1 and no more"
    ),
    "a folder without the training split": lambda d: parquet(d, name="test.parquet"),
    "a row without an image": lambda d: parquet(d, images=[black(), None]),
    "a row that is not an image": lambda d: parquet(d, images=[black(), b"GIF?"]),
    "labels that are words": lambda d: parquet(d, labels=("cat", "dog")),
    "a label that never occurs": lambda d: parquet(d, labels=(0, 2)),
    "AG News with another label": lambda d: file(
        d, "ag_news", "train.csv", b'"1","title","text"\n"5","title","text"\n'
    ),
    "a CSV file with a row too short": lambda d: file(
        d, "ag_news", "train.csv", b"1,title,text\n2,title\n"
    ),
    "a text file in another encoding": lambda d: file(
        d, "ag_news", "train.csv", "1,Zürich,text\n".encode("latin-1")
    ),
    "a table's value that is not a number": lambda d: (
        "table", file(d, "", "t.csv", b"age,label\n1,a\nold,b\n")[1] / "t.csv"
    ),
    "arrays of another type": lambda d: npz(d, np.zeros((2, 3), np.int64)),
    "arrays with NaN": lambda d: npz(d, np.full((2, 3), np.nan)),
    "pickled arrays": lambda d: npz(d, np.array([{}, {}])),
}  # fmt: skip


def message_of(what, folder):
    with pytest.raises(InputError) as caught:
        load_dataset(*CASES[what](folder))
    text = str(caught.value).replace(str(folder), "D").replace(repr(folder.name), "'D'")
    # What follows these words is a library's own message, which differs from version to version.
    text = re.sub("(can't be read as [^:]*: ).*", r"\1...", text)
    return text.replace("|", r"\|").replace("*", r"\*")


@pytest.mark.parametrize("what", CASES)
def test_the_messages_of_the_page(what, tmp_path):
    assert (
        f"| {what} | {message_of(what, tmp_path)} |"
        in PAGE.read_text(encoding="utf-8").splitlines()
    )
