"""Personalized Cross-Silo Federated Learning on Non-IID Data: FedAMP and HeurFedAMP.

Yutao Huang, Lingyang Chu, Zirui Zhou, Lanjun Wang, Jiangchuan Liu, Jian Pei, Yong Zhang. AAAI 2021.
https://arxiv.org/abs/2007.03797
"""

from typing import Literal

import jax
import jax.numpy as jnp

from fedjax_pfl import core, mixing, similarity, training, trees

# With cosines of 0.9 to 1 the largest weight is exp(0.1 sigma) times the least: 1.65 at this sigma.
TELLING = 5.0


@core.struct
class State:
    # w_i: each client's last trained model, of which the server knows
    models: core.Stack = core.per_client()


class Attentive(core.Algorithm):
    """The common rounds: mix all last models by `attention`, then train near the mixture.

    A subclass is a struct with the fields named here.
    """

    aggregator_replaces = "matrix"

    sigma: float
    proximal_weight: float
    start: Literal["own", "cloud"]

    def check(self, federation):
        if not any(federation.plan.shared):
            raise core.InputError(f"{self.name} mixes what clients share, and share is 'none'.")

    def remarks(self, federation):
        notes = super().remarks(federation)
        reach = float(federation.training.learning_rate) * self.proximal_weight
        if reach >= 2 and isinstance(federation.training.make_optimizer(), training.SGD):
            notes.append(
                f"a local step overshoots the mixture: rate x proximal_weight is {reach:.3g}, "
                "and 1 is the whole way"
            )
        return notes

    def attention(self, own, models, others, rows=None):
        """Return xi_ij for j != i, [A, B]; 0 elsewhere.

        Args:
          own: models of the receivers, [A, ...].
          models: of all clients, [B, ...].
          others: bool [A, B], which of those belong to clients other than the receiver.
          rows: int [A], which is the receiver's; None where it is not among them.
        """
        raise NotImplementedError

    def init(self, ctx):
        return State(ctx.replicate(ctx.initial_model()))

    def round(self, ctx, state):
        own, rows = ctx.cohort.gather(state.models), ctx.cohort.rows
        others = rows[:, None] != jnp.arange(ctx.num_clients)
        xi = self.attention(
            ctx.plan.trainable_shared(own), ctx.plan.trainable_shared(state.models), others, rows
        )
        itself = on_itself(xi)
        weights = jnp.where(others, xi, itself[:, None])
        cloud = ctx.mix(weights, state.models, onto=own)
        trained, cohort, loss = ctx.train(
            own if self.start == "own" else cloud,
            extra_loss=training.proximal(self.proximal_weight),
            operands=ctx.plan.trainable_shared(cloud)["params"],
        )
        sent = ctx.upload(trained, own, cohort=cohort)
        return State(cohort.scatter(state.models, sent)), ctx.record(
            cohort, clients={"train_loss": loss, "self_weight": itself}, attention=weights
        )

    def models(self, ctx, state, rows):
        return {"personalized": trees.take(state.models, rows)}

    def personalize(self, ctx, state, new_clients):
        """Train new clients locally, then mix each once with the models of all N clients."""
        own = super().personalize(ctx, state, new_clients)
        others = jnp.ones((new_clients.num_clients, ctx.num_clients), bool)
        xi = self.attention(
            new_clients.plan.trainable_shared(own), ctx.plan.trainable_shared(state.models), others
        )
        weights = jnp.concatenate([jnp.diag(on_itself(xi)), xi], axis=1)
        senders = jax.tree.map(lambda *each: jnp.concatenate(each), own, state.models)
        return new_clients.mix(weights, senders, onto=own)


