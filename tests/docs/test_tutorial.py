"""The notebook of the tutorial runs from its first cell to its last, with fewer rounds."""

import re

import matplotlib.figure
import numpy as np
import pytest

import fedjax_pfl as pfl
from tests.docs import notebooks, pages

PATH = pages.ROOT / "docs/tutorial.ipynb"
NOTEBOOKS = sorted(
    path for place in ("docs", "experiments") for path in (pages.ROOT / place).rglob("*.ipynb")
)
SMALLER = {"rounds=40": "rounds=2", '"cnn"': '"softmax"', "seeds=(0, 1, 2)": "seeds=(0,)"}


@pytest.mark.parametrize("path", NOTEBOOKS, ids=pages.name)
def test_notebooks_have_no_outputs_and_no_dead_links(path):
    every = notebooks.cells(path)
    assert len({cell["id"] for cell in every}) == len(every)
    for cell in every:
        if cell["cell_type"] == "code":
            assert cell["outputs"] == [] and cell["execution_count"] is None
        else:
            for link in re.findall(r"\]\(([^)#]+)", "".join(cell["source"])):
                assert (path.parent / link).exists(), link


@pytest.mark.costly
def test_cells_of_the_tutorial(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    names, shown = notebooks.run(PATH, SMALLER)
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
