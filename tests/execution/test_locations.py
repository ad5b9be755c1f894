"""Programs carry few frames of the Python stack, and the limit is put back."""

import jax
import jax.numpy as jnp
import pytest

import fedjax_pfl as pfl
from fedjax_pfl.execution.locations import FRAMES, short_locations
from fedjax_pfl.testing import toys

NAME = "jax_traceback_in_locations_limit"


@pytest.mark.parametrize(("before", "inside"), [(100, FRAMES), (-1, FRAMES), (2, 2)])
def test_the_limit(before, inside):
    default = getattr(jax.config, NAME)
    jax.config.update(NAME, before)
    try:
        with pytest.raises(ZeroDivisionError), short_locations():
            assert getattr(jax.config, NAME) == inside
            raise ZeroDivisionError
        assert getattr(jax.config, NAME) == before
    finally:
        jax.config.update(NAME, default)


@pytest.mark.costly
def test_location_of_simulations_and_plans(monkeypatch):
    """The limit that programs are lowered with, inside of either."""
    seen = []

    def looking(rate):
        seen.append(getattr(jax.config, NAME))
        return pfl.training.SGD()(rate)

    algorithm = pfl.make_algorithm("local")
    federation = toys.toy_federation([4, 4], dtype="float32", validation_size=0)
    federation = federation.with_training(optimizer=looking)
    seen.clear()
    pfl.Simulation(algorithm, federation).lower(devices=jax.devices()[:1])
    assert set(seen) == {FRAMES}
    seen.clear()
    monkeypatch.setattr(pfl.engine.program.Program, "start", lambda self: jnp.zeros(1) / None)
    with pytest.raises(TypeError):
        pfl.simulate(algorithm, federation, 1)
    assert set(seen) == {FRAMES}


@pytest.mark.costly
def test_location_of_final_models_and_new_clients(monkeypatch):
    """They are compiled after the simulation, with loops of their own."""
    seen = []

    def look(self, *_):
        seen.append(getattr(jax.config, NAME))

    federation = toys.toy_federation([4, 4], dtype="float32", validation_size=0)
    final = pfl.simulate(pfl.make_algorithm("local"), federation, 1).final
    for name in ("models", "personalize"):
        monkeypatch.setattr(pfl.engine.program.Program, name, look)
    final.models()
    final.personalize(federation)
    assert seen == [FRAMES, FRAMES] and getattr(jax.config, NAME) != FRAMES
