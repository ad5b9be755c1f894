"""The cases of `tools.benchmark`, one function each; contestants take turns."""

import functools
import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field, replace
from typing import Any

import jax
import numpy as np

import fedjax_pfl as pfl

from . import plain_jax
from .timing import (
    Contestant,
    MatrixProducts,
    Simulated,
    Timing,
    contest,
    forget_peak,
    peak_can_be_forgotten,
    peak_memory,
    resident_memory,
)
from .workloads import Workload


@dataclass(frozen=True)
class Plan:
    """Configuration of a measured case.

    Attributes:
      repeats: turns of every contestant.
      rounds: rounds of a turn, whose median counts.
      quick: tiny workloads, to see that everything runs; the numbers mean nothing.
      torch: whether the PyTorch loop takes part.
      device: PyTorch's device.
      executions: strategies of the client axis to compare, "auto" first.
      devices: how many devices share the client axis.
      say: called with lines about progress.
    """

    repeats: int = 5
    rounds: int = 2
    quick: bool = False
    torch: bool = True
    device: str = "cpu"
    executions: tuple[str, ...] = ("auto",)
    devices: int = 1
    say: Callable[[str], None] = lambda line: None

    def size(self, workload: Workload) -> Workload:
        return replace(workload, num_clients=4, train=20, test=10) if self.quick else workload

    def federation(self, workload: Workload, **options) -> pfl.Federation:
        options = {"client_execution": self.executions[0], "devices": self.devices} | options
        return workload.federation(**options)

    def contest(self, contestants: Iterable[Contestant], **options) -> dict[str, Timing]:
        return contest(list(contestants), self.repeats, self.rounds, self.say, **options)


@dataclass(frozen=True)
class Ratio:
    """A measured ratio and its target.

    Attributes:
      what: in words.
      value: measured within one run.
      target: bound, or None for a number that is only reported.
      at_least: whether the target is a lower bound; an upper one by default.
    """

    what: str
    value: float
    target: float | None = None
    at_least: bool = False

    @property
    def met(self) -> bool | None:
        if self.target is None:
            return None
        return self.value >= self.target if self.at_least else self.value <= self.target


@dataclass
class Report:
    """The results of a case: contestants' timings, ratios, and other facts."""

    timings: dict[str, Timing]
    ratios: list[Ratio]
    facts: dict[str, Any] = field(default_factory=dict)


def _fedavg() -> pfl.Algorithm:
    return pfl.make_algorithm("fedavg")


def _simulated(plan: Plan, workload: Workload, **options) -> list[Simulated]:
    """Return the library's contestants, one for each distinct execution strategy."""
    seen, contestants = set(), []
    for name in plan.executions:
        federation = plan.federation(workload, client_execution=name, **options)
        execution = str(federation.execution)
        if execution not in seen:
            seen.add(execution)
            contestants.append(Simulated(f"fedjax_pfl ({execution})", _fedavg(), federation))
    return contestants


def _against_torch(plan: Plan, workload: Workload, target: float) -> Report:
    workload = plan.size(workload)
    ours = _simulated(plan, workload)
    floor = MatrixProducts("at the float32 product rate", workload.round_flops())
    others: list[Contestant] = [floor]
    if plan.torch:
        from .torch_loop import TorchLoop

        others = [TorchLoop(workload, plan.device), floor]
    timings = plan.contest([*ours, *others])
    own, least = timings[ours[0].name].median, timings[floor.name].median
    ratios = []
    if plan.torch:
        loop = timings["PyTorch loop"].median
        ratios = [
            Ratio("time relative to the PyTorch loop", own / loop, target),
            Ratio("time at the float32 product rate relative to the PyTorch loop", least / loop),
        ]
    wanted = 0.7 if workload.model == "cnn" else None
    ratios.append(Ratio("share of the float32 product rate", least / own, wanted, at_least=True))
    facts = {
        "gigaflop_a_round": workload.round_flops() / 1e9,
        "parameters": ours[0].federation.plan.num_parameters,
    }
    return Report(timings, ratios, facts)


def cnn(plan: Plan) -> Report:
    """FedAvg, 20 clients of 450 images 28x28, 4-layer CNN, batch 10, one local epoch."""
    return _against_torch(plan, Workload(), 0.5)


def batch_norm(plan: Plan) -> Report:
    """FedAvg, 20 clients of 450 images 32x32x3, 4-layer CNN with batch normalization."""
    return _against_torch(plan, Workload(model="cnn_bn", shape=(32, 32, 3)), 0.6)


