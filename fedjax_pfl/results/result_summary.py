"""The summary of a result: numbers of one setting, and one line of text."""

from typing import Any

import numpy as np

from fedjax_pfl.results import concept_changes, privacy
from fedjax_pfl.results.accuracy_conventions import one_number
from fedjax_pfl.results.means import mean_over_clients
from fedjax_pfl.results.notes import (
    aggregation_remarks,
    grouped,
    named,
    names_of,
    never_took_part,
    nonfinite_remarks,
    row_remarks,
    scored_clients,
    without_steps,
)
from fedjax_pfl.results.result_scores import ResultScores
from fedjax_pfl.results.result_table import setting_names


def one_line(result: ResultScores) -> str:
    """Return the size of a result, its headline and remarks as one line of text."""
    text = (
        f"{result.algorithm}: {result.num_clients} clients, {result.rounds} rounds, "
        f"{len(result.seeds)} seed(s), {result.num_settings} setting(s)"
    )
    if not len(result.eval_rounds):
        return f"Result({text}; none was scored yet)"
    if not result.is_scored:
        return f"Result({text}; no test samples)"
    finals, several = result.curve()[:, :, -1].mean(axis=0), result.num_settings > 1
    best = int(np.nan_to_num(result.measure().toward(finals), nan=-np.inf).argmax())
    names, worst = setting_names(result), result.worst_decile()[:, best].mean()
    who = scored_clients(result, best)
    over = "" if len(who) == result.num_clients else f" over {named(who, names_of(result))}"
    what = f"final mean {result.measure().label} {finals[best]:.4f}{over}, worst tenth {worst:.4f}"
    remarks = {
        name: [
            *aggregation_remarks(result, h),
            *nonfinite_remarks(result, h),
            *privacy.remarks(result, h),
        ]
        for h, name in enumerate(names)
    }
    lines = [line.removesuffix(".") for line in grouped(remarks, "all settings")]
    lines = lines if several else remarks[names[0]]
    what = f"best on test {names[best]}: {what}" if several else what
    return f"Result({'; '.join([text, what, *lines])})"


def summary(result: ResultScores, setting: int) -> dict[str, Any]:
    """Return the numbers of one setting; see `Result.summary`."""
    result.require_scores()
    curve = result.curve()[:, setting]
    pooled = result.pooled()[:, setting, -1]
    clients = scored_clients(result, setting)
    with np.errstate(invalid="ignore"):  # infinite errors have no spread
        spread = float(curve[:, -1].std(ddof=1)) if len(result.seeds) > 1 else None  # unknown
        last = result.values()[:, setting, -1]
        among = np.nanstd(last, axis=-1).mean() if not np.isnan(last).all() else np.nan
    measure = result.measure()
    end = f"/{measure.name}"
    return {
        "algorithm": result.algorithm,
        "num_clients": result.num_clients,
        "rounds": result.rounds,
        "seeds": list(result.seeds),
        "training": result.training
        | {k: float(v[setting]) for k, v in result.settings.items() if k in result.training},
        measure.name: {
            "final_mean": float(curve[:, -1].mean()),
            "final_std_over_seeds": spread,
            "final_std_over_clients": float(among) if len(clients) > 1 else None,
            "final_pooled": float(pooled.mean()) if measure.pools else None,
            "best_mean": float(one_number(curve, "best", measure).mean()),
            "last_tenth_mean": float(one_number(curve, "last_tenth", measure).mean()),
            "worst_decile": float(result.worst_decile()[:, setting].mean()),
        },
        f"final_{measure.name}_by_model": {
            name.removesuffix(end): float(mean_over_clients(values[:, setting, -1].ravel()))
            for name, values in result.scores.items()
            if name.endswith(end)
        },
        "measures": [one._asdict() for one in result.measures],
        **({"metrics": _metrics(result, setting)} if result.measures[1:] else {}),
        **concept_changes.summary(result, setting),
        **({"privacy": privacy.guarantee(result, setting)._asdict()} if result.privacy else {}),
        **({"client_names": list(result.client_names)} if result.client_names else {}),
        "scored_clients": clients,
        "never_took_part": never_took_part(result, setting),
        "clients_without_steps": without_steps(result, setting),
        "remarks": row_remarks(result, setting),
        "diverged_clients": sorted({n for _, h, _, n in result.diverged() if h == setting}),
        "nonfinite_clients": sorted({n for _, h, _, n in result.nonfinite() if h == setting}),
        "traffic_mb_per_client_round": result.traffic_mb_per_client_round(setting),
        "computation": result.computation(setting),
        "seconds_per_round": result.seconds_per_round,
        "compile_seconds": result.compile_seconds,
        "padding_efficiency": result.padding_efficiency,
        "client_execution": result.execution,
        "model_parameters": result.num_parameters,
    }


def _metrics(result: ResultScores, setting: int) -> dict[str, Any]:
    """Return the other measures of the personalized model, on test samples."""
    numbers = {}
    for one in result.measures[1:]:
        curve = result.curve(metric=one.name)[:, setting]
        best = curve[~np.isnan(curve).all(axis=-1)]  # seeds with a value, defined for some client
        best = one.toward(np.nanmax(one.toward(best), axis=-1))
        known = {"final_mean": curve[~np.isnan(curve[:, -1]), -1], "best_mean": best}
        numbers[one.name] = {n: float(v.mean()) if v.size else None for n, v in known.items()}
    return numbers
