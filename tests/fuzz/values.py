"""Strategies of malformed values: words, source text of Python, and damaged files."""

import contextlib
import gzip
import io
import re
import struct
import zipfile

import numpy as np
from hypothesis import strategies as st

_NUMBERS = """0 1 2 3 -1 -0.0 0.5 1.0 1.5 0.1 100 1e-50 1e39 1e308 1e400 -1e39 nan -nan inf -inf 1,2
NaN 2147483647 2147483648 -2147483649 18446744073709551616 9223372036854775807 1431655766 16777217
0x10 1_000 1e3 ٣ ½ ² 1:2 0:1,3:2 +1 --1 1. .5 1e true False none None null [] {} [1] [null]"""
NUMBERS = [*_NUMBERS.split(), "1 ", "9" * 20, "9" * 400, "1" * 5000, "0." + "3" * 400]
_TEXTS = r"""%s % {} {0} \ ' " ` $HOME my$_$data * ? [ () - -- = == a= =a a=b a=b=c a.b=1 . .. / //
, ,, a,,b : a:b a: :a ../up all auto map vmap local fedavg digits mlp shared é 日本 """
_ODD = ("", " ", "\t", "a\nb", "\r", "\0", "a\0b", "\x1b[31m", "\U0001f600", "\udcff", "a\udcffb",
        "\u2028", "\ufeff", "x" * 300, "x" * 5000, "é" * 200)  # fmt: skip
TEXTS = [*_TEXTS.split(), *_ODD]
_PATHS = """~ ~/x ~nouser ~nouser/x /dev/null /dev/zero /dev/full /proc/self/mem /proc/version
nowhere /nowhere/at/all ./ ../.. fifo file empty folder link locked text.py finished finished/one
file.npz finished/one/fedavg npz:file.npz folder:folder npz:/dev/zero npz:fifo text_csv:fifo npz:
tfds: new text_csv:/dev/zero parquet:folder folder:finished tfds:nowhere new/folder"""
PATHS = [*_PATHS.split(), "x" * 256, "a/" * 2100, "a\0b.npz", "\udcff.npz"]
_SOURCE = r"""None True False 0 1 2 -1 0.5 1.5 -0.5 1e39 -1e39 1e-50 10**19 10**30 -10**30 10**400
10**5000 2**31 2**31-1 2**32 2**63 1431655766 0j 1+2j '' 'a' '1' 'nan' '\0' '\udcff' b'' b'1' () []
[1] [1,2] [0.5] ['a'] [None] [[1],[2]] [-1] [10**30] {} {'a':1} {1:2} {0:0.5} {0:-1} {'0':1} set()
(1,) range(3) object object() len 'x'*5000 float('nan') float('inf') -float('inf') np.float64('nan')
np.float32(0.5) np.int64(2) np.bool_(True) np.array(1) np.array(0.5) np.zeros(3) np.zeros((2,2))
np.arange(100000) np.array(['a']) np.array([None]) np.float16(2) np.uint8(200) jnp.ones(())
jnp.arange(3) Fraction(1,2) Decimal('0.1') Decimal('nan') Path('nowhere')"""
SOURCE = st.sampled_from(_SOURCE.split())
FREE = st.text(st.characters(), max_size=12)
NUMBER = st.integers().map(str) | st.floats().map(repr)
ANY_WORD = st.one_of(st.sampled_from(NUMBERS), st.sampled_from(TEXTS + PATHS), NUMBER, FREE)
ANY_SOURCE = st.one_of(SOURCE, SOURCE, NUMBER.map("float('{}')".format), FREE.map(repr))


def words(*known: str) -> st.SearchStrategy[str]:
    """Text for a flag: one or several valid words as often as not, else anything."""
    if not known:
        return ANY_WORD
    valid = st.sampled_from(known)
    return st.one_of(valid, valid, st.lists(valid, max_size=4).map(",".join), ANY_WORD, ANY_WORD)


def source(*known: str) -> st.SearchStrategy[str]:
    """Source text of an argument: a valid one two times in three, else anything."""
    return st.one_of(st.sampled_from(known), st.sampled_from(known), ANY_SOURCE)


EXTREMES = (0, 1, 127, 255, 2**15, 2**16 - 1, 2**24, 2**31 - 1, 2**31, 2**32 - 1, 2**63, 2**64 - 1,
            100_000, 2_000_000_000)  # fmt: skip
