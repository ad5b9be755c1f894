"""The notebook of the tutorial runs from its first cell to its last, with fewer rounds."""

import ast
import json
import re

import matplotlib.figure
import numpy as np
import pytest

import fedjax_pfl as pfl
from tests.docs import pages

PATH = pages.ROOT / "docs/tutorial.ipynb"
CELLS = json.loads(PATH.read_text(encoding="utf-8"))["cells"]
CODE = {cell["id"]: "".join(cell["source"]) for cell in CELLS if cell["cell_type"] == "code"}
TEXT = "".join("".join(c["source"]) for c in CELLS if c["cell_type"] == "markdown")
SMALLER = {"rounds=40": "rounds=2", '"cnn"': '"softmax"', "seeds=(0, 1, 2)": "seeds=(0,)"}


def test_tutorial_has_no_outputs():
    cells = [cell for cell in CELLS if cell["cell_type"] == "code"]
    assert all(cell["outputs"] == [] and cell["execution_count"] is None for cell in cells)
    assert len({cell["id"] for cell in CELLS}) == len(CELLS)


def test_links_of_the_tutorial():
    for link in re.findall(r"\]\(([^)#]+)", TEXT):
        assert (PATH.parent / link).exists(), link


@pytest.mark.costly
def test_cells_of_the_tutorial(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    known = dict(pfl.core.ALGORITHMS)
    names, shown = {"__name__": "tutorial"}, {}
    try:
        for cell, text in CODE.items():
            for old, new in SMALLER.items():
                text = text.replace(old, new)
            tree = ast.parse(text)
            last = tree.body.pop() if isinstance(tree.body[-1], ast.Expr) else None
            exec(compile(tree, cell, "exec"), names)
            if last is not None:
                shown[cell] = eval(compile(ast.Expression(last.value), cell, "eval"), names)
    finally:
        pfl.core.ALGORITHMS.clear()
        pfl.core.ALGORITHMS.update(known)
    figures = [cell for cell, one in shown.items() if isinstance(one, matplotlib.figure.Figure)]
    assert figures == ["data", "plot", "mixing"]
    assert names["partition"].num_clients == 20 and names["state"].round == 2
    steps = names["own"].curve()[0, :, -1]  # local training and FedAvg are its limits
    local, fedavg = (names["results"][name].curve()[0, 0, -1] for name in ("local", "fedavg"))
    np.testing.assert_allclose(steps[[0, -1]], [local, fedavg], atol=0.02)
    loaded = pfl.Result.load(tmp_path / "feddwa_result")
    np.testing.assert_array_equal(loaded.curve(), names["results"]["feddwa"].curve())
    assert shown["save"].shape == (5,)
    assert "rate 0.1: validation" in capsys.readouterr().out


@pytest.mark.parametrize("old", SMALLER)
def test_what_is_made_smaller_is_there(old):
    assert any(old in text for text in CODE.values())
