"""WAFFLE's runs of all clients as Alice: their states, and their joint record."""

from typing import Any

import jax.numpy as jnp

from fedjax_pfl import core


@core.struct
class States:
    """The states of all runs: the fields of WAFFLE's `State` with a leading axis of Alices."""

    server: Any = core.per_client()
    private: Any = core.per_pair()
    optimizer: Any = core.per_client()
    control: Any = core.per_client()
    controls: Any = core.per_pair()
    previous: Any = core.per_pair()
    before: Any = core.per_pair()


def joint_record(records: core.Record) -> core.Record:
    """Merge the runs' records of a round, whose leaves lead with the Alices.

    Copies and steps are summed. A client counts as diverged where it diverged in any run. Its loss
    and weight are those of its own run as Alice. The mixing matrix is [Alices, agents]; a run
    without a step has a row of the identity.
    """

    def of_client(values):
        if values.dtype == bool:
            return jnp.any(values, axis=0)
        if jnp.issubdtype(values.dtype, jnp.integer):
            return jnp.sum(values, axis=0, dtype=values.dtype)
        return jnp.diagonal(values)

    weights = records.matrices["mixing"][:, 0]
    still = ~jnp.any(weights != 0, axis=1)
    identity = jnp.eye(len(weights), dtype=weights.dtype)
    return core.Record(
        clients={name: of_client(values) for name, values in records.clients.items()},
        scalars={},
        up=jnp.sum(records.up, axis=0, dtype=jnp.int32),
        down=jnp.sum(records.down, axis=0, dtype=jnp.int32),
        matrices={"mixing": jnp.where(still[:, None], identity, weights)},
    )
