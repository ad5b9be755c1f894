"""Natural clients from the command line: a table of patients, partitioned by hospital."""

import numpy as np
import pandas as pd
import pytest

import fedjax_pfl as pfl
from experiments import partition, run
from tests.experiments.small_runs import assert_refused, read_rows, run_in


@pytest.fixture(scope="module")
def patients(tmp_path_factory):
    path = tmp_path_factory.mktemp("patients") / "patients.csv"
    rng = np.random.default_rng(0)
    age, dose = rng.normal(50, 10, 120), rng.normal(size=120)
    table = {"hospital": np.arange(120) % 4 + 1, "age": age, "dose": dose, "label": age > 50}
    table = pd.DataFrame(table | {"label": table["label"].astype(int)})
    table.loc[120] = [9, 50, 0, 1]
    table.astype({"hospital": int, "label": int}).to_csv(path, index=False)
    return path


def words(patients, *more):
    return (f"--dataset=table:{patients}", "--partition=by_column", "--column=hospital", *more)


@pytest.mark.costly
def test_partition_by_column(patients, tmp_path, capsys):
    out = tmp_path / "out"
    assert partition.main(["partition", *words(patients), f"--output_dir={out}"]) == 0
    assert "4 clients by rule 'by_column'" in capsys.readouterr().out
    named = ("hospital_1", "hospital_2", "hospital_3", "hospital_4")
    assert pfl.Partition.load(out / "partition.npz").names == named
    data = pfl.load_dataset(f"table:{patients}", id_columns="hospital")
    federation = pfl.federate(data, pfl.Partition.load(out / "partition.npz"), "softmax")
    assert federation.client_names == tuple(enumerate(named))
    other = tmp_path / "other"
    option = (*words(patients)[:2], "--partition_option=column=hospital", "--num_clients=3")
    assert partition.main(["partition", *option, f"--output_dir={other}"]) == 0
    assert pfl.Partition.load(other / "partition.npz").num_clients == 3


@pytest.mark.parametrize(
    ("given", "message"),
    [
        (("--column=hospitl",), "Did you mean 'hospital'?"),
        (("--num_clients=9",), "num_clients is 9, but 4 values of column 'hospital' have 2"),
        (("--min_size=500",), "No values of column 'hospital' have 500 samples or more"),
        (("--partition=iid",), "--column is not an option of partition rule 'iid'"),
    ],
)
def test_natural_clients_refused(patients, given, message, capsys):
    assert_refused(run.main(["run", *words(patients), *given]), message, capsys)


@pytest.mark.costly
def test_run_with_a_new_hospital(patients, tmp_path):
    out = tmp_path / "out"
    more = ("--algorithms=local", "--model=softmax", "--rounds=2", "--num_seeds=2")
    more += ("--new_clients=1", "--new_client_steps=2", "--compilation_cache=")
    assert run_in(out, *words(patients, *more)) == 0
    rows = read_rows(out / "clients.csv")
    assert [row["name"] for row in rows] == [f"hospital_{i}" for i in (1, 2, 3, 4)]
    assert [row["train"] for row in rows] == ["22"] * 4
    result = pfl.Result.load(out / "local")
    assert result.client_names == ("hospital_1", "hospital_2", "hospital_3")
    last = result.accuracy()[:, 0, -1].mean(axis=0)
    scores = [row["local/accuracy"] for row in rows]
    np.testing.assert_allclose([float(score) for score in scores[:3]], last, rtol=1e-6)
    assert scores[3] == ""  # the new client, which took part in no round
    assert {row["client"] for row in read_rows(out / "local" / "new_clients.csv")} == {"3"}
