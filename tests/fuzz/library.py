"""Files of every format that is read, damaged, and calls with odd arguments."""

import contextlib
import gzip
import inspect
import json
from collections.abc import Callable
from functools import partial, wraps
from pathlib import Path
from unittest import mock

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
from hypothesis import strategies as st

import fedjax_pfl as pfl
from experiments import compare, run, sweep
from experiments.figures import __main__ as figures
from fedjax_pfl.data.sources.cifar import LAYOUTS
from fedjax_pfl.federation.option_groups import declared
from fedjax_pfl.federation.options import GROUPS, ParticipationOptions
from fedjax_pfl.results import model_axes
from fedjax_pfl.training import SGD, Schedule, WeightDistribution
from tests.data import image_files, published_files
from tests.data.image_files import png
from tests.data.partitions.saved_splits import DATA, write_pfllib
from tests.fuzz.commands import ROOT, SMALL, WRITTEN, Checked, checked, main_of
from tests.fuzz.values import PATHS, VALUE, changed


def spoiled(make: Callable):
    """(strategy, attack) of pairs of functions, which write small files and read them."""
    root, specimens, whole = Path(make.__name__).absolute(), [*make()], {}
    for number, (write, read) in enumerate(specimens):
        folder = root / str(number)
        folder.mkdir(parents=True)
        write(folder)
        files = sorted(path for path in folder.rglob("*") if path.is_file())
        whole |= {(number, str(path.relative_to(folder))): path.read_bytes() for path in files}
        assert not isinstance(read(folder), str)  # accepted as it is

    def attack(given):
        key, content = given
        file = root.joinpath(*map(str, key))
        file.write_bytes(content)
        try:
            printed = specimens[key[0]][1](root / str(key[0]))
        finally:
            file.parent.mkdir(parents=True, exist_ok=True)  # a reader may set it aside
            file.write_bytes(whole[key])
        return printed if isinstance(printed, str) else None

    numbers = st.integers(0, len(specimens) - 1)
    keys = numbers.flatmap(lambda n: st.sampled_from([key for key in whole if key[0] == n]))
    return keys.flatmap(lambda key: st.tuples(st.just(key), changed(whole[key]))), attack


def inside(name: str, function: Callable, *more, **options) -> Callable[[Path], object]:
    """The function, for a file or folder of that name in a folder."""
    return lambda folder: function(folder / name, *more, **options)


def writing(**contents: bytes) -> Callable[[Path], object]:
    return lambda folder: [image_files.write(folder / name, contents[name]) for name in contents]


def running(main: Callable, *flags: str, **more) -> Callable[[Path], object]:
    return lambda folder: main_of(main, *(flag.format(folder) for flag in flags), **more)


def data_sets():
    colour, grey = image_files.colour((6, 6)), np.arange(36, dtype=np.uint8).reshape(6, 6)
    for image, kinds in (colour, ("png", "ppm", "jpeg", "bmp", "webp")), (grey, ("png", "gif")):
        yield "folder", writing(**{f"train/{k}/0.{k}": png(image, k) for k in kinds})
    yield "folder", writing(**{"train/a/0.ppm": b"P3 2 2 255\n" + b"1 2 3\n" * 4})
    picture, tiny = png(image_files.colour((64, 64)), "JPEG"), {"test/images/test_0.JPEG": b""}
    for name in ("n01443537", "n01629819"):
        tiny[f"train/{name}/images/{name}_0.JPEG"] = picture
    marks = b"val_0.JPEG\tn01629819\t0\t32\t44\t62\n"
    tiny |= {"val/images/val_0.JPEG": picture, "val/val_annotations.txt": marks}
    yield "tiny_imagenet", writing(**tiny)
    digits = {}
    for split, count in (("train", 6), ("t10k", 2)):
        for kind, array in (
            ("images-idx3", np.zeros((count, 28, 28))),
            ("labels-idx1", np.arange(count) % 2),
        ):
            content = published_files.idx_bytes(array)
            digits[f"{split}-{kind}-ubyte.gz"] = gzip.compress(content)
    yield "mnist", writing(**digits)
    arrays = published_files.emnist_arrays((1, 5, 9))
    yield "emnist/digits", inside("gzip.zip", published_files.write_emnist_zip, "digits", arrays)
    for name, layout in LAYOUTS.items():
        contents, *_ = published_files.cifar_files(name)
        yield name, writing(**contents)
        yield name, inside(layout.archive, published_files.write_tar, contents, layout.folder)
    news = b'"1","a title","some words, more"\n"2","b","c ""quoted"" d"\n"3","x","y"\n"4","p","q"\n'
    yield "ag_news", writing(**{"train.csv": news, "test.csv": news})
    yield "text_csv", writing(**{"train.csv": b"good,what a day\nbad,no good at all\nbad,worse\n"})
    yield "table", writing(**{"train.csv": b"age,label\n1,a\n2.5,b\n-3,a\n"})
    user = {"x": [[128 / 255] * 784] * 2, "y": [0, 1]}
    users = {"users": ["u_1"], "num_samples": [2], "user_data": {"u_1": user}}
    yield "leaf", writing(**{"train/a.json": json.dumps(users).encode()})
    yield "parquet", image_files.parquet


