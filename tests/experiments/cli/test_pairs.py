"""Words NAME=VALUE of flags that may come several times."""

import absl.flags
import pytest

from experiments.cli import flags, identity
from experiments.cli.algorithms import parse_algorithms
from experiments.cli.parsing import parse_pairs
from fedjax_pfl.utils.errors import InputError
from tests.experiments.small_runs import assert_input_error


def parsed(*words):
    values = absl.flags.FlagValues()
    absl.flags.DEFINE_multi_string("option", [], "", flag_values=values)
    values(["", *(f"--option={word}" for word in words)])
    return parse_pairs(values, "option", ["column"])


def test_later_pair_wins(tmp_path):
    """Texts stay texts; names of algorithms in any spelling are the same one."""
    assert parsed("column=1", "size=2", "column=1", "size=3") == {"column": "1", "size": 3}
    inner, outer = tmp_path / "inner", tmp_path / "outer"
    inner.write_text("--data_option=a=1\n--data_option=b=1\n--set=feddwa.top_k=2\n")
    outer.write_text(f"--flagfile={inner}\n--data_option=b=2\n--data_option=c=2\n")
    words = ["--data_option", "c=3", "--set=FedDWA.top_k=4", "--set=fedavg.learning_rate=1"]
    args = flags.parse(["run", f"--flagfile={outer}", *words])
    assert parse_pairs(args, "data_option") == {"a": 1, "b": 2, "c": 3}
    assert args["data_option"].value == ["a=1", "b=2", "c=3"]
    assert args.set == ["feddwa.top_k=4", "fedavg.learning_rate=1"]
    args = flags.parse(["run", *words, f"--flagfile={outer}"])  # the file comes later
    assert parse_pairs(args, "data_option") == {"a": 1, "b": 2, "c": 2}
    assert args.set == ["fedavg.learning_rate=1", "feddwa.top_k=2"]


def test_order_of_pairs_is_no_part_of_the_identity():
    words = ["--data_option=a=1", "--data_option=b=2", "--set=fedavg.x=1", "--set=fedavg.y=2"]
    before, now, other = (
        identity.run_identity(flags.parse(["run", *some]))
        for some in (words, words[::-1], words[:1])
    )
    assert before == now != other


def test_a_files_settings_of_other_algorithms_are_passed_over(tmp_path):
    """A preset may hold settings of many algorithms; a word typed by hand is likely a slip."""
    file = tmp_path / "file"
    file.write_text("--set=FedDWA.top_k=2\n--set\napple.mu=0.2\n")
    for names, kept in (
        ("local", []),
        ("apple,local", ["apple.mu=0.2"]),
        ("FedDWA,apple", ["feddwa.top_k=2", "apple.mu=0.2"]),
    ):
        args = flags.parse(["run", f"--flagfile={file}", f"--algorithms={names}"])
        typed = [f"--algorithms={names}", *(f"--set={word}" for word in kept)]
        assert args.set == kept
        assert identity.run_identity(args) == identity.run_identity(flags.parse(["run", *typed]))
    words = [f"--flagfile={file}", "--algorithms=apple", "--set=apple.mu=1"]
    assert flags.parse(["run", *words]).set == ["apple.mu=1"]  # wins over the pair of two words
    typed = flags.parse(["run", "--algorithms=local", "--set=feddwa.top_k=2"])
    with pytest.raises(InputError, match="'feddwa', which is not in this comparison"):
        parse_algorithms(typed.algorithms, typed.set)
    file.write_text("--set=fedwda.top_k=2\n")
    unknown = flags.parse(["run", f"--flagfile={file}", "--algorithms=local"])
    assert_input_error("fedwda", parse_algorithms, unknown.algorithms, unknown.set)
