"""Files of every format that is read, damaged: data, partitions, models, results, checkpoints."""

import contextlib
import json
import shutil
from collections.abc import Callable, Iterable
from functools import partial
from pathlib import Path
from unittest import mock

import jax
import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
from hypothesis import strategies as st

import fedjax_pfl as pfl
from experiments import compare, run, sweep
from experiments.figures import __main__ as figures
from fedjax_pfl.data import import_partition
from fedjax_pfl.data.sources.cifar import LAYOUTS
from fedjax_pfl.engine.fingerprint import check_same
from fedjax_pfl.results import model_axes
from tests.data.partitions import test_importers
from tests.data.sources import (
    test_archives,
    test_idx,
    test_images,
    test_leaf,
    test_parquet,
    test_table,
)
from tests.fuzz import values
from tests.fuzz.commands import scene
from tests.fuzz.verdict import Target, main_of

# (writes small files into a folder, reads them)
Specimen = tuple[Callable[[Path], object], Callable[[Path], object]]


def spoiled(make: Callable[[], Iterable[Specimen]]):
    """(strategy, attack): an input is (a specimen's number, one of its files, its new content)."""
    scene()
    root, whole, specimens = Path(f"{make.__name__} files").absolute(), {}, list(make())
    for number, (write, _) in enumerate(specimens):
        (root / str(number)).mkdir(parents=True)
        write(root / str(number))
        files = (path for path in sorted((root / str(number)).rglob("*")) if path.is_file())
        whole |= {(number, path): path.read_bytes() for path in files}

    def attack(given):
        number, path, content = given
        folder, file = root / str(number), root / str(number) / path
        file.write_bytes(content)
        try:
            printed = specimens[number][1](folder)
        finally:
            file.parent.mkdir(parents=True, exist_ok=True)  # a reader may set it aside
            file.write_bytes(whole[number, file])
        return printed if isinstance(printed, str) else None

    def with_content(key):
        place = str(key[1].relative_to(root / str(key[0])))
        return values.changed(whole[key]).map(lambda content: (key[0], place, content))

    return st.sampled_from([*whole]).flatmap(with_content), attack


def loading(name: str, **options) -> Callable[[Path], object]:
    return lambda folder: pfl.load_dataset(name, folder, **options)


def image_folder(kind, pixels):
    def write(folder):
        for name in ("cat", "dog"):
            image = pixels if isinstance(pixels, bytes) else test_images.png(pixels, kind)
            test_images.write(folder / f"train/{name}/0.{kind}", image)

    return write


def images():
    grey = np.arange(36, dtype=np.uint8).reshape(6, 6)
    for kind in ("png", "jpeg", "ppm", "bmp", "webp", "tiff"):
        yield image_folder(kind, test_images.colour((6, 6))), loading("folder")
    for kind in ("png", "ppm", "gif"):
        yield image_folder(kind, grey), loading("folder")
    for kind, image in (("png", grey.astype(np.uint16)), ("ppm", b"P3 2 2 255\n" + b"1 2 3\n" * 4)):
        yield image_folder(kind, image), loading("folder", image_size=6)
    yield test_images.tiny_imagenet, loading("tiny_imagenet")


def array_files():
    x, y = np.ones((6, 3), np.float32), np.arange(6) % 2
    axes = {"axes/global": np.array("seed"), "axes/own": np.array("seed,client")}
    weights = {"global/params/fc/kernel": np.ones((2, 3)), "own/params/fc/kernel": np.ones((2, 1))}
    split = pfl.Partition.from_lists([[0, 1], [2, 3]], [[4], [5]], label_map=[[0, 1], [1, 0]])

    def partition(folder):
        one = pfl.Partition.load(folder / "a.npz")
        one.validate(6, 2, y)
        one.summary()

    def models(folder):
        pfl.load_models(folder / "a.npz")
        model_axes(folder / "a.npz")

    def load(folder):
        pfl.load_dataset("npz", folder / "a.npz")

    for save in (np.savez, np.savez_compressed):
        yield lambda folder, save=save: save(folder / "a.npz", x_train=x, y_train=y), load
    yield lambda folder: np.savez(folder / "a.npz", x_train=x, y_train=y, x_test=x, y_test=y), load
    yield lambda folder: split.save(folder / "a.npz"), partition
    yield lambda folder: np.savez(folder / "a.npz", **axes, **weights), models


def raw_formats():
    """IDX, EMNIST and CIFAR, packed and unpacked."""
    for compressed in (False, True):
        yield partial(test_idx.write_idx_folder, compressed=compressed), loading("mnist")
    arrays = test_archives.emnist_arrays()
    emnist = partial(test_archives.write_emnist_zip, config="digits", arrays=arrays)
    yield lambda folder: emnist(folder / "gzip.zip"), loading("emnist/digits")
    for name, layout in LAYOUTS.items():
        contents, *_ = test_archives.cifar_files(name)
        tar = partial(test_archives.write_tar, files=contents, folder=layout.folder)
        yield partial(texts, **contents), loading(name)
        yield lambda folder, tar=tar, layout=layout: tar(folder / layout.archive), loading(name)


def texts(folder, **contents):
    for name, content in contents.items():
        (folder / name).write_bytes(content)


