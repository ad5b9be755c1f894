"""Records and saved models say what happened, also where shapes could be mistaken."""

import jax
import numpy as np

import fedjax_pfl as pfl
from fedjax_pfl.testing.toys import toy_federation


def test_a_cohort_of_one_is_no_identity():
    with jax.enable_x64(True):
        federation = toy_federation(participation=0.2)
        result = pfl.simulate(pfl.make_algorithm("fedavg"), federation, 1)
        matrix = result.matrices["mixing"]
        assert matrix.shape == (1, 1, 1, 1, 5)
        np.testing.assert_array_equal(matrix[0, 0, 0, 0], result.clients["participated"][0, 0, 0])


def test_final_models_are_the_adapted_ones_that_were_scored():
    with jax.enable_x64(True):
        result = pfl.simulate(pfl.make_algorithm("fedavg_ft"), toy_federation(), 1)
        named = result.final.models()
        kernel = named["personalized"]["params"]["head"]["kernel"]
        assert kernel.shape[:2] == (1, 5)
        assert np.abs(kernel[0, 0] - kernel[0, 3]).max() > 1e-6
