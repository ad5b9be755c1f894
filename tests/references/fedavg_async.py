"""FedAvg with late clients: without them (Sync) and with their uploads as they are (Async)."""

from tests.references.arrivals import Clients, averaged


def run(s, *, synchronous=False):
    """One global model, averaged over each round's arrivals in proportion to the clients' sizes.

    Args:
      synchronous: late uploads are dropped. A client whose upload would be late trains in that
        round instead of earlier, and sends nothing; its own model is all that moves. `batches` are
        to be those of these rounds.

    Returns:
      After every round, "global": w; "personalized": [N], what every client trained last.
    """
    server = s.initial
    state = Clients(s.initial, len(s.clients))
    history = []
    for t in range(s.rounds):
        begin, arrive = list(s.starts[t]), list(s.arrivals[t])
        if synchronous:
            begin, arrive = arrive, [i for i in begin if i in arrive]
        state.train(begin, t, server, s.batches, s.x, s.y, s.learning_rate[t])
        server = averaged({k: state.trained[k] for k in arrive}, s.sizes, server)
        history.append({"global": server, "personalized": list(state.trained)})
    return history