def small_models(plan: Plan) -> Report:
    """An MLP and a softmax regression, where dispatch dominates."""
    timings, ratios = {}, []
    for model, target in (("mlp", 1.0), ("softmax", 0.1)):
        report = _against_torch(plan, Workload(model=model), target)
        timings |= {f"{model}: {name}": timing for name, timing in report.timings.items()}
        ratios += [replace(ratio, what=f"{model}: {ratio.what}") for ratio in report.ratios]
    return Report(timings, ratios)


def ragged(plan: Plan) -> Report:
    """Dir(0.1), 100 clients, against an equal split of the same samples."""
    equal = plan.size(Workload(num_clients=100, train=90, test=30, eval_batch_size=30))
    uneven = replace(equal, alpha=0.1)
    contestants = [
        Simulated(name, _fedavg(), plan.federation(workload))
        for name, workload in (("equal split", equal), ("Dir(0.1)", uneven))
    ]
    timings = plan.contest(contestants)
    steps = []  # local steps a sample
    for contestant in contestants:
        data, schedule = contestant.federation.data.train, contestant.federation.schedule
        total = schedule.total_steps(np.asarray(data.size)).sum(dtype=np.int64)
        steps.append(int(total) / int(data.total))
    lanes = uneven.federation(client_execution="vmap")
    efficiency = pfl.engine.padding_efficiency(lanes.steps(), lanes.execution)
    share = timings["Dir(0.1)"].median / timings["equal split"].median
    ratios = [
        Ratio("ragged, of the equal split's time", share, 1.15),
        Ratio("padding efficiency under vmap", efficiency, 0.85, at_least=True),
        Ratio("local steps a sample, ragged over equal", steps[1] / steps[0]),
    ]
    sizes = contestants[1].federation.data.train.size
    return Report(timings, ratios, {"smallest": int(sizes.min()), "largest": int(sizes.max())})


def server(plan: Plan) -> Report:
    """The cost of the server's part of a personalized algorithm, 100 clients of 450 images.

    Each is compared with local training with the same epochs and extra loss, without mixing. The
    server's work does not depend on the clients' samples: with fewer samples its share is larger.
    """
    workload = plan.size(Workload(num_clients=100))
    penalty = pfl.training.WeightDistribution(10.0)
    plain = plan.federation(workload)
    federations = {
        "fedavg": plain,
        "local": plain,
        "local, 2 epochs": plan.federation(workload, local_epochs=2),
        "local + WDR": plan.federation(workload, extra_loss=penalty),
        "feddwa": plain,
        "cwfedavg": plain,
        "pfedla": plain,
    }
    timings = plan.contest(
        Simulated(name, pfl.make_algorithm(name.partition(",")[0].partition(" ")[0]), federation)
        for name, federation in federations.items()
    )
    against = {"feddwa": "local, 2 epochs", "cwfedavg": "local + WDR", "pfedla": "local"}
    seconds = {name: timing.median for name, timing in timings.items()}
    ratios = [
        Ratio(f"{name}: server part of its round", 1 - seconds[base] / seconds[name], 0.05)
        for name, base in against.items()
    ]
    ratios += [
        Ratio(f"{name}, of FedAvg's time", seconds[name] / seconds["fedavg"])
        for name in ("local", *against)
    ]
    return Report(timings, ratios)


def sweep(plan: Plan) -> Report:
    """Seeds x settings in one program: 1, 4 and 16 runs."""
    workload = plan.size(Workload(num_clients=10, train=100, test=30, eval_batch_size=30))
    federation = plan.federation(workload)
    runs = {
        "1 run": {"seeds": (0,)},
        "4 runs": {"seeds": (0, 1), "settings": {"learning_rate": [0.01, 0.02]}},
        "16 runs": {"seeds": range(4), "settings": {"learning_rate": [0.01, 0.02, 0.03, 0.04]}},
    }
    timings = plan.contest(
        Simulated(name, _fedavg(), federation, options) for name, options in runs.items()
    )
    one, many = timings["1 run"], timings["16 runs"]
    target = 16.0 if jax.default_backend() == "cpu" else 4.0
    ratios = [
        Ratio("16 runs, of one run's time", many.median * 16 / one.median, target),
        Ratio("compiling 16 runs, of compiling one", many.prepare / one.prepare),
    ]
    return Report(timings, ratios, {"seconds": "of one round of one run"})


def sampling(plan: Plan) -> Report:
    """20 % of 100 clients in each round, against all of them, without evaluation."""
    workload = plan.size(Workload(num_clients=100, train=90, test=30, eval_batch_size=30))
    options = {"eval_every": 1000}
    timings = plan.contest(
        Simulated(name, _fedavg(), plan.federation(workload, participation=part), options)
        for name, part in (("all clients", 1.0), ("20 %", 0.2))
    )
    part = timings["20 %"].median / timings["all clients"].median
    return Report(timings, [Ratio("20 % of the clients, of all clients' time", part)])


