"""Suggestions for unknown flags: counterparts of other libraries' flags, or the nearest."""

import re
import shlex
from collections.abc import Collection, Sequence

from absl.flags import FlagValues

import fedjax_pfl as pfl
from fedjax_pfl.utils import aliases, name_matching

MOST = 3  # algorithms named for a hyperparameter
MORE = 24  # unknown flags answered beside the first: a whole command of PFLlib's
LONGEST = 79  # letters of a word in a command that is shown; longer ones are cut in messages
_FLAG = re.compile(r"--?([A-Za-z][-\w]{0,30})(=|$)")  # a word that names a flag; numbers are none


def answer(argv: Sequence[str], first: str, values: FlagValues) -> str:
    """Return sentences on all unknown flags of a command, and the corrected command.

    Args:
      argv: the words of the command, the program's name first.
      first: the unknown flag that ended their parsing.
      values: the flags that there are.
    """
    known = list(values)
    end = list(argv).index("--") if "--" in argv else len(argv)
    names = [match[1] for word in argv[1:end] if (match := _FLAG.match(word))]
    flags = {*known, *(f"no{name}" for name in known), "undefok"}
    more = [name for name in dict.fromkeys(names) if name not in flags and name != first][:MORE]
    hints = [f"{name!r}. {hint(name, known)}".strip() for name in (first, *more)]
    text = f"Unknown command line flag {' Unknown too: '.join(hints)}"
    command = _corrected(argv, values) if more else ""
    return f"{text} The same command here has {command}" if command else text


def hint(name: str, known: Collection[str]) -> str:
    """Return a sentence on an unknown flag, or ''.

    Args:
      name: of the flag, without dashes.
      known: names of the flags that there are.
    """
    word = name_matching.normalized(name)
    if "set" in known and name in aliases.CAPITALS:
        return f"A hyperparameter is set as --set={aliases.CAPITALS[name]}=VALUE."
    ours = name_matching.find_matches(name, known, aliases.OPTIONS)
    sentences = [f"It is {' or '.join(f'--{one}' for one in ours)} here."] if ours else []
    if not ours and word in aliases.WITHOUT:
        return f"It is not needed here: {aliases.WITHOUT[word]}."
    owners = _foreign_names(word) if "set" in known and name.upper() not in aliases.CAPITALS else []
    if "set" in known and not ours:
        owners = list(dict.fromkeys([*owners, *_owners(name)]))
    if owners:
        some = ", ".join(f"--set={owner}=VALUE" for owner in owners[:MOST])
        more = ", ..." if len(owners) > MOST else ""
        sentences.append(f"A hyperparameter is set as {some}{more}.")
    if sentences:
        return " ".join(sentences)
    near = name_matching.nearest(name, known)
    return f"Did you mean --{near}?" if near else ""


def _corrected(argv: Sequence[str], values: FlagValues) -> str:
    """Replace other libraries' flags of a command by their counterparts.

    Hyperparameters are those of the command's algorithms. What is not needed here is left out, and
    so is what is off ("-ld False"). '' where a flag has no single counterpart or counts in other
    units, and where a word is not one to repeat in a message.

    Args:
      argv: the words of the command, the program's name first.
      values: the flags that there are.
    """
    pairs = _pairs(argv[1:])
    if pairs is None or "set" not in values:
        return ""
    chosen = _algorithms(pairs)
    words = []
    for name, value in pairs:
        if name in values or name.removeprefix("no") in values:
            words.append(f"--{name}" + ("" if value is None else f"={value}"))
            continue
        word = name_matching.normalized(name)
        if value == "False" or (word in aliases.WITHOUT and not _ours(name, values)):
            continue
        if value is None or name in aliases.CAPITALS or word in aliases.OTHER_UNITS:
            return ""
        own = [key for key in _settings(name) if key.partition(".")[0] in chosen]
        ours = _ours(name, values)
        if own and len({key.partition(".")[0] for key in own}) == len(own):
            words += [f"--set={key}={value}" for key in own]
        elif not own and len(ours) == 1 and _fits(values, ours[0], value):
            words.append(f"--{ours[0]}={value}")
        else:
            return ""
    if not all(len(word) <= LONGEST and word.isprintable() for word in words):
        return ""
    return shlex.join(words)


def _pairs(words: Sequence[str]) -> list[tuple[str, str | None]] | None:
    """Return (flag, value or None) of each flag of a command; None if a word is neither."""
    result: list[tuple[str, str | None]] = []
    for word in words:
        match = _FLAG.match(word)
        if match is not None:
            result.append((match[1], word.partition("=")[2] if match[2] else None))
        elif result and result[-1][1] is None:
            result[-1] = (result[-1][0], word)
        else:
            return None
    return result


def _algorithms(pairs: Sequence[tuple[str, str | None]]) -> set[str]:
    """Return the algorithms that a command names by any flag."""
    result = set()
    for name, value in pairs:
        if value and "algorithms" in name_matching.find_matches(
            name, ["algorithms"], aliases.OPTIONS
        ):
            result |= {
                name_matching.canonical_name(one, pfl.core.ALGORITHMS, aliases.ALGORITHMS)
                for one in value.split(",")
            }
    return result


def _fits(values: FlagValues, name: str, value: str) -> bool:
    """Return whether a value has a flag's type."""
    try:
        values[name].parser.parse(value)
    except (ValueError, TypeError, pfl.InputError):
        return False
    return True


def _ours(name: str, values: FlagValues) -> list[str]:
    """Return possible counterparts of another library's flag."""
    return name_matching.find_matches(name, values, aliases.OPTIONS)


def _settings(name: str) -> list[str]:
    """Return hyperparameters that may correspond to a flag, such as "fedprox.proximal_weight"."""
    return list(dict.fromkeys([*_foreign_names(name_matching.normalized(name)), *_owners(name)]))


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
