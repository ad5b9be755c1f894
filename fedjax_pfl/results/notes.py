"""Notes on the rows of a table: which clients a mean covers, and which did not train."""

from collections.abc import Mapping, Sequence

import numpy as np

from fedjax_pfl.results import privacy
from fedjax_pfl.results.result_scores import ResultScores

MOST = 8  # most clients that a sentence names
LOCAL = 0.95  # mean self-weight above which clients hardly mix


def scored_clients(
    result: ResultScores, setting: int = 0, model: str = "personalized", split: str = "test"
) -> list[int]:
    """Return permanent ids of the clients with scores after the last round, which means are of."""
    known = ~np.isnan(result.values(model, split)[:, setting, -1]).all(axis=0)
    return result.client_ids[known].tolist()


def never_took_part(result: ResultScores, setting: int = 0) -> dict[int, list[int]]:
    """Return, by seed, the scored clients that took part in no round and were never trained."""
    known = np.isin(result.client_ids, scored_clients(result, setting))
    absent = ~result.clients["participated"][:, setting].any(axis=1) & known  # [S, N]
    return {
        int(seed): result.client_ids[who].tolist()
        for seed, who in zip(result.seeds, absent, strict=True)
    }


def without_steps(result: ResultScores, setting: int = 0) -> list[int]:
    """Return ids of clients that took part but have no local step; [] if none has."""
    if "local_steps" not in result.clients:
        return []
    steps = result.clients["local_steps"][:, setting].any(axis=(0, 1))
    came = result.clients["participated"][:, setting].any(axis=(0, 1))
    return result.client_ids[came & ~steps].tolist() if steps.any() else []


