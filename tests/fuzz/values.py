"""Strategies of odd values: words of command lines, Python values, damaged files."""

import contextlib
import gzip
import io
import re
from pathlib import Path

import jax.numpy as jnp
import numpy as np
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

_TEXTS = r"""0 1 2 3 -1 -0.0 0.5 1.0 1.5 0.1 100 1e-50 1e39 1e308 1e400 -1e39 nan -nan inf -inf 1,2
NaN 2147483647 2147483648 -2147483649 18446744073709551616 9223372036854775807 1431655766 16777217
0x10 1_000 1e3 ٣ ½ ² 1:2 0:1,3:2 +1 --1 1. .5 1e true False none None null [] {} [1] [null] %s % {}
{0} \ ' " ` $HOME my$_$data * ? [ () - -- = == a= =a a=b a=b=c a.b=1 . .. / // , ,, a,,b : a:b a:
:a ../up all auto map vmap local fedavg digits mlp shared é 日本 """
_PATHS = """~ ~/x ~nouser ~nouser/x /dev/null /dev/zero /dev/full /proc/self/mem /proc/version
nowhere /nowhere/at/all ./ ../.. fifo file folder link locked text.py finished finished/one new
file.npz split.npz finished/one/feddwa npz:file.npz folder:folder npz:/dev/zero npz:fifo"""
_LONG = ["9" * 20, "9" * 400, "1" * 5000, "0." + "3" * 400, "x" * 300, "x" * 5000, "é" * 200]
_SIGNS = ["", " ", "\t", "a\nb", "\r", "\0", "a\0b", "\x1b[31m", "\U0001f600", "\udcff", "\u2028"]
TEXTS = [*_TEXTS.split(), *_LONG, *_SIGNS]
PATHS = [*_PATHS.split(), "x" * 256, "a/" * 2100, "a\0b.npz", "\udcff.npz"]
NUMBER = st.integers().map(str) | st.floats().map(repr)
WORD = st.sampled_from(TEXTS) | st.sampled_from(TEXTS + PATHS) | NUMBER | st.text(max_size=12)


def words(*known: str) -> st.SearchStrategy[str]:
    """Text for a flag: valid words, a valid one with another last part (0:nan), or anything."""
    if not known:
        return WORD
    valid = st.sampled_from(known)
    starts = [re.sub(r"[^=:]*$", "", word) for word in known]
    changed = st.builds(str.__add__, st.sampled_from(starts), WORD)
    ways = (valid, valid, st.lists(valid, max_size=4).map(",".join), WORD, changed)
    return st.sampled_from(ways).flatmap(lambda way: way)  # all as likely, unlike in `one_of`


ODD = [2**31 - 1, 2**31, 2**63, 0.5, 1e39, 1e-50, (), set(), range(3), object(), object, len]
ODD += [Path("nowhere"), np.float32(0.5), np.array([None]), jnp.ones(()), jnp.arange(3)]
ONE = st.one_of(
    *(st.sampled_from(ODD), st.integers(-2, 3), st.none(), st.booleans(), st.text(max_size=9)),
    *(st.integers(), st.floats(), st.complex_numbers(), st.fractions(), st.decimals()),
    *(st.builds(pow, st.just(10), st.sampled_from([30, 400, 5000])), st.binary()),
    hnp.arrays(hnp.scalar_dtypes(), hnp.array_shapes(min_dims=0, max_side=3)),
)
LISTS = st.lists(ONE, max_size=3) | st.lists(st.lists(ONE, max_size=2), max_size=2)
VALUE = ONE | LISTS | st.dictionaries(st.integers(0, 4) | st.text(max_size=1), ONE, max_size=2)
EDGES = [b"", b"\n", b"\xff" * 4, b"\xff" * 3 + b"\x7f", b"\x7f" + b"\xff" * 3, b"\0" * 5000]
PIECES = st.sampled_from(EDGES) | st.binary(max_size=8) | st.binary(max_size=8)
# A string in quotes, a number, a word or a flat list, as text and JSON files have them.
TOKEN = re.compile(rb"\"[^\"]{0,60}\"|'[^']{0,60}'|-?\d[\d.]*|true|false|null|\[[^\[\]]{0,200}\]")
TOKENS = st.sampled_from([*TEXTS, *(f'"{text}"'.replace("\n", "\\n") for text in TEXTS)])


@st.composite
def damaged(draw, content: bytes) -> bytes:
    """Bytes with one to four changes, near an end more often than elsewhere."""
    for _ in range(draw(st.sampled_from((1, 1, 1, 2, 4)))):
        size, found = len(content), [*TOKEN.finditer(content[:20_000])]
        if found and draw(st.integers(0, 2)) == 0:
            start, stop = draw(st.sampled_from(found)).span()
            new = draw(TOKENS).encode("utf-8", "surrogateescape")
        else:
            start = draw(st.integers(0, min(size, draw(st.sampled_from((16, 256, size))))))
            start = start if draw(st.booleans()) else size - start
            new = draw(PIECES | PIECES | st.just(content[start : start + 50] * 9))
            stop = start + draw(st.sampled_from((len(new), len(new), 0, 1, 4, 100, size)))
        content = content[:start] + new + content[stop:]
    return content


@st.composite
def another_array(draw, content: bytes) -> bytes:
    """An NPZ file with an array that has another shape, type or first value, or is not there."""
    arrays, buffer = dict(np.load(io.BytesIO(content))), io.BytesIO()
    array = arrays.pop(name := draw(st.sampled_from(sorted(arrays))))
    shapes = [array.shape, array.shape, array.shape[1:], (1, *array.shape), (2 * array.size,)]
    shape = draw(st.sampled_from(shapes) | hnp.array_shapes(min_dims=0))
    kind = draw(st.just(array.dtype) | hnp.scalar_dtypes())
    first = draw(st.none() | st.sampled_from([-1, 2**31, np.nan, np.inf]))
    with contextlib.suppress(ValueError, TypeError, OverflowError), np.errstate(all="ignore"):
        array = np.resize(array, shape).astype(kind)
        array.flat[:1] = array.flat[:1] if first is None else first
    if draw(st.integers(0, 9)):
        arrays[draw(st.sampled_from([name] * 9 + ["axes/a"]))] = array
    np.savez(buffer, **arrays)
    return buffer.getvalue()


def changed(content: bytes) -> st.SearchStrategy[bytes]:
    """A file's content, damaged as it is or within its packing."""
    if b".npy" in content[:300]:
        return damaged(content) | another_array(content) | another_array(content)
    if content.startswith(b"\x1f\x8b"):
        return damaged(content) | damaged(gzip.decompress(content)).map(gzip.compress)
    return damaged(content)