@core.algorithm("fedamp")
class FedAMP(Attentive):
    """FedAMP: clients are pulled to a mixture of the models near their own (Alg. 1).

    The server makes u_i = sum_j xi_ij w_j from the last models of all N clients, with
    xi_ij = alpha A'(|w_i - w_j|^2) for j != i, A(d) = 1 - exp(-d / sigma), and the rest of 1 on
    w_i. The client then descends f_i(w) + rho / 2 |w - u_i|^2 from w_i. Distances and the pull
    use trainable shared leaves.

    Attributes:
      sigma: width of the attention, on the scale of squared distances. Far beyond it exp underflows
        and a client is pulled only to its own last model, which the recorded `self_weight` shows.
      alpha: alpha_k, the server's step in the weights. 0 is the largest with which no client can
        have a negative weight on itself, sigma / (N - 1).
      proximal_weight: rho, lambda / alpha_k of the paper's local problem, as one number: it does
        not change with the bound of alpha. FedDWA's comparison has lambda = 0.1 and alpha_k = 1.
      start: where local training begins, at the client's "own" w_i, or at the "cloud" model u_i.
    """

    sigma: float = core.number(default=1.0, allowed="above 0")
    alpha: float = core.number(default=0.0, allowed="at least 0")
    proximal_weight: float = core.number(default=0.1, allowed="at least 0")
    start: Literal["own", "cloud"] = core.static(default="own")

    def check(self, federation):
        super().check(federation)
        count = federation.num_clients
        largest = self._largest(count - 1)
        if self.alpha > largest * (1 + 1e-6):
            raise core.InputError(
                f"alpha must be at most sigma / (N - 1) = {largest:.4g} for {count} clients, got "
                f"{self.alpha:g}: with more a client could have a negative weight on itself."
            )

    def _largest(self, others):
        return self.sigma / max(others, 1)

    def attention(self, own, models, others, rows=None):
        largest = self._largest(_count(others, rows))
        alpha = jnp.where(self.alpha > 0, jnp.minimum(self.alpha, largest), largest)
        distances = similarity.squared_distances(own, models, partners=rows)
        return jnp.where(others, alpha / self.sigma * jnp.exp(-distances / self.sigma), 0)


def on_itself(xi):
    """Return xi_ii [A], the rest of the weights on others [A, B], at least 0."""
    return jnp.maximum(1 - jnp.sum(xi, axis=1), 0)


def _count(others, rows):
    """Return the number of others of each receiver."""
    return others.shape[1] - (rows is not None)


@core.algorithm("heurfedamp")
class HeurFedAMP(Attentive):
    """FedAMP with weights by cosines, made for deep networks (section "HeurFedAMP").

    xi_ij = (1 - xi_ii) exp(sigma cos(w_i, w_j)) / sum_{k != i} exp(sigma cos(w_i, w_k)), and local
    training begins at u_i.

    Attributes:
      sigma: the factor of the cosines. Models from one initial model have cosines near 1, so small
        factors weigh all others nearly alike.
      proximal_weight: as in FedAMP.
      start: as in FedAMP.
      self_weight: xi_ii; -1 is 1/N.
    """

    sigma: float = core.number(default=1.0, allowed="at least 0")
    proximal_weight: float = core.number(default=0.1, allowed="at least 0")
    start: Literal["own", "cloud"] = core.static(default="cloud")
    self_weight: float = -1.0

    def validate(self):
        super().validate()
        known = self.self_weight == -1 or 0 <= self.self_weight <= 1
        core.require(known, "self_weight", self.self_weight, "in 0..1, or -1 for 1/N")

    def remarks(self, federation):
        notes = super().remarks(federation)
        if self.sigma < TELLING and federation.num_clients > 2:
            notes.append(
                f"weighs all other clients nearly alike: sigma is {self.sigma:g}, and cosines of "
                "models from one initial model are near 1"
            )
        return notes

    def attention(self, own, models, others, rows=None):
        even = 1 / (1 + _count(others, rows))
        itself = jnp.where(self.self_weight < 0, even, self.self_weight)
        cosines = similarity.cosines(own, models)
        return (1 - itself) * mixing.softmax(self.sigma * cosines, others)