def text_files():
    news = b'"1","a title","some words, more"\n"2","b","c ""quoted"" d"\n"3","x","y"\n"4","p","q"\n'
    lines = b"good,what a day\nbad,no good at all\nbad,worse\n"
    user = {"u_1": ([test_leaf.image(0)], [1])}
    yield partial(texts, **{"train.csv": news, "test.csv": news}), loading("ag_news")
    yield partial(texts, **{"train.csv": lines, "test.csv": lines}), loading("text_csv")
    yield test_table.table, lambda folder: pfl.load_dataset("table", folder / "t.csv")
    yield partial(test_leaf.write, split="train", name="a", users=user), loading("femnist")


def tables():
    """Parquet and Arrow."""
    pictures, data = [test_images.colour(), test_images.colour()], test_importers.DATA
    # A few bytes that stand for 1.2 GB: one value of 4 MB in every row.
    value = pa.DictionaryArray.from_arrays(np.zeros(300, np.int32), [b"\0" * 2**22])
    heavy = pa.table({"image": value, "label": [0] * 300})
    indices = pa.table({"index": [0, 7], "label": [0, 3]})
    images = {"img": [test_importers.png(x) for x in data.train_x[:2]], "label": [0, 1]}

    def flower(folder):
        import_partition("flower", folder, data, test_fraction=0)

    def parquet(folder):
        test_parquet.write_parquet(folder / "train.parquet", pictures, [0, 1])

    def pack(folder):
        options = {"compression": "zstd", "store_schema": False}
        pq.write_table(heavy, folder / "train.parquet", **options)

    yield parquet, loading("parquet")
    yield pack, loading("parquet")
    yield lambda folder: pq.write_table(indices, folder / "partition_0.parquet"), flower
    for table in (indices, pa.table(images)):
        arrow = partial(test_importers.write_arrow, table=table)
        yield lambda folder, arrow=arrow: arrow(folder / "partition_0"), flower


def splits():
    """Flower's JSON and PFLlib's folders."""
    data = test_importers.DATA
    pfllib = partial(test_importers.write_pfllib, dataset=data, suffix=".plain.npz")
    yield pfllib, lambda folder: import_partition("pfllib", folder, data)
    one, other = {"0": [0, 1], "1": [2, 3]}, {"0": [4]}
    for content in (one, {"train": one, "test": other}):
        write = partial(texts, **{"split.json": json.dumps(content).encode()})
        yield write, lambda folder: import_partition("flower", folder / "split.json", data)


FLAGS = ("--model=softmax", "--num_clients=3", "--train_samples=10", "--rounds=2", "--num_seeds=2",
         "--compilation_cache=", "--algorithms=local,feddwa", "--nosave_models",
         "--client_execution=map", "--seed_execution=map", "--devices=1")  # fmt: skip
SWEEP = (*FLAGS, "--algorithms=fedavg", "--grid=learning_rate=0.1,0.2")


def finished_runs(folder: Path) -> None:
    """Makes the run and the sweep that are read; whole runs aside, all that computes."""
    for main, flags, place in ((run.main, FLAGS, "one"), (sweep.main, SWEEP, "sweep")):
        code = main(["fuzz", *flags, f"--output_dir={folder / place}"])
        assert code == 0, f"{place}: exit code {code}"


def copying(folder: str, *patterns: str):
    """Copies what `finished_runs` made, as far as a name matches a pattern."""

    def write(to):
        shutil.copytree(Path("finished") / folder, to, dirs_exist_ok=True)
        for path in [*to.rglob("*")]:
            if path.is_file() and not any(path.match(pattern) for pattern in patterns):
                path.unlink()

    return write


def results():
    def use(folder):
        result = pfl.Result.load(folder)
        result.summary(), result.table(), result.traffic(), repr(result)

    yield copying("one/feddwa", "result.json", "result.npz"), use


def finished():
    """A run's and a sweep's folder, read by the commands."""

    def command(main, module, writes, *flags):
        def read(folder):
            simulating = mock.patch.object(pfl, "simulate", lambda *_: None)
            with simulating, mock.patch.object(module, writes, return_value=0):
                return main_of(main, ["fuzz", *(flag.format(folder) for flag in flags)])

        return read

    ours = copying("one", "*.json", "*.npz")
    yield ours, command(run.main, run, "run", *FLAGS, "--output_dir={}")
    yield ours, command(compare.main, compare, "write_tables", "--runs={}", "--target=50")
    for name in ("accuracy/rounds", "accuracy/clients", "feddwa/weights"):
        flags = (name, "--runs={}/feddwa", "--output=new.png")
        yield ours, command(figures.main, figures, "write", *flags)
    tried = copying("sweep", "run.json", "results/*", "results/*/*")
    yield tried, command(sweep.main, sweep, "write", *SWEEP, "--output_dir={}")


def checkpoints():
    trees, mark = {"states": {"model": np.arange(6.0)}}, {"algorithm": "one"}

    def write(folder):
        with contextlib.closing(pfl.Checkpoints(folder, 0)) as saved:
            for done in (1, 2):
                saved.save(done, trees, {"simulation": mark})

    def latest(folder):
        with contextlib.closing(pfl.Checkpoints(folder, 0)) as saved:
            last = saved.latest()
        if last is not None:
            check_same(last.facts["simulation"], mark, folder)
            assert jax.tree.leaves(last.trees["states"])[0].tolist() == list(range(6))

    yield write, latest


TARGETS = {
    name: Target(share, partial(spoiled, make))
    for name, share, make in (
        ("images", 130, images), ("array files", 110, array_files),
        ("raw formats", 120, raw_formats), ("text files", 80, text_files),
        ("tables", 70, tables), ("splits of others", 60, splits),
        ("results", 90, results), ("finished runs", 65, finished), ("checkpoints", 3, checkpoints),
    )
}  # fmt: skip
