"""SPFL (ICLR 2022 submission): similarity of updates by layer, ablations, fine-tuning."""

from collections.abc import Sequence

import numpy as np

from fedjax_pfl.results import plots
from fedjax_pfl.utils.errors import InputError

from . import probes
from .accuracy import by_client, side_by_side
from .drawing import Drawing, figure, of_run, over_seeds
from .runs import Run
from .selection import with_models, with_styles
from .settings import against_setting

figure(
    "spfl/ablation", "accuracy against Gamma, classes, clients, epochs (SPFL Table 7)",
    against_setting, x="gamma", group="iid",
)  # fmt: skip
figure(
    "spfl/fine_tuning", "before and after fine-tuning at the end (SPFL Table 8)",
    side_by_side, models="personalized,adapted",
)  # fmt: skip
figure("spfl/clients", "accuracy of every client in each run (SPFL Fig. 6)", by_client)


@figure("spfl/similarity", "how alike updates are, layer by layer (SPFL Fig. 4, 5)")
def similarity(runs: Sequence[Run], *, model: str = "personalized", data_dir: str = "") -> Drawing:
    """Mean cosine between the updates of two clients, for each block of the model.

    In every run every client trains one epoch from its own model; the mean is over all pairs of
    different clients. Lines are means over seeds, bands go from the lowest to the highest.

    Args:
      model: name of the saved model that the epoch starts from.
      data_dir: folder with the data set, if it was moved after the runs.
    """
    runs = with_models(runs)
    few = [run for run in runs if run.num_clients < 2]
    if few:
        raise InputError(f"{few[0].folder} has one client: there is no other update to compare.")
    drawing = Drawing(6.0, 4.0)
    (axes,) = drawing.axes
    layers: list[str] = []
    for run, name, k in with_styles(runs):
        federation = probes.federation_of(run, data_dir)
        clients, pairs = range(run.num_clients), np.triu_indices(run.num_clients, 1)
        means = []
        for s, seed in enumerate(run.seeds):
            blocks, cosines = probes.similarity_by_block(run, s, federation, model)
            means.append(np.nanmean(cosines[:, *pairs], axis=1))
            above = np.full_like(cosines, np.nan)  # each pair once
            above[:, *pairs] = cosines[:, *pairs]
            places = {"block": blocks, "client": clients, "other_client": clients}
            drawing.add({"cosine": above}, places, **of_run(run, name), seed=seed)
        layers += [block for block in blocks if block not in layers]
        look = {"marker": plots.marker(k), "markersize": 5}
        where = [layers.index(block) for block in blocks]
        drawing.band(axes, where, np.array(means), k, name, **look)
    axes.set_xticks(range(len(layers)), layers, rotation=30 if len(layers) > 8 else 0)
    axes.set_xlim(-0.3, len(layers) - 0.7)
    plots.tidy(axes, xlabel="block, from input to output", ylabel="mean cosine of two updates")
    drawing.legend()
    drawing.title(f"Updates of one local epoch, pairs of clients{over_seeds(runs)}")
    return drawing
