"""Roles of flags: each name is a flag; flags and hyperparameters as words of a command line."""

from experiments.cli import flag_roles, flags
from experiments.cli.algorithms import parse_algorithms, setting_flags
from fedjax_pfl.core import ALGORITHMS

ELSEWHERE = {"preset", "settings_from", "flagfile", "distributed"}  # not among a run's own


def test_flag_roles_name_flags():
    known = set(flags.parse(["run"])) | ELSEWHERE
    sets = [one for one in vars(flag_roles).values() if isinstance(one, frozenset)]
    assert len(sets) > 5
    assert not set().union(*sets) - known


def test_every_algorithm_is_made_again_from_its_hyperparameters():
    """Also those whose hyperparameters need a value from Python, and have none."""
    for name, kind in ALGORITHMS.items():
        words = setting_flags(name, vars(kind()))
        words = [word.removeprefix("--set=") for word in words]
        assert parse_algorithms([name], words) == {name: kind()}


def test_every_flag_is_given_again():
    """Those that may be given many times, too."""
    own = "example:kept_average"
    words = ["--import_file=" + own, "--model_option=hidden=8", "--stragglers=0:1,3:2"]
    words += ["--data_option=image_size=4", "--import_file=" + own, "--dtype=float64"]
    words += ["--optimizer=adam", "--optimizer_option=b1=0.8", "--optimizer_option=b2=0.9"]
    args = flags.parse(["run", *words])
    values = {k: v for group in args.by_group().values() for k, v in group.items()}
    again = [w for k, v in values.items() if v is not None for w in flags.flag_words(k, v)]
    same = flags.parse(["run", *again])
    assert same.by_group() == args.by_group() and len(same.import_file) == 2
