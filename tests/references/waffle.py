"""WAFFLE: weighted averaging for personalized federated learning (Beaussart et al., 2021)."""

import numpy as np

from tests.references.network import add, combine, scale, squared_distance, subtract, zeros_like
from tests.references.scaffold import train_client

CONTROL_RULES = ("rebased", "literal")


def personalization(number, total_rounds, delta_omega=3.2):
    """Eq. (4): Omega(r) = Psi(r) = 1 / (1 + exp(delta_omega (r / (R/2) - 1))), r from 1 on."""
    return 1.0 / (1.0 + np.exp(delta_omega * (number / (total_rounds / 2.0) - 1.0)))


def raw_weights(distances, alice, omega, psi):
    """Algorithm 1, lines 3-6: eqs. (2) and (3), not normalized.

    Where the denominator of eq. (3) is zero (all other agents equally far from Alice, hence
    always with two agents), so is every numerator, and the fraction is taken to be 0: all
    weigh the same.

    Args:
      distances: d_i, the distance of every agent's update from Alice's; Alice's own isn't read.
      alice: i*.
      omega, psi: Omega(r) and Psi(r).
    """
    others = [float(d) for i, d in enumerate(distances) if i != alice]
    if not others:
        return np.array([psi])
    farthest, nearest = max(others), min(others)
    spread = (farthest - nearest) / farthest if farthest > 0.0 else 0.0
    own = nearest * (1.0 - spread * (1.0 - omega))  # eq. (2)
    distances = [own if i == alice else float(d) for i, d in enumerate(distances)]
    extent = farthest - min(distances)
    weights = [max(psi - ((d - own) / extent if extent > 0.0 else 0.0), 0.0) for d in distances]
    return np.array(weights)  # eq. (3)


def calc_weights(
    distances,
    alice,
    number,
    total_rounds,
    previous,
    before,
    delta_omega=3.2,
    shift=0.0,
):
    """Algorithm 1, CalcWeights-Omega: (abar^r, a^r), the smoothed and the raw weights.

    Args:
      distances: d_i as for `raw_weights`.
      alice: i*.
      number: r, from 1 on.
      total_rounds: R.
      previous, before: the raw weights a^{r-1} and a^{r-2}.
      delta_omega: the one hyperparameter.
      shift: added to r in eq. (4) (section 2.2).
    """
    level = personalization(number + shift, total_rounds, delta_omega)
    weights = raw_weights(distances, alice, level, level)
    if 20 * number >= 19 * total_rounds:  # r >= 0.95 R without rounding
        weights = np.eye(len(distances))[alice]
    weights = weights / weights.sum()
    return (weights + previous + before) / 3, weights


def run(
    s,
    *,
    alice=0,
    total_rounds=None,
    delta_omega=3.2,
    shift=0.0,
    server_rate=1.0,
    control_rule="rebased",
    control_update="gradients",
    distance="update",
    forced=None,
):
    """Algorithm 2 for one Alice: SCAFFOLD with the updates weighted by closeness to Alice's.

    Args:
      alice: the client the model is for.
      total_rounds: R of the schedule; None takes `s.rounds`.
      delta_omega: as in `personalization`; shift: as in `calc_weights`.
      server_rate: eta_g.
      control_rule: "rebased", c <- sum_i abar_i c_i^+; "literal", eq. (1) as SCAFFOLD samples,
        c <- c + (|S|/N) sum_i abar_i dc_i over the cohort S.
      control_update: how c_i^+ is had, as in `scaffold.train_client`.
      distance: d_i is between "update"s dy_i (Alg. 1), or between the sums of the raw "gradient"s
        of an agent's steps (the text).
      forced: forced[t], weights [N] to apply in round t in place of abar; "weights" and "raw"
        then both are these.

    Under sampling CalcWeights uses only the cohort: absent agents have a raw weight of 0 in
    that round, and abar is normalized over the members present. Without Alice nothing changes.

    Returns:
      After every round, "alice": x; "weights": abar [N]; "raw": a [N], normalized but not
      smoothed; "distances": d [N], NaN for the absent; "control": c; "controls": [N], the agents'
      c_i. A round without Alice repeats the one before, with "weights" of 0.
    """
    count = len(s.clients)
    horizon = s.rounds if total_rounds is None else total_rounds
    model = s.initial
    control = zeros_like(s.initial)
    controls = [zeros_like(s.initial) for _ in s.clients]
    previous = before = np.full(count, 1.0 / count)
    history = []
    for t in range(s.rounds):
        cohort = sorted(s.cohorts[t])
        if alice not in cohort:
            history.append(
                {
                    "alice": model,
                    "weights": np.zeros(count),
                    "raw": previous,
                    "distances": np.full(count, np.nan),
                    "control": control,
                    "controls": list(controls),
                }
            )
            continue
        moves, changes, renewed, compared = [], [], [], []
        for i in cohort:
            trained, own = train_client(
                model,
                controls[i],
                control,
                s.batches[t][i],
                s.x,
                s.y,
                s.learning_rate[t],
                control_update,
            )
            moves.append(subtract(trained, model))
            changes.append(subtract(own, controls[i]))
            renewed.append(own)
            summed = scale(len(s.batches[t][i]), own)  # c_i^+ is the mean
            compared.append(moves[-1] if distance == "update" else summed)

        hers = cohort.index(alice)
        distances, raw = np.full(count, np.nan), np.zeros(count)
        distances[cohort] = np.sqrt([squared_distance(one, compared[hers]) for one in compared])
        if forced is None:
            old = previous[cohort], before[cohort]
            abar, raw[cohort] = calc_weights(
                distances[cohort], hers, t + 1, horizon, *old, delta_omega, shift
            )
            abar = abar / abar.sum()
        else:
            abar = raw[cohort] = np.asarray(forced[t], np.float64)[cohort]
        weights = np.zeros(count)
        weights[cohort] = abar
        before, previous = previous, raw

        model = add(model, scale(server_rate, combine(abar, moves)))
        if control_rule == "rebased":
            control = combine(abar, renewed)
        else:
            part = len(cohort) / count
            control = add(control, scale(part, combine(abar, changes)))
        for i, own in zip(cohort, renewed, strict=True):
            controls[i] = own
        history.append(
            {
                "alice": model,
                "weights": weights,
                "raw": raw,
                "distances": distances,
                "control": control,
                "controls": list(controls),
            }
        )
    return history
