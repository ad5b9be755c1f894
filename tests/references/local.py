"""Local training: every client on its own, no server."""


def run(s):
    """Trains the clients of every cohort from their own last model.

    Returns:
      After every round, {"personalized": [N models]}.
    """
    models = [s.initial for _ in s.clients]
    history = []
    for t in range(s.rounds):
        for i in s.cohorts[t]:
            models[i] = s.train(models[i], t, i)
        history.append({"personalized": list(models)})
    return history
