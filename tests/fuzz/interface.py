"""The Python interface: calls as source text, with bad arguments.

An attack evaluates the text, so that what fails can be read and pasted into an interpreter.
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
from fedjax_pfl.data.dataset import dataset_from_arrays
from fedjax_pfl.data.partitions.importers import import_partition
from fedjax_pfl.data.scaling import SCALINGS
from fedjax_pfl.data.sources.source_registry import load_dataset
from fedjax_pfl.engine import simulation
from fedjax_pfl.execution.strategy import resolve_execution
from fedjax_pfl.federation.batching import Schedule
from fedjax_pfl.federation.optimizers import SGD
from fedjax_pfl.federation.participation import ParticipationOptions
from tests.fuzz import values
from tests.fuzz.commands import Checked, scene
from tests.fuzz.target import target


@functools.cache
def names() -> dict:
    """What the calls can name."""
    rng = np.random.default_rng(0)
    x, y = rng.random((60, 3), np.float32), np.arange(60) % 3
    data = dataset_from_arrays("small", x[:48], y[:48], x[48:], y[48:])
    parts = pfl.make_partition("iid", data, 4, 0)
    return {
        "np": np, "jnp": jnp, "Decimal": Decimal, "Fraction": Fraction, "Path": Path, "pfl": pfl,
        "data": data, "parts": parts, "x": x, "y": y, "federation": pfl.federate(data, parts, "mlp",
        model_options={"hidden": 2}), "fedavg": pfl.make_algorithm("fedavg"), "Schedule": Schedule,
        "SGD": SGD,
        "ParticipationOptions": ParticipationOptions, "load_dataset": load_dataset,
        "dataset_from_arrays": dataset_from_arrays, "resolve_execution": resolve_execution,
        "import_partition": import_partition, "check": check,
    }  # fmt: skip


def check(checked):
    """Calls `validate` of what was made."""
    checked.validate()


def evaluate(text: str) -> None:
    """The attack: whatever the call returns is acceptance."""
    eval(text, dict(names()))


def calls(start: str, arguments: dict[str, st.SearchStrategy[str]], end: str = ")"):
    """Strategy of calls: `start`, then one to three arguments by name, then `end`."""
    some = st.lists(st.sampled_from(sorted(arguments)), min_size=1, max_size=3, unique=True)

    @st.composite
    def text(draw):
        return start + ", ".join(f"{name}={draw(arguments[name])}" for name in draw(some)) + end

    return text()


def _quoted(*names: str) -> list[str]:
    return [repr(name) for name in names]


number = values.source("1", "0.5", "2")
FEDERATE = {
    "learning_rate": number,
    "learning_rate_decay": number,
    "lr_schedule": values.source(
        "'cosine'", "'warmup_cosine'", "lambda t, total: 0.5", "lambda t, total: t / total"
    ),
    "lr_schedule_options": values.source("{'final': 0.5}", "{'warmup': 1}", "{'final': -1}"),
    "batch_size": number,
    "local_epochs": number,
    "local_steps": number,
    "drop_last": values.source("True"),
    "batch_order": values.source(*_quoted("shuffled", "fresh", "partition", "by_class")),
    "momentum": number,
    "weight_decay": number,
    "optimizer": values.source("'adam'", "'sgd'", "SGD(momentum=0.5)", "SGD(0.5, 0.1)"),
    "optimizer_options": values.source("{'b1': 0.5}", "{'momentum': 0.5}", "{'b1': 'a'}"),
    "clip_norm": number,
    "keep_optimizer_state": values.source("True"),
    "initial_model": values.source("{'w': 1}", "{'head': {'bias': np.zeros(3)}}", "'none.npz'"),
    "freeze": values.source(*_quoted("head", "body", "fc_*", "head/bias")),
    "lora_rank": number,
    "lora_alpha": number,
    "lora_layers": values.source("'*'", "'head'"),
    "extra_loss": values.source("pfl.training.WeightDistribution(1.0)"),
    "participation": number,
    "stragglers": values.source("{0: 1}", "{3: 2}", "{4: 1}"),
    "straggler_schedule": values.source(*_quoted("code", "paper")),
    "share": values.source(*_quoted("all", "head", "body", "none")),
    "head": values.source(*_quoted("fc_1", "fc_0")),
    "batch_norm": values.source(*_quoted("shared", "local")),
    "input_scaling": values.source(*_quoted(*sorted(SCALINGS))),
    "augment": values.source("'flip'", "'crop_flip'"),
    "model_options": values.source("{'hidden': 2}", "{'hidden': 0}", "{'hidden': 'a'}"),
    "initializer": values.source("'torch'", "'flax'"),
    "convolutions": values.source("'auto'", "'xla'"),
    "client_execution": values.source("'map'", "'vmap'", "2"),
    "seed_execution": values.source("'map'", "'vmap'"),
    "client_state": values.source("'device'", "'host'"),
    "devices": values.source("1", "2"),
    "eval_batch_size": number,
    "dtype": values.source("'float32'", "'bfloat16'", "'float64'"),
    "compute_dtype": values.source("'bfloat16'"),
    "client_ids": values.source("[0, 1, 2, 3]", "[3, 2, 1, 0]", "[0, 0, 1, 2]"),
}


@target("federate", 60)
def _federate():
    scene()
    return calls("pfl.federate(data, parts, 'softmax', ", FEDERATE), evaluate


@target("make_algorithm", 100)
def _make_algorithm():
    scene()
    known = {
        name: pfl.make_algorithm(name).hyperparameters() for name in sorted(pfl.core.ALGORITHMS)
    }

    @st.composite
    def text(draw):
        name = draw(st.sampled_from(sorted(known)))
        keys = st.sampled_from([*known[name], "nothing"])
        settings = {
            key: draw(number) for key in draw(st.lists(keys, min_size=1, max_size=2, unique=True))
        }
        given = ", ".join(f"{key!r}: {value}" for key, value in settings.items())
        name = draw(values.source()) if draw(st.integers(0, 30)) == 0 else repr(name)
        return f"pfl.make_algorithm({name}, {{{given}}})"

    return text(), evaluate


@target("make_partition", 80)
def _make_partition():
    scene()

    @st.composite
    def text(draw):
        rule = draw(st.sampled_from(sorted(pfl.data.RULES)))
        options = calls("", dict.fromkeys(pfl.data.rule_options(rule), number), "")
        clients = draw(number) if draw(st.booleans()) else "3"
        seed = draw(number) if draw(st.integers(0, 5)) == 0 else "0"
        return f"pfl.make_partition({rule!r}, data, {clients}, {seed}, {draw(options)})"

    return text(), evaluate


@target("partitions", 100)
def _partitions():
    scene()
    lists = values.source("[[0, 1], [2, 3]]", "[[4], [5]]", "[[], []]", "[[0.5], [1.5]]", "[[60]]",
                          "[np.arange(3), np.arange(3, 6)]", "[['a'], ['b']]", "[[0, 0], [1]]",
                          "[[-1], [1]]", "[[True], [False]]", "[[2**31], [1]]", "[[[0, 1]], [[2]]]",
                          "[[float('nan')], [1]]")  # fmt: skip
    fields = calls("", {
        "validation": lists,
        "label_map": values.source("np.zeros((2, 3), int)", "np.zeros((2, 3))", "[[0, 1, 2]] * 2"),
        "rule": values.source("'mine'"),
        "options": values.source("{}"),
        "allow_overlap": values.source("True"),
    }, "")  # fmt: skip
    after = st.sampled_from([
        ".validate(len(data.labels), data.num_classes, data.labels)",
        ".summary()",
        ".report(data.labels, 3)",
        ".hash()",
    ])  # fmt: skip
    made = st.tuples(lists, lists, fields, after).map(
        lambda one: f"pfl.Partition.from_lists({one[0]}, {one[1]}, {one[2]}){one[3]}"
    )
    split = calls("parts.split_validation(", {"fraction": number, "seed": number}, ")")
    split = split.map(lambda text: text if "seed" in text else f"{text[:-1]}, seed=0)")
    split = split.map(lambda text: text if "fraction" in text else f"{text[:-1]}, fraction=0.5)")
    client = number.map(lambda text: f"parts.client('train', {text})")
    sizes = values.source("'train'").map(lambda text: f"parts.sizes({text})")
    return st.one_of(made, made, made, split, client, sizes), evaluate


@target("simulate", 40)
def _simulate():
    """Up to tracing: what follows the checks is left out."""
    scene()
    whole = values.source("1", "2", "3")
    arguments = {
        "seeds": values.source("(0,)", "[0, 1]", "range(2)", "[-1]", "range(2**40)"),
        "settings": values.source("{'learning_rate': [0.1, 0.2]}", "{'learning_rate': ['a']}",
                                  "{'learning_rate': []}", "{'learning_rate_decay': [1, 2]}",
                                  "{'learning_rate': [float('nan')]}", "{'nothing': [1]}",
                                  "{'learning_rate': 0.1}", "{1: [1]}"),
        "eval_every": whole,
        "chunk": whole,
        "chunk_seconds": number,
        "matrix_rounds": values.source("[1]", "[1, 3]", "[0]", "[1.5]", "()"),
        "adapt": values.source("pfl.Adaptation(1)", "pfl.Adaptation(steps=2, leaves='head')"),
        "score_clients": values.source("[0]", "[0, 3]", "[4]", "[-1]", "()"),
    }  # fmt: skip

    def attack(text):
        with mock.patch.object(simulation, "fit_memory", side_effect=Checked):
            try:
                evaluate(text)
            except Checked:
                return

    rounds = calls("pfl.simulate(fedavg, federation, 3, ", arguments)
    any_rounds = whole.map(lambda text: f"pfl.simulate(fedavg, federation, {text})")
    return st.one_of(rounds, rounds, any_rounds), attack


@target("small values", 110)
def _small():
    """Schedules, participation, adaptation, extra losses, executions, data sets, loading."""
    scene()
    text, arrays = values.source("'a'"), values.source("x", "y", "x[:0]", "x[:5]", "y[:5]", "y - 1")
    place = st.one_of(st.sampled_from(values.PATHS).map(repr), values.source("'file.npz'"))
    return st.one_of(
        calls("check(Schedule(", {
            "epochs": number, "steps": number, "batch_size": number, "batches_per_step": number,
        }, "))"),
        calls("check(pfl.Adaptation(", {
            "epochs": number, "steps": number, "leaves": text, "when": text,
        }, "))"),
        number.map(lambda one: f"check(pfl.training.WeightDistribution({one}))"),
        calls("check(SGD(", {"momentum": number, "weight_decay": number}, "))"),
        calls("ParticipationOptions(", {
            "participation": number, "stragglers": FEDERATE["stragglers"],
            "straggler_schedule": text,
        }, ").cohorts(4)"),
        st.tuples(FEDERATE["client_execution"], FEDERATE["seed_execution"], number).map(
            lambda one: f"resolve_execution({', '.join(one)})"
        ),
        st.tuples(arrays, arrays).map(lambda one: f"dataset_from_arrays('a', {', '.join(one)})"),
        calls("dataset_from_arrays('a', x, y, ", {
            "test_x": arrays, "test_y": arrays, "num_classes": number, "vocab_size": number,
            "input_scaling": text, "class_names": text,
        }),
        place.map(lambda one: f"load_dataset('npz', {one})"),
        place.map(lambda one: f"load_dataset('folder', {one})"),
        place.map(lambda one: f"pfl.Partition.load({one})"),
        place.map(lambda one: f"pfl.Result.load({one})"),
        place.map(lambda one: f"pfl.load_models({one})"),
        place.map(lambda one: f"import_partition('flower', {one}, data)"),
        calls("pfl.Checkpoints('kept', ", {"every_seconds": number, "keep": number}),
    ), evaluate  # fmt: skip
