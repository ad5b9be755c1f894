"""Per-FedAvg of the PLGA paper's code: all clients' last uploads, two SGD steps on each batch."""

from tests.references.arrivals import averaged
from tests.references.local_sgd import repeated, sgd


def timetable(delays, rounds):
    """(starts, arrivals): per round, the clients that train and those whose uploads arrive.

    The code's clients, as they are written: one that has something to send waits until its counter
    has come to its delay, sends, and trains again in the round after.
    """
    counter, holds = [0] * len(delays), [False] * len(delays)
    starts, arrivals = [], []
    for _ in range(rounds):
        begin, arrive = [], []
        for i, delay in enumerate(delays):
            if not holds[i]:
                begin.append(i)
                holds[i] = True
            if counter[i] == delay:
                arrive.append(i)
                counter[i], holds[i] = 0, False
            else:
                counter[i] += 1
        starts.append(begin)
        arrivals.append(arrive)
    return starts, arrivals


def run(s, *, steps=2):
    """The server's model is the mean, by sizes, of what it last had from each client.

    Args:
      steps: how many SGD steps each batch is used for.

    Returns:
      After every round, "global": w; "personalized": [N], what every client trained last;
      "arrived": [N], what the server last had from each, the initial model at first.
    """
    server = s.initial
    trained, arrived = [s.initial] * len(s.clients), [s.initial] * len(s.clients)
    history = []
    for t in range(s.rounds):
        for i in s.starts[t]:
            trained[i] = sgd(server, repeated(s.batches[t][i], steps), s.x, s.y, s.learning_rate[t])
        for i in s.arrivals[t]:
            arrived[i] = trained[i]
        server = averaged(dict(enumerate(arrived)), s.sizes, server)
        history.append({"global": server, "personalized": list(trained), "arrived": list(arrived)})
    return history
