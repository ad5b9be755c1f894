"""Runs with an optimizer by name, a schedule, clipping and kept states, by flags."""

import numpy as np
import pytest

import fedjax_pfl as pfl
from experiments.cli import build, flags
from tests.experiments.small_runs import TINY

GIVEN = (
    "--optimizer=adam", "--optimizer_option=b1=0.8", "--learning_rate=0.01", "--lr_schedule=cosine",
    "--lr_schedule_option=final=0.1", "--clip_norm=0.5", "--keep_optimizer_state",
)  # fmt: skip
OWN = ("--set=local.optimizer=sgd", "--set=local.momentum=0.5", "--set=local.lr_schedule=constant")


def federation_of(name, *words):
    args = flags.parse(["run", *TINY, *words])
    return build.prepare(build.load_inputs(args)).federation_of(name)


@pytest.mark.costly
def test_flags_and_python_make_the_same_federation():
    one = federation_of("fedavg", *GIVEN, "--algorithms=fedavg")
    assert one.training.numbers() == pfl.LocalTraining(
        optimizer="adam", optimizer_options={"b1": 0.8}, learning_rate=0.01, lr_schedule="cosine",
        lr_schedule_options={"final": 0.1}, clip_norm=0.5, keep_optimizer_state=True,
    ).numbers()  # fmt: skip
    assert one.training.clip_norm == np.float32(0.5) and one.training.keep_optimizer_state
    own = federation_of("local", *GIVEN, *OWN, "--algorithms=fedavg,local").training
    assert own.make_optimizer() == pfl.training.SGD(0.5) and own.make_lr_schedule() is None
