"""Whole runs of two rounds with odd settings, whose files must be readable and agree."""

import csv
import shutil
from pathlib import Path

import numpy as np
from hypothesis import strategies as st

import fedjax_pfl as pfl
from experiments import run
from tests.fuzz.commands import SMALL, scene
from tests.fuzz.guard import main_of
from tests.fuzz.target import target

OUT = Path("whole")
TINY = (*SMALL, "--dataset=digits", "--rounds=2", "--compilation_cache=", f"--output_dir={OUT}")
# Valid in themselves, and small; together they need not go.
ODD = {
    "algorithms": sorted(pfl.core.ALGORITHMS),
    "partition": sorted(pfl.data.RULES),
    "learning_rate": ["0", "1e-30", "0.1", "1e30"],
    "learning_rate_decay": ["0.5", "1"],
    "batch_size": ["1", "3", "1000"],
    "local_epochs": ["1", "2"],
    "local_steps": ["1", "3"],
    "batch_order": ["shuffled", "fresh", "partition", "by_class"],
    "momentum": ["0", "0.99"],
    "weight_decay": ["0", "10"],
    "optimizer": ["sgd", "adam"],
    "clip_norm": ["1e-9", "1e9"],
    "participation": ["0.01", "0.5", "1"],
    "stragglers": ["0:1", "1:2,3:1"],
    "share": ["all", "none", "head", "body"],
    "freeze": ["head", "body"],
    "lora_rank": ["1", "50"],
    "dtype": ["float32", "bfloat16", "float64"],
    "compute_dtype": ["bfloat16", "float16"],
    "client_execution": ["map", "vmap", "3"],
    "client_state": ["device", "host"],
    "validation_fraction": ["0", "0.3", "0.9"],
    "eval_every": ["1", "2", "7"],
    "num_seeds": ["1", "3"],
    "new_clients": ["0", "1", "3"],
    "train_samples": ["1", "2", "40"],
    "num_clients": ["1", "2", "9"],
}


@target("whole runs", 2, seconds=120)
def _whole_runs():
    scene()
    flags = st.fixed_dictionaries(
        {"algorithms": st.sampled_from(ODD["algorithms"])},
        optional={name: st.sampled_from(ODD[name]) for name in ODD if name != "algorithms"},
    )

    def attack(given):
        shutil.rmtree(OUT, ignore_errors=True)
        said = main_of(run.main, ["run", *TINY, *(f"--{k}={v}" for k, v in given.items())])
        if said is None:
            check(given)
        return said

    return flags, attack


def check(given: dict[str, str]) -> None:
    """Raises `AssertionError` where the files of a run do not agree."""
    name = given["algorithms"]
    result = pfl.Result.load(OUT / name)
    assert result.rounds == 2 and result.algorithm == name
    scores = result.scores["personalized/test/accuracy"]
    lost = sum(np.count_nonzero(result.clients[key]) for key in ("diverged", "nonfinite")
               if key in result.clients)  # fmt: skip
    missing = np.isnan(scores[..., result.test_sizes > 0])
    assert not missing.any() or lost or result.scalars.get("server_nonfinite", np.zeros(1)).any()
    assert np.nanmin(scores, initial=0) >= 0 and np.nanmax(scores, initial=1) <= 1
    rows = list(csv.DictReader((OUT / "comparison.csv").open()))
    assert len(rows) == 1
