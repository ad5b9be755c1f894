"""Roles of flags: each name is a flag, and rebuilding a run keeps what trains it."""

from experiments.cli import flag_roles, flags
from experiments.figures import probes

ELSEWHERE = {"preset", "settings_from", "flagfile", "distributed"}  # not among a run's own


def test_flag_roles_name_flags():
    known = set(flags.parse(["run"])) | ELSEWHERE
    sets = [one for one in vars(flag_roles).values() if isinstance(one, frozenset)]
    assert len(sets) > 5
    assert not set().union(*sets) - known


def test_a_rebuilt_run_trains_as_the_run():
    training = flags.parse(["run"]).by_group()["training"]
    assert not probes._LEFT_OUT & training.keys()
    assert "data_dir" not in probes._LEFT_OUT
