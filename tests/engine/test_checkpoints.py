"""Checkpoints come back bit by bit, and damaged ones are skipped."""

import shutil

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import fedjax_pfl as pfl
from fedjax_pfl.engine import checkpoints
from fedjax_pfl.engine.checkpoints import Checkpoints


def trees(value):
    return {
        "state": {
            "a": jnp.full((3, 2), value, jnp.float32),
            "b": [jnp.zeros((0, 4)), jnp.int32(value)],
        },
        "half": [jnp.asarray([value], jnp.bfloat16)],
    }


def write(folder, rounds):
    one = Checkpoints(folder)
    for done in rounds:
        one.save(done, trees(done), {"names": ["x", "y/z"], "done": done})
    one.close()


def files_of(folder, step):
    return sorted(p for p in (folder / str(step)).rglob("*") if p.is_file())


def test_comes_back_bit_by_bit(tmp_path):
    write(tmp_path / "c", [4])
    saved = Checkpoints(tmp_path / "c").latest()
    assert saved.round == 4
    assert saved.facts == {"names": ["x", "y/z"], "done": 4}
    a, empty, number = saved.trees["state"]
    np.testing.assert_array_equal(a, np.full((3, 2), 4, np.float32))
    assert a.dtype == np.float32
    assert empty.shape == (0, 4)
    assert number.dtype == np.int32
    assert number == 4
    assert saved.trees["half"][0].dtype == jnp.bfloat16


def test_the_newest_two_are_kept(tmp_path):
    write(tmp_path, [1, 2, 3])
    assert sorted(p.name for p in tmp_path.iterdir() if p.name.isdecimal()) == ["2", "3"]
    assert Checkpoints(tmp_path).latest().round == 3


def test_nothing_is_made_by_looking(tmp_path):
    assert Checkpoints(tmp_path / "none").latest() is None
    assert not (tmp_path / "none").exists()


def cut(content):
    return content[: len(content) // 2]


def flipped(content):
    middle = len(content) // 2
    return content[:middle] + bytes([content[middle] ^ 1]) + content[middle + 1 :]


@pytest.mark.filterwarnings("ignore:The checkpoint of round 2")
@pytest.mark.parametrize("damage", [cut, flipped])
def test_nothing_wrong_comes_out_of_a_damaged_file(tmp_path, damage):
    """Whichever file suffers: the right arrays of that checkpoint, or those of the one before."""
    write(tmp_path / "whole", [1, 2])
    before = 0
    for k, path in enumerate(files_of(tmp_path / "whole", 2)):
        folder = tmp_path / f"c{k}"
        shutil.copytree(tmp_path / "whole", folder)
        target = folder / path.relative_to(tmp_path / "whole")
        if target.stat().st_size:
            target.write_bytes(damage(target.read_bytes()))
        result = Checkpoints(folder)
        saved = result.latest()
        result.close()
        assert saved.facts["done"] == saved.round
        for name, tree in trees(saved.round).items():
            wanted = [np.asarray(leaf) for leaf in jax.tree.leaves(tree)]
            for got, leaf in zip(saved.trees[name], wanted, strict=True):
                np.testing.assert_array_equal(got, leaf)
        before += saved.round == 1
    assert before >= 2  # the arrays and the facts at least


def test_a_damaged_checkpoint_is_said_and_written_anew(tmp_path):
    write(tmp_path, [1, 2])
    data = max(files_of(tmp_path, 2), key=lambda p: p.stat().st_size)
    data.write_bytes(cut(data.read_bytes()))
    with pytest.warns(UserWarning, match="round 2 .* is damaged and is skipped"):
        assert Checkpoints(tmp_path).latest().round == 1
    write(tmp_path, [2])
    assert Checkpoints(tmp_path).latest().round == 2


def test_rounds_below_a_damaged_checkpoint_are_written(tmp_path):
    write(tmp_path, [1, 4])
    data = max(files_of(tmp_path, 4), key=lambda p: p.stat().st_size)
    data.write_bytes(cut(data.read_bytes()))
    write(tmp_path, [2, 3])
    assert Checkpoints(tmp_path).latest().round == 3


def test_checkpoints_of_another_version_are_named(tmp_path, monkeypatch):
    write(tmp_path, [1])
    monkeypatch.setattr(checkpoints, "FORMAT", 7)
    with pytest.raises(pfl.InputError, match=r"were written by fedjax_pfl another version, and .*"):
        Checkpoints(tmp_path).latest()


def test_an_empty_folder_is_removed(tmp_path):
    one = Checkpoints(tmp_path / "none")
    one.check()
    one.remove_if_empty()
    assert not (tmp_path / "none").exists()
    write(tmp_path / "some", [1])
    Checkpoints(tmp_path / "some").remove_if_empty()
    assert Checkpoints(tmp_path / "some").latest().round == 1


def test_a_checkpoint_half_written_is_none(tmp_path):
    write(tmp_path, [1])
    half = tmp_path / "2.orbax-checkpoint-tmp-0"
    half.mkdir()
    (half / "rubbish").write_text("x")
    assert Checkpoints(tmp_path).latest().round == 1


def test_a_folder_that_can_not_be(tmp_path):
    (tmp_path / "file").write_text("x")
    with pytest.raises(pfl.OutputError, match="file can't be written: something else has its name"):
        Checkpoints(tmp_path / "file").save(1, trees(1), {})


def test_a_full_disk_leaves_the_checkpoints_before(tmp_path, caplog):
    """A limit on the size of files replaces it: the system refuses in the same way."""
    resource = pytest.importorskip("resource")
    kept = Checkpoints(tmp_path / "c", 0)
    kept.save(1, trees(1), {})
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    large = {"states": [np.random.default_rng(0).normal(size=100_000)]}
    resource.setrlimit(resource.RLIMIT_FSIZE, (50_000, hard))
    try:
        with pytest.raises(pfl.OutputError, match=r"checkpoint .*c/2 can't be written: File too"):
            kept.save(2, large, {})
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
    assert [path.name for path in (tmp_path / "c").iterdir()] == ["1"]
    assert kept.latest().round == 1 and not caplog.records
    kept.save(2, large, {})
    kept.close()
    assert Checkpoints(tmp_path / "c").latest().round == 2
