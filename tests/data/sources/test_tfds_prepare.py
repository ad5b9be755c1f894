"""TFDS without TensorFlow: tiny files in the published formats, prepared and read for real.

Only the checksums of the published files are replaced by those of the tiny ones.
"""

import functools
import gzip
import hashlib
import http.server
import sys
import threading
import time

import numpy as np
import pytest
import tensorflow_datasets as tfds
from tensorflow_datasets.core.download import checksums, downloader

from fedjax_pfl.data.sources import cifar, tfds_builders
from fedjax_pfl.data.sources.source_registry import load_dataset
from fedjax_pfl.data.sources.tfds_prepare import prepare_tfds
from fedjax_pfl.utils.errors import InputError
from tests.data.published_files import (
    ARRAY_RECORD,
    NAMES,
    cifar_files,
    emnist_arrays,
    idx_bytes,
    load_error,
    write_emnist_zip,
    write_tar,
)


def publish(name, folder):
    """Writes tiny published files; returns images and labels in the files' order, per split."""
    folder.mkdir(parents=True, exist_ok=True)
    family, _, config = name.partition("/")
    if family.startswith("cifar"):
        files, x, y = cifar_files(family, count=3)
        layout = cifar.LAYOUTS[family]
        write_tar(folder / layout.archive, files, layout.folder)
        return {"train": (x[:-3], y[:-3]), "test": (x[-3:], y[-3:])}
    arrays = emnist_arrays((1, 2, 7))
    if family == "emnist":
        write_emnist_zip(folder / "gzip.zip", config, arrays)
        arrays = [arrays[0].swapaxes(1, 2), arrays[1], arrays[2].swapaxes(1, 2), arrays[3]]
        arrays[1::2] = [labels - (config == "letters") for labels in arrays[1::2]]
    else:
        for file, array in zip(NAMES, arrays, strict=True):
            (folder / f"{file}.gz").write_bytes(gzip.compress(idx_bytes(array)))
    x = [array[..., None].astype(np.uint8) for array in arrays[::2]]
    return {"train": (x[0], arrays[1]), "test": (x[1], arrays[3])}


@pytest.fixture
def known(monkeypatch):
    """Makes TFDS take the files of a folder for the published ones of a data set."""

    def know(name, folder):
        infos = {}
        builder = tfds_builders.BUILDERS[name.partition("/")[0]]
        urls = builder.urls(builder.__new__(builder))
        for url in urls:
            data = (folder / url.rpartition("/")[2]).read_bytes()
            digest = hashlib.sha256(data).hexdigest()
            infos[url] = checksums.UrlInfo(len(data), digest, url.rpartition("/")[2])
        monkeypatch.setattr(checksums, "get_all_url_infos", lambda: infos)

    return know


def assert_same_samples(data, splits):
    """Whether a data set holds these samples, in whatever order."""
    for split, x, y in (
        ("train", data.train_x, data.train_y),
        ("test", data.test_x, data.test_y),
    ):
        expected = sorted(
            (image.tobytes(), int(label)) for image, label in zip(*splits[split], strict=True)
        )
        assert (
            sorted((image.tobytes(), int(label)) for image, label in zip(x, y, strict=True))
            == expected
        )


@pytest.mark.parametrize(
    "name", ["mnist", "fashion_mnist", "cifar10", "cifar100", "emnist/balanced", "emnist/letters"]
)
def test_prepare_and_read(tmp_path, name, known, capfd):
    splits = publish(name, tmp_path / "files")
    known(name, tmp_path / "files")
    folder = prepare_tfds(name, tmp_path / "files", tmp_path / "tfds")
    assert folder.parent == tmp_path / "tfds" / name
    assert prepare_tfds(name, tmp_path / "none", tmp_path / "tfds") == folder  # stays as it is
    # Plain TFDS reads it.
    options = {"data_dir": tmp_path / "tfds", "builder_kwargs": ARRAY_RECORD}
    assert len(tfds.data_source(name, split="train", **options)) == len(splits["train"][1])
    data = load_dataset(f"tfds:{name}", tmp_path / "tfds")
    assert_same_samples(data, splits)
    assert data.name == name and data.train_x.dtype == np.uint8
    # The plain name finds it as well, with the same order and classes.
    assert load_dataset(name, tmp_path / "tfds").fingerprint() == data.fingerprint()
    if name.startswith("cifar"):
        np.testing.assert_array_equal(data.train_x, splits["train"][0])
        raw = load_dataset(name, tmp_path / "files")
        assert (raw.fingerprint(), raw.class_names) == (data.fingerprint(), data.class_names)
    else:
        assert data.note == "in the order of TFDS"
    assert not (tmp_path / "tfds" / "downloads").exists()
    assert "tensorflow" not in sys.modules
    assert capfd.readouterr() == ("", "")


