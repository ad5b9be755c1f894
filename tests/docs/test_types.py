"""Code of a user's own is typed through `py.typed`: a checker takes what is right, and no more."""

import json
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from tests.docs import pages

SAMPLE = """
from dataclasses import replace

import jax
import jax.numpy as jnp

import fedjax_pfl as pfl
from fedjax_pfl.utils import trees


@pfl.core.struct
class State:
    models: dict = pfl.core.per_client()
    seen: jax.Array = pfl.core.per_client()


@pfl.core.algorithm("kept_mean")
class KeptMean(pfl.Algorithm):
    rate: float = 0.5
    layers: int = pfl.core.static(default=1)

    def init(self, ctx: pfl.Context) -> State:
        models = ctx.replicate(ctx.initial_model())
        return State(models, seen=jnp.zeros(ctx.num_clients))

    def round(self, ctx: pfl.Context, state: State) -> tuple[State, pfl.Record]:
        trained, cohort, loss = ctx.train(ctx.cohort.gather(state.models))
        weights = pfl.mixing.by_size(ctx.sizes(), cohort.mask)
        mixed = ctx.average(weights, trained, onto=trained)
        kept = replace(state, models=cohort.scatter(state.models, mixed), seen=state.seen + 1)
        return kept, ctx.record(cohort, mixing=weights, clients={"train_loss": loss})

    def models(self, ctx: pfl.Context, state: State, rows: jax.Array) -> dict:
        return {"personalized": trees.take(state.models, rows)}


def accuracy(seeds: int) -> float:
    dataset = pfl.load_dataset("digits")
    partition = pfl.make_partition("dirichlet", dataset, num_clients=5, seed=0, alpha=0.5)
    federation = pfl.federate(dataset, partition, "softmax", local_epochs=2, participation=0.6)
    result = pfl.simulate(KeptMean(rate=0.1), federation, 3, seeds=range(seeds))
    swept = pfl.simulate(KeptMean(0.1, layers=2), federation, 3, settings={"rate": [0.1, 0.2]})
    return float(result.curve()[:, 0, -1].mean() + swept.accuracy("global").mean())
"""
# What the checker is to see, and the rule that it names.
MISTAKES = {
    "KeptMean(rat=0.1)": "reportCallIssue",
    'KeptMean(rate="high")': "reportArgumentType",
    "State({})": "reportCallIssue",
    "pfl.simulate(KeptMean, None, 3)": "reportArgumentType",
    "KeptMean().rate.mean()": "reportAttributeAccessIssue",
}


def checker():
    """The command, beside this Python or on the path."""
    beside = shutil.which("basedpyright", path=str(Path(sys.executable).parent))
    return beside or shutil.which("basedpyright")


@pytest.mark.costly
@pytest.mark.skipif(checker() is None, reason="basedpyright is not here: install the extra 'dev'")
def test_a_users_code_is_typed(tmp_path):
    lines = SAMPLE.count("\n")
    (tmp_path / "mine.py").write_text(SAMPLE + "\n".join(MISTAKES) + "\n", encoding="utf-8")
    options = {"include": ["mine.py"], "extraPaths": [str(pages.ROOT)], "typeCheckingMode": "basic",
               "reportUnusedExpression": False}  # fmt: skip
    (tmp_path / "pyrightconfig.json").write_text(json.dumps(options), encoding="utf-8")
    done = subprocess.run(
        [checker(), "--outputjson", f"--project={tmp_path}", f"--pythonpath={sys.executable}"],
        capture_output=True, text=True, check=False, cwd=tmp_path,
    )  # fmt: skip
    result = [
        (one["range"]["start"]["line"] - lines, one["rule"], one["message"])
        for one in json.loads(done.stdout)["generalDiagnostics"]
    ]
    assert not [one for one in result if one[0] < 0]
    seen = {line: rule for line, rule, _ in result}
    assert seen == dict(enumerate(MISTAKES.values())), result


def test_the_library_says_that_it_is_typed():
    assert (pages.ROOT / "fedjax_pfl" / "py.typed").exists()
