"""Integers runs of two rounds with odd settings, whose files must be readable and agree."""

import csv
import shutil
from pathlib import Path

import numpy as np
from hypothesis import strategies as st

import fedjax_pfl as pfl
from experiments import run
from experiments.cli import flags
from tests.fuzz.commands import KNOWN, SMALL, flags_of, scene, valid
from tests.fuzz.verdict import Target, main_of

OUT = Path("whole")
END = ("--dataset=digits", "--rounds=2", "--compilation_cache=", f"--output_dir={OUT}")
MORE = ("partition", "validation_fraction", "eval_every", "num_seeds", "new_clients",
        "train_samples", "num_clients")  # fmt: skip


def whole_runs():
    """Each of one algorithm and up to eight flags that are valid by themselves."""
    scene()
    known = flags.define()
    odd = [*flags_of(known, "training"), *(known[name] for name in MORE)]
    words = {flag.name: valid(flag) for flag in odd if flag.name not in ("model", "flagfile")}
    one = st.sampled_from([name for name in words if words[name]])

    @st.composite
    def settings(draw):
        names = draw(st.lists(one, max_size=8, unique=True))
        return [f"--{name}={draw(st.sampled_from(words[name]))}" for name in names]

    def attack(given):
        name, line = given
        shutil.rmtree(OUT, ignore_errors=True)
        printed = main_of(run.main, ["run", *SMALL, *line, f"--algorithms={name}", *END])
        if printed is None:
            check(name)
        return printed

    return st.tuples(st.sampled_from(KNOWN["algorithms"]), settings()), attack


def check(name: str) -> None:
    """Raises `AssertionError` where the files of a run do not agree."""
    result = pfl.Result.load(OUT / name)
    assert result.rounds == 2 and result.algorithm == name
    scores = result.scores["personalized/test/accuracy"]
    lost = sum(np.count_nonzero(result.clients[key]) for key in ("diverged", "nonfinite")
               if key in result.clients)  # fmt: skip
    missing = np.isnan(scores)
    expected = np.broadcast_to(result.test_sizes > 0, scores.shape)
    if pfl.core.ALGORITHMS[name].served_clients is not pfl.Algorithm.served_clients:
        expected = expected & ~missing.all(axis=2, keepdims=True)
    assert expected.any()
    assert (
        not (missing & expected).any()
        or lost
        or result.scalars.get("server_nonfinite", np.zeros(1)).any()
    )
    assert np.nanmin(scores, initial=0) >= 0 and np.nanmax(scores, initial=1) <= 1
    with (OUT / "comparison.csv").open() as file:
        assert len(list(csv.DictReader(file))) == 1


TARGETS = {"whole runs": Target(3.3, whole_runs, seconds=120, batch=20)}
