"""Command lines of every script, up to the point where all is checked: nothing is computed."""

import functools
import os
from pathlib import Path
from unittest import mock

import absl.flags
import jax
import numpy as np
from hypothesis import strategies as st

import fedjax_pfl as pfl
from experiments import benchmark, compare, partition, plan, reproduce, run, sweep
from experiments.cli import flags, resume
from experiments.figures import __main__ as figures
from experiments.planning import targets
from fedjax_pfl.data.partitions.importers import IMPORTERS
from fedjax_pfl.data.sources import source_registry
from fedjax_pfl.models.model_registry import MODELS
from tests.fuzz import values
from tests.fuzz.guard import main_of
from tests.fuzz.target import target

# A federation so small that checking it takes milliseconds; what comes later wins.
SMALL = ("--num_clients=4", "--train_samples=10", "--model=softmax", "--algorithms=fedavg")
SETTINGS = [f"{name}.{key}" for name in sorted(pfl.core.ALGORITHMS)
            for key in pfl.make_algorithm(name).hyperparameters()]  # fmt: skip
RULE_OPTIONS = sorted({name for rule in pfl.data.RULES for name in pfl.data.rule_options(rule)})
# Words that a flag would take, beside numbers; the flags themselves are asked for their names.
KNOWN = {
    "algorithms": sorted(pfl.core.ALGORITHMS),
    "baseline": ["fedavg", "local"],
    "partition": sorted(pfl.data.RULES),
    "model": sorted(MODELS),
    "score": ["final", "best", "last_tenth"],
    "average": ["clients", "samples"],
    "split": ["test", "train", "validation"],
    "case": sorted(benchmark.CASES),
    "scale": ["small", "full"],
    "table": ["pfedla/1", "feddwa/1"],
    "stand_in": ["digits", "fashion_mnist"],
    "dtype": ["float32", "float64"],
    "compute_dtype": ["bfloat16", "float16"],
    "runs": ["finished", "finished/one", "finished/one/fedavg", "finished/*"],
    "output": ["new.png", "new.json", "new.svg", "new.csv"],
    "target": ["v5e", "v5e:2x2", "v2:2x2", "h100", "h100:8"],
    "data": ["new.csv"],
    "flagfile": ["flags"],
    "import_split": [f"{name}:split" for name in IMPORTERS],
    "partition_file": ["split.npz"],
    "share": ["all", "none", "head", "body"],
    "batch_order": ["shuffled", "fresh", "partition", "by_class"],
    "rank_by": ["final", "last_tenth"],
    "output_dir": ["new", "finished/one", "finished"],
}


def scene() -> None:
    """Puts what command lines can name into the working folder, and loads digits only once."""
    digits = source_registry.DATASETS["digits"]
    if not hasattr(digits.load, "cache_info"):
        source_registry.DATASETS["digits"] = digits._replace(load=functools.cache(digits.load))
    if Path("folder").exists():
        return
    os.mkfifo("fifo")
    Path("folder").mkdir()
    Path("locked").mkdir(0)
    Path("link").symlink_to("nowhere")
    Path("empty").touch()
    Path("file").write_bytes(b"not what anybody expects\n")
    Path("text.py").write_text("raise ValueError('not\\nthis one')\n")
    Path("flags").write_text("--rounds=3\n--alpha=0.5\n# and no more\n--flagfile=flags.more\n")
    Path("flags.more").write_text("--seed=1\n")
    np.savez("file.npz", x_train=np.zeros((4, 3), np.float32), y_train=np.arange(4) % 2)
    flat = {"train_idx": np.arange(40), "train_offsets": np.arange(0, 41, 10)}
    flat |= {"test_idx": np.arange(40, 44), "test_offsets": np.arange(5)}
    np.savez("split.npz", **flat)


def pairs(names: list[str]) -> st.SearchStrategy[str]:
    """NAME=VALUE of a known name as often as not."""
    name = st.one_of(st.sampled_from(names), st.sampled_from(names), values.FREE)
    return st.tuples(name, values.words("1", "2", "0.5", "1,2")).map("=".join)