def last_self_weight(result: ResultScores, setting: int = 0) -> float | None:
    """Return members' mean self-weight in the last tenth of the rounds; None without matrix."""
    if "self_weight" not in result.clients:
        return None
    values = result.clients["self_weight"][:, setting]  # [S, T, N]
    values = values[:, -max(1, values.shape[1] // 10) :]
    return None if np.isnan(values).all() else float(np.nanmean(values))


def row_remarks(result: ResultScores, setting: int = 0) -> list[str]:
    """Return sentences on one setting: the algorithm's remarks, then recorded facts."""
    sentences = [*result.remarks, *(result.setting_remarks or {setting: ()})[setting]]
    if result.stopped:
        measure = result.measure()
        way = "rising" if measure.higher else "falling"
        why = {"patience": f"its validation {measure.label} had stopped {way}"}
        sentences.append(
            f"stopped after round {result.rounds} of {result.rounds_asked}: "
            f"{why.get(result.stopped, 'on request')}"
        )
        last = max(result.eval_rounds, default=0)
        if last < result.rounds:
            sentences[-1] += f", and scored last after round {last}" if last else ", and not scored"
    sentences += privacy.remarks(result, setting)
    sentences += aggregation_remarks(result, setting)
    idle = without_steps(result, setting)
    if idle:
        sentences.append(f"{named(idle, names_of(result))} took part without a local step")
    absent = list(never_took_part(result, setting).values())
    if any(absent):
        count = len(scored_clients(result, setting))
        fewest, most = min(map(len, absent)), max(map(len, absent))
        if len(absent) == 1 or all(ids == absent[0] for ids in absent):
            who = named(absent[0], names_of(result))
            sentences.append(f"{who} (of {count} scored) took part in no round")
        else:
            several = str(most) if fewest == most else f"{fewest} to {most}"
            sentences.append(
                f"in each seed {several} of {count} clients scored took part in no round"
            )
    lost = sorted({n for _, h, _, n in result.diverged() if h == setting})
    if lost:
        sentences.append(f"training of {named(lost, names_of(result))} went non-finite")
    return sentences + nonfinite_remarks(result, setting)


def aggregation_remarks(result: ResultScores, setting: int = 0) -> list[str]:
    """Return sentences on ineffective aggregation, such as clusters that never split."""
    messages = []
    if "rule_acted" in result.scalars:
        idle = ~result.scalars["rule_acted"][:, setting].any(axis=-1)  # [S]
        some = "" if idle.all() else f" in {idle.sum()} of {len(result.seeds)} seeds"
        still = f"the robust rule never acted{some}: its weights were those without it"
        messages += [still] * bool(idle.any())
    own = last_self_weight(result, setting)
    if own is not None and own > LOCAL:
        messages.append(f"mean self-weight {own:.3f} in the last rounds: nearly local training")
    if "clusters" in result.scalars:
        unsplit = result.scalars["clusters"][:, setting, -1] <= 1  # [S]
        some = "" if unsplit.all() else f" in {unsplit.sum()} of {len(unsplit)} seeds"
        messages += [f"no cluster was split{some}"] * bool(unsplit.any())
    return messages


def nonfinite_remarks(result: ResultScores, setting: int = 0) -> list[str]:
    """Return sentences on values that aggregation, not local training, made non-finite."""
    messages = []
    places = [(t, n) for _, h, t, n in result.nonfinite() if h == setting]
    if places:
        who = named(sorted({n for _, n in places}), names_of(result))
        messages.append(
            f"the aggregated values of {who} were not finite and were not used, first in round "
            f"{min(t for t, _ in places)}"
        )
    server = [(seed, t) for seed, h, t in result.server_nonfinite() if h == setting]
    if server:
        seeds = sorted({seed for seed, _ in server})
        which = f"seed {seeds[0]}" if len(seeds) == 1 else f"{len(seeds)} seeds"
        first = min(t for _, t in server)
        messages.append(f"the server's state is not finite from round {first} on, in {which}")
    return messages


def names_of(result: ResultScores) -> dict[int, str]:
    """Return clients' names by permanent id, for those that have one."""
    return dict(zip(result.client_ids.tolist(), result.client_names, strict=False))


def named(ids: Sequence[int], names: Mapping[int, str] | None = None, most: int = MOST) -> str:
    """Format "client 3", "clients 3, 7", or beyond `most` their number and the first ones.

    With names it is "client 3 (north)".
    """
    known = names or {}
    texts = [f"{k} ({known[k]})" if k in known else str(k) for k in ids[:most]]
    if len(ids) > most:
        return f"{len(ids)} clients ({', '.join(texts)}, ...)"
    return f"{'client' if len(ids) == 1 else 'clients'} {', '.join(texts)}"


def over(ids: Sequence[int]) -> str:
    """Format clients as `named` does, for a cell of a table."""
    return named(ids) if len(ids) < 5 else f"{len(ids)} clients"


def grouped(remarks: Mapping[str, Sequence[str]], every: str = "All rows") -> list[str]:
    """Return lines "ROW; ROW: sentence."; sentences on all rows name no row but `every`."""
    rows: dict[str, list[str]] = {}
    for row, sentences in remarks.items():
        for sentence in sentences:
            rows.setdefault(sentence, []).append(row)
    return [
        f"{every if 1 < len(remarks) == len(names) else '; '.join(names)}: {sentence}."
        for sentence, names in rows.items()
    ]


def grouped_by_column(
    remarks: Mapping[tuple[str, str], Sequence[str]], every: str = "All rows"
) -> list[str]:
    """Return lines "COLUMN. ROW: sentence." of (row, column); those of all columns name none.

    "COLUMN, all rows: sentence." is one on all rows of a column, see `grouped`.
    """
    columns = dict.fromkeys(column for _, column in remarks)
    lines: dict[str, list[str]] = {}
    for column in columns:
        here = {row: own for (row, at), own in remarks.items() if at == column}
        for line in grouped(here, every):
            lines.setdefault(line, []).append(column)
    return [
        line
        if len(where) == len(columns)
        else f"{', '.join(where)}. {line}".replace(f". {every}:", f", {every.lower()}:", 1)
        for line, where in lines.items()
    ]
