"""Figures of the algorithms that take long to compile, from real runs of them."""

import numpy as np
import pytest

from experiments.figures import accuracy, cwfedavg, pfedla, settings, waffle
from experiments.figures.loading import find
from experiments.run import main

from .conftest import CLIENTS, COMMON, ROUNDS, SEEDS, rows_of
from .test_matrices import meshes

pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def made(tmp_path_factory):
    root = tmp_path_factory.mktemp("algorithms")

    def finished(name, *words):
        common = (*COMMON, f"--rounds={ROUNDS}", "--partition=pathological")
        assert main(["run", *common, *words, f"--output_dir={root / name}"]) == 0

    finished(
        "layers",
        "--algorithms=pfedla,heurpfedla,spfl,waffle,cwfedavg",
        "--set=pfedla.hypernetwork_rate=5",
        "--set=heurpfedla.retained=1",
        "--set=cwfedavg.score_class_models=true",
        "--set=waffle.alice=2",
    )
    finished("whole", "--algorithms=pfedla", "--set=pfedla.grouping=model")
    finished("late", "--algorithms=fedavg_async,plga", "--stragglers=0:1,1:2")
    return {(run.folder.parent.name, run.algorithm): run for run in find([str(root)])}


def test_layerwise_weights(made):
    layers, whole = made["layers", "pfedla"], made["whole", "pfedla"]
    drawn = pfedla.layerwise([layers, whole], client=1)
    by_layer, flat = drawn.figure.axes[1].get_lines()
    own = layers.matrix("alpha")[:, -1, :, 1, 1].mean(axis=0)
    np.testing.assert_allclose(by_layer.get_ydata(), own, rtol=1e-6)
    assert len(set(flat.get_ydata())) == 1 and len(flat.get_ydata()) == 2
    names = [text.get_text() for text in drawn.figure.legends[0].get_texts()]
    assert "grouping=blocks" in names[0] and "grouping=model" in names[1]
    drawn = pfedla.matrices([layers, made["layers", "spfl"]], matrix="alpha")
    shown = meshes(drawn.figure)
    assert len(shown) == 2  # SPFL records no alpha
    for picture in shown:
        np.testing.assert_allclose(picture.sum(axis=1), 1, rtol=1e-5)
    head = meshes(pfedla.layers_of_client([made["layers", "spfl"]], matrix="mixing").figure)[0][1]
    np.testing.assert_array_equal(head, np.eye(CLIENTS)[0])  # the published code's local head


def test_retained_layers(made):
    drawn = settings.against_setting([made["layers", "heurpfedla"]], x="retained", record="traffic")
    sent = [row[-1] for row in rows_of(drawn) if row[-2] == "traffic"]
    whole = 2 * 4 * made["layers", "heurpfedla"].summary["model_parameters"] / 1e6
    assert len(sent) == len(SEEDS) and all(0 < value < whole for value in sent)


def test_clients_and_server(made):
    runs = [made["late", "fedavg_async"], made["late", "plga"]]
    drawn = accuracy.of_models(runs, averages="clients,samples", by="model")
    for axes, model in zip(drawn.figure.axes, ("personalized", "global"), strict=True):
        assert axes.get_title().startswith(f"{model} model")
        for line, run in zip(axes.get_lines(), runs, strict=True):
            values = run.values(model).astype(float)
            weights = run.test_sizes if model == "global" else np.ones(CLIENTS)
            wanted = 100 * np.average(values, axis=-1, weights=weights).mean(axis=0)
            np.testing.assert_allclose(line.get_ydata(), wanted, rtol=1e-5)


def test_weights_of_waffle(made):
    run = made["layers", "waffle"]
    drawn = waffle.weights([run])
    (shown,) = meshes(drawn.figure)
    np.testing.assert_allclose(shown.sum(axis=0), 1, rtol=1e-5)
    np.testing.assert_allclose(shown[2], run.records["weight"][:, :, 2].mean(axis=0), rtol=1e-6)
    assert run.alice == 2


def test_class_models(made):
    (shown,) = meshes(cwfedavg.norms_of_class_models([made["layers", "cwfedavg"]]).figure)
    assert shown.shape == (10, 10)
    np.testing.assert_allclose(shown.sum(axis=1), 1, rtol=1e-5)
