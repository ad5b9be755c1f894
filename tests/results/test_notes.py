"""Remarks of a result: clients that are scored, never took part, or took no step."""

import itertools
import json
from dataclasses import replace

import numpy as np
import pytest

import fedjax_pfl as pfl
from fedjax_pfl.results.notes import (
    grouped,
    grouped_by_column,
    last_self_weight,
    named,
    row_remarks,
)

SIZES = (30, 5, 30, 8, 30, 30)  # training samples of the clients


def federation(**options):
    dataset = pfl.load_dataset("digits")
    ends = np.cumsum((0, *SIZES))
    train = [np.arange(a, b) for a, b in itertools.pairwise(ends)]
    test = [np.arange(1000 + 10 * i, 1010 + 10 * i) for i in range(len(SIZES))]
    partition = pfl.Partition.from_lists(train, test)
    return pfl.federate(dataset, partition, model="softmax", **options)


def simulated(name="fedavg", settings=None, seeds=(0,), rounds=2, **options):
    algorithm = pfl.make_algorithm(name, settings)
    return pfl.simulate(algorithm, federation(**options), rounds, seeds=seeds)


@pytest.mark.costly
def test_clients_that_have_left_are_not_in_the_mean():
    result = simulated(departures={2: 1})
    assert result.summary()["scored_clients"] == [0, 1, 3, 4, 5]
    assert "Mean over clients 0, 1, 3, 4, 5 of 6." in result.table()


@pytest.mark.costly
def test_clients_without_a_step_are_named(tmp_path):
    result = simulated(drop_last=True, batch_size=10)
    summary = result.summary()
    assert summary["clients_without_steps"] == [1, 3]
    assert summary["remarks"] == ["clients 1, 3 took part without a local step"]
    assert simulated().summary()["remarks"] == []  # without drop_last all have one
    result.save(tmp_path / "r")
    assert pfl.Result.load(tmp_path / "r").summary() == summary


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({"drop_last": True, "batch_size": 31}, "none has more than 30"),
        ({"local_epochs": 0}, "local_epochs is 0"),
        ({"local_steps": 0}, "local_steps is 0"),
    ],
)
def test_nobody_with_a_step_is_refused(options, said, monkeypatch):
    algorithm = pfl.make_algorithm("fedavg")
    idle = federation(**options)
    monkeypatch.setattr(pfl.engine.program.Program, "start", lambda self: pytest.fail("it began"))
    simulation = pfl.Simulation(algorithm, idle)
    for call in (simulation.check, simulation.estimate_memory):
        with pytest.raises(pfl.InputError, match=f"No client would take a local step: .*{said}"):
            call()
    with pytest.raises(pfl.InputError, match="No client would take a local step"):
        pfl.simulate(algorithm, idle, 1)


@pytest.mark.costly
def test_an_algorithm_with_loops_of_its_own_says_whom_they_reach():
    class OwnLoop(pfl.core.ALGORITHMS["local"]):
        def has_step(self, federation):
            return np.ones(federation.num_clients, bool)

        def round(self, ctx, state):
            return state, ctx.record(ctx.cohort_of(), up=0, down=0)

    own = pfl.core.struct(OwnLoop)
    own.name = "own_loop"
    result = pfl.simulate(own(), federation(local_epochs=0), 1)
    # It counts no steps at all, so no client is reported without one.
    assert result.summary()["clients_without_steps"] == []


@pytest.mark.costly
def test_clients_that_were_never_drawn():
    result = simulated(seeds=(0, 2), rounds=1, participation=0.5)
    drawn = result.clients["participated"][:, 0, 0]
    assert drawn.sum(axis=1).tolist() == [3, 3]
    absent = {seed: np.flatnonzero(~drawn[s]).tolist() for s, seed in enumerate((0, 2))}
    assert absent[0] != absent[2]
    summary = result.summary()
    assert summary["never_took_part"] == absent
    assert summary["remarks"] == ["in each seed 3 of 6 clients scored took part in no round"]
    alone = simulated(rounds=1, participation=0.5)
    ids = ", ".join(map(str, absent[0]))
    assert alone.summary()["remarks"] == [f"clients {ids} (of 6 scored) took part in no round"]
    assert json.loads(json.dumps(summary))["never_took_part"]["0"] == absent[0]


