"""Images of several domains, each a folder of class folders."""

import numpy as np
import pytest

import fedjax_pfl as pfl
from experiments.cli import data_flags, flags
from fedjax_pfl.utils.errors import InputError
from tests.data.image_files import class_folders


def test_a_domain_is_a_column_and_its_clients_share_it(tmp_path):
    arrays = class_folders(tmp_path / "mine", ("photo", "sketch"), count=6)
    words = ["run", f"--dataset=domains:{tmp_path / 'mine'}", "--clients_each=2"]
    config = flags.parse(words)
    data = data_flags.load_dataset(config)
    assert (data.name, data.class_names, data.num_train) == ("mine", ("cat", "dog"), 24)
    assert data.columns["domain"].tolist() == ["photo"] * 12 + ["sketch"] * 12
    np.testing.assert_array_equal(data.train_x[13], arrays["sketch/cat/1"])
    p = data_flags.make_partition(config, data)
    assert p.names == ("photo-0", "photo-1", "sketch-0", "sketch-1")
    assert (p.sizes("train") + p.sizes("test")).tolist() == [6] * 4
    for i, name in enumerate(p.names):
        assert set(data.columns["domain"][p.client("train", i)]) == {name[:-2]}


def test_refusals(tmp_path):
    with pytest.raises(InputError, match="No folder"):
        pfl.load_dataset(f"domains:{tmp_path / 'none'}")
    with pytest.raises(InputError, match="holds no domains"):
        pfl.load_dataset(f"domains:{tmp_path}")
    class_folders(tmp_path, ("photo",))
    class_folders(tmp_path, ("sketch",), classes=("cat", "emu"))
    with pytest.raises(InputError, match="photo has cat, dog, and sketch cat, emu"):
        pfl.load_dataset(f"domains:{tmp_path}")
