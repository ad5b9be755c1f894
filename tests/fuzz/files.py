"""Data files of every format that is read, damaged."""

import bz2
import gzip
import io
import json
import lzma
import zipfile

import numpy as np
from PIL import Image

import fedjax_pfl as pfl
from fedjax_pfl.data.dataset import dataset_from_arrays
from fedjax_pfl.data.partitions.importers import import_partition
from fedjax_pfl.data.sources.cifar import LAYOUTS
from tests.fuzz import mutations
from tests.fuzz.specimens import (
    RNG,
    Specimen,
    idx,
    loading,
    npz,
    picture,
    specimens_target,
    tarred,
    zipped,
)
from tests.fuzz.target import target


@target("images", 130)
def _images():
    return specimens_target(_image_specimens)


def _image_specimens() -> dict[str, Specimen]:
    kinds = {
        "png": picture("PNG"), "grey.png": picture("PNG", "L"), "deep.png": picture("PNG", "I;16"),
        "jpg": picture("JPEG"), "ppm": picture("PPM"), "pgm": picture("PPM", "L"),
        "bmp": picture("BMP"), "gif": picture("GIF", "L"), "webp": picture("WEBP"),
        "tif": picture("TIFF"),
        "deep.ppm": b"P6 2 2 65535\n" + bytes(24), "plain.ppm": b"P3 2 2 255\n" + b"1 2 3\n" * 4,
    }  # fmt: skip
    return {
        f"folder of {name}": Specimen(
            {f"train/{one}/{k}.{name}": content for k, one in enumerate(("cat", "dog"))},
            f"train/cat/0.{name}",
            loading("folder", image_size=6 if "deep" in name or "plain" in name else None),
        )
        for name, content in kinds.items()
    }


@target("array files", 110)
def _array_files():
    return specimens_target(_array_specimens)


def _array_specimens() -> dict[str, Specimen]:
    x, y = RNG.random((6, 3), np.float32), np.arange(6) % 2
    flat = {"train_idx": np.arange(4), "train_offsets": np.array([0, 2, 4])}
    flat |= {"test_idx": np.arange(4, 6), "test_offsets": np.array([0, 1, 2])}
    flat |= {"val_idx": np.arange(0), "val_offsets": np.zeros(3, int)}
    flat |= {"label_map": np.array([[0, 1], [1, 0]])}
    axes = {"axes/global": np.array("seed"), "axes/own": np.array("seed,client")}
    weights = {"global/params/fc/kernel": np.ones((2, 3)), "own/params/fc/kernel": np.ones((2, 1))}
    data = dataset_from_arrays("six", x, y)

    def partition(folder):
        found = pfl.Partition.load(folder / "a.npz")
        found.validate(6, 2, data.labels)
        found.summary()

    def models(folder):
        pfl.load_models(folder / "a.npz")
        pfl.results.model_axes(folder / "a.npz")

    found = {}
    member = {"x_train.npy": x, "y_train.npy": y}
    member = {name: mutations._npy(array) for name, array in member.items()}
    whole = {
        "arrays": (npz(x_train=x, y_train=y, x_test=x[:2], y_test=y[:2]), loading("npz", "a.npz")),
        "packed": (npz(np.savez_compressed, x_train=x, y_train=y), loading("npz", "a.npz")),
        "lzma": (zipped(member, zipfile.ZIP_LZMA), loading("npz", "a.npz")),
        "bzip": (zipped(member, zipfile.ZIP_BZIP2), loading("npz", "a.npz")),
        "partition": (npz(**flat), partition),
        "models": (npz(**axes, **weights), models),
    }
    for name, (content, read) in whole.items():
        found[name] = Specimen({"a.npz": content}, "a.npz", read)

        def change(rng, content, other):
            return mutations.other_arrays(rng, content)

        if name not in ("packed", "lzma", "bzip"):
            found[f"{name}, inside"] = Specimen({"a.npz": content}, "a.npz", read, change)

    def tokens(content):
        return zipped(member | {"x_train.npy": content})

    header = mutations._npy(x)
    found["header"] = Specimen({"a.npz": header}, "a.npz", loading("npz", "a.npz"), wrap=tokens)
    return found


