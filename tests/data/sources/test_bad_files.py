"""The sentence for each bad file; the table of docs/data_sources.md has the same sentences."""

import gzip
import io
import re
import struct
import tarfile
import zipfile
import zlib
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from PIL import Image

from fedjax_pfl.data.sources.source_registry import load_dataset
from fedjax_pfl.utils.errors import InputError

PAGE = Path(__file__).resolve().parents[3] / "docs" / "data_sources.md"
CASES = {}


def case(what):
    """Registers `spoil(folder) -> arguments of load_dataset`."""

    def register(spoil):
        CASES[what] = spoil
        return spoil

    return register


def idx(array, magic=b"\0\0\x08"):
    shape = struct.pack(f">{array.ndim}I", *array.shape)
    return magic + bytes([array.ndim]) + shape + array.astype(np.uint8).tobytes()


def mnist(folder, **changes):
    """The four files of MNIST in small; `changes` by what a file is of."""
    for split, count in (("train", 6), ("t10k", 2)):
        files = {
            f"{split}-images-idx3-ubyte.gz": idx(np.zeros((count, 28, 28))),
            f"{split}-labels-idx1-ubyte.gz": idx(np.arange(count) % 2),
        }
        for name, content in files.items():
            part = name.partition("-idx")[0].replace("-", "_")
            content = gzip.compress(changes.get(part, content))
            if f"{part}_gz" in changes:
                content = changes[f"{part}_gz"](content)
            if content:
                (folder / name).write_bytes(content)
    return "mnist", folder


@case("an IDX file whose gzip stream is cut off")
def _(folder):
    return mnist(folder, train_images_gz=lambda content: content[:40])


@case("an IDX file of another magic number")
def _(folder):
    return mnist(folder, train_images=idx(np.zeros((6, 28, 28)), b"\0\0\x0d"))


@case("an IDX file shorter than its header says")
def _(folder):
    return mnist(folder, t10k_images=idx(np.zeros((2, 28, 28)))[:-5])


@case("a missing file of four")
def _(folder):
    return mnist(folder, t10k_labels_gz=lambda content: b"")


@case("labels of other samples")
def _(folder):
    return mnist(folder, train_labels=idx(np.arange(5) % 2))


@case("a label beyond the classes")
def _(folder):
    return mnist(folder, train_labels=idx(np.arange(6) + 5))


@case("nothing there")
def _(folder):
    return "cifar10", folder


@case("CIFAR as pickles")
def _(folder):
    (folder / "cifar-10-python.tar.gz").write_bytes(b"")
    return "cifar10", folder


@case("a CIFAR archive that is cut off")
def _(folder):
    with tarfile.open(folder / "whole.tar.gz", "w:gz") as archive:
        info = tarfile.TarInfo("cifar-10-batches-bin/data_batch_1.bin")
        info.size = 3073 * 50
        data = np.random.default_rng(0).integers(0, 10, info.size, np.uint8)
        archive.addfile(info, io.BytesIO(data.tobytes()))
    whole = folder / "whole.tar.gz"
    (folder / "cifar-10-binary.tar.gz").write_bytes(whole.read_bytes()[:5000])
    whole.unlink()
    return "cifar10", folder


@case("EMNIST's archive that is no ZIP file")
def _(folder):
    (folder / "gzip.zip").write_bytes(b"<html>")
    return "emnist/digits", folder


@case("EMNIST's archive without the split")
def _(folder):
    with zipfile.ZipFile(folder / "gzip.zip", "w") as archive:
        archive.writestr("gzip/readme.txt", "")
    return "emnist/digits", folder


def png(size=(4, 4), mode="RGB"):
    buffer = io.BytesIO()
    Image.new(mode, size).save(buffer, "PNG")
    return buffer.getvalue()


def pictures(folder, splits=("train", "test"), **contents):
    for split in splits:
        for name in ("cat", "dog"):
            (folder / split / name).mkdir(parents=True)
            (folder / split / name / "0.png").write_bytes(png())
    for place, content in contents.items():
        (folder / "train" / "cat" / place.replace("_", ".")).write_bytes(content)
    return "folder", folder


