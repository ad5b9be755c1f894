"""Checks of an algorithm against the federation's upload options and robust rule."""

from typing import Any

import numpy as np

from fedjax_pfl.aggregation.aggregators import check_aggregator
from fedjax_pfl.aggregation.leaf_plan import trainable
from fedjax_pfl.core.interface import Algorithm
from fedjax_pfl.core.round_observer import RoundFacts
from fedjax_pfl.federation.federation import Federation
from fedjax_pfl.uploads.accounting import require_library
from fedjax_pfl.uploads.pipeline import Uploads
from fedjax_pfl.uploads.stage import MODEL
from fedjax_pfl.utils.errors import InputError


def check_uploads(algorithm: Algorithm, federation: Federation) -> None:
    """Check that an algorithm can be run with a federation's upload stage and robust rule.

    Args:
      algorithm: with its hyperparameters.
      federation: prepared by the algorithm.

    Raises:
      InputError: an option does not fit the algorithm or another option.
    """
    name, stage, rule = algorithm.name, federation.uploads, federation.aggregator
    if federation.privacy is not None:
        require_library()  # else a finished run could not state its guarantee
    if rule is not None:
        check_aggregator(name, rule, algorithm.aggregator_replaces)
    active = _active(federation)
    if algorithm.server_needs == "nothing" or not any(federation.plan.shared):
        _refuse(algorithm, active)
    if not isinstance(stage, Uploads):
        return
    option = "dp" if "dp" in active else "secure_bits"
    if option in active and algorithm.also_sent:
        raise InputError(
            f"{name} tells the server {' and '.join(algorithm.also_sent)} beside its uploads, "
            f"which {option} does not cover."
        )
    if stage.uniform:
        _check_sums(algorithm, federation, stage)
    if stage.privacy is not None:
        _check_privacy(federation, stage)


def check_uploaded(algorithm: Algorithm, federation: Federation, facts: RoundFacts) -> None:
    """Raise `InputError` if a round uploads nothing that an option acts on."""
    if not facts.uploads:
        _refuse(algorithm, _active(federation))
    compressor = getattr(federation.uploads, "compressor", None)
    if compressor is not None and not any(upload.compressed for upload in facts.uploads):
        raise InputError(
            f"{algorithm.name} uploads no models, which compress could act on: leave it out."
        )
    models = any(upload.what == MODEL and upload.compressed for upload in facts.uploads)
    if getattr(federation.uploads, "feedback", None) is not None and not models:
        raise InputError(
            f"{algorithm.name} uploads no models here, which error_feedback could act on: leave it "
            "out."
        )


def _active(federation: Federation) -> list[str]:
    """Return the options that act on uploads."""
    stage = federation.uploads
    options: dict[str, object] = {"aggregator": federation.aggregator}
    if isinstance(stage, Uploads):
        options |= {
            "dp": stage.privacy,
            "compress": stage.compressor,
            "secure_bits": stage.fixed_point,
            "attack": stage.attack,
        }
    return [option for option, value in options.items() if value is not None]


def _refuse(algorithm: Algorithm, active: list[str]) -> None:
    """Raise `InputError` for the first of some options."""
    for option in active:
        raise InputError(f"{algorithm.name} uploads no model here: leave {option} out.")


def _check_sums(algorithm: Algorithm, federation: Federation, stage: Uploads) -> None:
    """Check an upload stage under which the server gets only sums with equal weights."""
    option = "secure_bits" if stage.fixed_point is not None else "dp_placement='distributed'"
    if algorithm.server_needs == "models":
        raise InputError(
            f"{algorithm.name}'s server needs single models, which {option} hides: leave it out"
            + (" or use dp_placement='local'." if option != "secure_bits" else ".")
        )
    if algorithm.aggregator_replaces != "mean" and not algorithm.equal_sums:
        raise InputError(
            f"{option} needs an algorithm whose server takes one mean with equal weights, and "
            f"{algorithm.name} does not."
        )
    if federation.aggregator is not None:
        raise InputError(f"A robust rule needs single uploads, which {option} hides.")
    if stage.compressor is not None:
        raise InputError(f"{option} adds up complete updates: it can't be used with compress.")
    if stage.privacy is not None and stage.attackers is not None and stage.privacy.distributed:
        raise InputError(
            "dp_placement='distributed' relies on the noise of all members, which Byzantine ones "
            "would leave out: use 'local', or no attackers."
        )


def _check_privacy(federation: Federation, stage: Uploads) -> None:
    """Check what differential privacy of updates can't cover."""
    privacy, plan = stage.privacy, federation.plan
    assert privacy is not None
    statistics = [
        path
        for path, shared in zip(plan.paths, plan.shared, strict=True)
        if shared and not trainable(path)
    ]
    if statistics:
        raise InputError(
            f"Differential privacy can't cover running statistics such as {statistics[0]}: use "
            "batch_norm='local' or 'affine_shared', or a network without batch normalization."
        )
    if np.dtype(federation.task.dtype).itemsize < 4:
        raise InputError(
            f"Differential privacy needs noise in at least float32, got {federation.task.dtype}."
        )
    part = federation.participation
    fixed = part.sampled(federation.num_clients) and part.poisson is None
    if privacy.strict and privacy.distributed and fixed:
        raise InputError(
            "With dp_strict cohorts must be drawn as they are accounted: take sampling='poisson', "
            "or let all clients take part."
        )
    if privacy.adaptive is not None and stage.fixed_point is not None:
        raise InputError(
            "The span of secure aggregation can't follow dp_adaptive_clip: leave secure_bits or "
            "dp_adaptive_clip out."
        )
    if privacy.adaptive is not None and not privacy.distributed:
        raise InputError(
            "dp_adaptive_clip adds noise to a sum over all members: it needs "
            "dp_placement='distributed'."
        )


def check_noise(federation: Federation, clip: float, noise: float) -> None:
    """Check the clip and the noise multiplier of client-level privacy.

    Raises:
      InputError: secure aggregation would remove a part of the noise; or with an adaptive clip it
        is not below 2 s_b, so no noise is left for the updates.
    """
    stage: Any = federation.uploads  # without `privacy`, a stage of one's own
    privacy = getattr(stage, "privacy", None)
    if privacy is None:
        return
    if stage.fixed_point is not None and privacy.distributed:
        part, sizes = federation.participation, np.asarray(federation.data.train.size)
        certain = part.punctual and part.poisson is None and part.window is None
        fewest = part.cohort_size - int(np.sum(sizes == 0)) if certain else 1
        stage.fixed_point.check_noise(clip, noise, max(fewest, 1), part.cohort_size)
    if privacy.adaptive is None:
        return
    most = 2 * float(privacy.adaptive.count_noise) * federation.participation.expected
    if noise >= most:
        raise InputError(
            f"dp_noise must be below {most:g} with dp_adaptive_clip (a tenth of the members of a "
            f"round), got {noise:g}."
        )
