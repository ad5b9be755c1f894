"""Preparation of MNIST, Fashion-MNIST, EMNIST and CIFAR for TFDS without TensorFlow."""

import contextlib
import io
import json
import os
import threading
from collections.abc import Iterator
from pathlib import Path

from fedjax_pfl.data.files import as_path
from fedjax_pfl.data.sources.idx import EMNIST_CLASSES
from fedjax_pfl.utils.errors import InputError, require_name

PREPARABLE = (
    "mnist",
    "fashion_mnist",
    "cifar10",
    "cifar100",
    *(f"emnist/{config}" for config in EMNIST_CLASSES),
)
# Seconds to wait for a network that silently drops packets before it counts as missing.
_PATIENCE_S = 5.0


def tfds_folder(data_dir: Path | None) -> Path:
    """Return `data_dir`, or TFDS's default folder for None."""
    if data_dir is not None:
        return data_dir
    return as_path("TFDS_DATA_DIR", os.environ.get("TFDS_DATA_DIR") or "~/tensorflow_datasets")


def prepare_tfds(
    name: str,
    source_dir: str | Path | None = None,
    data_dir: str | Path | None = None,
    version: str | None = None,
) -> Path:
    """Prepares a data set for TFDS without TensorFlow; `tfds.data_source` then reads it.

    The published files are taken from `source_dir` if it is given, otherwise from the first of
    these that has all of them: `data_dir`, its download cache, the network. Their sizes and SHA-256
    are checked. Data sets that are already prepared stay unchanged.

    Args:
      name: one of `PREPARABLE`.
      source_dir: folder with the published files under their own names, perhaps in a folder of the
        data set's name; then nothing is downloaded. None: the same places in `data_dir`, then the
        download cache, then the network.
      data_dir: TFDS's folder; None means $TFDS_DATA_DIR or ~/tensorflow_datasets.
      version: such as "3.0.1"; None means the one that the installed TFDS has.

    Returns:
      The folder of the prepared version.

    Raises:
      InputError: unknown name, a version that the installed TFDS doesn't have, missing or modified
        files, or no network.
    """
    require_name("TFDS data set that can be prepared here", name, PREPARABLE)
    place = tfds_folder(as_path("data_dir", data_dir) if data_dir else None)
    source = as_path("source_dir", source_dir) if source_dir else None
    family, _, config = name.partition("/")

    from fedjax_pfl.data.sources.tfds_builders import BUILDERS  # slow import: only where it is used

    options = {"config": config} if config else {}
    with quiet_tfds():
        builder = BUILDERS[family](data_dir=place, file_format="array_record", **options)
        if version not in (None, str(builder.version)):
            raise InputError(
                f"TFDS data set {name!r} isn't prepared in {place} in version {version}, and "
                f"only version {builder.version} can be prepared with the TFDS installed: write "
                f"tfds:{name}:{builder.version} or tfds:{name}."
            )
        if builder.is_prepared():
            return Path(builder.data_dir)
    urls = builder.urls()
    files = [url.rpartition("/")[2] for url in urls]
    manual = _folder_with(files, [source] if source else [place], family)
    downloads = place / "downloads"
    if manual is None:
        missing = f"Data set {name!r} needs the published {', '.join(files)}"
        if source is not None:
            raise InputError(
                f"{missing} in {source} or {source / family} to be prepared; not all are there."
            )
        if not _cached(urls, downloads) and (reason := _unreachable(urls[0])):
            host = urls[0].split("/")[2]
            raise InputError(
                f"TFDS data set {name!r} isn't prepared in {place}, and {host} can't be "
                f"reached ({reason}). Without a network: put {', '.join(files)} into "
                f"{place / family} (from {urls[0].rpartition('/')[0]}/), set data_dir to a folder "
                "where it is prepared, or take 'digits', which needs no file."
            )
    _run(builder, name, manual, downloads)
    return Path(builder.data_dir)


def _folder_with(files: list[str], roots: list[Path], family: str) -> Path | None:
    for root in roots:
        for folder in (root / family, root, root / "downloads" / "manual"):
            if all((folder / file).is_file() for file in files):
                return folder
    return None


def _cached(urls: list[str], downloads: Path) -> bool:
    """Return whether TFDS downloaded all of these before, leaving an .INFO file beside each."""
    known = set()
    for path in downloads.rglob("*.INFO") if downloads.is_dir() else ():
        with contextlib.suppress(OSError, ValueError, AttributeError, TypeError, RecursionError):
            known.update(json.loads(path.read_text()).get("urls", ()))
    return set(urls) <= known


def _unreachable(url: str) -> str | None:
    """Return why the host of a URL can't be reached, or None; takes at most a few seconds."""
    import requests  # comes with TFDS, which downloads with it

    answer: list[str | None] = ["no answer"]

    def ask():
        try:
            requests.head(url, timeout=_PATIENCE_S)
            answer[0] = None
        except requests.exceptions.RequestException as error:
            answer[0] = type(error).__name__

    # In a thread, as the look-up of a host's name has no time limit.
    thread = threading.Thread(target=ask, daemon=True)
    thread.start()
    thread.join(_PATIENCE_S)
    return answer[0]


def _run(builder, name: str, manual_dir: Path | None, downloads: Path) -> None:
    import requests
    import tensorflow_datasets as tfds
    from tensorflow_datasets.core.download import download_manager, downloader, util

    config = tfds.download.DownloadConfig(manual_dir=manual_dir, try_download_gcs=False)
    # TFDS tries ten times with growing pauses, for minutes, before it fails.
    retries, downloader.MAX_RETRIES = downloader.MAX_RETRIES, 0
    try:
        with quiet_tfds():
            builder.download_and_prepare(download_dir=downloads, download_config=config)
    except download_manager.NonMatchingChecksumError as error:
        raise InputError(
            f"Data set {name!r} can't be prepared: a file isn't the published one (its size or "
            f"SHA-256 differs). {' '.join(str(error).split())}"
        ) from error
    except (requests.exceptions.RequestException, util.DownloadError, OSError) as error:
        raise InputError(f"Data set {name!r} can't be prepared: {error}") from error
    finally:
        downloader.MAX_RETRIES = retries
        for folder in (downloads / "extracted", downloads):
            with contextlib.suppress(OSError):  # created by TFDS; not removed if they contain files
                folder.rmdir()


@contextlib.contextmanager
def quiet_tfds() -> Iterator[None]:
    """Suppress TFDS's output, progress bars and warnings."""
    from absl import logging
    from tensorflow_datasets.core.utils import tqdm_utils

    bars, tqdm_utils._active = tqdm_utils._active, False
    verbosity = logging.get_verbosity()
    logging.set_verbosity(logging.ERROR)
    try:
        with contextlib.redirect_stdout(io.StringIO()):
            yield
    finally:
        tqdm_utils._active = bars
        logging.set_verbosity(verbosity)
