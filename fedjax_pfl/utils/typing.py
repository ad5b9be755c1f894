"""Type aliases for annotations, with axes in brackets.

N is the number of clients, M of the cohort's members, A of receivers, B of senders.
"""

from typing import Any, TypeAlias

import jax
import numpy as np

Tree: TypeAlias = Any  # any pytree of arrays
Model: TypeAlias = dict[str, Any]  # of one client: "params", and statistics where there are any
Params: TypeAlias = Tree  # the "params" of a model, or a tree like them such as a gradient
Stack: TypeAlias = Any  # a pytree whose leaves lead with the client axis: models [N, ...], [M, ...]
State: TypeAlias = Any  # an algorithm's state: a struct that declares its client axes
Device: TypeAlias = Any  # `jax.Device`, which type checkers consider a variable

Key: TypeAlias = jax.Array  # a typed key of jax.random, []
Scalar: TypeAlias = jax.Array  # one number, []
PerClient: TypeAlias = jax.Array  # one number for every client, [N]
PerMember: TypeAlias = jax.Array  # one number for every member of the cohort, [M]
Mask: TypeAlias = jax.Array  # bool [M]: which members of the cohort
Rows: TypeAlias = jax.Array | np.ndarray  # int32 [M]: rows of the client axis
Matrix: TypeAlias = jax.Array  # one number for every pair, [A, B]: receivers and senders
