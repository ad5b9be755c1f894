"""Generated tales by letter."""

import hashlib

import numpy as np
import pytest

import fedjax_pfl as pfl
from fedjax_pfl.data.sources.leaf import LETTERS, RESERVED


def text(ids):
    return "".join(LETTERS[i - RESERVED] for i in ids)


def test_each_letter_is_labelled_with_the_next_one():
    data = pfl.load_dataset("characters")
    assert data.train_x.shape == (480, 80) and data.task == "next_token"
    tellers = data.columns["teller"]
    own = data.train_x[tellers[:480] == "sailor"], data.train_y[tellers[:480] == "sailor"]
    np.testing.assert_array_equal(own[1].reshape(-1)[:-1], own[0].reshape(-1)[1:])
    tale = text(own[0].reshape(-1))
    assert "mast" in tale and "loom" not in tale and tale[:4] in ("The ", "Out ")
    # The test texts go on where those for training end.
    assert data.test_x is not None
    assert text(own[1][-1][-1:]) == text(data.test_x[tellers[480:] == "sailor"][0][:1])
    again = hashlib.sha256(np.ascontiguousarray(data.train_x).astype("<i4").tobytes())
    assert again.hexdigest()[:12] == "ce72af23aaa1"


@pytest.mark.costly
def test_each_teller_is_a_client_and_a_network_learns():
    data = pfl.load_dataset("characters", texts=8, length=20)
    partition = pfl.make_partition("by_column", data, None, 0)
    assert partition.names is not None
    assert (len(partition.names), partition.names[0]) == (12, "baker")
    assert len(partition.client("train", 0)) == 8 and len(partition.client("test", 0)) == 2
    federation = pfl.federate(
        data, partition, "text_transformer", learning_rate=0.5, local_steps=4, batch_size=8,
        model_options={"hidden": 16, "depth": 1, "heads": 2},
    )  # fmt: skip
    result = pfl.simulate(pfl.make_algorithm("fedavg"), federation, 8)
    losses = np.asarray(result.clients["train_loss"])[0, 0]
    assert losses[-1].mean() < 0.8 * losses[0].mean()


@pytest.mark.parametrize(("options", "message"), [
    ({"texts": 3}, "texts must be a whole number of at least 4, got 3"),
    ({"length": 1}, "length must be a whole number of at least 2, got 1"),
])  # fmt: skip
def test_sizes_are_checked(options, message):
    with pytest.raises(pfl.InputError, match=message):
        pfl.load_dataset("characters", **options)
