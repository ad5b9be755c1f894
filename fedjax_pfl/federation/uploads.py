"""Transformations of uploads on their way to the server."""

from typing import Protocol

import jax
import jax.numpy as jnp

from fedjax_pfl.federation.participation import Cohort
from fedjax_pfl.utils import trees
from fedjax_pfl.utils.structs import struct
from fedjax_pfl.utils.typing import Tree


class UploadStage(Protocol):
    """A transformation of uploads between members and server; a pytree."""

    def __call__(self, sent: Tree, reference: Tree, cohort: Cohort, what: str) -> Tree:
        """Return what the server receives from the members, leaves [M, ...].

        Args:
          sent: what the members send, [M, ...].
          reference: what the server already holds in its place, [M, ...].
          cohort: the members; uploads of members outside of `cohort.mask` are not used.
          what: name of the upload, unique within a round.
        """
        ...


@struct
class FreeRiders:
    """Free riders, which return the received model.

    Attributes:
      ids: int32 [A], permanent ids of the free riders.
    """

    ids: jax.Array

    def __call__(self, sent: Tree, reference: Tree, cohort: Cohort, what: str) -> Tree:
        return trees.where(jnp.isin(cohort.ids, self.ids), reference, sent)
