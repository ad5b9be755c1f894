"""FedUpdate: clients continue from fine-tuned averages (Jiang et al., 2019, as in SPFL's paper).

Jiang et al. fine-tune the average in order to score it; the code behind the SPFL paper's table
also lets a client's next round begin with the fine-tuned model.
"""

from tests.references.local_sgd import sgd
from tests.references.network import combine


def run(s, *, update_batches, steps=1, discard_fine_tuned=False):
    """FedAvg's average, then a few steps of each participant on it.

    Args:
      update_batches: like `batches`, for the fine-tuning; the first `steps` of them are used.
      steps: how many minibatch steps the fine-tuning takes.
      discard_fine_tuned: clients begin a round with the last average, not with their model.

    Returns:
      After every round, "global": the average; "personalized": [N], what every client held last.
    """
    average = s.initial
    personal = [s.initial for _ in s.clients]
    history = []
    for t in range(s.rounds):
        cohort = list(s.cohorts[t])
        trained = [
            sgd(average if discard_fine_tuned else personal[i], *s.work(t, i)) for i in cohort
        ]
        if cohort:
            total = sum(s.sizes[i] for i in cohort)
            average = combine([s.sizes[i] / total for i in cohort], trained)
        for i in cohort:
            personal[i] = sgd(average, update_batches[t][i][:steps], s.x, s.y, s.learning_rate[t])
        history.append({"global": average, "personalized": list(personal)})
    return history
