"""The epoch that follows a finished run, against a run of one round more."""

import shutil

import numpy as np
import pytest

from experiments import partition
from experiments.cli import flags, plugins
from experiments.cli.algorithms import parse_algorithms, setting_flags
from experiments.figures import __main__ as figures
from experiments.figures import cwfedavg, probes, spfl
from experiments.figures.loading import find
from fedjax_pfl import Partition, load_dataset
from fedjax_pfl.core import ALGORITHMS
from fedjax_pfl.results.model_files import load_models
from fedjax_pfl.utils.errors import InputError
from tests.experiments.small_runs import assert_input_error

from .conftest import CLASSES, CLIENTS, ROUNDS, SEEDS, meshes, rows_of


def shares(folder):
    """True class shares of the clients of a comparison."""
    partition, labels = Partition.load(folder / "partition.npz"), load_dataset("digits").labels
    counts = [np.bincount(labels[rows], minlength=CLASSES) for rows in partition.train.lists()]
    return np.array(counts) / np.sum(counts, axis=1, keepdims=True)


def norms(kernel):
    """Class norms of kernels [..., features, C], eq. (9)."""
    lengths = np.sqrt((np.asarray(kernel, float) ** 2).sum(axis=-2))
    return lengths / lengths.sum(axis=-1, keepdims=True)


@pytest.fixture
def copied(found, tmp_path):
    """Return a copy of local training's run."""
    folder = shutil.copytree(found["main", "local"].folder.parent, tmp_path / "main")
    return find([str(folder / "local")])[0]


def test_rebuilt_federation_is_the_runs(found):
    run = found["main", "feddwa"]
    experiment = probes.rebuild(run)
    assert experiment.config.instances["feddwa"].hyperparameters() == run.hyperparameters
    wanted = shares(run.folder.parent)
    np.testing.assert_allclose(probes.class_shares(experiment.federation), wanted, rtol=1e-6)
    assert experiment.federation.schedule.batch_size == 16
    assert experiment.federation.plan.num_parameters == run.summary["model_parameters"]


