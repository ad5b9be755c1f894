"""Real data at full size, where FEDJAX_PFL_DATA names a folder that holds it."""

import os
from pathlib import Path

import numpy as np
import pytest

from fedjax_pfl.data.scaling import input_scaling
from fedjax_pfl.data.sources.source_registry import load_dataset


def real(name):
    """The folder with real data, or the test is skipped."""
    folder = os.environ.get("FEDJAX_PFL_DATA")
    if not folder or not (Path(folder) / name).is_dir():
        pytest.skip(f"FEDJAX_PFL_DATA doesn't name a folder with {name}/ in it")
    return Path(folder)


def test_fashion_mnist():
    folder = real("fashion_mnist")
    data = load_dataset("fashion_mnist", folder)
    assert data.train_x.shape == (60000, 28, 28, 1)
    assert data.test_x.shape == (10000, 28, 28, 1)
    assert data.train_y[:5].tolist() == [9, 0, 0, 3, 0]
    assert np.bincount(data.train_y).tolist() == [6000] * 10
    assert np.bincount(data.test_y).tolist() == [1000] * 10
    scale, shift = input_scaling("standard", data)
    np.testing.assert_allclose(
        [-shift[0] / scale[0] / 255, 1 / scale[0] / 255], [0.286, 0.353], atol=1e-3
    )


def test_ag_news():
    folder = real("ag_news")
    data = load_dataset("ag_news", folder)
    if (folder / "ag_news/train.csv").is_file():
        assert (data.num_train, data.num_test, data.vocab_size) == (120_000, 7_600, 32_000)
        return
    assert (data.num_train, data.num_test, data.input_shape) == (7_600, 0, (200,))
    assert np.bincount(data.train_y).tolist() == [1900] * 4
    # "Fears for T N pension after talks Unions representing workers at Turner   Newall say ..."
    assert data.train_y[0] == 2
    assert (data.train_x[0] > 0).sum() == 28
    assert data.train_x.max() == data.vocab_size - 1


@pytest.mark.costly
def test_cifar10_jpeg():
    folder = real("cifar10_jpeg")
    data = load_dataset("cifar10_jpeg", folder)
    assert (data.num_train, data.num_test, data.input_shape) == (50_000, 10_000, (32, 32, 3))
    assert np.bincount(data.train_y).tolist() == [5_000] * 10
    assert np.bincount(data.test_y).tolist() == [1_000] * 10
    scale, shift = input_scaling("standard", data)
    np.testing.assert_allclose(-shift / scale / 255, [0.4914, 0.4822, 0.4465], atol=2e-3)
    assert load_dataset("cifar10_jpeg", folder).fingerprint() == data.fingerprint()