def test_raw_files_come_before_prepared_ones(tmp_path, known):
    publish("mnist", tmp_path / "mnist")
    known("mnist", tmp_path / "mnist")
    prepared = load_dataset("tfds:mnist", tmp_path)  # prepares from the files in data_dir
    raw = load_dataset("mnist", tmp_path)
    assert (raw.note, prepared.note) == ("", "in the order of TFDS")
    for file in NAMES:
        (tmp_path / "mnist" / f"{file}.gz").unlink()
    assert load_dataset("mnist", tmp_path).note == "in the order of TFDS"


def test_other_files_than_published_are_refused(tmp_path):
    publish("fashion_mnist", tmp_path / "fashion_mnist")
    with pytest.raises(InputError, match=r"a file isn't the published one \(its size or SHA-256"):
        prepare_tfds("fashion_mnist", tmp_path, tmp_path / "tfds")
    assert not (tmp_path / "tfds/fashion_mnist/3.0.1").exists()


@pytest.fixture
def server(tmp_path, monkeypatch):
    """A web server with tiny MNIST files, and the addresses of its requests."""
    asked = []

    class Handler(http.server.SimpleHTTPRequestHandler):
        def log_message(self, *_):
            asked.append(f"{self.command} {self.path}")

    handler = functools.partial(Handler, directory=tmp_path / "web")
    running = http.server.ThreadingHTTPServer(("127.0.0.1", 0), handler)
    threading.Thread(target=running.serve_forever, daemon=True).start()
    monkeypatch.setenv("NO_PROXY", "127.0.0.1")
    url = f"http://127.0.0.1:{running.server_port}/"
    monkeypatch.setattr(tfds_builders.Mnist, "URL", url)
    yield asked
    running.shutdown()
    running.server_close()


def test_download(tmp_path, server, known):
    splits = publish("mnist", tmp_path / "web")
    known("mnist", tmp_path / "web")
    retries = downloader.MAX_RETRIES
    assert_same_samples(load_dataset("tfds:mnist", tmp_path / "tfds"), splits)
    assert sum(line.startswith("GET") for line in server) == 4
    assert retries == downloader.MAX_RETRIES
    # A second folder of prepared data takes the files from the download cache of the first.
    (tmp_path / "other").mkdir()
    (tmp_path / "tfds/downloads").rename(tmp_path / "other/downloads")
    server.clear()
    assert_same_samples(load_dataset("tfds:mnist", tmp_path / "other"), splits)
    assert server == []


@pytest.mark.parametrize("name", ["mnist", "cifar10", "emnist/byclass"])
def test_no_network(tmp_path, name, monkeypatch):
    monkeypatch.setenv("NO_PROXY", "127.0.0.1")
    builder = tfds_builders.BUILDERS[name.partition("/")[0]]
    real = builder.urls(builder.__new__(builder))
    urls = [f"http://127.0.0.1:9/{url.rpartition('/')[2]}" for url in real]
    monkeypatch.setattr(builder, "urls", lambda self: urls)
    start = time.perf_counter()
    sentence = load_error(f"tfds:{name}", tmp_path)
    assert time.perf_counter() - start < 2
    family = name.partition("/")[0]
    for part in (
        f"{name!r} isn't prepared in {tmp_path}, and 127.0.0.1:9 can't be reached (Connection",
        f"put {', '.join(url.rpartition('/')[2] for url in urls)} into {tmp_path / family} (from",
        "set data_dir to a folder where it is prepared, or take 'digits'",
    ):
        assert part in sentence
    assert not (tmp_path / "downloads").exists()


def test_the_version_asked_for_and_no_other(tmp_path, known):
    publish("mnist", tmp_path / "mnist")
    known("mnist", tmp_path / "mnist")
    asked = "version 9.9.9, and only version 3.0.1 can be prepared with the TFDS installed"
    for _ in range(2):  # before there is anything, and beside the version that there is
        assert asked in load_error("tfds:mnist:9.9.9", tmp_path)
        assert load_dataset("tfds:mnist:3.0.1", tmp_path).name == "mnist:3.0.1"
