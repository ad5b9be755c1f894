"""Folders as runs leave them, with numbers that are known."""

import json
from dataclasses import replace

import numpy as np

import fedjax_pfl as pfl
from experiments.cli import flags

SAME = {"dataset": "digits", "partition_hash": "1a2b3c4d5e"}


def write_run(
    folder,
    algorithm,
    accuracy,
    seeds,
    sent=10.0,
    pace=2.0,
    eval_every=1,
    flops=None,
    words=(),
    remarks=(),
    **facts,
):
    """An algorithm's folder as a run leaves it, with accuracies [S, E, N].

    Args:
      words: more flags; remarks: its result's; facts: content of its summary.
    """
    accuracy = np.asarray(accuracy, np.float32)
    folder.mkdir(parents=True)
    rounds = eval_every * np.arange(1, accuracy.shape[1] + 1)
    each = (len(seeds), 1, int(rounds[-1]), accuracy.shape[2])  # [S, H, T, N]
    pfl.Result(
        algorithm=algorithm,
        hyperparameters={},
        training={},
        seeds=tuple(seeds),
        settings={},
        num_clients=each[-1],
        num_parameters=10,
        train_sizes=np.full(each[-1], 20),
        test_sizes=np.arange(1, each[-1] + 1),
        eval_rounds=rounds,
        scores={"personalized/test/accuracy": accuracy[:, None]},
        clients={
            "participated": np.ones(each, bool),
            "diverged": np.zeros(each, bool),
            "local_steps": np.ones(each, np.int32),
        },
        scalars={},
        copies_up=np.ones((*each, 1), np.int32),
        copies_down=np.full((*each, 1), 2, np.int32),
        blocks=("head",),
        block_sizes=np.array([int(sent * 1e6) // 4]),
        client_ids=np.arange(each[-1]),
        item_bytes=4,
        matrices={},
        matrix_rounds=np.array([], int),
        compile_seconds=0.0,
        seconds_per_round=pace,
        padding_efficiency=1.0,
        execution="vmap",
        flops_per_step=flops,
        remarks=tuple(remarks),
    ).save(folder)
    args = flags.parse(["run", f"--algorithms={algorithm}", *words])
    config = {
        "algorithm": algorithm,
        "revision": "1.1",
        "hyperparameters": {},
        "seeds": seeds,
        "flags": args.by_group(),
        "partition": {"rule": "iid", "options": {}},
        "model": {"blocks": ["head"]},
    }
    (folder / "config.json").write_text(json.dumps(config))
    (folder / "summary.json").write_text(json.dumps(facts))


def rewrite(folder, **changes):
    """Saves an algorithm's result again with other fields."""
    result = pfl.Result.load(folder)
    for name in ("result.json", "result.npz"):
        (folder / name).unlink()
    replace(result, **changes).save(folder)


def finals(*last):
    """[S, 1, N], a row for each seed."""
    return np.array(last, float)[:, None, :]
