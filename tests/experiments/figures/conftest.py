"""Tiny finished runs, made once: figures are compared with what these wrote."""

import shutil
from collections import defaultdict

import numpy as np
import pytest

from experiments.figures import loading
from tests.experiments.small_runs import SMALL, read_rows, run_in
from tests.experiments.written_runs import rewrite

SEEDS, ROUNDS, CLIENTS, CLASSES = (0, 1), 3, 4, 10
COMMON = (
    *SMALL,
    "--model=mlp",
    "--model_option=hidden=16",
    "--batch_size=16",
    "--train_samples=96",
)
GROUPED = ("--partition=grouped", "--groups=2")
MAIN = (
    "--algorithms=local,feddwa,cwfedavg,weight_erosion", *GROUPED,
    "--set=feddwa.score_guidance=true", "--set=feddwa.top_k=3", "--set=weight_erosion.alice=1",
)  # fmt: skip


def rows_of(drawn) -> list[tuple]:
    """The numbers of a drawing."""
    return list(drawn.numbers.itertuples(index=False, name=None))


def meshes(figure):
    """Arrays of the heat maps, zeros where they are blank; colour bars are left out."""
    result = []
    for axes in figure.axes:
        for mesh in axes.collections:
            if hasattr(mesh, "get_coordinates") and axes.get_label() != "<colorbar>":
                result.append(np.ma.filled(mesh.get_array(), 0))
    return result


@pytest.fixture(scope="session")
def finished(tmp_path_factory):
    """Finished runs: `main` (four algorithms, in two groups of clients), `longer` (two of them, one
    round more), `free` (cwFedAVG without regularizer) and `iid` (FedAvg, with fine-tuning)."""
    root = tmp_path_factory.mktemp("finished")

    def make(name, *words):
        assert run_in(root / name, *COMMON, f"--rounds={ROUNDS}", *words) == 0

    make("main", *MAIN)
    make("longer", "--algorithms=local,cwfedavg", *GROUPED, f"--rounds={ROUNDS + 1}")
    make("free", "--algorithms=cwfedavg", "--set=cwfedavg.wdr_weight=0", *GROUPED)
    adapted = ("--adapt_steps=2", "--adapt_when=last")
    make("iid", "--algorithms=fedavg", "--partition=iid", *adapted)
    return root


@pytest.fixture(scope="session")
def found(finished):
    """All runs by (folder's name, algorithm)."""
    return {(run.folder.parent.name, run.algorithm): run for run in loading.find([str(finished)])}


@pytest.fixture(scope="session")
def layered(found, tmp_path_factory):
    """cwFedAVG's run with a matrix `alpha` for each of the model's two layers, of known numbers."""
    folder = tmp_path_factory.mktemp("layered") / "run" / "cwfedavg"
    shutil.copytree(found["main", "cwfedavg"].folder, folder)
    alpha = np.random.default_rng(0).random((len(SEEDS), ROUNDS, 2, CLIENTS, CLIENTS))
    alpha[..., 3, 1] = 0
    alpha /= alpha.sum(axis=-1, keepdims=True)
    rounds = np.arange(1, ROUNDS + 1)
    rewrite(folder, matrices={"alpha": alpha[:, None]}, matrix_rounds=rounds)
    return loading.find([str(folder)])[0], alpha


@pytest.fixture(scope="session")
def metrics(found):
    """`metrics(run, name)`: {round: values of the seeds} as metrics.csv has them."""

    def read(run, name):
        values = defaultdict(list)
        for row in read_rows(run.folder / "metrics.csv"):
            if row["metric"] == name:
                values[int(row["round"])].append(float(row["value"]))
        return {number: np.array(each) for number, each in values.items()}

    return read
