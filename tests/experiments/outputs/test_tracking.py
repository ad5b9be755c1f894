"""Measurements for other tools: JSON lines, event files that are read back, and services.

The services' packages are stood in for by modules that note what is called.
"""

import json
import struct
import sys
import time
from dataclasses import replace
from types import ModuleType, SimpleNamespace

import jax
import numpy as np
import pytest

import fedjax_pfl as pfl
from experiments import run, sweep
from experiments.cli import flags
from experiments.outputs import tracking
from tests.experiments.small_runs import SMALL, read_rows, stamps

WORDS = (*SMALL, "--num_clients=3", "--eval_every=2", "--validation_fraction=0.2",
         "--nosave_models")  # fmt: skip


def call(*words):
    return run.main(["run", *WORDS, "--algorithms=feddwa", *words])


@pytest.fixture(scope="module")
def finished(tmp_path_factory):
    folder = tmp_path_factory.mktemp("run") / "out"
    assert call(f"--output_dir={folder}") == 0
    return folder


def rows(folder):
    return [(int(r["seed"]), int(r["round"]), r["metric"], float(r["value"]))
            for r in read_rows(folder / "feddwa" / "metrics.csv")]  # fmt: skip


def events(folder):
    """(round, tag, value) of the only event file there; a record is length, check, data, check."""
    from tensorboardX.proto.event_pb2 import Event

    (path,) = folder.glob("events.out.tfevents.*")
    data, result = path.read_bytes(), []
    while data:
        (size,) = struct.unpack("<Q", data[:8])
        event, data = Event.FromString(data[12 : 12 + size]), data[16 + size :]
        result += [(event.step, value.tag, value.simple_value) for value in event.summary.value]
    return result


def test_event_files_are_the_table(finished, capsys):
    """Of a run that was finished without them; then they are left alone."""
    pytest.importorskip("tensorboardX", reason="needs the extra 'tensorboard'")
    words = ("--tensorboard", f"--output_dir={finished}")
    assert call(*words) == 0
    assert "This run is finished" in capsys.readouterr().out
    folder = finished / "tensorboard" / "feddwa"
    assert sorted(path.name for path in folder.iterdir()) == ["seed_0", "seed_1"]
    table = rows(finished)
    for seed in (0, 1):
        result = {(step, tag): value for step, tag, value in events(folder / f"seed_{seed}")}
        mine = {(number, name): value for s, number, name, value in table if s == seed}
        assert result.keys() == mine.keys()
        np.testing.assert_allclose([result[key] for key in mine], list(mine.values()), rtol=1e-6)
    names = {name for _, name in result}
    assert names >= {"personalized/test/accuracy", "personalized/test/accuracy_worst_decile",
                     "train_loss", "traffic/up_bytes"}  # fmt: skip
    before = stamps(finished)
    assert call(*words) == 0
    assert stamps(finished) == before


@pytest.mark.costly
def test_event_files_of_a_sweep(tmp_path):
    """Two settings of one seed: the program of the run's two seeds."""
    pytest.importorskip("tensorboardX", reason="needs the extra 'tensorboard'")
    out = tmp_path / "out"
    words = [*WORDS, "--algorithms=feddwa", "--grid=feddwa.top_k=1,3", "--tensorboard"]
    assert sweep.main(["sweep", *words, "--num_seeds=1", f"--output_dir={out}"]) == 0
    folder = out / "tensorboard" / "feddwa"
    result = sorted(path.relative_to(folder).as_posix() for path in folder.glob("*/*"))
    assert result == ["top_k=1/seed_0", "top_k=3/seed_0"]
    assert all(events(folder / name) for name in result)


def test_tracking_without_its_package(tmp_path, monkeypatch, capsys):
    """One sentence, before anything is written."""
    monkeypatch.setitem(sys.modules, "tensorboardX", None)
    monkeypatch.setitem(sys.modules, "wandb", None)
    monkeypatch.setitem(sys.modules, "mlflow", None)
    for flag, name in (("tensorboard",) * 2, ("wandb=x", "wandb"), ("mlflow=x", "mlflow")):
        assert call(f"--{flag}", f"--output_dir={tmp_path / 'out'}") == 2
        assert f"pip install 'fedjax_pfl[{name}]'" in capsys.readouterr().err
        assert not (tmp_path / "out").exists()


def test_event_files_grow(finished, tmp_path):
    """Chunk by chunk; another process begins them anew."""
    pytest.importorskip("tensorboardX", reason="needs the extra 'tensorboard'")
    result, folder = pfl.Result.load(finished / "feddwa"), tmp_path / "tensorboard/feddwa/seed_1"
    with streams(tmp_path, "--tensorboard") as opened:
        opened.add(first(result, 1))
        while {step for step, _, _ in events(folder)} <= {0}:  # a thread writes them
            time.sleep(0.05)
        assert {step for step, _, _ in events(folder)} <= {0, 1}
    with streams(tmp_path, "--tensorboard") as opened:
        opened.add(result, last=True)
    found = [(step, tag) for step, tag, _ in events(folder)]
    assert {step for step, _ in found if step} == {1, 2} and len(found) == len(set(found))


