"""The Python interface: calls as source text with malformed arguments.

An attack evaluates the text, so that what fails can be pasted into an interpreter.
"""

import functools
from decimal import Decimal
from fractions import Fraction
from pathlib import Path
from unittest import mock

import jax.numpy as jnp
import numpy as np
from hypothesis import strategies as st

import fedjax_pfl as pfl
from fedjax_pfl.engine import simulation
from fedjax_pfl.federation.config_field import declared
from fedjax_pfl.federation.options import GROUPS
from tests.fuzz.commands import Checked, checked, scene
from tests.fuzz.values import PATHS, source
from tests.fuzz.verdict import Target


@functools.cache
def names() -> dict:
    """What the calls can name."""
    rng = np.random.default_rng(0)
    x, y = rng.random((60, 3), np.float32), np.arange(60) % 3
    data = pfl.dataset_from_arrays("small", x[:48], y[:48], x[48:], y[48:])
    parts = pfl.make_partition("iid", data, 4, 0)
    federation = pfl.federate(data, parts, "mlp", model_options={"hidden": 2})
    fedavg, check = pfl.make_algorithm("fedavg"), lambda made: made.validate()
    libraries = {"np": np, "jnp": jnp, "Decimal": Decimal, "Fraction": Fraction, "Path": Path}
    return locals() | libraries | {"pfl": pfl} | vars(pfl.training) | vars(pfl.options)


def evaluate(text: str) -> None:
    """The attack: whatever the call returns, it is accepted."""
    with mock.patch.object(simulation, "fit_memory", checked):  # before anything is compiled
        try:
            eval(text, dict(names()))
        except Checked:
            return


def call(template: str, *arguments: st.SearchStrategy[str]) -> st.SearchStrategy[str]:
    """Text with an argument in place of each {}."""
    return st.tuples(*arguments).map(lambda drawn: template.format(*drawn))


def some(**arguments: st.SearchStrategy[str]) -> st.SearchStrategy[str]:
    """One to three of the arguments, by name."""
    given = st.lists(st.sampled_from(sorted(arguments)), min_size=1, max_size=3, unique=True)
    return given.flatmap(
        lambda names: st.tuples(*(arguments[name] for name in names)).map(
            lambda drawn: ", ".join(map("{}={}".format, names, drawn))
        )
    )


number, text, whole = source("1", "0.5", "2"), source("'a'"), source("1", "2", "3")
place = source(*map(repr, PATHS), "'file.npz'")
lists = source("[[0, 1], [2, 3]]", "[[4], [5]]", "[[], []]", "[[0.5], [1.5]]", "[[60]]",
               "[[-1], [1]]", "[np.arange(3), np.arange(3, 6)]", "[['a'], ['b']]", "[[0, 0], [1]]",
               "[[True], [False]]", "[[2**31], [1]]", "[[[0, 1]], [[2]]]")  # fmt: skip
arrays = source("x", "y", "x[:0]", "x[:5]", "y[:5]", "y - 1", "[[1], [1, 2]]")
settings = source("{'learning_rate': [0.1, 0.2]}", "{'learning_rate': ['a']}", "{1: [1]}",
                  "{'learning_rate': []}", "{'learning_rate_decay': [1, 2]}",
                  "{'nothing': [1]}")  # fmt: skip
# Valid values of options that are neither numbers nor have choices.
SPECIAL = {
    "model_options": source("{'hidden': 2}", "{'hidden': 0}", "{'hidden': 'a'}"),
    "initial_model": source("{'w': 1}", "{'head': {'bias': np.zeros(3)}}", "'none.npz'"),
    "lr_schedule": source("'cosine'", "'warmup_cosine'", "lambda t, total: 0.5"),
    "lr_schedule_options": source("{'final': 0.5}", "{'warmup': 1}", "{'final': -1}"),
    "optimizer": source("'adam'", "'sgd'", "SGD(momentum=0.5)", "SGD(0.5, 0.1)"),
    "optimizer_options": source("{'b1': 0.5}", "{'momentum': 0.5}", "{'b1': 'a'}"),
    "extra_loss": source("WeightDistribution(1.0)"),
    "stragglers": source("{0: 1}", "{3: 2}", "{4: 1}"),
    "client_ids": source("[0, 1, 2, 3]", "[3, 2, 1, 0]", "[0, 0, 1, 2]"),
    "client_execution": source("'map'", "'vmap'", "2"),
    "metrics": source("['macro_f1']", "['accuracy', 'loss']"),
} | dict.fromkeys(("freeze", "lora_layers", "head"), source("'head'", "'body'", "'fc_1'", "'*'"))
BY_KIND = {bool: source("True", "False"), str: text}
OPTIONS = {
    name: source(*map(repr, option.choices)) if option.choices else BY_KIND.get(option.kind, number)
    for group in GROUPS
    for name, option in declared(group).items()
} | SPECIAL


