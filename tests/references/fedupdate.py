"""FedUpdate: clients continue from fine-tuned averages (Jiang et al., 2019, as in SPFL's paper).

Jiang et al. fine-tune the average in order to score it; the code behind the SPFL paper's table
also lets a client's next round begin with the fine-tuned model.
"""

from tests.references.averaging import average


def run(s, *, update_batches, steps=1):
    """FedAvg's average, then a few steps of each participant on it.

    Args:
      update_batches: like `batches`, for the fine-tuning; the first `steps` of them are used.
      steps: how many minibatch steps the fine-tuning takes.

    Returns:
      After every round, "global": the average; "personalized": [N], what every client held last.
    """
    mean = s.initial
    personal = [s.initial for _ in s.clients]
    history = []
    for t in range(s.rounds):
        cohort = list(s.cohorts[t])
        trained = [s.train(personal[i], t, i) for i in cohort]
        if cohort:
            mean = average(trained, s.sizes, cohort)
        for i in cohort:
            personal[i] = s.train(mean, t, i, batches=update_batches[t][i][:steps])
        history.append({"global": mean, "personalized": list(personal)})
    return history
