"""Command lines: of every script up to the point where all is checked, and of whole runs."""

import contextlib
import os
import re
import shutil
import sys
from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence
from functools import cache, partial
from pathlib import Path
from unittest import mock

import absl.flags
import numpy as np
from hypothesis import strategies as st

import fedjax_pfl as pfl
from experiments import compare, partition, reproduce, run, sweep
from experiments.cli import flags
from experiments.figures import __main__ as figures
from fedjax_pfl.data.sources import source_registry
from tests.fuzz.values import words

ROOT = Path(__file__).parents[2]
# A federation that is checked in milliseconds; later flags override these.
SMALL = ("--num_clients=4", "--train_samples=10", "--model=softmax", "--algorithms=fedavg")
# Words by a flag's type or name, of what is fast or made by `scene` and `finished_runs`.
WORDS = {
    "int": ["1", "2", "3"],
    "float": ["0", "1e-30", "0.5", "1", "1e30"],
    "bool": ["true", "false"],
    "dataset": ["digits", "digits", "npz:file.npz", *pfl.data.DATASETS],
    "devices": ["1", "auto"],  # two must be made before JAX starts
    "runs": ["finished", "finished/one", "finished/one/feddwa", "finished/*"],
}


class Checked(BaseException):
    """All is checked; what follows would compute or write."""


def checked(*_, **__):
    raise Checked


_LAST = """run.run cli.run_folder.opened partition.write compare.compare_runs sweep.sweep
figures.__main__.write"""
# What the scripts call once all is checked, and what is called instead.
STOPS = dict.fromkeys(_LAST.split(), checked)


def main_of(main: Callable, *argv: str, stops: Mapping[str, Callable] = STOPS) -> str | None:
    """Calls a script's `main` up to the stops; returns the sentence of a refusal, or None."""
    with contextlib.ExitStack() as stack:
        for name, instead in stops.items():
            stack.enter_context(mock.patch(f"experiments.{name}", instead))
        stack.enter_context(contextlib.suppress(Checked))
        if code := main(["fuzz", *argv]):
            text = sys.stderr.getvalue()
            assert code in (1, 2) and re.fullmatch(r"error: .*\n", text, re.DOTALL), (code, text)
            return text.removeprefix("error: ").removesuffix("\n")
    return None


def scene() -> None:
    """Fills the working folder with what inputs can name; loads digits once."""
    digits = source_registry.DATASETS["digits"]
    source_registry.DATASETS["digits"] = digits._replace(load=cache(digits.load))
    os.mkfifo("fifo")
    Path("folder").mkdir()
    Path("link").symlink_to("nowhere")
    Path("text.py").write_text("raise ValueError('not\\nthis one')\n")
    Path("flags").write_text("--rounds=3\n--alpha=0.5\n# and no more\n")
    np.savez("file.npz", x_train=np.zeros((4, 3), np.float32), y_train=np.arange(4) % 2)
    pfl.Partition.from_lists([[0, 1, 2], [3]], [[4], [5]]).save("split.npz")


# Words of each flag on pages and in presets.
WRITTEN = defaultdict(set)
for path in (*ROOT.glob("experiments/presets/**/*.flags"), *ROOT.glob("docs/**/*.md")):
    text = path.read_text("utf-8")
    for name, word in re.findall(r"--(\w+)=([^\s`'\"\\$A-Z]+)(?=[\s`])", text):
        WRITTEN[name].add(word)
WRITTEN["grid"] |= WRITTEN["set"]


def valid(flag: absl.flags.Flag) -> Sequence[str]:
    """Some words that a flag takes, by its type or from its help, pages and presets."""
    known = WORDS.get(flag.name) or WORDS.get(flag.parser.flag_type())
    return known or sorted({*WRITTEN[flag.name], *re.findall(r"'([^' ]+)'", flag.help or "")})


def flags_of(*mains: Callable) -> dict[str, absl.flags.Flag]:
    """The flags that scripts define, without those of libraries; they stop as they parse them."""
    found = {}

    def catch(values, *_, **__):
        found.update({name: values[name] for name in values if name not in absl.flags.FLAGS})
        raise Checked

    for main in mains:
        main_of(main, stops={"cli.parsing.FlagValues.__call__": catch})
    return {name: found[name] for name in found.keys() - {"help", "h", "list", "distributed"}}