@target("raw formats", 120)
def _raw():
    """IDX, CIFAR, EMNIST, as they are and packed."""
    return specimens_target(_raw_specimens)


def _raw_specimens() -> dict[str, Specimen]:
    result = {}
    kinds = (("images-idx3", np.zeros((3, 28, 28))), ("labels-idx1", np.arange(3)))
    parts = {
        f"{split}-{kind}-ubyte": idx(array) for split in ("train", "t10k") for kind, array in kinds
    }
    for name in ("train-images-idx3-ubyte", "t10k-labels-idx1-ubyte"):
        result[name] = Specimen(parts, name, loading("mnist"))
        packed = {f"{part}.gz": gzip.compress(content) for part, content in parts.items()}
        result[f"{name}.gz"] = Specimen(packed, f"{name}.gz", loading("mnist"))
        plain = packed | {f"{name}.gz": parts[name]}
        result[f"{name} in gz"] = Specimen(
            plain, f"{name}.gz", loading("mnist"), wrap=gzip.compress
        )
    emnist = {
        f"gzip/emnist-digits-{part.replace('t10k', 'test')[:-5]}ubyte.gz".replace(
            "idx3ubyte", "idx3-ubyte").replace("idx1ubyte", "idx1-ubyte"): gzip.compress(content)
        for part, content in parts.items()
    }  # fmt: skip
    result["emnist"] = Specimen({"gzip.zip": zipped(emnist)}, "gzip.zip", loading("emnist/digits"))
    record = bytes([1]) + bytes(3072)
    for name, layout in LAYOUTS.items():
        rows = (bytes(len(layout.names) - 1) + record) * 2
        files = dict.fromkeys((*layout.train, *layout.test), rows)
        files[layout.names[-1]] = b"".join(b"c%d\n" % i for i in range(layout.num_classes))
        for file in (layout.train[0], layout.names[-1]):
            result[f"{name} {file}"] = Specimen(files, file, loading(name))
        inner = {f"{layout.folder}/{file}": content for file, content in files.items()}
        result[f"{name} packed"] = Specimen(
            {layout.archive: tarred(inner)}, layout.archive, loading(name)
        )
        result[f"{name} tar"] = Specimen(
            {layout.archive: tarred(inner, "w")}, layout.archive, loading(name), wrap=gzip.compress
        )
    # Other packings under names that promise gzip.
    for pack in (bz2, lzma):
        content = {**packed, "train-images-idx3-ubyte.gz": pack.compress(bytes(99))}
        result[pack.__name__] = Specimen(content, "train-images-idx3-ubyte.gz", loading("mnist"))
    return result


@target("text files", 80)
def _texts():
    return specimens_target(_text_specimens)


def _text_specimens() -> dict[str, Specimen]:
    news = b'"1","a title","some words, more"\n"2","b","c ""quoted"" d"\n"3","x","y"\n"4","p","q"\n'
    texts = b"good,what a day\nbad,no good at all\nbad,worse\n"
    whole = {"train.csv": news, "test.csv": news}
    return {
        "ag_news": Specimen(whole, "train.csv", loading("ag_news")),
        "ag_news test": Specimen(whole, "test.csv", loading("ag_news")),
        "text_csv": Specimen({"a.csv": texts}, "a.csv", loading("text_csv", "a.csv")),
        "text_csv folder": Specimen(
            {"train.csv": texts, "test.csv": texts}, "test.csv", loading("text_csv")
        ),
        "annotations": Specimen(
            {
                "train/n1/images/n1_0.JPEG": picture("JPEG"),
                "val/images/val_0.JPEG": picture("JPEG"),
                "val/val_annotations.txt": b"val_0.JPEG\tn1\t0\t0\t62\t62\n",
            },
            "val/val_annotations.txt",
            loading("tiny_imagenet"),
        ),
    }


@target("tables", 70)
def _tables():
    """Parquet and Arrow."""
    return specimens_target(_table_specimens)