@pytest.mark.costly
def test_only_scored_clients_count():
    """WAFFLE serves Alice: that others never came says nothing of her model."""
    result = simulated("waffle", {"alice": 2}, rounds=1, participation=1.0)
    assert result.summary()["scored_clients"] == [2]
    drawn = simulated(seeds=(0, 2), rounds=1, participation=0.5).clients["participated"][:, 0, 0]
    alice = int(np.flatnonzero(drawn[1] & ~drawn[0])[0])
    result = simulated("waffle", {"alice": alice}, (0, 2), rounds=1, participation=0.5)
    assert result.summary()["never_took_part"] == {0: [alice], 2: []}


@pytest.mark.costly
def test_what_one_seed_or_client_can_not_tell():
    alone = simulated("waffle", {"alice": 2}, rounds=1).summary()["accuracy"]
    assert alone["final_std_over_seeds"] is None and alone["final_std_over_clients"] is None
    several = simulated(seeds=(0, 2), rounds=1, participation=0.5).summary()["accuracy"]
    assert several["final_std_over_seeds"] >= 0 and several["final_std_over_clients"] > 0


@pytest.mark.parametrize(
    ("epochs", "said"), [(2, ["scored after 2 local epochs on a copy"]), (0, [])]
)
def test_what_an_algorithm_says_of_itself(epochs, said):
    tuned = pfl.make_algorithm("fedavg_ft", {"fine_tune_epochs": epochs})
    assert tuned.remarks(federation()) == said


@pytest.mark.costly
def test_what_an_algorithm_says_of_single_settings_of_a_sweep(tmp_path):
    """With the values swept, of its own hyperparameters and of the rate."""
    values = (0.1, 4.0), (1.0, 4.0), (1.0, 8.0)
    swept = [{"learning_rate": rate, "proximal_weight": weight} for rate, weight in values]
    result = pfl.simulate(pfl.make_algorithm("heurfedamp"), federation(), 1, settings=swept)
    reach = [
        [
            said.partition("proximal_weight is ")[2][:2]
            for said in row_remarks(result, h)
            if "proximal_weight is" in said
        ]
        for h in range(3)
    ]
    assert reach == [[], ["4,"], ["8,"]] and "proximal_weight=8: a local step" in result.table()
    result.save(tmp_path / "r")
    assert pfl.Result.load(tmp_path / "r").setting_remarks == result.setting_remarks


@pytest.mark.costly
def test_local_says_that_all_train_whoever_is_drawn(tmp_path):
    all_train = ("all clients train in every round, drawn or not",)
    sampled = simulated("local", rounds=1, participation=0.5)
    assert sampled.remarks == all_train and sampled.clients["participated"].all()
    sampled.save(tmp_path / "r")
    assert pfl.Result.load(tmp_path / "r").remarks == all_train
    local = pfl.make_algorithm("local")
    assert tuple(local.remarks(federation(stragglers={1: 1}))) == all_train
    assert local.remarks(federation()) == []
    drawn = simulated("local", {"participants": "sampled"}, rounds=1, participation=0.5)
    assert drawn.remarks == () and drawn.clients["participated"].sum() == 3
    other = simulated("fedavg", rounds=1, participation=0.5)
    for name in ("participated", "local_steps"):
        np.testing.assert_array_equal(drawn.clients[name], other.clients[name])


