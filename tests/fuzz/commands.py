"""Command lines of every script, up to the point where all is checked: nothing is computed."""

import contextlib
import functools
import os
from collections.abc import Sequence
from pathlib import Path
from unittest import mock

import absl.flags
import jax
import numpy as np
from hypothesis import strategies as st

import fedjax_pfl as pfl
from experiments import benchmark, compare, partition, plan, reproduce, run, sweep
from experiments.cli import data_flags, flags, run_folder
from experiments.figures import __main__ as figures
from experiments.planning import targets
from fedjax_pfl.data.sources import source_registry
from fedjax_pfl.federation.config_field import declared
from fedjax_pfl.federation.options import GROUPS
from tests.fuzz import values
from tests.fuzz.verdict import Target, main_of

# A federation that is checked in milliseconds; later flags override these.
SMALL = ("--num_clients=4", "--train_samples=10", "--model=softmax", "--algorithms=fedavg")
REPRODUCED = ("--table=pfedla/1", "--stand_in=digits", "--model=softmax", "--train_samples=10")
# Valid words of flags, beside numbers and the choices of options.
KNOWN = {name: option.choices for group in GROUPS for name, option in declared(group).items()} | {
    "algorithms": sorted(pfl.core.ALGORITHMS), "baseline": ["fedavg", "local"],
    "partition": sorted(pfl.data.RULES), "model": sorted(pfl.models.MODELS),
    "score": ["final", "best"], "average": ["clients", "samples"], "rank_by": ["final"],
    "split": ["test", "train", "validation"], "case": sorted(benchmark.CASES),
    "scale": ["small", "full"], "table": ["pfedla/1", "feddwa/1"], "stand_in": ["digits"],
    "runs": ["finished", "finished/one", "finished/one/fedavg", "finished/*"],
    "output": ["new.png", "new.json", "new.svg"], "partition_file": ["split.npz"],
    "target": ["v5e", "v5e:2x2", "v2:2x2", "h100", "h100:8"], "data": ["new.csv"],
    "import_split": [f"{name}:split" for name in pfl.data.IMPORTERS], "flagfile": ["flags"],
    "output_dir": ["new", "finished/one", "finished"], "alphas": ["0.1", "0.1,1", "1,1.0"],
    "dataset": ["digits", "digits", "npz:file.npz", *sorted(pfl.data.DATASETS)],
    "stragglers": ["0:1", "1:2", "0:0", "9:1", "0:1:2"], "optimizer": ["sgd", "adam"],
    "client_execution": ["map", "vmap", "3"], "freeze": ["head", "body"],
    "devices": ["1", "auto"],  # two must be made before JAX starts
}  # fmt: skip
BY_PARSER = {
    "IntegerParser": ("1", "2", "3"), "BooleanParser": ("true", "false"),
    "FloatParser": ("0.5", "1.0"), "_Number": ("0", "1e-30", "0.5", "1", "1e30"),
}  # fmt: skip
RULES = {
    f"--partition={rule}": [flags.RULE_FLAG.get(name, name) for name in pfl.data.rule_options(rule)]
    for rule in sorted(pfl.data.RULES)
}
FIGURES = {name: list(plot.options) for name, plot in figures.FIGURES.items()}


class Checked(BaseException):
    """All is checked; what follows would compute or write."""


def checked(*_, **__):
    raise Checked


def scene() -> None:
    """Fills the working folder with what inputs can name; loads digits once."""
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
    pfl.Partition.from_lists([[0, 1, 2], [3]], [[4], [5]]).save("split.npz")


def pairs(*names: str) -> st.SearchStrategy[str]:
    """NAME=VALUE, of a known name two times in three."""
    name = st.one_of(st.sampled_from(names), st.sampled_from(names), values.FREE)
    return st.tuples(name, values.words("1", "2", "0.5", "1,2")).map("=".join)


SETTINGS = [f"{name}.{key}" for name in sorted(pfl.core.ALGORITHMS)
            for key in pfl.make_algorithm(name).hyperparameters()]  # fmt: skip
PAIRS = {
    "set": pairs(*SETTINGS),
    "option": pairs(*sorted({name for names in RULES.values() for name in names})),
    "model_option": pairs("hidden", "vocab_size", "width", "depth", "features"),
    "data_option": pairs("image_size", "num_classes", "vocab_size", "max_tokens"),
    "grid": pairs(*SETTINGS, "learning_rate", "alpha", "local_epochs", "batch_size", "model"),
}


def valid(flag: absl.flags.Flag) -> list[str]:
    """Some words that a flag takes."""
    default = [flag.default] if isinstance(flag.default, str) else []
    return [*(KNOWN.get(flag.name) or BY_PARSER.get(type(flag.parser).__name__, ())), *default]


