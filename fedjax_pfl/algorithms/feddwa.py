"""FedDWA: Personalized Federated Learning with Dynamic Weight Adjustment.

Jiahao Liu, Jiang Wu, Jinyu Chen, Miao Hu, Yipeng Zhou, Di Wu. IJCAI 2023.
https://arxiv.org/abs/2305.06124
"""

from dataclasses import replace
from typing import Literal

import jax
import jax.numpy as jnp
import optax

from fedjax_pfl import core, mixing, similarity, trees

Guidance = Literal["epochs", "full_gradient", "last", "received", "trained", "extrapolate"]
ADAPTED = ("epochs", "full_gradient")  # trained further by the client, and sent


@core.struct
class State:
    models: core.Stack = core.per_client()
    # what each client trained last; only for guidance "last"
    last: core.Stack | None = core.per_client()
    guidance: core.Stack | None = core.per_client()  # only with score_guidance


@core.algorithm("feddwa")
class FedDWA(core.Algorithm):
    """FedDWA: each client mixes the models nearest to its guidance model (Alg. 1).

    Client i trains its model w_i to w^_i, and that to its guidance model w*_i, and sends both. The
    server mixes w_i <- sum_j p_ij w^_j, with p_ij proportional to 1 / |w*_i - w^_j|^2 for the K
    nearest. Other guidance and other weights, below, are the paper's alternatives.

    Attributes:
      top_k: K, the number of models that a client mixes, its own among the candidates; of the
        weights "inverse" only.
      weights: p_i. "inverse": 1 / distance (eq. 15); "simplex": the mixture nearest to the guidance
        model (eq. 12); "exact": the same without p_i >= 0, in closed form (eq. 13).
      guidance: w*_i. "epochs": further training from the trained model for `guidance_epochs`
        (Alg. 1, and what the published code runs); "full_gradient": one gradient step over all its
        samples (eq. 16 to the letter); "last": the model it trained when it last took part (C.6;
        the initial model at first); "received": w_i^t (C.6); "trained": the trained model itself,
        degenerate since its distance to itself is 0; "extrapolate": 2 trained - received.
        Running statistics are then the trained model's, as an extrapolated variance can be < 0.
      guidance_epochs: G of Fig. 3, after those of local training. None is the schedule of local
        training, its epochs or steps, as in the published code. Weak guidance collapses to local
        training: as a client fits its data, the distance d_ii to its own guidance vanishes and its
        own model gets all weight. Raise G if the recorded `self_weight` approaches 1.
      score_guidance: keep the guidance models and score them too (Table 3).
    """

    aggregator_replaces = "matrix"

    top_k: int = core.number(default=5, allowed="at least 1", needs="weights='inverse'")
    weights: Literal["inverse", "simplex", "exact"] = core.static(default="inverse")
    guidance: Guidance = core.static(default="epochs")
    guidance_epochs: int | None = core.static(
        default=None, allowed="at least 1", needs="guidance='epochs'"
    )
    score_guidance: bool = core.static(default=False)

    @property  # pyright: ignore[reportAssignmentType] - it depends on a hyperparameter
    def row_stochastic(self) -> bool:  # those of eq. (13) may be negative
        return self.weights != "exact"

    def check(self, federation):
        if not any(federation.plan.shared):
            raise core.InputError(
                "feddwa compares clients by what they share, and share is 'none'."
            )

    def remarks(self, federation):
        notes, every = super().remarks(federation), federation.num_clients
        if self.top_k > every:
            notes.append(f"mixes all {every} models, not {self.top_k}")
        return notes

    @property  # pyright: ignore[reportAssignmentType] - it depends on a hyperparameter
    def unprotected(self) -> tuple[str, ...]:
        return ("the gradient over all samples",) if self.guidance == "full_gradient" else ()

    def init(self, ctx):
        models = ctx.replicate(ctx.initial_model())
        return State(
            models,
            last=models if self.guidance == "last" else None,
            guidance=models if self.score_guidance else None,
        )

    def round(self, ctx, state):
        received = ctx.cohort.gather(state.models)
        trained, cohort, loss = ctx.train(received)  # eq. (7)
        sent = ctx.upload(trained, received, cohort=cohort)
        if self.guidance == "epochs":  # eq. (16)
            schedule = ctx.federation.schedule
            if self.guidance_epochs is not None:
                schedule = replace(schedule, epochs=self.guidance_epochs, steps=None)
            guide, cohort, _ = ctx.train(trained, cohort, purpose="guidance", schedule=schedule)
            guide = ctx.upload(guide, sent, "guidance", cohort)
        else:
            guide, cohort = self._other_guidance(ctx, state, received, trained, sent, cohort)
        uploads = ctx.plan.trainable_shared(sent)
        distances = similarity.squared_distances(ctx.plan.trainable_shared(guide), uploads)
        if self.weights == "inverse":  # eq. (15)
            tiny = 1e-12 * similarity.squared_norms(uploads)[:, None]  # relative
            weights = mixing.inverse(distances, cohort.mask, tiny)
            weights = mixing.keep_top_k(weights, self.top_k)
        else:
            weights = self._solved_weights(distances, uploads, cohort.mask)
        mixed = ctx.mix(weights, sent, onto=trained)  # eq. (8)
        new_state = State(
            cohort.scatter(state.models, mixed),
            last=cohort.scatter(state.last, sent) if self.guidance == "last" else None,
            guidance=cohort.scatter(state.guidance, guide) if self.score_guidance else None,
        )
        return new_state, ctx.record(
            cohort,
            up=2 if self.guidance in ADAPTED else 1,  # the server computes the other kinds
            clients={"train_loss": loss, "guidance_distance": jnp.diagonal(distances)},
            mixing=weights,
        )

    def models(self, ctx, state, rows):
        named = {"personalized": trees.take(state.models, rows)}
        if self.score_guidance:
            named["guidance"] = trees.take(state.guidance, rows)
        return named

    def _other_guidance(self, ctx, state, received, trained, sent, cohort):
        """Return (guidance models [M, ...], the cohort without clients whose guidance diverged).

        The server computes all kinds but "full_gradient" from `sent`.
        """
        if self.guidance == "full_gradient":
            gradient, cohort = ctx.full_gradient(trained, cohort)
            move = optax.tree.add_scale(trained["params"], -ctx.learning_rate, gradient)
            return ctx.upload({**trained, "params": move}, sent, "guidance", cohort), cohort
        if self.guidance == "extrapolate":
            move = optax.tree.sub(sent["params"], received["params"])
            guide = {**sent, "params": optax.tree.add(sent["params"], move)}
            return guide, cohort.mark_diverged(trees.rows_finite(guide, cohort.size))
        if self.guidance == "last":
            return cohort.gather(state.last), cohort
        return {"received": received, "trained": sent}[self.guidance], cohort

    def _solved_weights(self, distances, uploads, present):
        """Return p [M, M] of eqs. (12), (13), from the distances of guidance models to uploads."""
        # W_i of eq. (11): inner products of the differences from the guidance model.
        between = similarity.squared_distances(uploads, uploads)
        products = (distances[:, :, None] + distances[:, None, :] - between) / 2
        solve = mixing.simplex_qp if self.weights == "simplex" else closed_form
        return jax.vmap(solve, (0, None))(products, present)


def closed_form(products: jax.Array, present: jax.Array) -> jax.Array:
    """Return W^-1 1 / (1^T W^-1 1) over the present members, [M] (eq. 13).

    A diagonal at the precision of W keeps it invertible; members that fit the guidance model as
    well then share their weight.
    """
    pairs = present & present[:, None]
    scale = jnp.max(jnp.where(pairs, jnp.abs(products), 0))
    least = 8 * jnp.finfo(products.dtype).eps
    system = jnp.where(pairs, mixing.ratio(products, scale), 0)
    system = system + jnp.diag(jnp.where(present, least, 1))
    solved = jnp.linalg.solve(system, present.astype(products.dtype))
    return jnp.where(present, solved, 0) / jnp.where(jnp.any(present), jnp.sum(solved), 1)
