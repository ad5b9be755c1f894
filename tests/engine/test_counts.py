"""What programs count in 32 bits is refused before it wraps, wherever it is formed."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import fedjax_pfl as pfl
from experiments import run
from fedjax_pfl.algorithms.weight_erosion import _passes
from fedjax_pfl.data.federated import make_split
from fedjax_pfl.federation.batching import COUNT_LIMIT, MAX_STEPS, Schedule
from fedjax_pfl.testing.toys import toy_federation as toys
from fedjax_pfl.training.client_loop import run_clients

TOO_MANY = rf"local steps in a round, but at most {MAX_STEPS:,} are allowed"
MANY = 1431655766  # epochs of 3 steps each: 2 steps, modulo 2^32


def toy_federation(**options):
    return toys(dtype="float32", **options)


def check(name, settings=None, rounds=3, federation=None, **options):
    federation = toy_federation() if federation is None else federation
    pfl.Simulation(pfl.make_algorithm(name, settings), federation, **options).check(rounds)


def test_federate_refuses_too_many_local_steps():
    with pytest.raises(pfl.InputError, match=TOO_MANY):
        toy_federation(local_epochs=MANY)


@pytest.mark.parametrize(
    ("name", "settings"),
    [
        ("feddwa", {"guidance_epochs": MANY}),
        ("fedavg_ft", {"fine_tune_epochs": MANY}),
        ("fedavg_ft", {"fine_tune_epochs": MANY, "final_only": True}),
        ("fedupdate", {"fine_tune_steps": 2**31 - 1}),
        ("perfedavg", {"passes": 2**25}),
    ],
)
def test_steps_of_an_algorithms_own(name, settings):
    with pytest.raises(pfl.InputError, match=TOO_MANY):  # while the round is traced
        pfl.simulate(pfl.make_algorithm(name, settings), toy_federation(), 3)
    check(name, dict.fromkeys(settings, 1))


def test_adaptation_refuses_too_many_steps():
    for adapt in (pfl.Adaptation(epochs=MANY), pfl.Adaptation(steps=2**31 - 1)):
        with pytest.raises(pfl.InputError, match=TOO_MANY):
            check("local", adapt=adapt)


def test_new_client_steps_on_the_command_line(tmp_path, capsys):
    words = ["run", "--dataset=digits", "--algorithms=local", f"--output_dir={tmp_path / 'o'}"]
    assert run.main([*words, "--new_clients=2", "--new_client_steps=5,2147483647"]) == 2
    assert f"at most {MAX_STEPS:,} are allowed" in capsys.readouterr().err
    assert not (tmp_path / "o").exists()


def test_whatever_an_algorithm_hands_to_the_executor():
    """Also one of the user's own, that says nothing of its schedules beforehand."""
    federation = toy_federation()
    with pytest.raises(pfl.InputError, match=TOO_MANY):
        jax.eval_shape(
            lambda: (
                run_clients(
                    federation,
                    lambda carry, *_: carry,
                    jnp.zeros(2),
                    rows=jnp.arange(2),
                    key=jax.random.key(0),
                    schedule=Schedule(epochs=MANY, batch_size=3),
                ).carry
            )
        )


def test_unshuffled_batches_count_the_steps_of_all_rounds():
    federation = toy_federation(batch_order="partition", local_steps=100_000)
    check("local", federation=federation, rounds=21_474)
    with pytest.raises(pfl.InputError, match="local steps in 21,475 rounds, but unshuffled"):
        check("local", federation=federation, rounds=21_475)
    with pytest.raises(pfl.InputError, match="but unshuffled batches"):
        pfl.simulate(pfl.make_algorithm("local"), federation, 21_475)
    settings = {"guidance_epochs": 100_000}
    federation = toy_federation(batch_order="partition")
    with pytest.raises(pfl.InputError, match="but unshuffled batches"):
        check("feddwa", settings, federation=federation, rounds=COUNT_LIMIT - 1)


def test_steps_of_waffle_everyone_add_up():
    """Their steps add up."""
    federation = toy_federation(local_steps=MAX_STEPS)
    check("waffle", federation=federation)
    count = federation.num_clients
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("fedjax_pfl.training.COUNT_LIMIT", MAX_STEPS * count)
        with pytest.raises(pfl.InputError, match="one run for each Alice"):
            check("waffle", {"everyone": True}, federation=federation)


def test_waffle_ends_with_alice_alone_from_the_same_round():
    """The last twentieth, as 20 r >= 19 R has it, which is beyond int32 from 107 million on."""
    for total in (*range(1, 200), 2**31 - 1):
        for r in (1, total // 2, total - total // 20 - 1, total - total // 20, total):
            assert (20 * r >= 19 * total) == (total - r <= total // 20)


def test_weight_erosion_counts_passes_over_samples():
    rounds = [0, 1, 7, 99, 5_000, 2**31 - 2]
    for size, batch in ((1, 10), (7, 10), (60_000, 10), (46_000, 46_000)):
        result = [_passes(jnp.int32(t), batch, jnp.array([size]), jnp.float32)[0] for t in rounds]
        np.testing.assert_allclose(result, [t * batch // size for t in rounds], rtol=1e-6)
    with pytest.raises(pfl.InputError, match=r"batch_size must be below 2,147,483,648 when"):
        check("weight_erosion", federation=toy_federation(batch_size=2**31 - 1))


@pytest.mark.parametrize("drop_last", [False, True])
@pytest.mark.parametrize("batches", [1, 3])
def test_batches_beyond_all_samples_take_no_room(batches, drop_last):
    wide = Schedule(batch_size=2**31 - 1, batches_per_step=batches, drop_last=drop_last)
    wide.check_counts(50)
    assert wide.fitting(50).samples_per_step <= 51 * batches


def test_more_samples_than_indices():
    offsets = np.array([0, 2**31])
    with pytest.raises(pfl.InputError, match="samples of all clients must be below 2\\^31"):
        make_split(np.zeros(0, np.int32), offsets)