@case("a file among images that is none")
def _(folder):
    return pictures(folder, notes_txt=b"to do")


@case("an image whose data is cut off")
def _(folder):
    noise = np.random.default_rng(0).integers(0, 256, (64, 64, 3), np.uint8)
    buffer = io.BytesIO()
    Image.fromarray(noise).save(buffer, "PNG")
    return pictures(folder, a_png=buffer.getvalue()[:600])


@case("a huge image (a decompression bomb)")
def _(folder):
    def chunk(name, data):
        return (
            struct.pack(">I", len(data)) + name + data + struct.pack(">I", zlib.crc32(name + data))
        )

    head = chunk(b"IHDR", struct.pack(">IIBBBBB", 60_000, 60_000, 8, 2, 0, 0, 0))
    data = chunk(b"IDAT", zlib.compress(b"\0" * 1000))
    return pictures(folder, a_png=b"\x89PNG\r\n\x1a\n" + head + data + chunk(b"IEND", b""))


@case("an image of another size")
def _(folder):
    return pictures(folder, a_png=png((5, 4)))


@case("CINIC-10 without a split")
def _(folder):
    pictures(folder, ("train", "valid"))
    return "cinic10", folder


def parquet(folder, rows=2, name="train.parquet", labels=(0, 1), images=None):
    images = [png()] * rows if images is None else images
    column = pa.array([{"bytes": image, "path": None} for image in images])
    pq.write_table(pa.table({"image": column, "label": pa.array(labels)}), folder / name)
    return "parquet", folder


@case("a Parquet file that is none")
def _(folder):
    (folder / "train.parquet").write_bytes(b"PAR1 and no more")
    return "parquet", folder


@case("a folder without the training split")
def _(folder):
    return parquet(folder, name="test.parquet")


@case("a row without an image")
def _(folder):
    return parquet(folder, images=[png(), None])


@case("a row that is no image")
def _(folder):
    return parquet(folder, images=[png(), b"GIF?"])


@case("labels that are words")
def _(folder):
    return parquet(folder, labels=("cat", "dog"))


@case("a label that never occurs")
def _(folder):
    return parquet(folder, labels=(0, 2))


@case("AG News with another label")
def _(folder):
    (folder / "train.csv").write_text('"1","title","text"\n"5","title","text"\n')
    return "ag_news", folder


@case("a CSV file with a row too short")
def _(folder):
    (folder / "train.csv").write_text("1,title,text\n2,title\n")
    return "ag_news", folder


@case("a text file in another encoding")
def _(folder):
    (folder / "train.csv").write_bytes("1,Zürich,text\n".encode("latin-1"))
    return "ag_news", folder


@case("arrays of another type")
def _(folder):
    np.savez(folder / "mine.npz", x_train=np.zeros((2, 3), np.int64), y_train=np.arange(2))
    return "npz", folder / "mine.npz"


@case("arrays with NaN")
def _(folder):
    np.savez(folder / "mine.npz", x_train=np.full((2, 3), np.nan), y_train=np.arange(2))
    return "npz", folder / "mine.npz"


@case("pickled arrays")
def _(folder):
    np.savez(folder / "mine.npz", x_train=np.array([{}, {}]), y_train=np.arange(2))
    return "npz", folder / "mine.npz"


def told(what, folder):
    with pytest.raises(InputError) as caught:
        load_dataset(*CASES[what](folder))
    text = str(caught.value).replace(str(folder), "D").replace(repr(folder.name), "'D'")
    # What follows these words is a library's own message, which differs from version to version.
    text = re.sub("(can't be read as [^:]*: ).*", r"\1...", text)
    return text.replace("|", r"\|").replace("*", r"\*")


@pytest.mark.parametrize("what", CASES)
def test_the_sentences_of_the_page(what, tmp_path):
    assert f"| {what} | {told(what, tmp_path)} |" in PAGE.read_text(encoding="utf-8").splitlines()
