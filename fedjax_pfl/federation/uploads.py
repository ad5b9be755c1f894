"""What happens to clients' uploads on their way to the server."""

from typing import Protocol

import jax
import jax.numpy as jnp

from fedjax_pfl.federation.participation import Cohort
from fedjax_pfl.utils import trees
from fedjax_pfl.utils.structs import struct
from fedjax_pfl.utils.typing import Tree


class UploadStage(Protocol):
    """A step between what members send and what the server receives; a pytree."""

    def __call__(self, sent: Tree, reference: Tree, cohort: Cohort, what: str) -> Tree:
        """What the server receives of the members, leaves [M, ...].

        Args:
          sent: what the members send, [M, ...].
          reference: what the server already holds in its place, [M, ...].
          cohort: the members; those outside of `cohort.mask` send nothing that counts.
          what: names this sending among the round's.
        """
        ...


@struct
class FreeRiders:
    """Clients that send back what the server already holds of them.

    Attributes:
      ids: int32 [A], their permanent ids.
    """

    ids: jax.Array

    def __call__(self, sent: Tree, reference: Tree, cohort: Cohort, what: str) -> Tree:
        return trees.where(jnp.isin(cohort.ids, self.ids), reference, sent)