def test_class_norms_over_the_minibatches(found):
    """After the epoch they are what the next round of the longer run recorded."""
    run, longer = found["main", "cwfedavg"], found["longer", "cwfedavg"]
    drawn = cwfedavg.minibatches([run], client=2, seed=1)
    truth = shares(run.folder.parent)[2]
    kernel = load_models(run.folder / "models.npz")["personalized"]["params"]["head"]["kernel"]
    axes, scatter = drawn.figure.axes
    curves = {line.get_label(): line.get_ydata() for line in axes.get_lines()}
    values = np.array([curves[f"class {c}"] for c in range(CLASSES)]).T
    steps = -(-int(Partition.load(run.folder.parent / "partition.npz").sizes("train")[2]) // 16)
    assert values.shape == (steps + 1, CLASSES)
    np.testing.assert_allclose(values[0], norms(kernel[1, 2]), rtol=1e-5)
    recorded = longer.records["class_share_error"][1, ROUNDS, 2]
    np.testing.assert_allclose(np.linalg.norm(values[-1] - truth), recorded, rtol=1e-4)
    (points,) = [line for line in scatter.get_lines() if len(line.get_xdata()) == CLASSES]
    np.testing.assert_allclose(points.get_xdata(), truth, rtol=1e-5)
    np.testing.assert_allclose(points.get_ydata(), values[-1])
    assert len(drawn.numbers) == values.size


def test_class_norms_of_models(found):
    runs = [found["main", "local"], found["main", "cwfedavg"]]
    drawn = cwfedavg.norms_of_models(runs, seed=1, difference=True)
    truth, *shown, difference = meshes(drawn.figure)
    np.testing.assert_allclose(truth, shares(runs[0].folder.parent).T, rtol=1e-6)
    wanted = []
    for run, picture in zip(runs, shown, strict=True):
        saved = load_models(run.folder / "models.npz")["personalized"]
        wanted.append(norms(saved["params"]["head"]["kernel"][1]).T)
        np.testing.assert_allclose(picture, wanted[-1], rtol=1e-5)
    np.testing.assert_allclose(difference, wanted[1] - wanted[0], atol=1e-6)
    with pytest.raises(InputError, match=r"Unknown model in .*'personalised'. Did you mean"):
        cwfedavg.norms_of_models(runs, model="personalised")
    with pytest.raises(InputError, match=r"--difference needs two runs"):
        cwfedavg.norms_of_models(runs[:1], difference=True)


def test_similarity_by_layer(found):
    """Local training's next updates are the differences to the longer run's models."""
    run, longer = found["main", "local"], found["longer", "local"]
    drawn = spfl.similarity([run, found["iid", "fedavg"]])
    before, after = (
        load_models(r.folder / "models.npz")["personalized"]["params"] for r in (run, longer)
    )
    pairs = np.triu_indices(CLIENTS, 1)
    wanted = {}
    for block in ("fc_0", "head"):
        moved = [after[block][leaf] - before[block][leaf] for leaf in ("kernel", "bias")]
        flat = [leaf.reshape(len(SEEDS), CLIENTS, -1) for leaf in moved]
        update = np.concatenate(flat, axis=-1).astype(float)
        update /= np.linalg.norm(update, axis=-1, keepdims=True)
        wanted[block] = np.einsum("sip,sjp->sij", update, update)
    axes = drawn.figure.axes[0]
    assert [text.get_text() for text in axes.get_xticklabels()] == list(wanted)
    means = [matrix[:, *pairs].mean() for matrix in wanted.values()]
    np.testing.assert_allclose(axes.get_lines()[0].get_ydata(), means, atol=1e-4)
    for _, label, seed, block, i, j, value in rows_of(drawn):
        if label == "local":
            assert value == pytest.approx(wanted[block][seed, i, j], abs=1e-4)
    # Updates of clients with equal distributions are more alike.
    assert axes.get_lines()[1].get_ydata()[0] > axes.get_lines()[0].get_ydata()[0]


def test_every_algorithm_is_made_again_from_its_hyperparameters():
    """Also those whose hyperparameters need a value from Python, and have none."""
    for name, kind in ALGORITHMS.items():
        words = setting_flags(name, kind().hyperparameters())
        words = [word.removeprefix("--set=") for word in words]
        assert parse_algorithms([name], words) == {name: kind()}


def test_every_flag_is_given_again():
    """Those that may be given many times, too."""
    own = "example:kept_average"
    words = ["--import_file=" + own, "--model_option=hidden=8", "--stragglers=0:1,3:2"]
    words += ["--data_option=image_size=4", "--import_file=" + own, "--dtype=float64"]
    words += ["--optimizer=adam", "--optimizer_option=b1=0.8", "--optimizer_option=b2=0.9"]
    args = flags.parse(["run", *words])
    values = {k: v for group in args.by_group().values() for k, v in group.items()}
    again = [w for k, v in values.items() if v is not None for w in flags.flag_words(k, v)]
    same = flags.parse(["run", *again])
    assert same.by_group() == args.by_group() and len(same.import_file) == 2


def test_the_further_epoch_has_the_last_rate_of_a_schedule(found):
    """A cosine is at zero behind its last round, where nothing would move."""
    federation = probes.federation_of(found["main", "local"])
    begun = federation.with_training(lr_schedule="cosine", learning_rate=0.1)
    ctx = probes.context(begun, 0, 5)
    wanted = 0.1 * begun.training.rate_factors(5)[4]
    np.testing.assert_allclose(ctx.learning_rate, wanted, rtol=1e-6)


@pytest.fixture
def strangers(copied, tmp_path):
    """Returns a finished run that names a file whose code leaves a mark, and that file."""
    file = tmp_path / "evil.py"
    file.write_text("from pathlib import Path\nPath(__file__).with_name('ran').touch()\n")
    return copied, file


def test_code_that_a_folder_names_does_not_run(strangers):
    run, file = strangers
    asked = run.config["flags"]["comparison"]
    asked |= {"import_file": [str(file)], "trust_flagfiles": True}
    for code in (["evil.py 0123456789abcdef"], None):
        run.config.pop("code", None)
        run.config.update({} if code is None else {"code": code})
        with pytest.raises(InputError, match=r"made with code of its user's, evil.*--import_file"):
            probes.rebuild(run)
    run.config["code"] = []  # no file had a part in it
    probes.rebuild(run)
    preset = file.with_name("evil.flags")
    preset.write_text(f"--import_file={file}\n")
    for name, value in (
        ("flagfile", str(preset)),
        (f"import_file={file}", "x.py"),
        (f"trust_flagfiles=1 --flagfile={preset}", "x"),
    ):
        asked |= {"trust_flagfiles": "true", name: value}
        assert_input_error("is not a flag of a run", probes.rebuild, run)
        del asked[name]
    for name, value in (("code", "evil.py"), ("code", [1])):
        run.config[name] = value
        assert_input_error("code must be a list of texts", probes.rebuild, run)
    assert not file.with_name("ran").exists()


def test_code_that_the_command_line_names_too(strangers, capsys):
    run, file = strangers
    run.config["flags"]["comparison"]["import_file"] = ["/gone/evil.py"]
    run.config["code"] = plugins.digests([str(file)])
    probes.rebuild(run)
    run.config["code"] = ["evil.py 0123456789abcdef"]  # other contents
    assert_input_error("made with code of its user's, evil", probes.rebuild, run)
    other = file.with_name("fails.py")
    other.write_text("1 / 0\n")
    for main in (figures.main, partition.main):
        assert main(["command", f"--import_file={other}", "--list"]) == 2
        assert "ZeroDivisionError in line 1" in capsys.readouterr().err
        preset = file.with_name("evil.flags")
        preset.write_text(f"--import_file={other}\n")
        assert main(["command", f"--flagfile={preset}", "--list"]) == 2
        assert "A --flagfile has --import_file" in capsys.readouterr().err
