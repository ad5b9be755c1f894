"""Check that client-level privacy covers all that leaves a client."""

import jax
import numpy as np

from fedjax_pfl.core.interface import Algorithm
from fedjax_pfl.engine.arguments import checked_program
from fedjax_pfl.testing.toys import assert_close, in_double_precision, run_rounds, toy_for
from fedjax_pfl.utils.errors import InputError
from fedjax_pfl.utils.structs import by_field
from fedjax_pfl.utils.typing import Tree

CLIENT, ROUNDS = 1, 3  # the client is in every cohort of three of five


@in_double_precision
def check_withheld_uploads(algorithm: Algorithm) -> bool:
    """Run three rounds with sampling in which a client's uploads are replaced by their references.

    Neither its samples and labels nor an overflow of its training may change, to the bit, what the
    server or another client holds. New clients begin with the server's fields
    (`core.client_privacy.state_for_new_clients`).

    Returns:
      Whether the algorithm accepts client-level privacy; others are not checked.

    Raises:
      AssertionError: something changed.
    """
    try:
        checked_program(algorithm, toy_for(algorithm, dp="client", dp_clip=1.0, dp_noise=1.0), 1)
    except InputError:
        return False

    def of_others(value: Tree, axes: int) -> Tree:
        for axis in range(axes):
            value = jax.tree.map(lambda x, axis=axis: np.delete(x, CLIENT, axis), value)
        return value

    before, after = (
        run_rounds(
            algorithm, toy_for(algorithm, participation=0.6, withheld=[CLIENT], **changes), ROUNDS,
            scored=(),
        )[0][-1]
        for changes in ({}, {"changed": [CLIENT], "diverging": CLIENT})
    )  # fmt: skip
    message = f"what client {CLIENT} keeps to itself changed the state of the server or of others"
    assert_close(by_field(of_others, after), by_field(of_others, before), message, 0)
    return True
