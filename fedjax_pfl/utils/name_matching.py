"""What a name that is written differently may mean."""

import difflib
import re
from collections.abc import Collection, Iterable, Mapping

from fedjax_pfl.utils import aliases

LONGEST = 100  # letters of a name that are compared: nothing is near to a longer one
# Parts that so many names of algorithms share that they tell nothing about likeness.
SHARED = re.compile(r"^(heur)?(perfed|pfed|fed)|p?fl$")
_UNREAD = re.compile(r"[-_\s.()\u2010-\u2015\u2212]+")


def plain(name: str) -> str:
    """The name in small letters without hyphens, underscores, blanks, dots and parentheses."""
    return _UNREAD.sub("", name.casefold())


def meant(given: str, valid: Iterable[str], others: Mapping[str, Collection[str]]) -> list[str]:
    """The valid names that a name stands for: itself, other spellings of it, or its synonyms.

    Args:
      given: the name.
      valid: our names.
      others: our names by plain names of others, see `aliases`.
    """
    known = sorted(valid)
    if given in known:
        return [given]
    word = plain(given)
    same = [name for name in known if plain(name) == word]
    return same or [name for name in known if name in others.get(word, ())]


def ours(given: str, valid: Iterable[str], others: Mapping[str, Collection[str]]) -> str:
    """The valid name that a name stands for, as `meant` reads it; itself where that is no one."""
    found = meant(given, valid, others)
    return found[0] if len(found) == 1 else given


def nearest(given: str, valid: Iterable[str], shared: re.Pattern[str] | None = None) -> str | None:
    """The valid name that resembles a misspelt one most, or None where none is really near.

    Args:
      given: the name.
      valid: our names.
      shared: parts of names that say nothing, because most names have them. Names are compared
        without them, by what is left; where that is less than three letters, whole and strictly.
    """
    word, best, result = plain(given), 0.0, None
    if len(word) > LONGEST:
        return None
    for name in sorted(valid):
        one, other = word, plain(name)
        likeness, near = _ratio(one, other), 0.6
        if shared is not None:
            near = 0.65
            if shared.search(one) and shared.search(other):
                one, other = shared.sub("", one), shared.sub("", other)
                if min(len(one), len(other)) < 3:
                    near = 0.9
                else:  # what is left decides whether it is near, and the better one how near
                    left = _ratio(one, other)
                    likeness = max(likeness, left) if left >= near else left
        elif len(one) > 2 and other.startswith(one):
            likeness = max(likeness, near)  # a beginning is near, however long the rest
        if likeness >= near and likeness > best:
            best, result = likeness, name
    return result


def _ratio(one: str, other: str) -> float:
    return difflib.SequenceMatcher(None, other, one).ratio()


def suggestions(given: str, valid: Iterable[str]) -> list[str]:
    """The valid names to suggest for an unknown one: those that it stands for, or the nearest."""
    known = list(valid)
    near = nearest(given, known)
    return meant(given, known, aliases.MEANT) or ([near] if near else [])
