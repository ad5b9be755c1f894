"""What a result counts: bytes sent, local steps, and their operations."""

import numpy as np
import pytest

import fedjax_pfl as pfl
from fedjax_pfl.testing.toys import SEEDS, toy_federation
from tests.engine.simulated import simulate

MODEL_BYTES = 8 * (4 * 5 + 5 + 5 * 3 + 3)


pytestmark = [pytest.mark.costly, pytest.mark.usefixtures("double_precision")]


@pytest.mark.parametrize(
    ("name", "guidance", "up", "down", "passes"),
    [
        ("fedavg", None, 1, 1, 1),
        ("local", None, 0, 0, 1),
        # Twice FedAvg's computation, as in the paper's Table 5.
        ("feddwa", "epochs", 2, 1, 2),
    ],
)
def test_traffic_and_computation(name, guidance, up, down, passes):
    settings = {"guidance": guidance} if guidance else None
    run = pfl.simulate(
        pfl.make_algorithm(name, settings), toy_federation(), 2, seeds=SEEDS, chunk=8
    )
    traffic = run.traffic()
    assert traffic["up"].dtype == np.int64 and traffic["up"].shape == (2, 1, 2, 5)
    assert (traffic["up"] == up * MODEL_BYTES).all()
    assert (traffic["down"] == down * MODEL_BYTES).all()
    wanted = {"up": up * MODEL_BYTES / 1e6, "down": down * MODEL_BYTES / 1e6}
    assert run.traffic_mb_per_client_round() == pytest.approx(wanted)
    steps = passes * np.array([2, 1, 1, 3, 1])
    assert run.clients["local_steps"].dtype == np.int32
    assert (run.clients["local_steps"] == steps).all()
    # Two layers' products and the update; of four samples, whose own gradient nobody asks for.
    assert run.flops_per_step > 4 * (3 * 2 * (20 + 15) - 2 * 20) + 2 * 43
    np.testing.assert_array_equal(
        run.flops(), np.broadcast_to(steps * run.flops_per_step, (2, 1, 2, 5))
    )
    gflop = steps.mean() * run.flops_per_step / 1e9
    assert run.computation() == pytest.approx(
        {
            "flops_per_step": run.flops_per_step,
            "local_steps_per_client_round": passes * 8 / 5,
            "gflop_per_client_round": gflop,
            "gflop_per_client": 2 * gflop,
        }
    )


def test_secure_aggregation_sends_numbers_beside_the_model_with_its_bits(tmp_path):
    options = {"secure_bits": 12, "secure_options": {"levels": 100}}
    pfl.simulate(pfl.make_algorithm("feddbe"), toy_federation(**options), 1).save(tmp_path / "run")
    run = pfl.Result.load(tmp_path / "run")
    assert (run.clients["numbers_up"] == 5).all()
    model = -(-(20 + 5) * 12 // 8) + -(-(15 + 3) * 12 // 8)
    assert (run.traffic()["up"] == model + 8).all()  # 7.5 bytes
    assert (run.traffic()["down"] == 2 * MODEL_BYTES + 8 * 5).all()


def test_traffic_under_participation():
    run = simulate(federation=toy_federation(participation=0.6))
    for way, sent in run.traffic().items():
        np.testing.assert_array_equal(sent, run.clients["participated"] * MODEL_BYTES, way)
    present = run.clients["participated"]
    assert (present.sum(-1) == 3).all()
    np.testing.assert_array_equal(run.clients["local_steps"], present * [2, 1, 1, 3, 1])
    done, gflop = run.computation(), run.flops().sum() / 1e9
    assert done["gflop_per_client_round"] == pytest.approx(gflop / present.sum())
    assert done["gflop_per_client"] == pytest.approx(gflop / (2 * 5))
