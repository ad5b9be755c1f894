"""The notebook of single papers' pictures runs from its first cell to its last, in short."""

import matplotlib
import matplotlib.pyplot as plt
import numpy as np
import pytest

from tests.docs import notebooks, pages

PATH = pages.ROOT / "docs/papers.ipynb"
SMALLER = {"ROUNDS = 20": "ROUNDS = 3", '"cnn"': '"mlp"'}


@pytest.fixture
def ran():
    """The names after the last cell."""
    before = matplotlib.get_backend()
    plt.switch_backend("agg")
    yield notebooks.run(PATH, SMALLER)[0]
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
