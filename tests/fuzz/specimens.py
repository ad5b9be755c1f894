"""Small data files, whole, that are to be damaged, and what reads them."""

import io
import random
import struct
import tarfile
import zipfile
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from hypothesis import strategies as st
from PIL import Image

from fedjax_pfl.data.sources.source_registry import load_dataset
from tests.fuzz import mutations
from tests.fuzz.commands import scene

SEEDS = st.integers(0, 2**48)
RNG = np.random.default_rng(0)


@dataclass(frozen=True)
class Specimen:
    """Files that are read well together, one of which is to be damaged.

    Attributes:
      files: content by path below a folder.
      attacked: the one.
      read: reads it from that folder.
      change: `change(rng, content, other)`, the damaged content; whatever `wrap` then packs.
      wrap: packs damaged content, so that it lies deeper than the packing.
    """

    files: dict[str, bytes]
    attacked: str
    read: Callable[[Path], object]
    change: Callable = mutations.damaged
    wrap: Callable[[bytes], bytes] = bytes


def specimens_target(make: Callable[[], dict[str, Specimen]]):
    """(strategy, attack) over specimens: an input is (specimen's name, content)."""
    scene()
    specimens = make()
    root = Path("specimens")
    for name, one in specimens.items():
        for path, content in one.files.items():
            place = root / name / path
            place.parent.mkdir(parents=True, exist_ok=True)
            place.write_bytes(content)
    contents = [one.files[one.attacked] for one in specimens.values()]

    def made(drawn):
        name, seed = drawn
        one, rng = specimens[name], random.Random(seed)
        return name, one.wrap(one.change(rng, one.files[one.attacked], rng.choice(contents)))

    def attack(given):
        name, content = given
        one, folder = specimens[name], root / name
        (folder / one.attacked).write_bytes(content)
        try:
            one.read(folder)
        finally:
            (folder / one.attacked).write_bytes(one.files[one.attacked])

    return st.tuples(st.sampled_from(sorted(specimens)), SEEDS).map(made), attack


def loading(name: str, at: str = "", **options) -> Callable[[Path], object]:
    return lambda folder: load_dataset(name, folder / at, **options)


def idx(array: np.ndarray) -> bytes:
    shape = struct.pack(f">{array.ndim}I", *array.shape)
    return b"\0\0\x08" + bytes([array.ndim]) + shape + array.astype(np.uint8).tobytes()


def npz(pack=np.savez, **arrays) -> bytes:
    buffer = io.BytesIO()
    pack(buffer, **arrays)
    return buffer.getvalue()


def zipped(members: dict[str, bytes], how: int = zipfile.ZIP_DEFLATED) -> bytes:
    buffer = io.BytesIO()
    with zipfile.ZipFile(buffer, "w", how) as archive:
        for name, content in members.items():
            archive.writestr(name, content)
    return buffer.getvalue()


def tarred(members: dict[str, bytes], mode: str = "w:gz") -> bytes:
    buffer = io.BytesIO()
    with tarfile.open(fileobj=buffer, mode=mode) as archive:
        for name, content in members.items():
            info = tarfile.TarInfo(name)
            info.size = len(content)
            archive.addfile(info, io.BytesIO(content))
    return buffer.getvalue()


def picture(form: str, mode: str = "RGB", size=(6, 6)) -> bytes:
    channels = {"L": (), "RGB": (3,), "RGBA": (4,), "P": (), "I;16": ()}[mode]
    pixels = RNG.integers(0, 256, (*size, *channels))
    image = Image.fromarray(pixels.astype(np.uint16 if mode == "I;16" else np.uint8), None)
    buffer = io.BytesIO()
    image.save(buffer, form)
    return buffer.getvalue()
