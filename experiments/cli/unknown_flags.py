"""What is said of a flag that isn't ours: ours where another library has it, or the nearest."""

import re
from collections.abc import Sequence

from absl.flags import FlagValues

import fedjax_pfl as pfl
from fedjax_pfl import elsewhere, spelling

MOST = 3  # algorithms named for a hyperparameter
MORE = 24  # unknown flags that are answered beside the first: a whole command of PFLlib's
_FLAG = re.compile(r"--?([A-Za-z][-\w]{0,30})(=|$)")  # a word that names a flag; numbers are none


def more(argv: Sequence[str], first: str, values: FlagValues) -> list[str]:
    """Unknown flags beside the first one, without dashes, so that one answer has them all.

    Args:
      argv: the words of the command, the program's name first.
      first: the unknown flag that ended their parsing.
      values: the flags that there are.
    """
    end = list(argv).index("--") if "--" in argv else len(argv)
    found = [_FLAG.match(word) for word in argv[1:end]]
    names = dict.fromkeys(one[1] for one in found if one)
    known = {*values, *(f"no{name}" for name in values), "undefok"}
    return [name for name in names if name not in known and name != first][:MORE]


def hint(name: str, values: FlagValues) -> str:
    """A sentence on an unknown flag, '' where there is nothing to say.

    Args:
      name: of the flag, without dashes.
      values: the flags that there are.
    """
    word, known = spelling.plain(name), list(values)
    if "set" in known and name in elsewhere.CAPITALS:
        return f"A hyperparameter is set as --set={elsewhere.CAPITALS[name]}=VALUE."
    ours = spelling.meant(name, known, elsewhere.OPTIONS)
    said = [f"It is {' or '.join(f'--{one}' for one in ours)} here."] if ours else []
    if not ours and word in elsewhere.WITHOUT:
        return f"It is not needed here: {elsewhere.WITHOUT[word]}."
    owners = _called_so(word) if "set" in known and name.upper() not in elsewhere.CAPITALS else []
    if "set" in known and not ours:
        owners = list(dict.fromkeys([*owners, *_owners(name)]))
    if owners:
        some = ", ".join(f"--set={owner}=VALUE" for owner in owners[:MOST])
        more = ", ..." if len(owners) > MOST else ""
        said.append(f"A hyperparameter is set as {some}{more}.")
    if said:
        return " ".join(said)
    near = spelling.nearest(name, known)
    return f"Did you mean --{near}?" if near else ""


def _called_so(word: str) -> list[str]:
    """Hyperparameters that others call so in that algorithm, such as "fedfomo.downloads"."""
    known = elsewhere.HYPERPARAMETERS.items()
    return [f"{algorithm}.{names[word]}" for algorithm, names in known if word in names]


def _owners(name: str) -> list[str]:
    """Hyperparameters that a name may mean in any algorithm, such as "feddwa.top_k"."""
    classes = sorted(pfl.ALGORITHMS.items())
    every = {key for _, one in classes for key in one.__dataclass_fields__}
    keys = spelling.meant(name, every, elsewhere.OPTIONS)
    return [
        f"{algorithm}.{key}"
        for key in keys
        for algorithm, one in classes
        if key in one.__dataclass_fields__
    ]
