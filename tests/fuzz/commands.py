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
    "Integers": ("1", "2", "3"), "IntegerParser": ("1", "2", "3"),
    "BooleanParser": ("true", "false"), "FloatParser": ("0.5", "1.0"),
    "Number": ("0", "1e-30", "0.5", "1", "1e30"),
}  # fmt: skip
RULES = {
    f"--partition={rule}": [
        data_flags.RULE_FLAG.get(name, name) for name in pfl.data.rule_options(rule)
    ]
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
    return [flag for flag in found if flag.name not in ("help", "list")]


def run_flags() -> list[absl.flags.Flag]:
    return flags_of(flags.define(), *flags.GROUPS)


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
            name = draw(st.sampled_from(names))
            text = draw(texts[name])
            odd = [f"--{name}"], [f"--no{name}"], [f"--{name}", text], [text], [f"--x{name}={text}"]
            result += draw(st.sampled_from((*odd, *([f"--{name}={text}"],) * 50)))
        return result

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
    lines, attack = command(sweep.main, {(sweep, "sweep"): (0, None)}, run_flags, SMALL)
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


PLAN = {(targets, "check_installed"): None, (plan, "plan"): planned,
        (targets.Target, "devices"): lambda self: jax.local_devices()[:1]}  # fmt: skip
MEASURED = {
    (benchmark, "_measure"): {},
    (benchmark, "_in_processes"): {},
    (benchmark, "atomic_write"): checked,
}
COMMANDS = (
    ("run", 105, run.main, {(run, "run"): 0}, run_flags, SMALL, RULES),
    ("partition", 60, partition.main, {(partition, "write"): None},
     lambda: flags_of(flags.define(partition.define), "partition", "data", "rule"),
     ("--num_clients=4", "--output_dir=new"), RULES),
    ("compare", 50, compare.main, {(compare, "write_tables"): None},
     lambda: flags_of(compare.parse(["compare"]), "compare"), ["--runs=finished/one"]),
    ("figures", 12, figures.main, {(figures, "write"): None},
     lambda: flags_of(figures.parse(["figures"])[1], "figures", "options"),
     ("--runs=finished/one", "--output=new.png"), FIGURES),
    ("reproduce", 25, reproduce.main, {(run, "run"): 0, (run_folder, "opened"): checked},
     lambda: run_flags() + flags_of(reproduce.parse(["reproduce"])[0], "reproduce"), REPRODUCED),
    ("plan", 20, plan.main, PLAN, lambda: run_flags() + flags_of(flags.define(plan.define), "plan"),
     ("--target=v5e", *SMALL), RULES),
    ("benchmark", 50, benchmark.main, MEASURED,
     lambda: flags_of(benchmark.parse(["benchmark"]), "benchmark")),
)  # fmt: skip
TARGETS = {f"{name} flags": Target(share, functools.partial(command, *more))
           for name, share, *more in COMMANDS}  # fmt: skip
TARGETS |= {"sweep flags": Target(50, sweeps), "flagfiles": Target(40, flagfiles)}
