"""Results as tables."""

from collections.abc import Mapping
from functools import partial

import numpy as np

from fedjax_pfl.results import notes, privacy
from fedjax_pfl.results.intervals import half_widths, interval, interval_notes
from fedjax_pfl.results.model_names import ADAPTED, TRAINED
from fedjax_pfl.results.result_scores import ResultScores
from fedjax_pfl.results.table import Column, Table, measured
from fedjax_pfl.utils.metric_names import Measure

FORMS = ("markdown", "plain")
MOST = 6  # further measures in one table


def setting_names(result: ResultScores) -> list[str]:
    """Return H names such as "top_k=3, learning_rate=0.1", or the algorithm's name."""
    return named_settings(result.settings) or [result.algorithm]


def named_settings(settings: Mapping[str, np.ndarray]) -> list[str]:
    """Return such names for the values [H] of each setting; [] without settings."""

    def text(name: str, value, digits: str) -> str:
        number = np.issubdtype(type(value), np.number)
        return f"{name}={value:{digits}}" if number else f"{name}={value}"

    rows = list(zip(*settings.values(), strict=True))
    for digits in ("g", ".9g", ".17g"):  # the fewest that distinguish the settings
        names = [", ".join(map(partial(text, digits=digits), settings, row)) for row in rows]
        if len(set(names)) == len(set(rows)):
            break
    return names if rows else []


def _key(measure: Measure) -> str:
    """Return the key of a further metric's column, which none of the table's own has."""
    return f"metric/{measure.name}"


def table(result: ResultScores, model: str) -> Table:
    """Return the table of `Result.table`."""
    result.require_scores()
    measure, more = result.measure(), result.measures[1:][:MOST]
    curve = measure.scale * result.curve(model)
    finals, best = curve[..., -1], measure.best(curve)
    worst = measure.scale * result.worst_decile(model)
    others = {_key(one): one.scale * result.curve(model, metric=one.name)[..., -1] for one in more}
    names, settings = setting_names(result), range(result.num_settings)
    clients = [notes.scored_clients(result, h, model) for h in settings]
    copies = {} if model in (ADAPTED, TRAINED) else result.copies()
    differ = any(ids != clients[0] for ids in clients)
    columns = [
        Column("setting", "Setting"),
        measured("mean", measure.title, measure),
        half_widths("half", "mean", measure),
        Column("clients", "Mean over", lambda row: notes.over(row["clients"])),
        *(measured(one, measure.heading(one.title()), measure) for one in (TRAINED, ADAPTED)),
        measured("worst", measure.heading("Worst tenth"), measure),
        measured("best", measure.heading("Best on test"), measure),
        *(measured(_key(one), one.title, one) for one in more),
        Column("epsilon", "Epsilon"),
        Column("up", "MB up"),
        Column("down", "MB down"),
    ]
    rows = [
        {
            "setting": names[h],
            "mean": finals[:, h].mean(),
            "half": interval(finals[:, h].astype(np.float64)),
            **({"clients": clients[h]} if differ else {}),
            **{name: measure.scale * values[:, h].mean() for name, values in copies.items()},
            "worst": worst[:, h].mean(),
            "best": best[:, h].mean(),
            **{name: values[:, h].mean() for name, values in others.items()},
            **({"epsilon": privacy.guarantee(result, h).epsilon} if result.privacy else {}),
            **result.traffic_mb_per_client_round(h),
        }
        for h in settings
    ]
    below = []
    if not differ and len(clients[0]) < result.num_clients:
        who = notes.named(clients[0], notes.names_of(result)) if clients[0] else "no client"
        below.append(f"Mean over {who} of {result.num_clients}.")
    below += notes.grouped({name: notes.row_remarks(result, h) for h, name in enumerate(names)})
    if left_out := [one.name for one in result.measures[1 + MOST :]]:
        below.append(f"Not shown: {', '.join(left_out)}; `summary()` has them.")
    below += interval_notes(finals.T.astype(np.float64), *measure.range)
    return Table(columns, rows, below)