def specimens():
    for name, write in data_sets():
        yield write, partial(pfl.load_dataset, name)
    arrays = {"x_train": np.ones((6, 3), np.float32), "y_train": np.arange(6) % 2}
    for save in (np.savez, np.savez_compressed):
        yield inside("a.npz", save, **arrays), inside("a.npz", partial(pfl.load_dataset, "npz"))
    split = pfl.Partition.from_lists([[0, 1], [2, 3]], [[4], [5]], label_map=[[0, 1], [1, 0]])
    load = inside("a.npz", pfl.Partition.load)
    yield inside("a.npz", split.save), lambda at: use_partition(load(at), np.arange(6) % 2, 2)
    tool = partial(pfl.data.import_partition, dataset=DATA)
    flower = partial(tool, "flower", test_fraction=0)
    yield partial(write_pfllib, dataset=DATA, suffix=".plain.npz"), partial(tool, "pfllib")
    lists = b'{"train": {"0": [0, 1], "1": [2, 3]}, "test": {"0": [4], "1": [5]}}'
    yield writing(**{"split.json": lists}), inside("split.json", partial(tool, "flower"))
    indices = pa.table({"index": [0, 7], "label": [0, 3]})
    images = pa.table({"img": [png(x) for x in DATA.train_x[:2]], "label": [0, 1]})
    for table in (indices, images):
        yield inside("partition_0.parquet", partial(pq.write_table, table)), flower
    axes = {"axes/global": np.array("seed"), "axes/own": np.array("seed,client")}
    weights = {"global/params/fc/kernel": np.ones((2, 3)), "own/params/fc/kernel": np.ones((2, 1))}
    models = inside("a.npz", lambda path: (pfl.load_models(path), model_axes(path)))
    yield inside("a.npz", np.savez, **axes, **weights), models
    for preset in (ROOT / "experiments/presets").glob("digits_*.flags"):
        write = writing(**{"a.flags": preset.read_bytes()})
        yield write, running(run.main, "--flagfile={}/a.flags", *SMALL)

    def use_result(folder):
        result = pfl.Result.load(folder)
        result.summary(), result.table(), result.traffic(), repr(result)

    yield from [(copying("one/feddwa", "result.*"), use_result)] * 4


def use_partition(made: pfl.Partition, labels: np.ndarray, classes: int) -> None:
    made.validate(len(labels), classes, labels)
    made.summary()
    made.report(labels, classes)


RUN = (
    *(*SMALL, "--algorithms=local,feddwa", "--rounds=2", "--num_seeds=2", "--compilation_cache="),
    *("--nosave_models", "--devices=1", "--client_execution=map", "--seed_execution=map"),
)
SWEEP = (*RUN, "--algorithms=fedavg", "--grid=learning_rate=0.1,0.2")


def finished_runs() -> None:
    """Makes the run and the sweep that are read; whole runs aside, all that computes."""
    assert run.main(["fuzz", *RUN, "--output_dir=finished/one"]) == 0
    assert sweep.main(["fuzz", *SWEEP, "--output_dir=finished/sweep"]) == 0


def copying(folder: str, *patterns: str) -> Callable[[Path], object]:
    """Copies what `finished_runs` made, as far as a name matches a pattern."""
    start = Path("finished", folder).absolute()
    paths = [path for pattern in patterns for path in start.rglob(pattern)]
    return writing(**{str(path.relative_to(start)): path.read_bytes() for path in paths})


def finished():
    ours, tried = (copying(folder, "*.json", "*.npz") for folder in ("one", "sweep"))
    yield ours, running(run.main, *RUN, "--output_dir={}")
    yield ours, running(compare.main, "--runs={}", "--target=50")
    for name in ("accuracy/rounds", "accuracy/clients", "matrices/rounds"):
        yield ours, running(figures.main, name, "--runs={}/feddwa", "--output=new.png")
    stops = {"sweep.pfl.simulate": checked, "sweep.write": lambda *_: 0}
    yield tried, running(sweep.main, *SWEEP, "--output_dir={}", stops=stops)


