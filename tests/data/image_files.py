"""Images as files: class folders, Parquet files, and PNG files of any header."""

import io
import json
import struct
import zlib

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
from PIL import Image

RNG = np.random.default_rng(5)


def png(array, form="PNG"):
    file = io.BytesIO()
    Image.fromarray(array).save(file, form)
    return file.getvalue()


def colour(size=(4, 5)):
    return RNG.integers(0, 256, (*size, 3)).astype(np.uint8)


def raw_png(width, height, depth=8, colour_type=0, data=b""):
    """A PNG of these rows, each with its filter before it; by default it holds nothing."""
    head = struct.pack(">2I5B", width, height, depth, colour_type, 0, 0, 0)
    parts = [(b"IHDR", head), (b"IDAT", zlib.compress(data)), (b"IEND", b"")]
    chunks = (
        struct.pack(">I", len(d)) + t + d + struct.pack(">I", zlib.crc32(t + d)) for t, d in parts
    )
    return b"\x89PNG\r\n\x1a\n" + b"".join(chunks)


def write(path, data):
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(data if isinstance(data, bytes) else png(data))


def class_folders(root, splits=("train", "test"), classes=("cat", "dog"), count=2, size=(4, 5)):
    arrays = {}
    for split in splits:
        for name in classes:
            for i in range(count):
                array = arrays[f"{split}/{name}/{i}"] = colour(size)
                write(root / split / name / f"{i}.png", array)
    return arrays


def black(size=(4, 4)):
    return png(np.zeros((*size[::-1], 3), np.uint8))


def pictures(folder, splits=("train", "test"), **contents):
    for split in splits:
        for name in ("cat", "dog"):
            (folder / split / name).mkdir(parents=True)
            (folder / split / name / "0.png").write_bytes(black())
    for place, content in contents.items():
        (folder / "train" / "cat" / place.replace("_", ".")).write_bytes(content)
    return "folder", folder


def write_parquet(path, arrays, labels, image="image", label="label", names=None, binary=False):
    encoded = [a if isinstance(a, bytes) or a is None else png(a) for a in arrays]
    column = encoded if binary else [{"bytes": e, "path": None} for e in encoded]
    kind = pa.binary() if binary else pa.struct([("bytes", pa.binary()), ("path", pa.string())])
    table = pa.table({image: pa.array(column, kind), label: pa.array(labels)})
    if names:
        features = {label: {"names": names, "_type": "ClassLabel"}}
        metadata = json.dumps({"info": {"features": features}})
        table = table.replace_schema_metadata({"huggingface": metadata})
    path.parent.mkdir(parents=True, exist_ok=True)
    pq.write_table(table, path)


def parquet(folder, name="train.parquet", labels=(0, 1), images=None):
    """A Parquet file of black images, and the arguments of `load_dataset` that read it."""
    write_parquet(folder / name, [black()] * len(labels) if images is None else images, labels)
    return "parquet", folder
