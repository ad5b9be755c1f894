"""Forms of convolutions, pooling and channel sums in which networks are traced.

The forms are equal to rounding; the fast one depends on the program's target platform, which is
passed explicitly and isn't that of the process.
"""

from collections.abc import Iterator
from contextlib import AbstractContextManager, ExitStack, contextmanager

import jax

# "products": convolutions as matrix products of patches, or with fewer products
# (`minimal_filtering`); pooling by tiles; sums over channels as products. Under a client axis every
# client has its own kernel. XLA makes that a grouped convolution, on a CPU many times slower than
# batched matrix products.
# "xla": XLA's own operations. On a TPU the short last axes of patches and tiles are padded to 128,
# and copies between layouts cost several times what the products do.
FORMS = {"cpu": "products", "gpu": "xla", "tpu": "xla"}
DEFINITION = "definition"  # as "products", with all products of a convolution's definition

# JAX's caches depend on all of them.
_platform = jax.make_user_context("cpu")
_by_xla = jax.make_user_context(False)
_counted = jax.make_user_context(False)


@contextmanager
def for_platform(platform: str | None, by_xla: bool = False) -> Iterator[None]:
    """Context in which networks are traced in the form for a platform, a key of `FORMS`.

    Args:
      platform: None for that of a context around this one.
      by_xla: whether they have the form "xla" on every platform.
    """
    with ExitStack() as contexts:
        if platform is not None:
            contexts.enter_context(_platform(platform))
        if by_xla:
            contexts.enter_context(_by_xla(True))
        yield


def by_definition() -> AbstractContextManager:
    """Context in which networks are traced in the form whose operations are counted."""
    return _counted(True)


def form() -> str:
    """Return the form for tracing: "products", "xla" or `DEFINITION`.

    A layer with a gradient of its own asks in its forward pass: the backward one is traced outside.
    """
    if _counted.value:
        return DEFINITION
    return "xla" if _by_xla.value else FORMS[_platform.value]


def picks_by_sum() -> bool:
    """Return whether a masked sum is the best way to pick one number of a short row.

    On a TPU a gather, and the scatter that is its gradient, are several operations of their own,
    and the sum becomes a part of others. The values are the same. For tracing.
    """
    return _platform.value == "tpu" and not _counted.value
