"""Suggestions for unknown flags: counterparts of other libraries' flags, or the nearest."""

import os
import re
from collections.abc import Collection, Sequence

from absl.flags import FlagValues

import fedjax_pfl as pfl
from fedjax_pfl.utils import aliases, name_matching

MOST = 3  # algorithms named for a hyperparameter
MORE = 24  # unknown flags answered beside the first: a whole command of PFLlib's
_FLAG = re.compile(r"--?([A-Za-z][-\w]{0,30})(=|$)")  # a word that names a flag; numbers are none


def answer(argv: Sequence[str], first: str, values: FlagValues) -> str:
    """Return sentences on all unknown flags of a command.

    Args:
      argv: the words of the command, the program's name first.
      first: the unknown flag that ended their parsing.
      values: the flags that there are.
    """
    known = list(values)
    end = list(argv).index("--") if "--" in argv else len(argv)
    pairs = zip(argv[1:end], [*argv[2:end], ""], strict=True)
    given = {m[1]: word[m.end() :] or after for word, after in pairs if (m := _FLAG.match(word))}
    flags = {*known, *(f"no{name}" for name in known), "undefok", "flagfile"}
    more = [name for name in given if name not in flags and name != first][:MORE]
    names = (first, *more)
    hints = [f"{name!r}. {hint(name, known, given.get(name, ''))}".strip() for name in names]
    end = " --preset=pfllib sets what PFLlib sets by default." if {"algo", "gr"} <= {*names} else ""
    return f"Unknown command line flag {' Unknown too: '.join(hints)}{end}"


def hint(name: str, known: Collection[str], value: str = "") -> str:
    """Return a sentence on an unknown flag, or ''.

    Args:
      name: of the flag, without dashes.
      known: names of the flags that there are.
      value: what was given to it.
    """
    word = name_matching.normalized(name)
    owner, _, key = aliases.CAPITALS.get(name, name).partition(".")
    if "set" in known and owner in pfl.core.ALGORITHMS:
        own = {*pfl.core.ALGORITHMS[owner].__dataclass_fields__, *pfl.options.SETTABLE}
        foreign = aliases.HYPERPARAMETERS.get(owner, {}).get(name_matching.normalized(key))
        near, *_ = [foreign] if foreign else [*name_matching.suggestions(key, own), "NAME"]
        return f"A hyperparameter is set as --set={owner}.{near}=VALUE."
    ours = name_matching.find_matches(name, known, aliases.OPTIONS)
    sentences = [f"It is {' or '.join(f'--{one}' for one in ours)} here."] if ours else []
    if ours == ["dataset"] and os.path.isdir(value):
        sentences.append(f"A folder of images is --dataset=folder:{value}.")
    if not ours and word in aliases.WITHOUT:
        return f"It is not needed here: {aliases.WITHOUT[word]}."
    owners = _foreign_names(word) if "set" in known and name.upper() not in aliases.CAPITALS else []
    if "set" in known and not ours:
        owners = list(dict.fromkeys([*owners, *_owners(name)]))
    if owners:
        some = ", ".join(f"--set={owner}=VALUE" for owner in owners[:MOST])
        more = ", ..." if len(owners) > MOST else ""
        sentences.append(f"A hyperparameter is set as {some}{more}.")
    of_data = {option.name for one in pfl.data.DATASETS.values() for option in one.options}
    if "data_option" in known and name in of_data:
        sentences.append(f"An option of a data set is given as --data_option={name}=VALUE.")
    if sentences:
        return " ".join(sentences)
    near = name_matching.nearest(name, known)
    return f"Did you mean --{near}?" if near else ""


def _foreign_names(word: str) -> list[str]:
    """Return an algorithm's hyperparameters of that foreign name, such as "fedfomo.downloads"."""
    known = aliases.HYPERPARAMETERS.items()
    return [f"{algorithm}.{names[word]}" for algorithm, names in known if word in names]


def _owners(name: str) -> list[str]:
    """Return any algorithm's hyperparameters of that name, such as "feddwa.top_k"."""
    classes = sorted(pfl.core.ALGORITHMS.items())
    every = {key for _, one in classes for key in one.__dataclass_fields__}
    keys = name_matching.find_matches(name, every, aliases.OPTIONS)
    return [
        f"{algorithm}.{key}"
        for key in keys
        for algorithm, one in classes
        if key in one.__dataclass_fields__
    ]
