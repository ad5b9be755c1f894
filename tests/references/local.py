"""Local training: every client on its own, no server."""

from tests.references.local_sgd import sgd


def run(s):
    """Trains the clients of every cohort from their own last model.

    Returns:
      After every round, {"personalized": [N models]}.
    """
    models = [s.initial for _ in s.clients]
    history = []
    for t in range(s.rounds):
        for i in s.cohorts[t]:
            models[i] = sgd(models[i], *s.work(t, i))
        history.append({"personalized": list(models)})
    return history
