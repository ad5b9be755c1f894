"""FedUpdate: clients continue from fine-tuned averages (Jiang et al., 2019, as in SPFL's paper).

Jiang et al. fine-tune the average in order to score it; the code behind the SPFL paper's table
also lets a client's next round begin with the fine-tuned model.
"""

from tests.references.local_sgd import sgd
from tests.references.network import combine


def run(
    initial,
    clients,
    rounds,
    *,
    x,
    y,
    sizes,
    cohorts,
    batches,
    update_batches,
    learning_rate,
    steps=1,
    discard_fine_tuned=False,
):
    """FedAvg's average, then a few steps of each participant on it.

    Args:
      initial: the model everybody begins with.
      clients: one dict per client; only their number matters here.
      rounds: how many rounds.
      x, y: the samples of all clients, addressed by the batches.
      sizes: n_i, the number of training samples of every client.
      cohorts: per round, the participating clients; the others' models stay as they are.
      batches: batches[t][i] is the list of batches of client i in round t.
      update_batches: like `batches`, for the fine-tuning; the first `steps` of them are used.
      learning_rate: one rate per round, for both kinds of training.
      steps: how many minibatch steps the fine-tuning takes.
      discard_fine_tuned: clients begin a round with the last average, not with their model.

    Returns:
      After every round, "global": the average; "personalized": [N], what every client held last.
    """
    average = initial
    personal = [initial for _ in clients]
    history = []
    for t in range(rounds):
        cohort = list(cohorts[t])
        trained = [
            sgd(
                average if discard_fine_tuned else personal[i],
                batches[t][i],
                x,
                y,
                learning_rate[t],
            )
            for i in cohort
        ]
        if cohort:
            total = sum(sizes[i] for i in cohort)
            average = combine([sizes[i] / total for i in cohort], trained)
        for i in cohort:
            personal[i] = sgd(average, update_batches[t][i][:steps], x, y, learning_rate[t])
        history.append({"global": average, "personalized": list(personal)})
    return history