def flags_of(known: absl.flags.FlagValues, *modules: str) -> list[absl.flags.Flag]:
    found = (flag for module in modules for flag in known.get_flags_for_module(module))
    return [flag for flag in found if flag.name not in ("help", "helpfull", "list")]


def run_flags() -> list[absl.flags.Flag]:
    return flags_of(flags.parse(["run"]), *(group for group in flags.GROUPS if group != "help"))


def command(main, stops, get_flags, base: Sequence[str] = (), first: dict | None = None):
    """(strategy, attack) of a script.

    Args:
      stops: what is replaced, by (module, name), with what it returns or a function.
      get_flags: returns its flags.
      base: words that are valid.
      first: words of which a line has one, each with the flags that belong to it.
    """
    scene()
    texts = {flag.name: PAIRS.get(flag.name, values.words(*valid(flag))) for flag in get_flags()}
    texts["flagfile"] = values.words("flags")

    @st.composite
    def line(draw):
        word = draw(st.sampled_from([*first])) if first else None
        result = [word, *base] if word else [*base]
        names = [*texts, *(first or {}).get(word, []) * 9]
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
    options = {data_flags.RULE_FLAG.get(name, name) for name in RULE_OPTIONS}
    general = [name for name in values_of if name not in options]
    return [
        (
            (*base, f"--partition={rule}"),
            general + [data_flags.RULE_FLAG.get(name, name) for name in pfl.rule_options(rule)] * 2,
        )
        for rule in sorted(pfl.RULES)
    ]


def flag_values(known: absl.flags.FlagValues, modules, **more) -> dict:
    """A strategy of text for each flag of these modules, `more` for those that are special."""
    found = {}
    for flag in (one for module in modules for one in known.get_flags_for_module(module)):
        if flag.name in ("help", "list"):
            continue
        valid = list(KNOWN.get(flag.name, ()))
        kind = type(flag.parser).__name__
        if kind in ("IntegerParser", "Whole", "FloatParser", "Number"):
            valid += (
                ["1", "2", "3"] if kind in ("IntegerParser", "Whole") else ["0.5", "1.0", "0.1"]
            )
        elif isinstance(flag.default, str):
            valid.append(flag.default)
        found[flag.name] = values.words(*valid)
    found["flagfile"] = values.words("flags")
    return found | more


def run_flags() -> dict:
    return flag_values(
        flags.define(),
        flags.GROUPS,
        set=pairs(SETTINGS),
        model_option=pairs(["hidden", "vocab_size", "width", "depth", "features"]),
        data_option=pairs(["image_size", "num_classes", "vocab_size", "max_tokens"]),
        dataset=values.words("digits", "digits", *sorted(pfl.DATASETS), "npz:file.npz"),
        stragglers=values.words("0:1", "1:2", "0:0", "9:1", "0:1:2"),
        devices=values.words("1", "auto"),  # two must be made before JAX starts
    )


@target("run flags", 105)
def _run():
    scene()

    def attack(words):
        with contextlib.ExitStack() as stack:
            for (module, name), value in stops.items():
                new = value if callable(value) else mock.Mock(return_value=value)
                stack.enter_context(mock.patch.object(module, name, new))
            stack.enter_context(contextlib.suppress(Checked))
            return main_of(main, ["fuzz", *words])

    return line(), attack


def sweeps():
    """Any flags of `run` with one valid grid, or one with any grid."""
    lines, attack = command(sweep.main, {(sweep, "sweep"): 0}, run_flags, SMALL)
    fine = st.sampled_from(["learning_rate=0.1,0.2", "batch_size=2,3", "alpha=0.1,1"])
    grids = st.one_of(fine, fine, PAIRS["grid"]).map("--grid={}".format)
    more = values.words("final", "last_tenth").map("--rank_by={}".format)
    more = st.one_of(st.just([]), st.lists(more, max_size=1), grids.map(lambda grid: [grid]))
    return st.tuples(lines, grids, more).map(lambda one: [*one[0], one[1], *one[2]]), attack


def flagfiles():
    """Flags of `run` from a file, a quarter of them with damaged bytes."""
    lines, attack = command(run.main, {(run, "run"): 0}, run_flags)
    content = lines.map(lambda line: "\n".join(line).encode("utf-8", "surrogatepass"))

    def attack_file(content):
        Path("attacked.flags").write_bytes(content)
        return attack([*SMALL, "--flagfile=attacked.flags"])

    return st.one_of(content, content, content, content.flatmap(values.damaged)), attack_file


def planned(args, target, output):
    plan.prepare(args, target)
    return 0


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
            mock.patch.object(run_folder, "opened", side_effect=Checked),
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
    own = run_flags() | flag_values(flags.define(plan.define), ["plan"])

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
