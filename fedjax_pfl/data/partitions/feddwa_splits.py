"""FedDWA's label-sorted shards. Its other two settings are `grouped` and `dirichlet`."""

import numpy as np

from fedjax_pfl.data.partitions.dealing import Samples, joined
from fedjax_pfl.data.partitions.rule_registry import DealPlan, register_rule
from fedjax_pfl.utils.errors import InputError, require_whole


@register_rule("shards")
def shards(
    samples: Samples, num_clients: int, rng: np.random.Generator, *, shards_per_client: int = 2
) -> DealPlan:
    """Label-sorted shards, two per client: the code behind FedDWA's pathological setting.

    FedDWA (IJCAI 2023, B.2; `noniid_type8` of its code) after McMahan et al. (2017). The samples,
    sorted by label, are cut into N * `shards_per_client` equal shards (+-1 sample), which are dealt
    at random; the official test samples, sorted and cut alike, are dealt by the same assignment.
    The paper's numbers of classes are therefore the largest possible: with 10 classes and 40 shards
    a shard is a quarter of a class, and a client has one or two classes. The rule `pathological`
    follows the text. A class's samples are shuffled before the cut.

    Args:
      shards_per_client: shards of each client, 1 or more.
    """
    each = require_whole("shards_per_client", shards_per_client, 1)
    total = num_clients * each
    _check(samples, num_clients, each)
    owner = rng.permutation(total).reshape(num_clients, each)

    def deal(samples, rng):
        _check(samples, num_clients, each)
        cut = np.array_split(joined(samples.decks(rng)), total)
        return [[rng.permutation(cut[shard]) for shard in row] for row in owner]

    return DealPlan(deal, {})


def _check(samples: Samples, num_clients: int, each: int) -> None:
    if len(samples.idx) < num_clients * each:
        raise InputError(
            f"{num_clients} clients of {each} shards need {num_clients * each} {samples.what} or "
            f"more, but there are {len(samples.idx)}: take fewer clients or shards_per_client."
        )
