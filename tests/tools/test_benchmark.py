"""The benchmark script: its arithmetic, its table, and what it refuses. No time is asserted."""

import json

import numpy as np
import pytest

import fedjax_pfl as pfl
from fedjax_pfl.engine import costs
from tests.experiments.small_runs import assert_refused
from tools.benchmark import __main__ as benchmark
from tools.benchmark.cases import CASES, Plan, Ratio, of_fedavg
from tools.benchmark.timing import Timing, contest
from tools.benchmark.workloads import Workload


class Stub:
    """A contestant of known times."""

    def __init__(self, name, times, diary):
        self.name, self.times, self.diary = name, iter(times), diary

    def prepare(self):
        return 7.0

    def time_rounds(self, rounds):
        self.diary.append(self.name)
        return next(self.times)


def test_contestants_take_turns():
    diary = []
    timings = contest([Stub("a", [1, 9, 2], diary), Stub("b", [4, 5, 6], diary)], 3, 1)
    assert diary == ["a", "b"] * 3
    assert (timings["a"].median, timings["b"].median, timings["a"].prepare) == (2, 5, 7.0)


def test_ratios_know_their_direction():
    assert Ratio("", 0.4, 0.5).met
    assert not Ratio("", 0.6, 0.5).met
    assert Ratio("", 0.8, 0.7, at_least=True).met
    assert not Ratio("", 0.6, 0.7, at_least=True).met
    assert Ratio("", 0.6).met is None


@pytest.mark.parametrize("model", [pytest.param("cnn", marks=pytest.mark.costly), "mlp", "softmax"])
def test_flops_of_a_round_are_near_xlas_count(model):
    workload = Workload(model=model, num_clients=4, train=20, test=10)
    by_hand = workload.num_clients * workload.train / workload.batch_size
    first, forward = workload.forward_flops()
    by_hand *= workload.batch_size * (3 * forward - first)
    counted = costs.step_flops(workload.federation())
    assert counted is not None
    counted *= 4 * 2
    assert 1 < counted / by_hand < 1.25
    assert workload.round_flops() == by_hand + 4 * 10 * forward


def test_case_a_is_248_gigaflop():
    assert Workload().round_flops() == pytest.approx(247.7e9, rel=1e-3)


def test_a_dirichlet_split_has_the_same_samples():
    workload = Workload(num_clients=10, train=30, test=10, alpha=0.1)
    partition = workload.partition(workload.dataset())
    assert len(np.unique(partition.train.idx)) == partition.sizes().sum() > 0
    assert partition.sizes().sum() + partition.sizes("test").sum() == 400


@pytest.mark.costly
def test_a_case_is_measured_shown_and_written(tmp_path, capsys):
    file = tmp_path / "speed.json"
    words = ["--case=g", "--quick", "--notorch", "--repeats=1", "--rounds=1", "--devices=1"]
    assert benchmark.main(["benchmark", *words, f"--output={file}"]) == 0
    shown = capsys.readouterr().out
    assert "softmax: fedjax_pfl (map)" in shown
    measured = json.loads(file.read_text())["g"]
    assert measured["quick"] is True
    assert set(measured["timings"]) == {
        f"{model}: {name}"
        for model in ("mlp", "softmax")
        for name in ("fedjax_pfl (map)", "at the float32 product rate")
    }
    before = file.read_bytes()
    assert benchmark.main(["benchmark", *words, f"--output={file}"]) == 2
    assert "nothing is ever overwritten" in capsys.readouterr().err
    assert file.read_bytes() == before


def test_a_failed_case_leaves_the_others(tmp_path, monkeypatch, capsys):
    file = tmp_path / "speed.json"
    monkeypatch.setattr(benchmark, "_in_process", lambda name, _: {} if name == "g" else None)
    words = "--case=g,a", "--quick", f"--output={file}"
    assert benchmark.main(["benchmark", *words]) == 1
    assert json.loads(file.read_text()) == {"g": {}}
    assert "error: case a failed" in capsys.readouterr().err


@pytest.mark.costly
def test_every_algorithm_or_the_reason(monkeypatch):
    """Those that can't run as they are have a sentence."""
    times = {"fedavg": Timing(0.5, [2.0])}
    monkeypatch.setattr(Plan, "contest", lambda self, them: {
        one.name: times.get(one.name, Timing(0.5, [3.0])) for one in them})  # fmt: skip
    report = CASES["i"](Plan(quick=True))
    assert {*report.timings, *report.facts["left_out"]} == {*pfl.core.ALGORITHMS}
    assert "local" in report.timings and "batch-norm layers" in report.facts["left_out"]["fedbn"]
    assert {one.what for one in report.ratios} == {
        of_fedavg(name) for name in report.timings if name != "fedavg"}  # fmt: skip
    assert {one.value for one in report.ratios} == {1.5}


def test_cases_are_listed(capsys):
    assert benchmark.main(["benchmark", "--list"]) == 0
    assert [line.split()[0] for line in capsys.readouterr().out.splitlines()] == list(CASES)


@pytest.mark.parametrize(
    ("word", "sentence"),
    [
        ("--case=aa", "Did you mean 'a'"),
        ("--devices=none", "--devices must be 'auto' or a whole number"),
        ("--repeats=0", "repeats"),
        ("a", "'a' is not a flag: write --NAME=VALUE."),
    ],
)
def test_benchmark_refused(word, sentence, capsys):
    assert_refused(benchmark.main(["benchmark", word, "--quick"]), sentence, capsys)


def test_the_pytorch_loop_has_the_same_network():
    torch = pytest.importorskip("torch", reason="the extra 'benchmark' is not installed")
    from tools.benchmark.torch_loop import TorchLoop

    for model in ("cnn", "cnn_bn", "mlp", "softmax"):
        workload = Workload(model=model, num_clients=2, train=20, test=10)
        loop = TorchLoop(workload)
        ours = workload.federation().plan.num_parameters
        assert sum(p.numel() for p in loop.server.parameters()) == ours
        before = [p.detach().clone() for p in loop.server.parameters()]
        assert loop.time_rounds(1) > 0
        after = list(loop.server.parameters())
        assert not any(torch.equal(a, b) for a, b in zip(before, after, strict=True))
