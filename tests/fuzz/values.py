"""Bad values: text for command lines, source text for Python calls."""

from hypothesis import strategies as st

NUMBERS = [
    *("0", "1", "2", "3", "-1", "-0.0", "0.5", "1.0", "1.5", "0.1", "10", "100", "1e-50", "1e39"),
    *("1e308", "1e400", "-1e39", "3.5e38", "nan", "-nan", "inf", "-inf", "Infinity", "NaN"),
    *("2147483647", "2147483648", "-2147483649", "4294967296", "9223372036854775807"),
    *("18446744073709551616", "1431655766", "16777217", "1" + "0" * 19, "9" * 20, "9" * 400),
    *("1" * 5000, "-" + "7" * 400, "0." + "3" * 400, "0x10", "1_000", "1e3", "٣", "½", "²", "1,2"),
    *("1:2", "0:1,3:2", "+1", "--1", "1 ", " 1", "1.", ".5", "1e", "e", "true", "false", "True"),
    *("none", "None", "null"),
]
TEXTS = [
    *("", " ", "\t", "\n", "a\nb", "\r", "\0", "a\0b", "\x1b[31m", "é", "日本", "\U0001f600"),
    *("\udcff", "a\udcffb", "\u2028", "\ufeff", "x" * 300, "x" * 5000, "é" * 200, "%s", "%", "{}"),
    *("{0}", "\\", "'", '"', "`", "$HOME", "*", "?", "[", "[]", "()", "-", "--", "=", "==", "a="),
    *("=a", "a=b", "a=b=c", "a.b=1", ".", "..", "...", "/", "//", ",", ",,", "a,,b", ":", "a:b"),
    *("a:", ":a", "all", "auto", "map", "vmap", "local", "fedavg", "digits", "mlp", "shared"),
]
PATHS = [
    *("~", "~/x", "~nouser", "~nouser/x", "/dev/null", "/dev/zero", "/dev/full", "/proc/self/mem"),
    *("/proc/version", "/nowhere/at/all", "nowhere", "./", "../..", "fifo", "file", "empty"),
    *("folder", "link", "locked", "text.py", "finished", "finished/one", "finished/one/fedavg"),
    *("x" * 256, "a/" * 2100, "a\0b.npz", "\udcff.npz", "file.npz", "image.png", "npz:file.npz"),
    *("folder:folder", "npz:/dev/zero", "npz:fifo", "text_csv:fifo", "text_csv:/dev/zero"),
    *("parquet:folder", "folder:finished", "tfds:nowhere", "tfds:", "npz:", "new/folder", "new"),
]

CHARACTERS = st.characters()
FREE = st.text(CHARACTERS, max_size=12)


def words(*known: str) -> st.SearchStrategy[str]:
    """Text for a flag: names that it knows as often as not, else anything."""
    anything = st.one_of(
        st.sampled_from(NUMBERS),
        st.sampled_from(NUMBERS),
        st.sampled_from(TEXTS),
        st.sampled_from(PATHS),
        st.integers().map(str),
        st.floats().map(repr),
        FREE,
    )
    if not known:
        return anything
    several = st.lists(st.sampled_from(known), max_size=4).map(",".join)
    return st.one_of(st.sampled_from(known), st.sampled_from(known), several, anything, anything)


# Source text of a Python value.
SOURCE = [
    *("None", "True", "False", "0", "1", "2", "-1", "0.5", "1.5", "-0.5", "1e39", "-1e39", "1e-50"),
    *("float('nan')", "float('inf')", "-float('inf')", "10**19", "10**30", "-10**30", "10**400"),
    *("10**5000", "2**31", "2**31 - 1", "2**32", "2**63", "1431655766", "0j", "1 + 2j", "''"),
    *("'a'", "'1'", "'nan'", "'é\\n'", "'\\0'", "'\\udcff'", "'x' * 5000", "b''", "b'1'", "()"),
    *("(1,)", "[]", "[1]", "[1, 2]", "[0.5]", "['a']", "[None]", "[[1], [2]]", "[-1]", "[10**30]"),
    *("{}", "{'a': 1}", "{1: 2}", "{0: 0.5}", "{0: -1}", "{'0': 1}", "set()", "range(3)", "object"),
    *("object()", "len", "np.float32(0.5)", "np.float64('nan')", "np.int64(2)", "np.bool_(True)"),
    *("np.array(1)", "np.array(0.5)", "np.zeros(3)", "np.zeros((2, 2))", "np.arange(100000)"),
    *("np.array(['a'])", "np.array([None])", "np.float16(2)", "np.uint8(200)", "jnp.ones(())"),
    *("jnp.arange(3)", "Fraction(1, 2)", "Decimal('0.1')", "Decimal('nan')", "Path('nowhere')"),
]


def source(*known: str) -> st.SearchStrategy[str]:
    """Source text of an argument: of `known` as often as not, else anything."""
    anything = st.one_of(
        st.sampled_from(SOURCE),
        st.sampled_from(SOURCE),
        st.integers().map(str),
        st.floats().map(lambda number: f"float('{number!r}')"),
        FREE.map(repr),
        st.lists(st.sampled_from(SOURCE[:40]), max_size=3).map(lambda one: f"[{', '.join(one)}]"),
    )
    return (
        st.one_of(st.sampled_from(known), st.sampled_from(known), anything) if known else anything
    )
