"""Files that are written completely or not at all."""

import pytest

from fedjax_pfl.data import atomic_files


def test_a_failed_write_leaves_the_old_file(tmp_path):
    (tmp_path / "a.txt").write_text("old")
    with pytest.raises(RuntimeError), atomic_files.atomic_write(tmp_path / "a.txt") as part:
        part.write_text("half")
        raise RuntimeError
    assert (tmp_path / "a.txt").read_text() == "old"
    assert [path.name for path in tmp_path.iterdir()] == ["a.txt"]
