"""Invalid command lines of `run`: one error line, and no file is written."""

import pytest

import fedjax_pfl as pfl
from experiments import compare, run
from experiments.cli import algorithms, flags
from fedjax_pfl.utils import aliases
from tests.experiments.small_runs import assert_refused, error_line

LOCAL = "--algorithms=local"
BAD = {
    ("--algorithms=",): "must name at least one algorithm",
    ("--algorithms=local,local",): "names 'local' twice",
    ("--algorithms=PerFedSomething",): "--import_file=FILE.py. Valid: ",
    ("--algorithms=FedAvg-FT,fedavg_ft",): "--algorithms names 'fedavg_ft' twice",
    ("--preset=study/privacy",): "study/privacy is a preset of python -m experiments.study.\n",
    ("--round=3",): "Unknown command line flag 'round'. Did you mean --rounds?",
    ("--algorithms=fedavg,", "feddwa"): "no blanks: --algorithms=A,B.",
    ("--resume",): "the same command continues a run that was stopped.",
    ("--set=feddwa.top_k=5,10",): "(several: settings of `simulate`, or --grid of a sweep)",
    ("--learning_rate=0.1,0.2",): "(several: settings of `simulate`, or --grid of a sweep)",
    ("--min_size=100",): "take fewer clients, or that min_size.",
    ("common.join_ratio=0.1",): "is not a flag: write --NAME=VALUE. It is --participation here.",
    ("--set=fedavg.lr=3",): "hyperparameter of 'fedavg' 'lr'. Did you mean 'learning_rate'?",
    ("--rounds=0",): "error: --rounds must be a whole number of at least 1 and below 2,147,483,648",
    ("--rounds=many",): "below 2,147,483,648, got 'many'.\n",
    ("--set=feddwa.top_k",): "ALGORITHM.HYPERPARAMETER=VALUE",
    ("--set=top_k=3",): "ALGORITHM.HYPERPARAMETER=VALUE",
    ("--set=feddwa.top_k=three",): "feddwa.top_k must be a whole number, got 'three'",
    ("--dataset=mnist", "--data_dir=/nowhere"): "looked in: /nowhere",
    ("--feature_shift=rotated",): "Did you mean 'rotate'",
    ("--feature_shift_option=groups=2",): "needs a --feature_shift",
    ("--feature_shift=rotate", "--feature_shift_option=group=2"): "Did you mean 'groups'",
    ("--partition_file=none.npz", "--alpha=1"): "--alpha can't be given with --partition_file",
    ("--partition_file=none.npz", "--partition_seed=3"): "--partition_seed is for rules",
    ("--share=heads",): "Did you mean 'head'",
    ("--save_models=shared",): "--save_models must be true or false, got 'shared'.",
    ("--train_samples=5", "--drop_last"): "No client would take a local step: drop_last leaves out",
    ("--stragglers=1",): "CLIENT:DELAY",
    ("--stragglers=99:1",): "a client in 0..19",
    ("--stragglers=1:1,1:2",): "names client 1 twice",
    ("--arrivals=1",): "--arrivals must read CLIENT:ROUND,...",
    ("--drift=swap", "--drift_rounds=4,x"): "round of drift must be a whole number",
    ("--straggler_schedule=codes",): "Did you mean 'code'",
    ("--dtype=float16",): "Unknown dtype 'float16'",
    ("--seed_execution=fast",): "Unknown seed execution 'fast'",
    ("--client_state=hosts",): "Unknown client state 'hosts'",
    ("--num_seeds=0",): "--num_seeds must be a whole number of at least 1 and below 65,537",
    ("--seed=2147483647",): "--seed must be at most",
    ("--matrix_rounds=1,99",): "rounds in 1..50, got '99'",
    ("--score_clients=a",): "--score_clients must be clients such as 0,3, got 'a'",
    ("--wdr_weight=-1",): "--wdr_weight must be a number of at least 0, got",
    ("--adapt_when=last",): "--adapt_when needs",
    ("--adapt_epochs=1", "--adapt_steps=1"): "not both",
    ("--moments=later",): "Unknown moments 'later'",
    ("--moments=both", "--adapt_steps=1"): "trains copies as a round does: leave out",
    ("--adapt_epochs=1", "--adapt_when=later"): "Unknown adapt_when 'later'",
    ("--init_from=nowhere.npz",): "nowhere.npz can't be read",
    ("--init_partial",): "--init_partial needs --init_from",
    ("--init_name=conv1=fc_0",): "--init_name needs --init_from",
    ("--lora_layers=fc_0",): "lora_layers must be absent without lora_rank",
    ("--model=mlp", "--freeze=fc_1"): "Unknown pattern of layers 'fc_1'. Did you mean 'fc_0'",
    ("--optimizer=adm",): "Unknown optimizer 'adm'. Did you mean 'adam'",
    ("--optimizer=adam", "--optimizer_option=b1"): "--optimizer_option must read NAME=VALUE",
    (LOCAL, "--set=local.optimizer=adm"): "Unknown local.optimizer 'adm'",
    (LOCAL, "--set=local.clip_norm=0"): "local.clip_norm must be a finite number in (0, inf)",
    (LOCAL, "--set=local.learning_rat=1"): "Did you mean 'learning_rate'?",
    (LOCAL, "--set=local.learning_rate=x"): "local.learning_rate must be a number, got 'x'",
    (LOCAL, "--set=local.batch_size=0"): "local.batch_size must be a whole number of at least 1",
    (LOCAL, "--set=local.drop_last=maybe"): "local.drop_last must be true or false",
    (LOCAL, "--set=local.augment=flip"): "Unknown hyperparameter of 'local' 'augment'",
    (LOCAL, "--set=local.drop_last=1", "--set=local.batch_size=9999"): (
        "With --set=local.batch_size=9999 --set=local.drop_last=True: No client would take a "
    ),
    (LOCAL, "--set=local.local_epochs=2", "--set=local.local_steps=3"): (
        "local_epochs and local_steps can't both be given: steps take the place of epochs"
    ),
    ("--new_clients=20",): "new_clients must be in 1..19 of 20 clients, got 20",
    ("--new_client_steps=1",): "--new_client_steps needs --new_clients",
    ("--new_clients=1", "--new_client_steps=x"): "must be whole numbers such as 0,5",
    ("--new_clients=1", "--new_client_samples=2"): "must be fractions in (0, 1]",
    ("--new_clients=1", "--stragglers=19:1"): "client 19 of them is a straggler",
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
    "alpha": "--dirichlet-alpha",
    "batch_size": "-lbs --local_bs --bs",
    "data_dir": "--data_path",
    "dataset": "-data -d",
    "eval_every": "--eval_gap -eg --test_gap",
    "learning_rate": "--lr -lr --local_learning_rate --local_lr --learning-rate",
    "local_epochs": "-ls --local_epoch --local-epochs --local_ep",
    "momentum": "-mo",
    "num_clients": "-nc --num-supernodes --client_num_in_total --num_users",
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
    said = (
        "error: Unknown command line flag 'data'. It is --dataset here. "
        "Unknown too: 'lr'. It is --learning_rate here. Unknown too: 'gr'. It is --rounds here."
    )
    assert capsys.readouterr().err == f"{said}\n"
    assert call(*words, "-algo=Ditto") == 2
    ours = " Unknown too: 'algo'. It is --algorithms here. --preset=pfllib sets what PFLlib sets"
    assert capsys.readouterr().err.startswith(said + ours)
    assert call("--max_tokens=9") == 2
    assert "is given as --data_option=max_tokens=VALUE" in capsys.readouterr().err


def test_own_images_under_a_foreign_flag(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "mydigits").mkdir()
    assert_refused(call("-data", "mydigits"), "--dataset=folder:mydigits.", capsys)
    assert_refused(call("--dataset=mydigits"), "as in folder:mydigits. Valid", capsys)


def test_aliases_name_existing_flags():
    known = set(flags.parse(["run"]))
    keys = {key for one in pfl.core.ALGORITHMS.values() for key in one.__dataclass_fields__}
    assert {name for names in aliases.OPTIONS.values() for name in names} <= known | keys


def test_flags_without_a_counterpart(capsys):
    for word, said in {
        "--gpu=0": "It is not needed here: JAX chooses the device; CUDA_VISIBLE_DEVICES=0 or ",
        "-pls=3": "--set=fedrep.head_epochs=VALUE, --set=ditto.personal_epochs=VALUE.",
        "--top_k=3": "A hyperparameter is set as --set=feddwa.top_k=VALUE.",
        "--feddwa.topk=3": "A hyperparameter is set as --set=feddwa.top_k=VALUE.",
        "--fedprox.mu=3": "--set=fedprox.proximal_weight=VALUE.",
        "--feddwa.top_k=3": "A hyperparameter is set as --set=feddwa.top_k=VALUE.",
        "-M=4": "flag 'M'. A hyperparameter is set as --set=fedfomo.downloads=VALUE.\n",
        "-m=cnn": "flag 'm'. It is --model here.\n",
        "--beta=1": "--set=fedavgm.server_momentum=VALUE, --set=pfedme.server_rate=VALUE, ",
    }.items():
        assert_refused(call(word), said, capsys)
    assert compare.main(["compare", "--lr=1"]) == 2  # which has no such flag
    assert capsys.readouterr().err == "error: Unknown command line flag 'lr'.\n"
    assert compare.main(["compare", "--algorithm=fedavg"]) == 2
    assert "It is --algorithms here." in capsys.readouterr().err


def test_names_are_ours_in_the_flags():
    theirs = ["--algorithms= FedAvg-FT,SCAFFOLD,Nobody", "--set=FedAvgFT.learning_rate=0.1",
              "--optimizer=AdamW", "--partition=Dirichlet", "--aggregator=Krum",
            "--headline=Best", "--feature_shift=Rotate"]  # fmt: skip
    ours = ["--algorithms=fedavg_ft,scaffold,Nobody", "--set=fedavg_ft.learning_rate=0.1",
            "--optimizer=adamw", "--partition=dirichlet", "--aggregator=krum",
            "--headline=best", "--feature_shift=rotate"]  # fmt: skip
    args, same = (flags.parse(["run", *words]) for words in (theirs, ours))
    assert args.by_group() == same.by_group()
    assert args.algorithms == ["fedavg_ft", "scaffold", "Nobody"]
    made = algorithms.parse_algorithms(["FedAvg-FT"], ["FedFT.fine_tune_epochs=2"])
    assert list(made) == ["fedavg_ft"]
