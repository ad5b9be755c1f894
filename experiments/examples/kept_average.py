"""Your own algorithm in one file: clients keep a part of their model and average the rest.

Give your file with `--import_file=FILE.py`; this one is also `--import_file=example:kept_average`.
"""

from typing import Any

import jax

from fedjax_pfl import core, mixing, trees


@core.struct
class State:
    models: Any = core.per_client()


@core.algorithm("kept_average")
class KeptAverage(core.Algorithm):
    """w_i <- keep w_i + (1 - keep) sum_j p_j w_j, p_j by training samples.

    Attributes:
      keep: 0 is FedAvg, 1 is local training.
    """

    keep: float = core.number(default=0.5, allowed="in [0, 1]")  # traced: swept inside one program

    def init(self, ctx):
        return State(ctx.replicate(ctx.initial_model()))

    def round(self, ctx, state):
        own = ctx.cohort.gather(state.models)
        trained, cohort, loss = ctx.train(own)
        sent = ctx.upload(trained, own, cohort=cohort)  # what the server receives
        weights = mixing.by_size(ctx.sizes(), cohort.mask)
        average = ctx.average(weights, sent, onto=sent)
        kept = jax.tree.map(lambda w, m: self.keep * w + (1 - self.keep) * m, sent, average)
        models = cohort.scatter(state.models, kept)
        return State(models), ctx.record(cohort, mixing=weights, clients={"train_loss": loss})

    def models(self, ctx, state, rows):
        return {"personalized": trees.take(state.models, rows)}
