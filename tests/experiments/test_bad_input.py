"""Invalid command lines of `run`: one error line, and no file is written."""

import pytest

import fedjax_pfl as pfl
from experiments import compare, run
from experiments.cli import algorithms, flags
from fedjax_pfl.utils import aliases
from tests.experiments.small_runs import assert_refused, error_line

BAD = {
    ("--algorithms=fedavgg",): "Unknown algorithm 'fedavgg'. Did you mean 'fedavg'",
    ("--algorithms=",): "must name at least one algorithm",
    ("--algorithms=local,local",): "names 'local' twice",
    ("--algorithms=PerFedSomething",): "--import_file=FILE.py. Valid: ",
    ("--algorithms=FedMA",): "Unknown algorithm 'FedMA'. It is not in this version. Valid: ",
    ("--algorithms=FedAvg-FT,fedavg_ft",): "--algorithms names 'fedavg_ft' twice",
    ("--preset=study/privacy",): "study/privacy is a preset of python -m experiments.study.\n",
    ("--round=3",): "Unknown command line flag 'round'. Did you mean --rounds?",
    ("--flavour=red",): "Unknown command line flag 'flavour'.\n",
    ("extra",): "'extra' is not a flag: write --NAME=VALUE.\n",
    ("method=fedavg",): "is not a flag: write --NAME=VALUE. It is --algorithms here.",
    ("common.join_ratio=0.1",): "is not a flag: write --NAME=VALUE. It is --participation here.",
    ("--set=fedavg.lr=3",): "hyperparameter of 'fedavg' 'lr'. Did you mean 'learning_rate'?",
    ("--set=Fed-DWA.topk=3",): "Unknown hyperparameter of 'feddwa' 'topk'. Did you mean 'top_k'",
    ("--set=scafold.x=3",): "Unknown algorithm in --set 'scafold'. Valid: ",
    ("--rounds=0",): "error: --rounds must be a whole number of at least 1 and below 2,147,483,648",
    ("--rounds=many",): "below 2,147,483,648, got 'many'.\n",
    ("--dominant_share=1.5",): "--dominant_share must be a number of at least 0 and of at most 1, ",
    ("--alpha=a",): "error: --alpha must be a number, got 'a'.\n",
    ("--set=feddwa.top_k",): "ALGORITHM.HYPERPARAMETER=VALUE",
    ("--set=top_k=3",): "ALGORITHM.HYPERPARAMETER=VALUE",
    ("--algorithms=local", "--set=feddwa.top_k=3"): "not in this comparison",
    ("--set=feddwa.top_k=three",): "feddwa.top_k must be a whole number, got 'three'",
    ("--set=feddwa.top_k=0",): "top_k must be at least 1, got 0",
    ("--dataset=digit",): "Did you mean 'digits'",
    ("--dataset=mnist",): "was not found",
    ("--dataset=mnist", "--data_dir=/nowhere"): "looked in: /nowhere",
    ("--input_scaling=halve",): "Did you mean 'half'",
    ("--partition=dir",): "Unknown partition rule 'dir'. Did you mean 'dirichlet'?",
    ("--partition=iid", "--alpha=0.1"): "--alpha is not an option of partition rule 'iid'",
    ("--groups=2",): "--groups is not an option of partition rule 'dirichlet'",
    ("--alpha=0",): "alpha must be",
    ("--min_size=1000",): "min_size must be at most",
    ("--num_clients=0",): "--num_clients must be a whole number of at least 1 and below",
    ("--num_clients=5000",): "5000 clients can't share 1797 samples",
    ("--test_fraction=0",): "no test samples",
    ("--test_split=official",): "no official test samples",
    ("--validation_fraction=1.5",): "Validation fraction must be",
    ("--feature_shift=rotated",): "Did you mean 'rotate'",
    ("--feature_shift_option=groups=2",): "needs a --feature_shift",
    ("--feature_shift=rotate", "--feature_shift_option=group=2"): "Did you mean 'groups'",
    ("--partition_file=none.npz",): "No file none.npz",
    ("--partition_file=none.npz", "--alpha=1"): "--alpha can't be given with --partition_file",
    ("--model=cnnn",): "Did you mean 'cnn'",
    ("--initializer=keras",): "Unknown initializer 'keras'",
    ("--share=heads",): "Did you mean 'head'",
    ("--batch_size=0",): "--batch_size must be a whole number of at least 1 and below",
    ("--save_models=shared",): "--save_models must be true or false, got 'shared'.",
    ("--train_samples=5", "--drop_last"): "No client would take a local step: drop_last leaves out",
    ("--local_epochs=0",): "No client would take a local step: local_epochs is 0",
    ("--learning_rate=-1",): "learning_rate must be a finite number of at least 0",
    ("--learning_rate_decay=0",): "learning_rate_decay must be",
    ("--momentum=1",): "momentum must be",
    ("--participation=0",): "participation must be a fraction in (0, 1]",
    ("--stragglers=1",): "CLIENT:DELAY",
    ("--stragglers=99:1",): "a client in 0..19",
    ("--stragglers=1:1,1:2",): "names client 1 twice",
    ("--arrivals=1",): "--arrivals must read CLIENT:ROUND,...",
    ("--departures=99:1",): "departure must be a client in 0..19",
    ("--drift=swop",): "Did you mean 'swap'",
    ("--drift=swap",): "needs drift_rounds",
    ("--drift_rounds=4",): "drift_rounds must be absent without drift",
    ("--drift=swap", "--drift_rounds=4,x"): "round of drift must be a whole number",
    ("--straggler_schedule=codes",): "Did you mean 'code'",
    ("--dtype=float16",): "Unknown dtype 'float16'",
    ("--client_execution=fast",): "client_execution must be one of",
    ("--seed_execution=fast",): "Unknown seed execution 'fast'",
    ("--client_state=hosts",): "Unknown client state 'hosts'",
    ("--client_state=host",): "these are all clients: take a lower participation",
    ("--num_seeds=0",): "--num_seeds must be a whole number of at least 1 and below 65,537",
    ("--seed=2147483647",): "--seed must be at most",
    ("--matrix_rounds=1,99",): "rounds in 1..50, got '99'",
    ("--score_clients=0,99",): "score_clients must be clients in 0..19, got [99]",
    ("--score_clients=a",): "--score_clients must be clients such as 0,3, got 'a'",
    ("--algorithms=fedavg,waffle", "--score_clients=3"): "makes a model for, got [3]",
    ("--wdr_weight=-1",): "--wdr_weight must be a number of at least 0, got",
    ("--algorithms=cwfedavg", "--wdr_weight=1"): "set one of the two to 0",
    ("--adapt_when=last",): "--adapt_when needs",
    ("--adapt_epochs=1", "--adapt_steps=1"): "not both",
    ("--moments=later",): "Unknown moments 'later'",
    ("--moments=both", "--adapt_steps=1"): "trains copies as a round does: leave out",
    ("--adapt_epochs=1", "--adapt_when=later"): "Unknown adapt_when 'later'",
    ("--flagfile=none.flags",): "none.flags",
}