PACKED = st.tuples(st.sampled_from(("<H", ">H", "<I", ">I", "<Q", ">Q")), st.sampled_from(EXTREMES))
PIECES = st.one_of(
    PACKED.map(lambda one: struct.pack(one[0], one[1] % 256 ** struct.calcsize(one[0]))),
    st.binary(min_size=1, max_size=8),
    st.sampled_from((b"", b"", b"\0", b"\n", b"\xff", b"\0" * 5000)),
)
# A string in quotes, a number, a word or a flat list, as text and JSON files have them.
TOKEN = re.compile(rb"\"[^\"]{0,60}\"|'[^']{0,60}'|-?\d[\d.]*|true|false|null|\[[^\[\]]{0,200}\]")
QUOTED = st.sampled_from(TEXTS).map(lambda text: '"' + text.replace("\n", "\\n") + '"')
TOKENS = st.one_of(st.sampled_from(NUMBERS + TEXTS), QUOTED)


@st.composite
def damaged(draw, content: bytes) -> bytes:
    """Bytes with one to four changes, near an end more often than elsewhere; rarely as they are."""
    for _ in range(draw(st.sampled_from((0, *(1,) * 20, *(2,) * 8, *(4,) * 8)))):
        near = draw(st.sampled_from((16, 64, 256, *(len(content),) * 3)))
        at = draw(st.integers(0, max(min(near, len(content)) - 1, 0)))
        at = at if draw(st.booleans()) else max(len(content) - 1 - at, 0)
        way, stop, new = draw(st.integers(0, 8)), at, draw(PIECES)
        found = [*TOKEN.finditer(content[:20_000])] if way < 3 else []
        if found:
            at, stop = draw(st.sampled_from(found)).span()
            new = draw(TOKENS).encode("utf-8", "surrogateescape")
        elif way == 3:
            stop, new = len(content), b""  # cut off
        elif way == 4:
            part = content[at : at + draw(st.sampled_from((1, 4, 50, 1000)))]
            new = part * draw(st.integers(1, 99))
        else:  # overwritten, inserted or removed
            stop += draw(st.sampled_from((len(new), len(new), 0, 1, 4, 100)))
        content = content[:at] + new + content[stop:]
    return content


def _first(value):
    """A change of an array's first number, within the range of its type."""

    def change(array):
        info = None if array.dtype.kind == "f" else np.iinfo(array.dtype)
        array.reshape(-1)[:1] = value if info is None else np.clip(value, info.min, info.max)
        return array

    return change


ARRAYS = [
    *(lambda a: a[None], np.ravel, lambda a: a[..., :0], lambda a: a[:-1], lambda a: a[..., 0]),
    *(lambda a: np.concatenate([a, a]), lambda a: np.zeros((2, 2)), lambda a: np.array("a")),
    *((lambda a, t=t: a.astype(t)) for t in ("f2", "f8", "i4", "i8", "u1", "?", "U3", "c8", "V4")),
    *map(_first, (-1, 0, 2**31 - 1, np.nan, np.inf, -np.inf, 1e39)),
]


@st.composite
def other_members(draw, content: bytes) -> bytes:
    """A zip file with a member renamed, removed, damaged, or, in an NPZ file, another array."""
    with zipfile.ZipFile(io.BytesIO(content)) as archive:
        members = {name: archive.read(name) for name in archive.namelist()}
    for _ in range(draw(st.integers(1, 2))):
        name, way = draw(st.sampled_from(sorted(members))), draw(st.integers(0, 7))
        before, buffer = members.pop(name), io.BytesIO()
        if way == 1:
            members[draw(st.sampled_from(("a.npy", "axes/a.npy", "../a", "é")))] = before
        elif way == 2 or not before.startswith(b"\x93NUMPY"):
            members[name] = draw(damaged(before))
        elif way > 2 or not members:
            change = draw(st.sampled_from(ARRAYS))
            with contextlib.suppress(Exception), np.errstate(all="ignore"):  # where it does not fit
                np.save(buffer, change(np.load(io.BytesIO(before))), allow_pickle=False)
            members[name] = buffer.getvalue()
    with zipfile.ZipFile(buffer := io.BytesIO(), "w") as archive:
        for name, member in members.items():
            archive.writestr(name, member)
    return buffer.getvalue()


def changed(content: bytes) -> st.SearchStrategy[bytes]:
    """A file's content, damaged as it is or within its packing."""
    if content.startswith(b"PK\3\4"):
        return damaged(content) | other_members(content)
    if content.startswith(b"\x1f\x8b"):
        return damaged(content) | damaged(gzip.decompress(content)).map(gzip.compress)
    return damaged(content)
