"""Which scores of runs a table takes, and the flags that say so."""

from dataclasses import dataclass, fields

import absl.flags

from fedjax_pfl.results.summary import AVERAGES, FIRST, HEADLINES, SCORES, headline_of
from fedjax_pfl.utils.errors import InputError

from ..cli.flag_groups import Group
from ..cli.parsing import value_of


@dataclass(frozen=True)
class Choice:
    """Which scores.

    Attributes:
      score: of the rounds, a name in `SCORES`.
      model, split, average: as of `curve`.
      clients: their numbers; by default those that all runs on the same data score.
      different_data: whether a table (a column of a pivot) may have runs on different data sets or
        partitions.
    """

    score: str = "final"
    model: str = "personalized"
    split: str = "test"
    average: str = "clients"
    clients: str = ""
    different_data: bool = False


def define_flags(group: Group) -> None:
    """Defines the flags of a `Choice`, and --headline."""
    group.text("score", "final", f"{', '.join(SCORES)}")
    group.text("model", "personalized", "model that was scored")
    group.text("split", "test", "samples it was scored on")
    meaning = f"--score and --average by a name: {', '.join(HEADLINES)}"
    group.text("headline", FIRST, meaning)
    group.text("average", "clients", f"mean over {' or '.join(AVERAGES)}")
    group.text("clients", "", "numbers of the clients (default: those that all runs score)")
    group.switch("different_data", False, "rows on other data or partitions")


def choice_of(values: absl.flags.FlagValues) -> Choice:
    """The choice that the flags make.

    Raises:
      InputError: --headline beside a flag that it stands for.
    """
    options = {field.name: value_of(values, field.name) for field in fields(Choice)}
    if values["headline"].present:
        how = headline_of(value_of(values, "headline"))
        twice = [name for name in ("score", "average") if values[name].present]
        if twice:
            raise InputError(f"--headline says what --{twice[0]} does: leave one of them out.")
        options |= {"score": how.score, "average": how.average}
    return Choice(**options)
