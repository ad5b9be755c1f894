"""A run's identity: no result of another data set, partition or default is shown as its own."""

import inspect
import itertools
import json
import shutil
from dataclasses import replace
from pathlib import Path

import jax
import numpy as np
import pytest

import fedjax_pfl as pfl
from experiments import run
from experiments.cli import build, flags, identity, run_folder
from tests.experiments import small_runs
from tests.experiments.small_runs import assert_refused

SMALL = (*small_runs.SMALL, "--dataset=npz", "--num_clients=3", "--num_seeds=1", "--partition=iid",
         "--validation_fraction=0.2", "--checkpoint_seconds=0")  # fmt: skip
CONTENT = f"{identity.DATA} was"


def arrays(path, seed, noise=0.0):
    """Four classes in eight dimensions; with much noise they can't be distinguished."""
    rng = np.random.default_rng(seed)
    y = np.arange(160) % 4
    x = rng.normal(size=(4, 8))[y] + noise * rng.normal(size=(160, 8))
    np.savez(path, x_train=x.astype(np.float32), y_train=y)
    return path


@pytest.fixture
def here(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    arrays("easy.npz", 0)
    arrays("hard.npz", 1, noise=9.0)
    return tmp_path


def call(*words):
    return run.main(["run", *SMALL, "--algorithms=local", *words])


def summaries():
    result = {}
    for path in sorted(Path("runs").glob("*/local/summary.json")):
        result[path.parts[1]] = json.loads(path.read_text())
    return result


@pytest.mark.costly
def test_another_data_set_is_another_run(here, capsys):
    """In the default folder; in a folder that is named it is refused."""
    assert call("--data_dir=easy.npz") == 0
    assert call("--data_dir=hard.npz") == 0
    assert "This run is finished" not in capsys.readouterr().out
    scores = [one["accuracy"]["final_mean"] for one in summaries().values()]
    assert len(scores) == 2 and max(scores) > 0.9 > 0.7 > min(scores)
    hashes = [{one[key] for one in summaries().values()} for key in ("dataset", "dataset_hash")]
    assert list(map(len, hashes)) == [2, 2]
    (folder,) = [name for name, one in summaries().items() if one["dataset"] == "easy"]
    assert_refused(call("--data_dir=hard.npz", f"--output_dir=runs/{folder}"), CONTENT, capsys)
    path = Path("runs") / folder / "run.json"  # as of a version without content
    content = json.loads(path.read_text())
    del content["flags"][identity.DATA]
    content[run_folder.DIGEST] = run_folder.digest_of(content)
    path.write_text(json.dumps(content))
    assert call("--data_dir=easy.npz", f"--output_dir=runs/{folder}") == 2
    assert f"{CONTENT} not recorded and is" in capsys.readouterr().err


def record(*words):
    args = flags.parse(["run", *SMALL, "--data_dir=easy.npz", *words])
    return build.load_inputs(args).identity


def test_content_of_files_is_part_of_the_identity(here):
    """Not their places."""
    before, dataset = record(), pfl.load_dataset("npz", "easy.npz")
    shutil.copy("easy.npz", "copy.npz")
    assert record("--data_dir=copy.npz") == record("--dataset=npz:copy.npz") == before
    assert CONTENT in identity.difference(before, record("--data_dir=hard.npz"))
    words = [word for word in SMALL if "iid" not in word and "num_clients" not in word]
    made = []
    for seed, more in ((0, ()), (1, ()), (0, ("--num_clients=3",))):
        (here / "p.npz").unlink(missing_ok=True)
        pfl.make_partition("iid", dataset, 3, seed).save(here / "p.npz")
        given = [*words, "--data_dir=easy.npz", "--partition_file=p.npz", *more]
        made.append(build.load_inputs(flags.parse(["run", *given])).identity)
    assert f"{identity.PARTITION} was" in identity.difference(made[0], made[1])
    assert made[0] == made[2]


def test_defaults_are_part_of_the_identity(here, monkeypatch):
    words = ("--algorithms=feddwa,local",)
    before = record(*words)
    assert before["feddwa.top_k"] == 5
    assert record(*words, "--set=feddwa.top_k=5", "--eval_batch_size=100") == before
    assert record(*words, "--input_scaling=raw", "--set=feddwa.guidance=epochs") == before
    changed = identity.difference(before, record(*words, "--set=feddwa.top_k=4"))
    assert changed == "feddwa.top_k was 5 and is 4"
    with monkeypatch.context() as patch:  # another version of the package
        made = inspect.unwrap(pfl.core.ALGORITHMS["feddwa"].__init__)
        patch.setattr(made, "__defaults__", (6, *made.__defaults__[1:]))
        assert identity.difference(before, record(*words)) == "feddwa.top_k was 5 and is 6"
    with monkeypatch.context() as patch:
        patch.setattr(pfl.core.ALGORITHMS["feddwa"], "batch_norm", "shared")
        changed = identity.difference(before, record(*words))
        assert changed == "feddwa.batch_norm was 'affine_shared' and is 'shared'"
    other = identity.difference(before, record("--algorithms=feddwa,fedasync"))
    assert other == "--algorithms was ['feddwa', 'local'] and is ['feddwa', 'fedasync']"
    assert "convolutions" not in before  # as in records from before the flag existed
    assert record("--convolutions=xla")["convolutions"] == "xla"
    plain, other = record("--model=mlp"), record("--model=mlp", "--model_option=hidden=7")
    assert identity.MODEL in identity.difference(plain, other)


def test_names_are_part_of_the_identity(here):
    """Equal arrays with other names are other data."""
    args = flags.parse(["run", *SMALL, "--data_dir=easy.npz", "--algorithms=local"])
    made = build.load_inputs(args)
    called = [replace(made.dataset, class_names=names) for names in (tuple("abcd"), tuple("dcba"))]
    people = [replace(made.partition, names=names) for names in (("x", "y", "z"), ("x", "z", "y"))]
    assert len({one.fingerprint() for one in called} | {made.dataset.fingerprint()}) == 1
    assert len({one.hash() for one in people} | {made.partition.hash()}) == 1
    result = [identity.content(args, one, made.partition) for one in (made.dataset, *called)]
    result += [identity.content(args, made.dataset, one) for one in people]
    assert not {identity.CLASS_NAMES, identity.CLIENT_NAMES} & made.identity.keys()
    assert all(identity.difference(a, b) for a, b in itertools.combinations(result, 2))
    assert "names of the classes was " in identity.difference(result[1], result[2])
    assert "names of the clients was " in identity.difference(result[3], result[4])


def test_entries_of_several_programs():
    parts = {"a": {"rounds": 2, "data": 1}, "b": {"rounds": 2, "data": 3}}
    assert identity.merged(parts) == {"rounds": 2, "data of a": 1, "data of b": 3}


def test_difference_is_short():
    before = {"a": "x" * 400, **{f"k{i}": 0 for i in range(20)}}
    said = identity.difference(before, dict.fromkeys(before, 1))
    assert len(said) < 400 and said.endswith("and 15 more")
    assert identity.difference(before, dict(before)) == ""
    told = identity.difference({"stragglers": [0] * 2000}, {"stragglers": []})
    assert told.startswith("--stragglers was [0, 0, ") and told.endswith(" and is []")
    assert len(told) < 150


@pytest.mark.parametrize("kind", [list, "".join])
def test_difference_of_long_values(kind):
    letters = ["abcdefgh"[at % 8] for at in range(900)]
    others = [*letters[:450], "z", *letters[451:]]
    told = identity.difference({"ids": kind(letters)}, {"ids": kind(others)})
    was, _, now = told.partition(" and is ")
    assert "z" in now and "z" not in was and len(told) < 300
    assert was.endswith(" from place 451 on") and now.endswith(" from there on")
    assert "from place 900 on" in identity.difference({"ids": letters}, {"ids": letters[:-1]})


def test_settings_of_jax_are_part_of_the_identity(here):
    usual = record()
    for setting in (jax.enable_x64(True), jax.default_matmul_precision("bfloat16")):
        with setting:
            assert "JAX's jax_" in identity.difference(usual, record())


def test_64_bit_types_of_one_setting_do_not_reach_the_next(here):
    """Single precision beside double precision in a sweep is what it is alone."""

    def entries(dtype):
        words = ["run", *SMALL, "--algorithms=local", "--data_dir=easy.npz", f"--dtype={dtype}"]
        made = build.load_inputs(flags.parse(words))
        return made.identity, jax.config.jax_enable_x64

    alone, wide = entries("float32"), entries("float64")
    assert (alone[1], wide[1]) == (False, True)
    assert not any(name.startswith("JAX") for name in wide[0])
    assert entries("float32") == alone
    with jax.enable_x64(True):
        assert entries("float32")[1]  # a process that began with them keeps them