def grown(values_of: dict[str, st.SearchStrategy[str]], base: tuple[str, ...], forms=None):
    """Strategy of command lines: `base`, and one to three flags with any values.

    Args:
      values_of: text for each flag.
      base: words that are fine.
      forms: instead of `base`, (words that are fine, flags that go with them), several of these.
    """
    forms = forms or [(base, sorted(values_of))]

    @st.composite
    def words(draw):
        line, names = draw(st.sampled_from(forms))
        line, names = list(line), st.sampled_from(names)
        for _ in range(draw(st.sampled_from((1, 1, 1, 2, 3)))):
            name = draw(names)
            form = draw(st.integers(0, 59))
            if form == 59:
                line.append(f"--{name}")
            elif form == 58:
                line.append(f"--no{name}")
            elif form == 57:
                line += [f"--{name}", draw(values_of[name])]
            elif form == 56:
                line.append(draw(values.words()))
            elif form == 55:
                line.append(f"--{draw(values.FREE)}={draw(values_of[name])}")
            else:
                line.append(f"--{name}={draw(values_of[name])}")
        return line

    return words()


def by_rule(values_of: dict, base: tuple[str, ...]) -> list:
    """For `grown`: each partition rule with its own options, and flags of the others left out."""
    options = {flags.RULE_FLAG.get(name, name) for name in RULE_OPTIONS}
    general = [name for name in values_of if name not in options]
    return [
        (
            (*base, f"--partition={rule}"),
            general + [flags.RULE_FLAG.get(name, name) for name in pfl.data.rule_options(rule)] * 2,
        )
        for rule in sorted(pfl.data.RULES)
    ]


def flag_values(known: absl.flags.FlagValues, modules, **more) -> dict:
    """A strategy of text for each flag of these modules, `more` for those that are special."""
    found = {}
    for flag in (one for module in modules for one in known.get_flags_for_module(module)):
        if flag.name in ("help", "helpfull", "list"):
            continue
        valid = list(KNOWN.get(flag.name, ()))
        kind = type(flag.parser).__name__
        if kind in ("IntegerParser", "FloatParser"):
            valid += ["1", "2", "3"] if kind == "IntegerParser" else ["0.5", "1.0", "0.1"]
        elif isinstance(flag.default, str):
            valid.append(flag.default)
        found[flag.name] = values.words(*valid)
    found["flagfile"] = values.words("flags")
    return found | more


def run_flags() -> dict:
    return flag_values(
        flags.parse(["run"]),
        [group for group in flags.GROUPS if group != "help"],
        set=pairs(SETTINGS),
        model_option=pairs(["hidden", "vocab_size", "width", "depth", "features"]),
        data_option=pairs(["image_size", "num_classes", "vocab_size", "max_tokens"]),
        dataset=values.words("digits", "digits", *sorted(pfl.data.DATASETS), "npz:file.npz"),
        stragglers=values.words("0:1", "1:2", "0:0", "9:1", "0:1:2"),
        devices=values.words("1", "auto"),  # two must be made before JAX starts
    )


@target("run flags", 105)
def _run():
    scene()

    def attack(words):
        with mock.patch.object(run, "run", return_value=0):
            return main_of(run.main, ["run", *words])

    own = run_flags()
    return grown(own, (), by_rule(own, SMALL)), attack


@target("flagfiles", 40)
def _flagfiles():
    """The same from a file, whose bytes may be anything."""
    scene()
    lines = grown(run_flags(), ()).map(
        lambda words: "\n".join(words).encode("utf-8", "surrogatepass")
    )

    @st.composite
    def content(draw):
        text = draw(lines)
        if draw(st.integers(0, 3)):
            return text
        return text[: draw(st.integers(0, len(text)))] + draw(st.binary(max_size=8))

    def attack(content):
        Path("attacked.flags").write_bytes(content)
        with mock.patch.object(run, "run", return_value=0):
            return main_of(run.main, ["run", *SMALL, "--flagfile=attacked.flags"])

    return content(), attack


