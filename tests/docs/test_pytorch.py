"""The Python of docs/pytorch.md runs as written, on weights and samples as PyTorch has them."""

import numpy as np
import pytest

from tests.docs import pages
from tests.models import torch_forward as torch


@pytest.fixture(scope="module")
def names():
    """What the blocks define, one after the other."""
    rng = np.random.default_rng(0)
    images = rng.normal(size=(60, 3, 8, 8)).astype(np.float32)
    state = torch.state_of(**{"0": (8, 3, 3, 3), "1": (8,), "5": (16, 72), "7": (4, 16)})
    names = {"torch_dataset": [(x, i % 4) for i, x in enumerate(images)], "state_dict": state}
    return pages.run_python("docs/pytorch.md", names | {"__name__": "pytorch"})


@pytest.mark.costly
def test_the_outputs_are_those_of_pytorch(names):
    state, images = names["state_dict"], names["images"][:4].transpose(0, 3, 1, 2)
    x = torch.batch_norm(torch.conv2d(images, state, "0"), state, "1")
    x = torch.flatten(torch.max_pool(torch.relu(x)))
    wanted = torch.linear(torch.relu(torch.linear(x, state, "5")), state, "7")
    np.testing.assert_allclose(names["logits"], wanted, rtol=1e-4, atol=1e-5)
    assert np.ptp(wanted, axis=0).min() > 0.01


def test_everything_but_the_head_is_converted(names):
    assert set(names["model"]["params"]) == {"conv", "norm", "hidden"}


def test_images_have_their_channels_last(names):
    first, _ = names["torch_dataset"][0]
    pool, _ = names["dataset"].pool()
    assert any(np.array_equal(image, first.transpose(1, 2, 0)) for image in pool)