def _table_specimens() -> dict[str, Specimen]:
    import pyarrow as pa  # slow import: only where it is used
    import pyarrow.parquet as pq

    encoded = [picture("PNG", "L"), picture("PNG", "L")]
    rows = {"image": [{"bytes": one, "path": None} for one in encoded], "label": [0, 1]}

    def parquet(columns, **options):
        buffer = io.BytesIO()
        pq.write_table(pa.table(columns), buffer, **options)
        return buffer.getvalue()

    def arrow(columns):
        table, buffer = pa.table(columns), io.BytesIO()
        with pa.ipc.new_stream(buffer, table.schema) as writer:
            writer.write_table(table)
        return buffer.getvalue()

    pixels = np.stack([np.asarray(Image.open(io.BytesIO(one))) for one in encoded])
    data = dataset_from_arrays("two", pixels, np.arange(2))
    indices = {"index": [0], "label": [0]}

    def flower(folder):
        import_partition("flower", folder / "split", data, test_fraction=0)

    def split(kind, content):
        place = "split/partition_0" + (".parquet" if kind == "parquet" else "/data.arrow")
        return Specimen({place: content}, place, flower)

    plain = parquet(rows, compression="none", use_dictionary=False)
    # Few bytes that stand for 1.2 GB: one value of 4 MB in every row.
    value = pa.DictionaryArray.from_arrays(np.zeros(300, np.int32), [b"\0" * 2**22])
    columns = {"image": value, "label": [0] * 300}
    heavy = parquet(columns, compression="zstd", store_schema=False)
    return {
        "parquet": Specimen({"train.parquet": parquet(rows)}, "train.parquet", loading("parquet")),
        "plain": Specimen({"train.parquet": plain}, "train.parquet", loading("parquet")),
        "heavy": Specimen({"train.parquet": heavy}, "train.parquet", loading("parquet")),
        "arrow": split("arrow", arrow({"img": rows["image"], "label": [0, 1]})),
        "arrow indices": split("arrow", arrow(indices)),
        "parquet split": split("parquet", parquet({"img": rows["image"], "label": [0, 1]})),
        "parquet indices": split("parquet", parquet(indices)),
    }  # fmt: skip


@target("splits of others", 60)
def _imports():
    """Flower's JSON and PFLlib's folders."""
    return specimens_target(_import_specimens)


def _import_specimens() -> dict[str, Specimen]:
    x, y = RNG.integers(0, 256, (8, 2, 2, 1)).astype(np.uint8), np.arange(8) % 2
    data = dataset_from_arrays("eight", x[:6], y[:6], x[6:], y[6:])
    seen = np.moveaxis((x / 255 - 0.5) / 0.5, -1, 1).astype(np.float32)
    config = {"num_clients": 1, "num_classes": 2}
    config["Size of samples for labels in clients"] = [[[0, 2], [1, 2]]]
    library = {
        "config.json": json.dumps(config).encode(),
        "train/0.plain.npz": npz(x=seen[:2], y=y[:2]),
        "test/0.plain.npz": npz(x=seen[2:4], y=y[2:4]),
    }

    def pfllib(folder):
        import_partition("pfllib", folder, data)

    def flower(folder):
        import_partition("flower", folder / "split.json", data)

    def nodes(rng, content, other):
        return mutations.other_json(rng, content)

    def arrays(rng, content, other):
        return mutations.other_arrays(rng, content)

    flat = json.dumps({"0": [0, 1], "1": [2, 3]}).encode()
    both = json.dumps({"train": {"0": [0, 1]}, "test": {"0": [0]}}).encode()
    result = {"pfllib arrays": Specimen(library, "train/0.plain.npz", pfllib, arrays)}
    for name, change in (("bytes", mutations.damaged), ("nodes", nodes)):
        result[f"pfllib {name}"] = Specimen(library, "config.json", pfllib, change)
        result[f"flower {name}"] = Specimen({"split.json": flat}, "split.json", flower, change)
        result[f"flower both {name}"] = Specimen({"split.json": both}, "split.json", flower, change)
    return result
