"""A folder of another library's, given as a data set or a partition."""

import pytest

from experiments import run
from experiments.cli import build, data_flags, flags, identity
from fedjax_pfl.data.partitions.importers import FLBENCH_EXPORT
from fedjax_pfl.data.pfllib_files import PFLLIB_EXPORT
from tests.data.partitions.saved_splits import DATA, exported, write_flbench, write_pfllib
from tests.experiments.small_runs import assert_input_error


@pytest.fixture
def folder(tmp_path):
    write_pfllib(folder := tmp_path / "Colours", DATA)
    exported(folder, PFLLIB_EXPORT)
    return folder


def parsed(*words):
    return flags.parse(["run", "--model=mlp", *words])


def test_pfllibs_folder_as_a_data_set_brings_its_clients(folder):
    for dataset in (f"{folder}", f"pfllib:{folder}"):
        made = build.load_inputs(parsed(f"--dataset={dataset}"))
        assert made.dataset.name == "Colours" and made.dataset.num_train == 8
        assert made.partition.rule == "pfllib" and made.partition.num_clients == 3
        assert made.identity["dataset"] == "pfllib"
    other = build.load_inputs(
        parsed(f"--dataset={folder}", "--partition=iid", "--num_clients=2", "--test_split=pooled")
    )
    assert other.partition.rule == "iid" and other.partition.num_clients == 2


def test_partition_file_is_a_folder_of_another_library(folder, tmp_path, monkeypatch):
    monkeypatch.setattr(data_flags, "load_dataset", lambda args, shared: DATA)
    made = build.load_inputs(parsed("--dataset=digits", f"--partition_file={folder}"))
    assert made.partition.rule == "pfllib"
    write_flbench(other := tmp_path / "fmnist")
    exported(other, FLBENCH_EXPORT)
    made = build.load_inputs(parsed("--dataset=digits", f"--partition_file={other}"))
    assert made.partition.rule == "file" and made.partition.sizes("validation").sum() == 1


def test_flbenchs_folder_is_no_data_set(tmp_path, capsys):
    write_flbench(folder := tmp_path / "fmnist")
    (folder / "FashionMNIST" / "raw").mkdir(parents=True)
    assert run.main(["run", f"--dataset={folder}"]) == 2
    text = capsys.readouterr().err
    raw = folder / "FashionMNIST" / "raw"
    assert f"--dataset=fashion_mnist --data_dir={raw}, and --partition_file={folder}." in text


def test_spellings_of_data_sets_and_networks(folder, monkeypatch):
    spelt = parsed("--dataset=FashionMNIST", "--model=CNN", "--algorithms=FedAvg")
    ours = parsed("--dataset=fashion_mnist", "--model=cnn", "--algorithms=fedavg")
    assert identity.run_identity(spelt) == identity.run_identity(ours)
    assert parsed("--dataset=CIFAR-10:/data").dataset == "cifar10:/data"
    monkeypatch.chdir(folder.parent)
    folder.rename(folder.parent / "MNIST")  # a folder of PFLlib's is what it holds
    assert parsed("--dataset=MNIST").dataset == "pfllib:MNIST"


def test_data_set_name_that_is_a_folder(folder, monkeypatch):
    monkeypatch.chdir(folder.parent)
    folder.rename(folder.parent / "digits")
    assert parsed("--dataset=digits").dataset == "digits"
    assert_input_error("Unknown data set", data_flags.load_dataset, parsed("--dataset=nowhere"))


RULED = "--partition=dirichlet\n--alpha=0.1\n--min_size=4\n--num_clients=2\n--learning_rate=0.005\n"


def test_typed_partition_over_that_of_a_flagfile(folder, tmp_path):
    (file := tmp_path / "ruled.flags").write_text(RULED)
    ruled = f"--flagfile={file}"

    def split(*words):
        args = parsed(*words)
        assert args.learning_rate == 0.005
        shared = args.alpha, args.min_size, args.num_clients
        return args.partition_file, args.partition, shared, args["partition"].present

    default = parsed("--dataset=digits").num_clients
    of_folder = f"{folder}", "dirichlet", (None, None, default), 0
    assert split(ruled, f"--dataset={folder}") == of_folder
    assert split(f"--dataset={folder}", ruled) == of_folder
    assert split(ruled, "--dataset=digits", f"--partition_file={folder}") == of_folder
    made = build.load_inputs(parsed("--preset=pfllib", f"--dataset={folder}"))
    assert made.partition.num_clients == 3  # its samples are scaled already
    assert parsed("--preset=pfllib", f"--dataset={folder}").input_scaling == "default"
    args = parsed(ruled, "--partition", "pathological", "--num_clients=7")  # has no alpha
    assert (args.alpha, args.min_size, args.num_clients) == (None, None, 7)
    assert build.load_inputs(parsed(ruled, f"--dataset={folder}")).partition.num_clients == 3
    file.write_text(f"{RULED}--alpha=0.3\n--dataset={folder}\n")  # a file's own split stays
    assert split(ruled) == (None, "dirichlet", (0.3, 4, 2), 1)
    assert split(ruled, "--alpha=0.5") == (None, "dirichlet", (0.5, 4, 2), 1)
    file.write_text(f"--learning_rate=0.005\n--partition_file={folder}\n")
    assert split(ruled, "--partition=iid")[:2] == (None, "iid")
