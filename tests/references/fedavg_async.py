"""FedAvg with late clients: without them (Sync) and with their uploads as they are (Async)."""

from tests.references.arrivals import Clients, averaged


def run(
    initial,
    clients,
    rounds,
    *,
    x,
    y,
    sizes,
    starts,
    arrivals,
    batches,
    learning_rate,
    synchronous=False,
):
    """One global model, averaged over each round's arrivals in proportion to the clients' sizes.

    Args:
      initial: the global model before the first round.
      clients: one dict per client; only their number matters here.
      rounds: how many rounds.
      x, y: the samples of all clients, addressed by the batches.
      sizes: n_i, the number of training samples of every client.
      starts: per round, the clients that train from the global model of its beginning.
      arrivals: per round, the clients whose last trained model reaches the server.
      batches: batches[t][i] is the list of batches of client i in round t.
      learning_rate: one rate per round.
      synchronous: late uploads are dropped. A client whose upload would be late trains in that
        round instead of earlier, and sends nothing; its own model is all that moves. `batches` are
        to be those of these rounds.

    Returns:
      After every round, "global": w; "personalized": [N], what every client trained last.
    """
    server = initial
    state = Clients(initial, len(clients))
    history = []
    for t in range(rounds):
        begin, arrive = list(starts[t]), list(arrivals[t])
        if synchronous:
            begin, arrive = arrive, [i for i in begin if i in arrive]
        state.train(begin, t, server, batches, x, y, learning_rate[t])
        server = averaged({k: state.trained[k] for k in arrive}, sizes, server)
        history.append({"global": server, "personalized": list(state.trained)})
    return history
