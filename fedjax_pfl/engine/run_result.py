"""Construction of the `Result` of a simulation's rounds."""

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from fedjax_pfl.core.client_privacy import client_releases
from fedjax_pfl.core.interface import Algorithm
from fedjax_pfl.core.sample_privacy import releases
from fedjax_pfl.engine.costs import forward_flops, step_flops
from fedjax_pfl.engine.program import Program
from fedjax_pfl.engine.runner import ChunkRunner
from fedjax_pfl.engine.runs import remarks
from fedjax_pfl.execution.lane_assignment import padding_efficiency
from fedjax_pfl.results.result import Result


def result_so_far(
    algorithm: Algorithm,
    seeds: Sequence[int],
    settings: Mapping[str, Sequence[Any]] | None,
    chunks: ChunkRunner,
) -> Result:
    """Return the `Result` of the past rounds, without models."""
    program, metrics = chunks.program, chunks.metrics
    federation = program.federation
    stage, item_bytes = federation.uploads, np.dtype(federation.task.dtype).itemsize
    arrays = {name: np.asarray(values) for name, values in (settings or {}).items()}
    measured = metrics.collect((len(seeds), -1))
    rounds = chunks.done if chunks.stopped else program.rounds
    common, single = remarks(algorithm, federation, arrays, rounds)
    ids, names = np.asarray(federation.data.ids), dict(federation.client_names)
    counted_forward = "forward_samples" in measured["clients"]
    return Result(
        algorithm=algorithm.name,
        hyperparameters=algorithm.hyperparameters(),
        training=federation.training.numbers(),
        seeds=tuple(int(seed) for seed in seeds),
        settings=arrays,
        num_clients=federation.num_clients,
        num_parameters=federation.plan.num_parameters,
        client_ids=ids,
        client_names=tuple(names[client] for client in ids.tolist()) if names else (),
        test_sizes=np.asarray(federation.data.test.size),
        train_sizes=np.asarray(federation.data.train.size),
        block_sizes=federation.plan.shared_block_sizes(),
        blocks=federation.plan.blocks,
        upload_bytes=None if stage is None else stage.block_bytes(federation.plan, item_bytes),
        item_bytes=item_bytes,
        compile_seconds=chunks.compile_seconds,
        seconds_per_round=metrics.seconds_per_round() / program.num_runs,
        padding_efficiency=padding_efficiency(federation.steps(), federation.execution),
        execution=str(federation.execution),
        flops_per_step=step_flops(federation),
        flops_per_forward=forward_flops(federation) if counted_forward else None,
        remarks=common,
        setting_remarks=single,
        measures=federation.measures,
        stopped=chunks.stopped,
        rounds_asked=program.rounds if chunks.stopped else None,
        partition_hash=_hex(federation.partition_hash),
        privacy=_privacy(algorithm, program, program.num_runs // len(seeds)),
        **measured,
    )


def _hex(digest: Any) -> str:
    return "" if digest is None else np.asarray(digest).tobytes().hex()


def _privacy(algorithm: Algorithm, program: Program, settings: int) -> dict[str, Any] | None:
    """Return `Result.privacy`: what clients release, with the numbers of each setting."""
    federation, numbers = program.federation, program.runs.numbers
    privacy = federation.privacy
    if privacy is None:
        return None

    def of_settings(name: str) -> list[Any]:
        if name in numbers:
            return np.asarray(numbers[name])[:settings].tolist()
        return [float(getattr(privacy, name.removeprefix("dp_")))] * settings

    return {
        "unit": privacy.unit,
        "delta": privacy.delta,
        "clip": of_settings("dp_clip"),
        "noise": of_settings("dp_noise"),
        **(
            client_releases(algorithm, federation, program.round_facts())
            if federation.sample_privacy is None
            else releases(algorithm, federation, program.round_facts(), program.adapt)
        ),
    }