def call(*words):
    return run.main(["run", *words])


@pytest.mark.parametrize("words", BAD, ids=" ".join)
def test_bad_input(words, tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(pfl, "simulate", lambda *a, **k: pytest.fail("something was computed"))
    assert call("--output_dir=out", *words) == 2
    assert BAD[words] in f"{error_line(capsys)}\n"
    assert list(tmp_path.iterdir()) == []


ELSEWHERE = {
    "algorithms": "--algorithm --algo -algo --method",
    "alpha": "--dirichlet-alpha",
    "batch_size": "-lbs --local_bs --bs",
    "data_dir": "--data_path",
    "dataset": "-data -d",
    "eval_every": "--eval_gap -eg --test_gap",
    "learning_rate": "--lr -lr --local_learning_rate --local_lr --learning-rate",
    "local_epochs": "-ls --local_epoch --local-epochs --local_ep",
    "momentum": "-mo",
    "num_clients": "-nc --num-supernodes --client_num_in_total --num_users",
    "num_seeds": "-t --times",
    "output_dir": "-go --goal",
    "participation": "--join_ratio -jr --fraction-fit --frac --client_num_per_round",
    "partition": "--partition_method",
    "rounds": "--global_rounds -gr --num-server-rounds --num_rounds --comm_round --global_epoch",
    "weight_decay": "--wd",
}


@pytest.mark.parametrize("ours", ELSEWHERE)
def test_flags_of_other_libraries(ours, tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    for word in ELSEWHERE[ours].split():
        assert call(f"{word}=1") == 2
        text = f"error: Unknown command line flag {word.lstrip('-')!r}. It is --{ours} here.\n"
        assert capsys.readouterr().err == text
    assert list(tmp_path.iterdir()) == []


def test_error_of_an_unrelated_setting(capsys, tmp_path):
    words = ("--algorithms=spfl", "--model=softmax", f"--output_dir={tmp_path / 'o'}")
    assert call(*words, "--set=spfl.learning_rate=0.6") == 2
    assert capsys.readouterr().err.startswith("error: spfl compares layers")


def test_a_flagfile_is_known_beside_unknown_flags(capsys, tmp_path):
    (tmp_path / "ok.flags").write_text("--rounds=2\n")
    assert call(f"--flagfile={tmp_path / 'ok.flags'}", "--nosuch=1") == 2
    assert capsys.readouterr().err == "error: Unknown command line flag 'nosuch'.\n"


def test_several_unknown_flags(capsys):
    words = ("-data", "MNIST", "-lr=1", "--rounds=3", "--nosave_models", "-gr", "-5", "--lr=2")
    assert call(*words) == 2
    assert capsys.readouterr().err == (
        "error: Unknown command line flag 'data'. It is --dataset here. "
        "Unknown too: 'lr'. It is --learning_rate here. Unknown too: 'gr'. It is --rounds here.\n"
    )


def test_command_of_pfllib(capsys):
    words = [
        "-data", "MNIST", "-m", "CNN", "-algo", "FedAvg", "-gr", "9", "-did", "0", "-nc", "6",
        "-jr", "1", "-lbs", "10", "-ls", "1", "-lr", ".1",
    ]  # fmt: skip
    assert call(*words) == 2
    text = capsys.readouterr().err
    assert [word for word in words[::2] if f"'{word[1:]}'. It is" not in text] == []


def test_aliases_name_existing_flags():
    known = set(flags.parse(["run"]))
    keys = {key for one in pfl.core.ALGORITHMS.values() for key in one.__dataclass_fields__}
    assert {name for names in aliases.OPTIONS.values() for name in names} <= known | keys


def test_flags_without_a_counterpart(capsys):
    for word, said in {
        "--gpu=0": "It is not needed here: JAX chooses the device; CUDA_VISIBLE_DEVICES=0 or ",
        "-nb=10": "It is not needed here: the data set has its number of classes.",
        "-pls=3": "--set=fedrep.head_epochs=VALUE, --set=ditto.personal_epochs=VALUE.",
        "-et=1": "A hyperparameter is set as --set=fedala.weight_rate=VALUE.",
        "--lamda=3": "A hyperparameter is set as --set=",
        "--top_k=3": "A hyperparameter is set as --set=feddwa.top_k=VALUE.",
        "-slr=1": "A hyperparameter is set as --set=",
        "-M=4": "flag 'M'. A hyperparameter is set as --set=fedfomo.downloads=VALUE.\n",
        "-m=cnn": "flag 'm'. It is --model here.\n",
        "--beta=1": "--set=fedavgm.server_momentum=VALUE, --set=pfedme.server_rate=VALUE, ",
        "-mu=1": "A hyperparameter is set as --set=ditto.proximal_weight=VALUE, ",
    }.items():
        assert_refused(call(word), said, capsys)
    for word, said in {
        "--set=pfedme.beta=1": "'server_rate'",
        "--set=ditto.mu=1": "'proximal_weight'",
    }.items():
        assert_refused(call("--algorithms=pfedme,ditto", word), f"Did you mean {said}?", capsys)
    assert compare.main(["compare", "--lr=1"]) == 2  # which has no such flag
    assert capsys.readouterr().err == "error: Unknown command line flag 'lr'.\n"
    assert compare.main(["compare", "--algorithm=fedavg"]) == 2
    assert "It is --algorithms here." in capsys.readouterr().err


def test_names_are_ours_in_the_flags():
    theirs = ["--algorithms= FedAvg-FT,SCAFFOLD,Nobody", "--set=FedAvgFT.learning_rate=0.1",
              "--optimizer=AdamW", "--partition=Dirichlet", "--aggregator=Krum"]  # fmt: skip
    ours = ["--algorithms=fedavg_ft,scaffold,Nobody", "--set=fedavg_ft.learning_rate=0.1",
            "--optimizer=adamw", "--partition=dirichlet", "--aggregator=krum"]  # fmt: skip
    args, same = (flags.parse(["run", *words]) for words in (theirs, ours))
    assert args.by_group() == same.by_group()
    assert args.algorithms == ["fedavg_ft", "scaffold", "Nobody"]
    made = algorithms.parse_algorithms(["FedAvg-FT"], ["FedFT.fine_tune_epochs=2"])
    assert list(made) == ["fedavg_ft"]


def test_output_below_a_file(tmp_path, capsys):
    (tmp_path / "file").write_text("x")
    assert call(f"--output_dir={tmp_path / 'file' / 'out'}") == 2
    assert "not a writable folder" in capsys.readouterr().err
