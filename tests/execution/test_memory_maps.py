"""Compiled programs make room for others before Linux's bound on memory maps ends the process."""

import jax
import pytest

from fedjax_pfl.execution import memory_maps


@pytest.mark.parametrize(("limit", "room"), [("2", True), ("65530000", False), (None, False)])
def test_programs_are_let_go_where_half_of_the_maps_are_taken(monkeypatch, tmp_path, limit, room):
    if not memory_maps.MAPS.exists():
        pytest.skip("this system does not list a process's maps")
    path, cleared = tmp_path / "max_map_count", []
    monkeypatch.setattr(memory_maps, "LIMIT", path)
    monkeypatch.setattr(jax, "clear_caches", lambda: cleared.append(True))
    if limit:
        path.write_text(limit + "\n")
    made = [memory_maps.make_room() for _ in range(memory_maps.EVERY)]
    assert made.count(True) == len(cleared) == room
