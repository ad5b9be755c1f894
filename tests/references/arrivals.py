"""The bookkeeping of asynchronous rounds: when clients train, and how late uploads arrive."""

from tests.references.local_sgd import sgd
from tests.references.network import combine


class Clients:
    """What every client trained last, and from which model.

    Attributes:
      trained: v_i, [N].
      start: w0_i, the server's model from which v_i was trained, [N].
      begun: the round in which that was, [N]; None before.
    """

    def __init__(self, initial, count):
        self.trained = [initial] * count
        self.start = [initial] * count
        self.begun = [None] * count

    def train(self, who, t, server, batches, x, y, rate, proximal_weight=0.0):
        """Clients that start in round t train from the server's model.

        `proximal_weight` is rho: the local loss gets rho/2 ||v - w||^2.
        """
        for i in who:

            def towards(params):
                return {
                    layer: {
                        name: proximal_weight * (leaf - server[layer][name])
                        for name, leaf in own.items()
                    }
                    for layer, own in params.items()
                }

            extra = towards if proximal_weight else None
            self.trained[i] = sgd(server, batches[t][i], x, y, rate, extra_gradient=extra)
            self.start[i], self.begun[i] = server, t

    def staleness(self, i, t):
        """Rounds between the start of client i's training and its arrival in round t."""
        return t - self.begun[i]


def averaged(models, sizes, server):
    """sum_k (n_k / sum n) model_k over {client: model}; the server's model if no upload arrived."""
    if not models:
        return server
    total = sum(sizes[k] for k in models)
    return combine([sizes[k] / total for k in models], list(models.values()))
