"""Matching of misspelled names and of names from other libraries."""

import difflib
import re
from collections.abc import Collection, Iterable, Mapping

from fedjax_pfl.utils import aliases

LONGEST = 100  # letters; longer names match nothing
# Parts common to many names of algorithms, which are ignored in comparisons.
SHARED = re.compile(r"^(heur)?(perfed|pfed|fed)|p?fl$")
_UNREAD = re.compile(r"[-_\s.()\u2010-\u2015\u2212]+")


def normalized(name: str) -> str:
    """Return a name in lower case without hyphens, underscores, blanks, dots and parentheses."""
    return _UNREAD.sub("", name.casefold())


def find_matches(
    query: str, valid: Iterable[str], others: Mapping[str, Collection[str]]
) -> list[str]:
    """Return the valid names that a name matches: exactly, in another spelling, or as an alias.

    Args:
      query: the name.
      valid: valid names.
      others: valid names by normalized aliases, see `aliases`.
    """
    known = sorted(valid)
    if query in known:
        return [query]
    word = normalized(query)
    same = [name for name in known if normalized(name) == word]
    return same or [name for name in known if name in others.get(word, ())]


def canonical_name(query: str, valid: Iterable[str], others: Mapping[str, Collection[str]]) -> str:
    """Return the only match of `find_matches`, or the name itself."""
    matches = find_matches(query, valid, others)
    return matches[0] if len(matches) == 1 else query


def nearest(query: str, valid: Iterable[str], shared: re.Pattern[str] | None = None) -> str | None:
    """Return the valid name most similar to a misspelled one, or None.

    Args:
      query: the name.
      valid: valid names.
      shared: parts common to most names. Names are compared without them, or completely and with a
        higher threshold if fewer than three letters remain.
    """
    word, best, result = normalized(query), 0.0, None
    if len(word) > LONGEST:
        return None
    for name in sorted(valid):
        one, other = word, normalized(name)
        likeness, near = _ratio(one, other), 0.6
        if shared is not None:
            near = 0.65
            if shared.search(one) and shared.search(other):
                one, other = shared.sub("", one), shared.sub("", other)
                if min(len(one), len(other)) < 3:
                    near = 0.9
                else:  # the remainder decides whether the names match, the better ratio how well
                    left = _ratio(one, other)
                    likeness = max(likeness, left) if left >= near else left
        elif len(one) > 2 and other.startswith(one):
            likeness = max(likeness, near)  # prefixes always match
        if likeness >= near and likeness > best:
            best, result = likeness, name
    return result


def _ratio(one: str, other: str) -> float:
    return difflib.SequenceMatcher(None, other, one).ratio()


def suggestions(query: str, valid: Iterable[str]) -> list[str]:
    """Return valid names to suggest for an unknown one: its matches, or the nearest."""
    known = list(valid)
    near = nearest(query, known)
    return find_matches(query, known, aliases.ALL_ALIASES) or ([near] if near else [])
