"""The planning script: on devices of this machine, and on described ones where compilers are."""

import json
from types import SimpleNamespace

import jax
import pytest

from experiments import plan
from experiments.planning import plans, targets
from tests.experiments.small_runs import read_rows

SMALL = ["--dataset=digits", "--model=softmax", "--num_clients=4", "--train_samples=20",
         "--num_seeds=1"]  # fmt: skip


@pytest.fixture
def played(monkeypatch, tmp_path):
    """Plays the script in an empty folder; (exit code, output, errors)."""
    monkeypatch.chdir(tmp_path)

    def play(capsys, *words):
        code = plan.main(["plan", *words])
        return code, *capsys.readouterr()

    return play


@pytest.fixture
def here(monkeypatch):
    """This machine's devices in place of those described."""
    monkeypatch.setattr(targets, "check_installed", lambda target: None)

    def devices(self):
        return jax.local_devices()[: 1 if self.single else 2] * (1 + (self.topology == "4x8"))

    monkeypatch.setattr(targets.Target, "devices", devices)


@pytest.mark.costly
def test_plan_of_two_algorithms(here, played, capsys, tmp_path):
    """Of a program compiled for this machine, which has no estimate of cycles."""
    words = ["--target=v5e:2x2", "--algorithms=fedavg,local", *SMALL]
    code, out, err = played(capsys, *words, "--output=plan.json")
    assert (code, err) == (0, "")
    assert "target     v5e:2x2: 2 x " in out and "fedavg: compiling\n" in out
    heading, first, second = out.partition("\n\n")[2].splitlines()[:3]
    assert heading.split()[:3] == ["algorithm", "fits", "lanes"]
    assert "rounds/s" not in heading and "transfers" in heading
    assert first.split()[:3] == ["fedavg", "yes", "2"] and "all-reduce" in first
    assert second.split()[:3] == ["local", "yes", "2"]
    assert out.endswith("Written to plan.json.\n")
    written = json.loads((tmp_path / "plan.json").read_text())
    assert (written["target"], written["devices"], written["clients"]) == ("v5e:2x2", 2, 4)
    assert written["flags"]["data"]["num_clients"] == 4
    result = written["algorithms"]["fedavg"]
    assert result["fits"] and result["planned"]["total"] > result["planned"]["arguments"] > 0
    assert result["costs"]["loops"][0][0].endswith("]/while")
    assert result["costs"]["steps"] == 2  # 20 samples, minibatches of 10
    assert result["cycles"] == 0 and result["rounds_per_second"] is None


@pytest.mark.costly
@pytest.mark.parametrize("target", ["h100", "h100:2"])
def test_a_plan_of_clients_on_the_host(target, here, played, capsys, tmp_path):
    """For this machine's devices in place of H100s."""
    words = [
        f"--target={target}",
        "--dataset=digits", "--model=mlp", "--num_clients=40", "--participation=0.1",
        "--partition=iid", "--algorithms=ditto", "--num_seeds=1", "--rounds=5",
        "--client_state=host", "--client_execution=map", "--output=p.csv",
    ]  # fmt: skip
    code, out, err = played(capsys, *words)
    assert (code, err) == (0, "")
    assert "ditto keeps clients' state in host memory, up to " in out
    (row,) = read_rows(tmp_path / "p.csv")
    rows, moved = int(row["host_rows_bytes"]), int(row["host_from_device_bytes"])
    assert rows == 5 * moved  # five rounds of four different clients at most
    assert moved < int(row["host_to_device_bytes"]) < moved + int(row["host_samples_bytes"])
    assert (row["algorithm"], row["fits"]) == ("ditto", "True")
    assert float(row["compile_seconds"]) > 0 and int(row["memory_bytes"]) > 0


class Step:
    """A `plans._compiled` that fits from so many lanes downward, or on the host."""

    def __init__(self, fits, hosted):
        self.fits, self.hosted, self.tried = fits, hosted, []

    def __call__(self, algorithm, federation, target, devices, **options):
        execution = federation.execution
        lanes = execution.lanes(federation.num_clients)
        if execution.client_state == "host":
            self.tried.append("host")
            return plans.Plan(lanes=lanes, fits=True) if self.hosted else plans.Plan(error="no")
        self.tried.append(lanes)
        return plans.Plan(lanes=lanes, fits=lanes <= self.fits)


@pytest.mark.parametrize(
    ("execution", "state", "fits", "hosted", "tried"),
    [
        ("auto", "auto", 1, True, [4, 2, 1]),
        ("auto", "auto", 0, True, [4, 2, 1, "host"]),
        ("auto", "auto", 0, False, [4, 2, 1, "host"]),
        ("auto", "device", 0, True, [4, 2, 1]),
        ("vmap", "device", 1, True, [4]),
        ("vmap", "auto", 1, True, [4, "host"]),
        ("auto", "auto", 4, True, [4]),
    ],
)
def test_lanes_are_halved_to_fit(execution, state, fits, hosted, tried, here, monkeypatch):
    args = plan.parse(["plan", "--target=v5e", "--algorithms=fedavg", "--partition=iid", *SMALL,
                       f"--client_execution={execution}", f"--client_state={state}"])  # fmt: skip
    step = Step(fits, hosted)
    monkeypatch.setattr(plans, "_compiled", step)
    target = targets.parse("v5e")
    experiment = plan.prepare(args, target)
    devices = jax.local_devices()[:1]
    result = plans.widest(args.instances["fedavg"], experiment.federation, target, devices)
    assert step.tried == tried
    assert result.fits == (hosted if tried[-1] == "host" else tried[-1] <= fits)


def test_the_floor_of_a_step():
    """The weights of 20 clients, 582,026 each, five times over 819 GB a second: 0.284 ms."""
    federation = SimpleNamespace(
        task=SimpleNamespace(dtype="float32"), plan=SimpleNamespace(num_parameters=582_026)
    )
    cycles = plans.step_floor(federation, 20, targets.chips()["v5e"])
    assert cycles == pytest.approx(0.284e-3 * 1.5e9, rel=2e-3)
    assert plans.step_floor(federation, 20, targets.chips()["h100"]) is None