OPTIONS = {name: option for group in GROUPS for name, option in declared(group).items()}
LISTS = st.lists(st.lists(st.integers(-1, 60), max_size=3), min_size=2, max_size=2)
VALID = dict.fromkeys(("train", "test", "validation"), LISTS)
VALID |= dict.fromkeys(("path", "folder", "data_dir"), st.sampled_from(PATHS))
VALID |= dict.fromkeys(("train_x", "test_x"), st.just(np.ones((6, 3), np.float32)))
VALID |= dict.fromkeys(("train_y", "test_y"), st.just(np.arange(6) % 2))
VALID |= {"num_clients": st.just(3), "seed": st.integers(0, 2), "model": st.just("softmax")}
VALID |= {
    "settings": st.sampled_from([{"learning_rate": [0.1, 0.2]}, {"learning_rate": [1, 1]}, {}]),
    "adapt": st.builds(pfl.Adaptation, st.integers(0, 2)),
    "i": st.integers(-1, 5),
    "stragglers": st.dictionaries(st.integers(0, 4), st.integers(0, 2)),
}
PARTS = pfl.make_partition("iid", DATA, 4, 0)


def argument(name: str, default: object) -> st.SearchStrategy:
    """A value that a function may take by this name, two times in three, else anything."""
    choices = OPTIONS[name].choices if name in OPTIONS else ()
    valid = VALID.get(name, st.sampled_from([default, 0.5, 1, 2, *choices, *sorted(WRITTEN[name])]))
    return st.integers(0, 2).flatmap(lambda way: valid if way else VALUE)


def call(function: Callable, **more) -> st.SearchStrategy:
    """(function, arguments by name): those that it needs, and up to three of others and `more`."""
    own = inspect.signature(function).parameters.values()
    known = {one.name: one.default for one in own if one.kind is not one.VAR_KEYWORD} | more
    needed = [name for name in known if known[name] is inspect.Parameter.empty]
    others = st.sampled_from([name for name in known if name not in needed] or needed)
    chosen = st.lists(others, max_size=3, unique=True).map(lambda names: {*needed, *names})
    arguments = chosen.flatmap(
        lambda names: st.fixed_dictionaries({n: argument(n, known[n]) for n in sorted(names)})
    )
    return st.tuples(st.just(function), arguments)


def used(kind, **given):
    made = kind(**given)
    if kind is ParticipationOptions:
        made.checked().build(4)


def functions():
    federation = pfl.federate(DATA, PARTS, "softmax")
    yield call(partial(pfl.simulate, pfl.make_algorithm("fedavg"), federation))
    yield from [call(partial(pfl.federate, DATA, PARTS))] * 2

    def partition(train, test, **fields):
        use_partition(pfl.Partition.from_lists(train, test, **fields), DATA.labels, 4)

    lists = {"validation": None, "rule": "", "allow_overlap": True, "label_map": np.eye(2, 4)}
    yield from [call(partition, **lists)] * 3
    for kind in (Schedule, pfl.Adaptation, SGD, WeightDistribution, ParticipationOptions):
        yield call(wraps(kind)(partial(used, kind)))
    yield from (call(partial(pfl.load_dataset, name)) for name in ("npz", "folder"))
    yield call(lambda path: pfl.read_partition(path, DATA))
    small = (partial(pfl.dataset_from_arrays, "a"), partial(PARTS.client, "train"), PARTS.sizes)
    readers = (pfl.Partition.load, pfl.Result.load, pfl.load_models, pfl.Checkpoints)
    yield from map(call, (*small, *readers, PARTS.split_validation))


def registered():
    """Algorithms and partition rules, with their own settings and an unknown one."""
    for name in pfl.core.ALGORITHMS:
        own = vars(pfl.make_algorithm(name))
        yield call(lambda name=name, /, **given: pfl.make_algorithm(name, given), **own, nothing=1)
    for name in pfl.data.RULES:
        own = pfl.data.rule_options(name)
        yield from [call(partial(pfl.make_partition, name, DATA), **own, nothing=1)] * 2


def calling(make: Callable):
    def attack(given):
        stop = mock.patch("fedjax_pfl.engine.round_state.fit_memory", checked)
        with stop, contextlib.suppress(Checked):
            given[0](**given[1])  # whatever it returns, it is accepted

    return st.one_of(*make()), attack


TARGETS = {
    "files": (453, partial(spoiled, specimens)),
    "finished runs": (45, partial(spoiled, finished)),
    "functions": (160, partial(calling, functions)),
    "algorithms and rules": (100, partial(calling, registered)),
}
