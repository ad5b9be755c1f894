"""Other tools' folders, recognized by the names in them."""

import json
import os

import numpy as np
import pytest

import fedjax_pfl as pfl
from fedjax_pfl.data.partitions.importers import FLBENCH_EXPORT
from fedjax_pfl.data.pfllib_files import PFLLIB_EXPORT
from tests.data.partitions.saved_splits import (
    CLIENTS,
    DATA,
    EXPECTED,
    exported,
    lists_of,
    write_flbench,
    write_pfllib,
)


def test_flbench_refuses_the_pickle_and_reads_what_its_script_exports(tmp_path):
    write_flbench(folder := tmp_path / "colours")
    with pytest.raises(pfl.InputError, match="is a pickle, which is never loaded here") as error:
        pfl.read_partition(folder, DATA)
    assert FLBENCH_EXPORT.format(folder=str(folder)) in str(error.value)
    exported(folder, FLBENCH_EXPORT)
    for place in (folder, folder / "partition.npz"):
        partition = pfl.read_partition(place, DATA)
        for name, theirs in (("train", "train"), ("validation", "val"), ("test", "test")):
            lists = [one.tolist() for one in partition.split(name).lists()]
            assert lists == [sorted(one[theirs]) for one in CLIENTS]
        assert partition.rule == "file"


def test_exports_of_former_splits_are_refused(tmp_path):
    write_flbench(bench := tmp_path / "bench")
    exported(bench, FLBENCH_EXPORT)
    write_pfllib(lib := tmp_path / "lib", DATA)
    exported(lib, PFLLIB_EXPORT)
    for folder, source in ((bench, "partition.pkl"), (lib, "test/1.npz")):
        later = (folder / source).stat().st_mtime + 99
        os.utime(folder / source, (later, later))
        with pytest.raises(pfl.InputError, match=rf"{source} is newer than its export .*npz: exp"):
            pfl.read_partition(folder, DATA)
    with pytest.raises(pfl.InputError, match="is newer"):
        pfl.load_dataset(f"pfllib:{lib}")


def test_signals_of_pfllib_have_their_channels_last(tmp_path):
    x, y = np.random.default_rng(0).normal(size=(4, 1, 128, 9)).astype(np.float32), [0, 1, 1, 0]
    (tmp_path / "config.json").write_text('{"num_clients": 1, "num_classes": 2}')
    for split in ("train", "test"):
        (tmp_path / split).mkdir()
        np.savez(tmp_path / split / "0.plain.npz", x=np.moveaxis(x, -1, 1), y=y)
    data = pfl.load_dataset(f"pfllib:{tmp_path}")
    np.testing.assert_array_equal(data.train_x, x)


def test_pfllibs_folder_is_a_partition_and_a_data_set(tmp_path):
    write_pfllib(tmp_path, DATA)
    for read in (lambda: pfl.load_dataset(f"pfllib:{tmp_path}"),
                 lambda: pfl.read_partition(tmp_path, DATA)):  # fmt: skip
        with pytest.raises(pfl.InputError, match="pickled objects, which are never loaded") as said:
            read()
        assert PFLLIB_EXPORT.format(folder=str(tmp_path)) in str(said.value)
    exported(tmp_path, PFLLIB_EXPORT)
    assert pfl.data.detect_tool(tmp_path) == "pfllib"
    found = pfl.read_partition(tmp_path, DATA)
    assert lists_of(found) == EXPECTED and (found.rule, found.allow_overlap) == ("pfllib", False)
    assert found.options["ambiguous_samples"] == 0
    assert (found.options["mean"], found.options["std"]) == (0.5, 0.5)
    own = pfl.load_dataset(f"pfllib:{tmp_path}")
    sizes = [sum(map(len, lists)) for lists in EXPECTED]
    assert [own.num_train, own.num_test] == sizes
    assert own.input_shape == DATA.input_shape and own.num_classes == 4
    partition = pfl.read_partition(tmp_path, own)
    for split, lists in zip(("train", "test"), EXPECTED, strict=True):
        for client, wanted in enumerate(lists):
            result = partition.client(split, client)
            ours = np.rint(255 * (own.pool()[0][result] * 0.5 + 0.5))
            assert as_sets(ours) == as_sets(DATA.pool()[0][wanted])


def as_sets(images):
    return {image.astype(np.uint8).tobytes() for image in images}


def test_files_of_ours_and_folders_of_nobody(tmp_path):
    partition = pfl.Partition.from_lists(EXPECTED[0], EXPECTED[1])
    partition.save(tmp_path / "ours.npz")
    assert pfl.read_partition(tmp_path / "ours.npz", DATA).hash() == partition.hash()
    (tmp_path / "split.json").write_text(json.dumps({"0": [1, 2], "1": [3]}))
    assert pfl.read_partition(tmp_path / "split.json", DATA).rule == "flower"
    (tmp_path / "empty").mkdir()
    with pytest.raises(pfl.InputError, match=r"isn't a split of PFLlib .*, FL-bench .* or flwr"):
        pfl.read_partition(tmp_path / "empty", DATA)