def algorithms() -> st.SearchStrategy[str]:
    """Settings of each algorithm, now and then of one that does not exist."""

    def of(name):
        keys = [*pfl.make_algorithm(name).hyperparameters(), "nothing"]
        given = some(**dict.fromkeys(keys, number))
        return call("pfl.make_algorithm({}, dict({}))", source(*[repr(name)] * 20), given)

    return st.sampled_from(sorted(pfl.core.ALGORITHMS)).flatmap(of)


def rules() -> st.SearchStrategy[str]:
    def of(name):
        given = some(**dict.fromkeys([*pfl.data.rule_options(name), "nothing"], number))
        start = f"pfl.make_partition({name!r}, data, "
        return call(start + "{}, seed={}, {})", source("3"), source(*"000123"), given)

    return st.sampled_from(sorted(pfl.data.RULES)).flatmap(of)


def partitions() -> st.SearchStrategy[str]:
    maps = source("np.zeros((2, 3), int)", "np.zeros((2, 3))", "[[0, 1, 2]] * 2")
    fields = some(validation=lists, rule=text, allow_overlap=number, label_map=maps)
    uses = (".validate(len(data.labels), 3, data.labels)", ".summary()", ".report(data.labels, 3)")
    return st.one_of(
        *(call("pfl.Partition.from_lists({}, {}, {})" + use, lists, lists, fields) for use in uses),
        call("parts.split_validation({}, seed={})", number, number),
        call("parts.client('train', {})", number),
        call("parts.sizes({})", source("'train'")),
    )


def simulations() -> st.SearchStrategy[str]:
    given = some(
        seeds=source("(0,)", "[0, 1]", "range(2)", "[-1]", "range(2**40)"), settings=settings,
        eval_every=whole, chunk=whole, chunk_seconds=number, checkpoints=number, callbacks=lists,
        matrix_rounds=source("[1]", "[1, 3]", "[0]", "[1.5]", "()"),
        adapt=source("pfl.Adaptation(1)", "pfl.Adaptation(steps=2, leaves='head')"),
        score_clients=source("[0]", "[0, 3]", "[4]", "[-1]", "()"),
    )  # fmt: skip
    return st.one_of(
        call("pfl.simulate(fedavg, federation, {})", whole),
        *[call("pfl.simulate(fedavg, federation, 3, {})", given)] * 2,
    )


def small_values() -> st.SearchStrategy[str]:
    """Schedules, participation, adaptation, extra losses, executions, data sets, loading."""
    counts = dict.fromkeys(("epochs", "steps", "batch_size", "batches_per_step"), number)
    cohorts = {
        name: OPTIONS[name] for name in ("participation", "stragglers", "straggler_schedule")
    }
    named = dict.fromkeys(("num_classes", "vocab_size"), number)
    named |= {"test_x": arrays, "test_y": arrays, "input_scaling": text, "class_names": text}
    readers = ("pfl.load_dataset('npz', {})", "pfl.load_dataset('folder', {})",
               "pfl.Partition.load({})", "pfl.Result.load({})", "pfl.load_models({})",
               "pfl.data.import_partition('flower', {}, data)")  # fmt: skip
    return st.one_of(
        call("check(Schedule({}))", some(**counts)),
        call("check(Adaptation({}))", some(epochs=number, steps=number, leaves=text, when=text)),
        call("check(WeightDistribution({}))", number),
        call("check(SGD({}))", some(momentum=number, weight_decay=number)),
        call("ParticipationOptions({}).cohorts(4)", some(**cohorts)),
        call("pfl.dataset_from_arrays('a', {}, {})", arrays, arrays),
        call("pfl.dataset_from_arrays('a', x, y, {})", some(**named)),
        *(call(reader, place) for reader in readers),
        call("pfl.Checkpoints('kept', {})", some(every_seconds=number, keep=number)),
    )


def interface(make):
    scene()
    return make(), evaluate


TARGETS = {
    name: Target(share, functools.partial(interface, make))
    for name, share, make in (
        ("federate", 60, lambda: call("pfl.federate(data, parts, 'softmax', {})", some(**OPTIONS))),
        ("make_algorithm", 100, algorithms), ("make_partition", 80, rules),
        ("partitions", 100, partitions), ("simulate", 40, simulations),
        ("small values", 110, small_values),
    )
}  # fmt: skip