@pytest.fixture(params=["wandb", "mlflow"])
def service(request, monkeypatch):
    """A flag and the calls of its package: opened and closed streams, and rows."""
    noted = SimpleNamespace(flag=f"--{request.param}=mine", opened=[], closed=[], rows=[], fails=[])

    def row(ident, number, metric, value):
        if noted.fails:
            raise noted.fails.pop()
        noted.rows.append((ident, number, metric, value))

    class Run:
        offline = True

        def __init__(self, id, name, **options):
            self.id = id or f"id{len(noted.opened)}"
            noted.opened.append((self.id, name, options.get("config")))

        def define_metric(self, name, step_metric=None): ...

        def log(self, values):
            values = dict(values)
            number = values.pop("round")
            for metric, value in values.items():
                row(self.id, number, metric, value)

        def finish(self, exit_code):
            noted.closed.append((self.id, exit_code == 0))

    class Client:
        def get_experiment_by_name(self, name):
            return SimpleNamespace(experiment_id="7") if name == "mine" else None

        def create_run(self, place, tags, run_name):
            assert place == "7" and tags["algorithm"] == "feddwa"
            ident = f"id{len(noted.opened)}"
            noted.opened.append((ident, run_name, {}))
            return SimpleNamespace(info=SimpleNamespace(run_id=ident))

        def update_run(self, run, status):
            noted.opened.append((run, "", None))

        def log_batch(self, run, metrics=(), params=()):
            assert len(params) <= 100
            noted.opened[-1][-1].update(params) if params else None
            for one in metrics:
                row(run, one.number, one.name, one.value)

        def set_terminated(self, run, status):
            noted.closed.append((run, status == "FINISHED"))

    module = ModuleType(request.param)
    module.init, module.Settings = lambda **options: Run(**options), lambda **options: None
    module.MlflowClient, module.get_tracking_uri = Client, lambda: "nowhere"
    module.entities = SimpleNamespace(
        Param=lambda name, value: (name, value),
        Metric=lambda name, value, time, number: SimpleNamespace(
            name=name, value=value, number=number
        ),
    )
    monkeypatch.setitem(sys.modules, request.param, module)
    return noted


def streams(folder, *words):
    args = flags.parse(["run", *WORDS, *words])
    return tracking.Tracking(args, folder, "feddwa", {"top_k": 3})


def first(result, rounds):
    """The result of its first rounds, two at most, of which only the second is scored."""
    whole = {"clients": result.clients, "scalars": result.scalars,
             "copies_up": result.copies_up, "copies_down": result.copies_down}  # fmt: skip
    parts = jax.tree.map(lambda values: values[:, :, :rounds], whole)
    scores = {name: values[:, :, : rounds // 2] for name, values in result.scores.items()}
    return replace(result, scores=scores, eval_rounds=result.eval_rounds[: rounds // 2], **parts)


def test_a_service_gets_every_row_once(finished, tmp_path, service):
    """Two seeds; stopped after the first round and continued, in the same runs of the service."""
    result = pfl.Result.load(finished / "feddwa")
    with streams(tmp_path, service.flag) as opened:
        opened.add(first(result, 1))
    assert [(name, said["top_k"], said["seed"]) for _, name, said in service.opened] == [
        (f"feddwa seed {seed}", *((3, seed) if "wandb" in service.flag else ("3", str(seed))))
        for seed in (0, 1)
    ]
    assert {number for _, number, _, _ in service.rows} == {1}
    assert service.closed == [("id0", False), ("id1", False)]
    with streams(tmp_path, service.flag) as opened:  # its checkpoint was of no round
        opened.add(first(result, 1))
        opened.add(result, last=True)
    assert service.opened[2:] == [(f"id{k}", *service.opened[2 + k][1:2], None) for k in (0, 1)]
    assert service.closed[2:] == [("id0", True), ("id1", True)]
    wanted = [(f"id{seed}", number, name, value) for seed, number, name, value in rows(finished)]
    assert sorted(service.rows) == sorted(wanted)
    with streams(tmp_path, service.flag) as opened:
        opened.add(result, last=True)
    assert len(service.opened) == 4 and len(service.rows) == len(wanted)


def test_a_service_that_fails_is_left_alone(finished, service, capsys):
    """One warning; the same command on the finished run sends what was missing."""
    result = pfl.Result.load(finished / "feddwa")
    service.fails.append(RuntimeError("the network\nis down"))
    assert call(service.flag, f"--output_dir={finished}") == 0
    text = capsys.readouterr().err
    assert text.count("warning:") == 1 and "(the network is down)" in text
    assert call(service.flag, f"--output_dir={finished}") == 0
    assert not capsys.readouterr().err
    found = sorted((number, name, value) for _, number, name, value in service.rows)
    assert found == sorted((number, name, value) for _, number, name, value in rows(finished))
    assert result.seeds == (0, 1)


def test_names_of_services_are_checked(tmp_path, service, capsys):
    for word in (f"{service.flag[:-4]}", f"{service.flag[:-4]} "):
        assert call(word, f"--output_dir={tmp_path / 'out'}") == 2
        assert f"{service.flag.partition('=')[0]} must be" in capsys.readouterr().err


@pytest.mark.parametrize(
    "entry",
    [[], {"s": []}, {"s": {"id": 5, "round": 0, "whole": True}}, {"s": {"id": None}},
     {"s": {"id": None, "round": "x", "whole": False}}],
)  # fmt: skip
def test_damaged_record_of_tracking(tmp_path, entry):
    (tmp_path / tracking.RECORD).write_text(json.dumps({"tensorboard": entry}))
    with pytest.raises(pfl.InputError, match=r"is damaged: its entry 'tensorboard' doesn't tell"):
        tracking._checked(tmp_path / tracking.RECORD)
    sent = {"s": {"id": "a", "round": 3, "whole": True}}
    (tmp_path / tracking.RECORD).write_text(json.dumps({"tensorboard": sent}))
    assert tracking._checked(tmp_path / tracking.RECORD) == {"tensorboard": sent}
