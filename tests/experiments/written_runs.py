"""Folders as runs leave them, with numbers that are known."""

import json

import numpy as np

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
    **facts,
):
    """An algorithm's folder as a run leaves it, with accuracies [S, E, N].

    Args:
      words: more flags; facts: more of its summary.
    """
    accuracy = np.asarray(accuracy, np.float32)
    folder.mkdir(parents=True)
    rounds = eval_every * np.arange(1, accuracy.shape[1] + 1)
    total = (len(seeds), int(rounds[-1]), accuracy.shape[2])
    np.savez(
        folder / "clients.npz",
        **{
            "personalized/test/accuracy": accuracy,
            "traffic/up_bytes": np.full(total, sent * 1e6, np.int64),
            "traffic/down_bytes": np.full(total, 2 * sent * 1e6, np.int64),
            **({} if flops is None else {"computation/flops": np.full(total, flops)}),
            "rounds": rounds,
            "record_rounds": np.arange(1, total[1] + 1),
            "test_sizes": np.arange(1, total[2] + 1),
            "seeds": np.array(seeds),
        },
    )
    args = flags.parse(["run", f"--algorithms={algorithm}", *words])
    config = {
        "algorithm": algorithm,
        "revision": "1.1",
        "hyperparameters": {},
        "seeds": seeds,
        "flags": flags.resolved(args),
        "partition": {"rule": "iid", "options": {}},
        "model": {"blocks": ["head"]},
    }
    summary = {"num_clients": total[2], "seconds_per_round": pace, **facts}
    (folder / "config.json").write_text(json.dumps(config))
    (folder / "summary.json").write_text(json.dumps(summary))


def finals(*last):
    """[S, 1, N], a row for each seed."""
    return np.array(last, float)[:, None, :]
