"""The notebooks of the tutorial and of papers' pictures run from first to last cell, in short."""

import re

import matplotlib
import matplotlib.figure
import matplotlib.pyplot as plt
import numpy as np
import pytest

import fedjax_pfl as pfl
from tests.docs import notebooks, pages

PATH = pages.ROOT / "docs/tutorial.ipynb"
PAPERS = pages.ROOT / "docs/papers.ipynb"
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
    loaded = pfl.Result.load(names["folder"])
    np.testing.assert_array_equal(loaded.curve(), names["results"]["feddwa"].curve())
    assert shown["save"].shape == (5,)
    assert "rate 0.1, top 2: validation" in capsys.readouterr().out


@pytest.fixture
def ran():
    """The names after the last cell."""
    before = matplotlib.get_backend()
    plt.switch_backend("agg")
    yield notebooks.run(PAPERS, {"ROUNDS = 20": "ROUNDS = 3", '"cnn"': '"mlp"'})[0]
    assert len(plt.get_fignums()) == 10  # a picture for each cell but the first
    plt.close("all")
    plt.switch_backend(before)


@pytest.mark.costly
def test_cells_of_the_papers_pictures(ran):
    assert ran["inside"] == [1, 1, 1]  # clients of a group have the same classes
    np.testing.assert_allclose(ran["weights"].sum(axis=1), 1, rtol=1e-5)
    rounds, wanted = np.array([1, 25, 50, 75, 100]), [0.958, 0.832, 0.5, 0.168, 0.039]
    np.testing.assert_allclose(ran["omega"](rounds, 100, 3.2), wanted, atol=6e-4)
    truth, *norms = ran["tables"].values()
    for table in (truth, *norms):
        np.testing.assert_allclose(table.sum(axis=1), 1, rtol=1e-5)
    free, regular = (np.linalg.norm(one[-1] - truth[0]) for one in ran["by_minibatch"].values())
    assert regular < free  # what the regularizer is for
    iid, others = (np.mean(list(one.values())) for one in ran["similarity"].values())
    assert iid > others
    assert ran["alpha"].shape == (3, 2, 8, 8) and 0 < ran["single"] < 1
    np.testing.assert_allclose(ran["alpha"].sum(axis=-1), 1, rtol=1e-5)
