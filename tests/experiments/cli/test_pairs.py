"""Words NAME=VALUE of flags that may come several times."""

import absl.flags
import pytest

from experiments.cli.pairs import parse_pairs
from fedjax_pfl.errors import InputError


def parsed(*words):
    values = absl.flags.FlagValues()
    absl.flags.DEFINE_multi_string("option", [], "", flag_values=values)
    values(["", *(f"--option={word}" for word in words)])
    return parse_pairs(values, "option", ["column"])


def test_the_same_pair_again_is_one():
    """A sweep's flags and the command line may both name a table's label."""
    assert parsed("column=1", "size=2", "column=1") == {"column": "1", "size": 2}
    with pytest.raises(InputError, match="--option gives size twice: '2' and '3'"):
        parsed("size=2", "size=3")
