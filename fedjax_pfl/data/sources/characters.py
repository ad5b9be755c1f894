"""Generated tales by letter, for the prediction of the next one."""

from pathlib import Path

import numpy as np

from fedjax_pfl.data.dataset import Dataset, dataset_from_arrays
from fedjax_pfl.data.labels import NEXT
from fedjax_pfl.data.sources.leaf import LETTERS, RESERVED
from fedjax_pfl.data.sources.source_registry import register_dataset
from fedjax_pfl.utils.errors import require_whole

# Of each teller: nouns, verbs, adjectives, and how a sentence may begin.
TELLERS = {
    "baker": ("bread oven flour crust loaf", "kneads bakes", "warm golden", "Every morning"),
    "clerk": ("letter ink desk ledger stamp", "copies files", "late official", "On paper"),
    "cook": ("soup onion pepper kettle spoon", "stirs tastes", "salty hot", "At supper"),
    "farmer": ("barn plough wheat ox fence", "sows mows", "muddy broad", "After the rain"),
    "fisher": ("net harbour eel boat tide", "hauls mends", "wet silver", "Before dawn"),
    "hunter": ("fox forest track bow snow", "follows spies", "swift wild", "In winter"),
    "miner": ("shaft lamp copper cart tunnel", "digs carries", "dark heavy", "Below"),
    "nurse": ("fever bandage ward pulse bed", "heals wakes", "pale gentle", "At night"),
    "sailor": ("mast rope gale island anchor", "hoists steers", "salt far", "Out at sea"),
    "smith": ("iron hammer forge anvil nail", "beats bends", "glowing hard", "By the fire"),
    "tailor": ("cloak thread needle button silk", "sews cuts", "fine blue", "For the feast"),
    "weaver": ("loom wool pattern carpet dye", "weaves spins", "red soft", "In the valley"),
}
COMMON = ("child road king window stone friend river day", "sees finds leaves keeps", "old small")
ENDS = (". ", ". ", ". ", "! ", "? ")


@register_dataset(
    "characters",
    "600 generated texts of 12 tellers, for the next letter of each: no file needed",
    bundled=True,
    natural=True,
)
def load_characters(data_dir: Path | None, texts: int = 40, length: int = 80) -> Dataset:
    """Tales of 12 tellers, who prefer words of their trades; the column `teller` names them.

    Ids are those of LEAF's letters, and each letter's label is the next one. A quarter as many
    texts as for training, which come after these in a tale, are for testing.

    Args:
      texts: number of each teller's texts for training.
      length: letters of a text.
    """
    for name, value, least in (("texts", texts, 4), ("length", length, 2)):
        require_whole(name, value, least)
    total = texts + texts // 4
    ids = np.stack([_told(teller, total * length + 1) for teller in TELLERS])
    # [tellers, texts, length]
    x, y = (part.reshape(len(TELLERS), total, length) for part in (ids[:, :-1], ids[:, 1:]))
    parts = [part[:, own].reshape(-1, length)
             for own in (slice(texts), slice(texts, None)) for part in (x, y)]  # fmt: skip
    names = [*TELLERS]
    tellers = np.concatenate([np.repeat(names, count) for count in (texts, total - texts)])
    return dataset_from_arrays(
        "characters", *parts, vocab_size=RESERVED + len(LETTERS), task=NEXT,
        columns={"teller": tellers}, note="generated tales, by letter",
    )  # fmt: skip


def _told(teller: str, count: int) -> np.ndarray:
    """Return the first `count` ids of a teller's tale."""
    rng = np.random.default_rng([*teller.encode()])
    own, beginning = [words.split() for words in TELLERS[teller][:3]], TELLERS[teller][3]
    common = [words.split() for words in COMMON]

    def word(kind):
        words = own[kind] if rng.random() < 0.7 else common[kind]
        return words[int(rng.random() * len(words))]

    def thing():
        return f"{word(2)} {word(0)}" if rng.random() < 0.4 else word(0)

    tale = ""
    while len(tale) < count:
        start = f"{beginning} the" if rng.random() < 0.3 else "The"
        more = f", and {word(1)} the {thing()}" if rng.random() < 0.3 else ""
        end = ENDS[int(rng.random() * len(ENDS))]
        tale += f"{start} {thing()} {word(1)} the {thing()}{more}{end}"
    return np.array([LETTERS.index(letter) + RESERVED for letter in tale[:count]], np.int32)
