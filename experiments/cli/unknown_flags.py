"""What is said of a flag that isn't ours: ours where another library has it, or the nearest."""

from absl.flags import FlagValues

import fedjax_pfl as pfl
from fedjax_pfl import elsewhere, spelling

MOST = 3  # algorithms named for a hyperparameter


def hint(name: str, values: FlagValues) -> str:
    """A sentence on an unknown flag, '' where there is nothing to say.

    Args:
      name: of the flag, without dashes.
      values: the flags that there are.
    """
    word, known = spelling.plain(name), list(values)
    ours = spelling.meant(name, known, elsewhere.OPTIONS)
    if ours:
        return f"It is {' or '.join(f'--{one}' for one in ours)} here."
    if word in elsewhere.WITHOUT:
        return f"It is not needed here: {elsewhere.WITHOUT[word]}."
    if "set" in known:
        own = {key: key for one in pfl.ALGORITHMS.values() for key in one.__dataclass_fields__}
        keys = spelling.meant(name, own, elsewhere.OPTIONS)
        owners = [
            f"{algorithm}.{key}"
            for key in keys
            for algorithm, one in sorted(pfl.ALGORITHMS.items())
            if key in one.__dataclass_fields__
        ]
        if owners:
            some = ", ".join(f"--set={owner}=VALUE" for owner in owners[:MOST])
            more = ", ..." if len(owners) > MOST else ""
            return f"A hyperparameter is set as {some}{more}."
    near = spelling.nearest(name, known)
    return f"Did you mean --{near}?" if near else ""
