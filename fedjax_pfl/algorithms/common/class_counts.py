"""Local losses that depend on the client's numbers of samples by class."""

from fedjax_pfl.algorithms.fedavg import FedAvg


class CountedLoss(FedAvg):
    """FedAvg whose clients train with a loss of the logits and of their own class counts.

    A subclass defines `loss`. The model, its scores and its upload are FedAvg's.
    """

    needs_classes = True
    unprotected = ("the class counts of its loss",)

    def loss(self, task, logits, batch, client):
        """Return the mean loss [] of logits [B, C] over the valid samples of a minibatch.

        `client.class_counts` are the client's training samples of each class, [C].
        """
        raise NotImplementedError

    def local_update(self, ctx, state, received):
        return super().local_update(ctx, state, received, **self.loss_options(ctx))

    def personalize(self, ctx, state, new_clients):
        return super().personalize(ctx, state, new_clients, **self.loss_options(new_clients))

    def loss_options(self, ctx):
        """Return the options of `ctx.train` that replace the loss."""
        task = ctx.federation.task

        def forward_pass(model, batch, rng, broadcast, client):
            forward = task.forward(model, batch, rng)
            return forward._replace(loss=self.loss(task, forward.batch.logits, batch, client))

        return {"forward": forward_pass}
