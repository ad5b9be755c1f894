"""Tiny finished runs, made once: figures are compared with what these wrote."""

import shutil
from collections import defaultdict

import numpy as np
import pytest

from experiments.figures import loading
from experiments.run import main
from tests.experiments.small_runs import read_rows
from tests.experiments.written_runs import rewrite

SEEDS, ROUNDS, CLIENTS, CLASSES = (0, 1), 3, 4, 10
COMMON = (
    "--dataset=digits",
    "--model=mlp",
    "--model_option=hidden=16",
    f"--num_clients={CLIENTS}",
    f"--num_seeds={len(SEEDS)}",
    "--batch_size=16",
    "--train_samples=96",
    "--compilation_cache=",
)
MAIN = (
    "--algorithms=local,feddwa,cwfedavg,weight_erosion",
    "--partition=grouped",
    "--groups=2",
    "--set=feddwa.score_guidance=true",
    "--set=feddwa.top_k=3",
    "--set=weight_erosion.alice=1",
)


def rows_of(drawn) -> list[tuple]:
    """The numbers of a drawing."""
    return list(drawn.numbers.itertuples(index=False, name=None))


@pytest.fixture(scope="session")
def folder(tmp_path_factory):
    """Finished runs: `main` (four algorithms, in two groups of clients), `longer` (two of them, one
    round more), `free` (cwFedAVG without regularizer) and `iid` (FedAvg, with fine-tuning)."""
    root = tmp_path_factory.mktemp("finished")

    def finished(name, *words):
        code = main(["run", *COMMON, f"--rounds={ROUNDS}", *words, f"--output_dir={root / name}"])
        assert code == 0

    grouped = MAIN[1:3]
    finished("main", *MAIN)
    finished("longer", "--algorithms=local,cwfedavg", *grouped, f"--rounds={ROUNDS + 1}")
    finished("free", "--algorithms=cwfedavg", "--set=cwfedavg.wdr_weight=0", *grouped)
    finished(
        "iid",
        "--algorithms=fedavg",
        "--partition=iid",
        "--adapt_steps=2",
        "--adapt_when=last",
    )
    return root


@pytest.fixture(scope="session")
def found(folder):
    """All runs by (folder's name, algorithm)."""
    return {(run.folder.parent.name, run.algorithm): run for run in loading.find([str(folder)])}


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
