"""JAX's flags under which the library can't compute."""

import jax

from fedjax_pfl.utils.errors import InputError

# By flag: the value that is refused, and the usual one.
REFUSED = {
    "jax_numpy_rank_promotion": ("raise", "allow"),
    "jax_numpy_dtype_promotion": ("strict", "standard"),
    "jax_transfer_guard": ("disallow", "allow"),
}


def check_jax_flags() -> None:
    """Raise `InputError` for a flag under which no simulation runs."""
    for flag, (value, usual) in REFUSED.items():
        if str(getattr(jax.config, flag)).lower().startswith(value):
            raise InputError(
                f"JAX's flag {flag} must be {usual!r} for a simulation, got {value!r}: check your "
                "own functions under it on their own."
            )