@target("sweep flags", 50)
def _sweep():
    scene()
    tried = pairs([*SETTINGS, "learning_rate", "alpha", "local_epochs", "batch_size", "model"])
    own = run_flags() | {"grid": tried, "rank_by": values.words("final", "last_tenth")}
    fine = st.sampled_from(["learning_rate=0.1,0.2", "batch_size=2,3", "alpha=0.1,1"])
    lines = st.tuples(st.one_of(fine, fine, fine, tried), grown(own, SMALL)).map(
        lambda one: [*one[1], f"--grid={one[0]}"]
    )

    def attack(words):
        with mock.patch.object(sweep, "sweep", return_value=0):
            return main_of(sweep.main, ["sweep", *words])

    return lines, attack


@target("partition flags", 60)
def _partition():
    scene()
    own = flag_values(
        partition.parse(["partition"]),
        ["partition", "options"],
        option=pairs(RULE_OPTIONS),
        data_option=pairs(["image_size", "num_classes", "vocab_size"]),
        dataset=values.words("digits", "digits", "npz:file.npz"),
        alphas=values.words("0.1", "0.1,1", "1,1.0"),
    )

    def attack(words):
        with mock.patch.object(partition, "write"):
            return main_of(partition.main, ["partition", *words])

    base = ("--num_clients=4", "--output_dir=new")
    return grown(own, (), by_rule(own, base)), attack


@target("compare flags", 50)
def _compare():
    scene()
    own = flag_values(compare.parse(["compare"]), ["compare"])

    def attack(words):
        with mock.patch.object(compare, "write"):
            return main_of(compare.main, ["compare", *words])

    return grown(own, ("--runs=finished/one",)), attack


@target("figures flags", 12)
def _figures():
    scene()
    own = flag_values(figures.parse(["figures"])[1], ["figures", "options"])
    options = {name for plot in figures.FIGURES.values() for name in plot.options}
    general = [name for name in own if name not in options]
    base = ("--runs=finished/one", "--output=new.png")
    forms = [
        ((name, *(base if plot.needs_runs else base[1:])), general + 3 * list(plot.options))
        for name, plot in figures.FIGURES.items()
    ]

    def attack(words):
        with mock.patch.object(figures, "write"):
            return main_of(figures.main, ["figures", *words])

    return grown(own, (), forms), attack


@target("reproduce flags", 25)
def _reproduce():
    scene()
    own = flag_values(reproduce.parse(["reproduce"])[0], ["reproduce"])
    own |= {name: one for name, one in run_flags().items() if name not in own}

    def attack(words):
        with (
            mock.patch.object(run, "run", return_value=0),
            mock.patch.object(resume, "opened", side_effect=Checked),
        ):
            try:
                return main_of(reproduce.main, ["reproduce", *words])
            except Checked:
                return None

    small = ("--table=pfedla/1", "--stand_in=digits", "--model=softmax", "--train_samples=10")
    return grown(own, small), attack


@target("plan flags", 20)
def _plan():
    scene()
    own = run_flags() | flag_values(plan.parse(["plan"]), ["plan"])

    def attack(words):
        with (
            mock.patch.object(targets, "check_installed"),
            mock.patch.object(targets.Target, "devices", lambda self: jax.local_devices()[:1]),
            mock.patch.object(plan, "plan", side_effect=planned),
        ):
            return main_of(plan.main, ["plan", *words])

    def planned(args, target, output):
        plan.prepare(args, target)
        return 0

    return grown(own, (), by_rule(own, ("--target=v5e", *SMALL))), attack


@target("benchmark flags", 50)
def _benchmark():
    scene()
    own = flag_values(benchmark.parse(["benchmark"]), ["benchmark"])

    def attack(words):
        with (
            mock.patch.object(benchmark, "_measure", return_value={}),
            mock.patch.object(benchmark, "_apart", return_value={}),
            mock.patch.object(benchmark, "aside", side_effect=Checked),
        ):
            try:
                return main_of(benchmark.main, ["benchmark", *words])
            except Checked:
                return None

    return grown(own, ()), attack


class Checked(BaseException):
    """All is checked; what comes now would compute or write."""
