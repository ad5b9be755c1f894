"""Results, runs, sweeps and checkpoints with a damaged file, read by all that read them."""

import contextlib
import itertools
import random
import shutil
from pathlib import Path
from unittest import mock

import jax
import numpy as np
from hypothesis import strategies as st

import fedjax_pfl as pfl
from experiments import compare, run, sweep
from experiments.figures import __main__ as figures
from fedjax_pfl.engine.fingerprint import check_same
from tests.fuzz import mutations
from tests.fuzz.commands import scene
from tests.fuzz.guard import main_of
from tests.fuzz.specimens import SEEDS
from tests.fuzz.target import target

FLAGS = ("--model=softmax", "--num_clients=3", "--train_samples=10", "--rounds=2", "--num_seeds=2",
         "--compilation_cache=", "--algorithms=local,feddwa", "--nosave_models",
         "--client_execution=map", "--seed_execution=map", "--devices=1")  # fmt: skip
SWEEP = (*FLAGS, "--algorithms=fedavg", "--grid=learning_rate=0.1,0.2")
ONE, TRIED = Path("finished/one"), Path("finished/sweep")
FIGURES = ("accuracy/rounds", "accuracy/clients", "feddwa/weights")


def finished_runs(folder: Path) -> Path:
    """Makes the runs that are read below `folder`; returns it. The only place that computes."""
    with contextlib.chdir(folder.parent):
        for main, words, place in ((run.main, FLAGS, "one"), (sweep.main, SWEEP, "sweep")):
            code = main(["fuzz", *words, f"--output_dir={folder / place}"])
            assert code == 0, f"{place}: exit code {code}"
    return folder


def changes(path: Path) -> list:
    """How a file of that kind is damaged."""
    if path.suffix == ".json":
        return [mutations.damaged, lambda rng, content, other: mutations.other_json(rng, content)]
    if path.suffix == ".npz":
        return [mutations.damaged, lambda rng, content, other: mutations.other_arrays(rng, content)]
    return [mutations.damaged]


def spoiling(root: Path, paths: list[Path], readers: dict):
    """(strategy, attack): an input is (reader's name, path below `root`, content)."""
    whole = {path: (root / path).read_bytes() for path in paths}
    names = {str(path): path for path in paths}

    def made(drawn):
        reader, name, seed = drawn
        rng, path = random.Random(seed), names[name]
        change = rng.choice(changes(path))
        return reader, name, change(rng, whole[path], rng.choice(list(whole.values())))

    def attack(given):
        reader, name, content = given
        place = root / name
        place.parent.mkdir(parents=True, exist_ok=True)
        place.write_bytes(content)
        try:
            return readers[reader](root)
        finally:
            place.write_bytes(whole[names[name]])

    drawn = st.tuples(st.sampled_from(sorted(readers)), st.sampled_from(sorted(names)), SEEDS)
    return drawn.map(made), attack


@target("results", 90)
def _results():
    scene()
    folder = Path("results")
    shutil.copytree(ONE / "feddwa", folder)

    def load(folder):
        pfl.Result.load(folder)

    def use(folder):
        result = pfl.Result.load(folder)
        result.summary()
        result.table()
        result.traffic()
        repr(result)

    paths = [Path("result.json"), Path("result.npz")]
    return spoiling(folder, paths, {"load": load, "use": use})


@target("finished runs", 50)
def _finished():
    """A run's folder, read by the scripts: `run` once more, `compare` and `figures`."""
    scene()
    folder = Path("runs/one")
    shutil.copytree(ONE, folder)

    def again(folder):
        words = [*FLAGS, f"--output_dir={folder}"]
        with mock.patch.object(run, "run", return_value=0):
            return main_of(run.main, ["run", *words])

    def compared(folder):
        return main_of(compare.main, ["compare", f"--runs={folder}", "--target=50"])

    counter = itertools.count()

    def drawn(folder):
        name = FIGURES[next(counter) % len(FIGURES)]
        with mock.patch.object(figures, "write"):
            words = [name, f"--runs={folder}/feddwa", "--output=new.png"]
            return main_of(figures.main, ["figures", *words])

    paths = [Path("run.json")]
    names = ("config.json", "summary.json", "result.json", "result.npz")
    paths += [Path("feddwa", name) for name in names]
    readers = {"again": again, "compare": compared, "compare too": compared, "figures": drawn}
    return spoiling(folder, paths, readers)


@target("finished sweeps", 15)
def _sweeps():
    scene()
    folder = Path("runs/sweep")
    shutil.copytree(TRIED, folder)

    def again(folder):
        with mock.patch.object(sweep, "write"), mock.patch.object(pfl, "simulate", lambda *_: None):
            return main_of(sweep.main, ["sweep", *SWEEP, f"--output_dir={folder}"])

    found = [path.relative_to(folder) for path in sorted((folder / "results").rglob("*.*"))]
    return spoiling(folder, [Path("run.json"), *found], {"again": again})


@target("checkpoints", 3)
def _checkpoints():
    scene()
    folder = Path("checkpoints").absolute()
    trees = {"states": {"model": np.arange(6.0), "empty": np.zeros((0, 2))}}
    mark = {"algorithm": "one"}
    with contextlib.closing(pfl.Checkpoints(folder, 0)) as kept:
        for done in (1, 2):
            kept.save(done, trees, {"simulation": mark})

    def latest(folder):
        with contextlib.closing(pfl.Checkpoints(folder, 0)) as kept:
            saved = kept.latest()
        if saved is not None:
            check_same(saved.facts["simulation"], mark, folder)
            assert jax.tree.leaves(saved.trees["states"])[1].tolist() == list(range(6))

    paths = [path.relative_to(folder) for path in sorted(folder.rglob("*")) if path.is_file()]
    return spoiling(folder, paths, {"latest": latest})