def test_more_models_than_there_are_is_said():
    every = federation().num_clients
    options = {"feddwa": {"top_k": every + 1}, "sfl": {"graph": "neighbours", "neighbours": 99}}
    for name, given in options.items():
        told = pfl.make_algorithm(name, given).remarks(federation())
        assert told[-1].endswith(f", not {list(given.values())[-1]}")
    assert pfl.make_algorithm("feddwa", {"top_k": every}).remarks(federation()) == []


@pytest.mark.costly
def test_clients_that_hardly_mix_are_said_to_train_locally():
    """HeurFedAMP's self-weight is a hyperparameter; only members of the last rounds count."""
    own = {"self_weight": [0.94, 0.96]}
    options = {"participation": 0.5}
    result = pfl.simulate(pfl.make_algorithm("heurfedamp"), federation(**options), 2, settings=own)
    text = "mean self-weight 0.960 in the last rounds: nearly local training"
    assert text not in row_remarks(result, 0) and text in row_remarks(result, 1)
    assert (
        text in result.table()
        and text in result.summary(1)["remarks"]
        and f"=0.96: {text}" in repr(result)
    )
    rounds = np.array([0.0] * 18 + [0.97, 0.99])
    late = {"self_weight": np.broadcast_to(rounds[:, None], (1, 2, 20, 6))}
    late = replace(result, clients=result.clients | late)
    assert last_self_weight(late) == pytest.approx(0.98)  # the last tenth
    assert last_self_weight(simulated()) is None


@pytest.mark.costly
def test_clusters_that_never_split_are_named():
    options = {"first_split": 1, "mean_below": 1e9, "largest_above": 0.0}
    split = pfl.simulate(pfl.make_algorithm("cfl", options), federation(), 3, seeds=(0, 1))
    assert not any("split" in one for one in row_remarks(split))
    whole = pfl.simulate(pfl.make_algorithm("cfl"), federation(), 3, seeds=(0, 1))
    assert row_remarks(whole)[-1] == "no cluster was split"
    assert "no cluster was split" in repr(whole)
    clusters = np.stack([whole.scalars["clusters"][0], split.scalars["clusters"][1]])
    one_of_two = replace(whole, scalars=whole.scalars | {"clusters": clusters})
    assert row_remarks(one_of_two)[-1] == "no cluster was split in 1 of 2 seeds"


@pytest.mark.costly
def test_a_robust_rule_that_never_acts_is_named():
    def run(name, options, algorithm="fedavg"):
        robust = {"aggregator": name, "aggregator_options": options}
        return pfl.simulate(pfl.make_algorithm(algorithm), federation(**robust), 2, seeds=(0, 1))

    still = "the robust rule never acted: its weights were those without it"
    idle = run("cclip", {"radius": 1e6})
    assert still in row_remarks(idle) and still in repr(idle)
    assert still in row_remarks(run("self_clip", {"radius": 1e6}, "feddwa"))
    acting = run("cclip", {"radius": 1e-6})
    assert still not in row_remarks(acting)
    acted = np.stack([idle.scalars["rule_acted"][0], acting.scalars["rule_acted"][1]])
    mixed = replace(idle, scalars=idle.scalars | {"rule_acted": acted})
    assert any("never acted in 1 of 2 seeds" in one for one in row_remarks(mixed))


def test_words():
    assert named([3]) == "client 3" and named([3, 7]) == "clients 3, 7"
    assert named(range(9)) == "9 clients (0, 1, 2, 3, 4, 5, 6, 7, ...)"
    said = {"a": ["x", "y"], "b": ["x"], "c": ["x", "z"]}
    assert grouped(said) == ["All rows: x.", "a: y.", "c: z."]
    assert grouped({"a": ["x"]}) == ["a: x."] and grouped({"a": []}) == []


def test_remarks_of_columns():
    """Those of all columns name none."""
    said = {("local", "a"): ["drift", "one"], ("ours", "a"): ["drift"], ("local", "b"): ["one"],
            ("ours", "b"): []}  # fmt: skip
    assert grouped_by_column(said) == ["a, all rows: drift.", "local: one."]