@st.composite
def line(draw, texts: Mapping, base: Sequence[str], first: Mapping, counts=(1, 1, 1, 2, 3)):
    """One of the words `first`, whose own flags are likely, the words `base`, and odd flags."""
    word = draw(st.sampled_from([*first]))
    names, result = [*texts, *first[word] * 20], [word, *base]
    for _ in range(draw(st.sampled_from(counts))):
        name = draw(st.sampled_from(names))
        text = draw(texts[name])
        odd = [f"--{name}"], [f"--no{name}"], [f"--{name}", text], [text], [f"--x{name}={text}"]
        result += draw(st.sampled_from((*odd, *([f"--{name}={text}"],) * 50)))
    return result


def command(base: Sequence[str], first: Mapping[str, Sequence[str]], *mains: Callable):
    """(strategy, attack) of the first script, which takes the flags of all."""
    texts = {name: words(*valid(flag)) for name, flag in sorted(flags_of(*mains).items())}
    lines = line(texts | {"flagfile": words("flags")}, base, first)
    return lines, lambda given: main_of(mains[0], *given)


def whole_runs():
    """Runs of two rounds with flags that are valid by themselves."""
    odd = flags.define().get_flags_for_module("training")
    takes = {flag.name: valid(flag) for flag in odd if flag.name != "model"}
    takes |= dict.fromkeys(("eval_every", "num_seeds", "new_clients", "train_samples"), "12")
    takes |= {"partition": [*pfl.data.RULES], "validation_fraction": ["0.5"]}
    texts = {name: st.sampled_from(known) for name, known in takes.items() if known}
    end = ("--dataset=digits", "--rounds=2", "--compilation_cache=", "--output_dir=whole")

    def attack(given):
        shutil.rmtree("whole", ignore_errors=True)
        if (printed := main_of(run.main, *given, *end, stops={})) is None:
            check(Path("whole"))
        return printed

    algorithms = {f"--algorithms={name}": () for name in pfl.core.ALGORITHMS}
    return line(texts, SMALL[:-1], algorithms, (0, 1, 2, 4, 8)), attack


def check(out: Path) -> None:
    """Raises `AssertionError` where the files of a run do not agree."""
    (file,) = out.glob("*/result.json")
    result = pfl.Result.load(file.parent)
    assert result.rounds == 2 and result.algorithm == file.parent.name
    scores = result.scores["personalized/test/accuracy"]
    missing, expected = np.isnan(scores), np.broadcast_to(result.test_sizes > 0, scores.shape)
    algorithm = pfl.core.ALGORITHMS[result.algorithm]
    if algorithm.served_clients is not pfl.Algorithm.served_clients:
        expected = expected & ~missing.all(axis=2, keepdims=True)
    found = result.clients | result.scalars
    lost = [np.any(found.get(key)) for key in ("diverged", "nonfinite", "server_nonfinite")]
    assert expected.any() and (any(lost) or not (missing & expected).any())
    assert np.nanmin(scores, initial=0) >= 0 and np.nanmax(scores, initial=1) <= 1
    assert len((out / "comparison.csv").read_text("utf-8").splitlines()) == 2


RULES = {f"--partition={rule}": [*pfl.data.rule_options(rule)] for rule in pfl.data.RULES}
FIGURES = {name: [*plot.options] for name, plot in figures.FIGURES.items()}
GRIDS = {"--grid=learning_rate=0.1,0.2": [], "--grid=batch_size=2,3": [], "--seed=1": ["grid"] * 4}
REPRODUCED = ("--stand_in=digits", "--model=softmax", "--train_samples=10")
COMMANDS = {
    "run": (70, SMALL, RULES, run.main),
    "partition": (40, ("--num_clients=4", "--output_dir=new"), RULES, partition.main),
    "sweep": (30, SMALL, GRIDS, sweep.main),
    "reproduce": (16, REPRODUCED, {"--table=pfedla/1": []}, reproduce.main, run.main),
    "compare": (32, (), {"--runs=finished/one": []}, compare.main),
    "figures": (8, ("--runs=finished/one", "--output=new.png"), FIGURES, figures.main),
}
TARGETS = {f"{name} flags": (n, partial(command, *more)) for name, (n, *more) in COMMANDS.items()}
TARGETS["whole runs"] = (2, whole_runs)