GROUP = 16


def algorithms(plan: Plan) -> Report:
    """Every algorithm that can run as it is: 20 clients of 240 images, an MLP, two local epochs.

    Groups of them take turns with FedAvg: a process keeps the programs of about forty.
    """
    workload = Workload(model="mlp", train=300, test=100, batch_size=20, validation=0.2)
    federation = plan.federation(plan.size(workload), local_epochs=2)
    contestants, left_out = {}, {}
    for name in sorted(pfl.core.ALGORITHMS):
        algorithm = pfl.make_algorithm(name)
        try:
            pfl.Simulation(algorithm, federation).check(plan.rounds)
        except pfl.InputError as error:
            left_out[name] = str(error)
        else:
            contestants[name] = Simulated(name, algorithm, federation, {"eval_every": 1000})
    fedavg = contestants.pop("fedavg")
    others, timings, ratios = list(contestants.values()), {}, []
    for start in range(0, len(others), GROUP):
        found = plan.contest([fedavg, *others[start : start + GROUP]])
        base = found.pop("fedavg")
        timings = {"fedavg": base} | timings | found
        ratios += [Ratio(of_fedavg(name), one.median / base.median) for name, one in found.items()]
    return Report(timings, ratios, {"left_out": left_out})


def of_fedavg(name: str) -> str:
    """Return what the ratio of an algorithm's time to FedAvg's is called."""
    return f"{name}, of fedavg's time"


def compiling(plan: Plan) -> Report:
    """CPU seconds of compiling FedAvg and FedDWA, of those of a plain JAX program of the same work.

    Ten clients on one device; each program is compiled anew, the library's and the plain one in
    turns. In the table a round's seconds are those of compiling.
    """
    timings, ratios = {}, []
    for model, shape in (("softmax", (8, 8, 1)), ("mlp", (8, 8, 1)), ("cnn", (28, 28, 1))):
        workload = Workload(model, shape, 10, 120, 40, eval_batch_size=40, alpha=0.3)
        federation = workload.federation()
        task: Any = federation.task
        network = task.module
        for name, target in (("fedavg", 1.5), ("feddwa", 2.0)):
            seconds: dict[str, list[float]] = {"fedjax_pfl": [], "plain JAX": []}
            for _ in range(plan.repeats):
                jax.clear_caches()
                simulation = pfl.Simulation(pfl.make_algorithm(name), federation)
                began = time.process_time()
                pfl.compile_all([simulation])
                seconds["fedjax_pfl"].append(time.process_time() - began)
                seconds["plain JAX"].append(plain_jax.compile_seconds(workload, network, name))
            found = {f"{name}, {model}, {who}": Timing(0.0, own) for who, own in seconds.items()}
            ours, plain = (one.median for one in found.values())
            timings |= found
            ratios.append(Ratio(f"{name}, {model}: of the plain program", ours / plain, target))
    return Report(timings, ratios)


def scale(plan: Plan, num_clients: int) -> Report:
    """One size of a growing federation: seconds per round and the peak of the host's memory.

    Compilation is not part of a round's peak: a small federation is compiled and run first, and
    the peak is that of the timed rounds.
    """
    workload = Workload(num_clients=num_clients, train=20, test=10, eval_batch_size=10)
    workload = plan.size(workload)
    algorithm = pfl.make_algorithm("feddwa")
    Simulated("small", algorithm, plan.federation(replace(workload, num_clients=2))).prepare()
    federation = plan.federation(workload)
    estimate = pfl.Simulation(algorithm, federation).estimate_memory()
    forget_peak()
    before = resident_memory()  # interpreter, libraries, compiler, data
    contestant = Simulated(algorithm.name, algorithm, federation)
    timings = plan.contest([contestant], prepared=forget_peak)
    grown = peak_memory() - before
    facts = {
        "num_clients": num_clients,
        "peak_growth_gigabytes": grown / 1e9,
        "before_gigabytes": before / 1e9,
        "estimated_gigabytes": estimate.total / 1e9,
    }
    if not peak_can_be_forgotten():  # compiling would be in the peak
        return Report(timings, [], facts)
    share = grown / (estimate.state + estimate.working)
    what = "peak growth of the host's memory, of the estimate"
    return Report(timings, [Ratio(what, share, 1.25)], facts)


CASES: dict[str, Callable[[Plan], Report]] = {
    "a": cnn,
    "b": batch_norm,
    "c": ragged,
    "d": server,
    "e": sweep,
    "f": sampling,
    "g": small_models,
    "i": algorithms,
    "j": compiling,
} | {f"h{n}": functools.partial(scale, num_clients=n) for n in (20, 100, 500, 1000)}
