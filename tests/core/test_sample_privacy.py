"""Sample-level differential privacy of whole algorithms: noise, refusals, accounting, sweeps."""

import json
from functools import cache
from types import SimpleNamespace

import jax
import numpy as np
import pytest

import fedjax_pfl as pfl
from fedjax_pfl.core.sample_privacy import releases
from fedjax_pfl.engine.arguments import checked_program
from fedjax_pfl.engine.round_facts import round_facts
from fedjax_pfl.engine.runs import one_run
from fedjax_pfl.results import privacy
from fedjax_pfl.testing.toys import (
    assert_close,
    count_compilations,
    states_of,
    toy_federation,
    toy_for,
)
from fedjax_pfl.training import private_gradient
from fedjax_pfl.uploads.accounting import Release, epsilon, noise_for_each, training_releases

PRIVATE = {"dp": "sample", "dp_clip": 0.5, "validation_size": 0}
SINGLE = PRIVATE | {"dtype": "float32", "dp_delta": 1e-3, "local_epochs": 2}

pytestmark = pytest.mark.usefixtures("double_precision")


def make(name, **settings):
    return pfl.make_algorithm(name, settings)


# What sample-level privacy does not cover, by definition or by an option.
REFUSED = {
    ("ifca", ()): "the choice of a cluster",
    ("knnper", ()): "the samples that its model remembers",
    ("sfl", ()): "its labels",
    ("cwfedavg", ()): "the class counts of its regularizer",
    ("cwfedavg", (("wdr_weight", 0), ("shares", "labels"))): "the shares of its classes",
    ("ccvr", ()): "the features of its classes",
    ("fedala", ()): "the element-wise weights of adaptation",
    ("fedas", ()): "the mean features of its classes",
    ("feddbe", ()): "the mean features of its minibatches",
    ("feddistill", ()): "the mean predictions of its classes",
    ("feddpa", ()): "the samples that its weights compare with",
    ("fedgc", ()): "the classes that it has",
    ("fedgen", ()): "class counts",
    ("fedgh", ()): "the mean features of its classes",
    ("fedkd", ()): "the map between features",
    ("fedlc", ()): "the class counts of its loss",
    ("fedpac", ()): "the mean features of its classes",
    ("fedproto", ()): "the mean features of its classes",
    ("fedrod", ()): "the class counts of its loss",
    ("fedrs", ()): "the class counts of its loss",
    ("gpfl", ()): "the class shares of its condition",
    ("pfedfda", ()): "the features of its classes",
    ("perfedavg", (("variant", "hessian_free"),)): "products with the Hessian",
    ("feddwa", (("guidance", "full_gradient"),)): "the gradient over all samples",
    ("waffle", (("everyone", True),)): "draws the same noise for each Alice",
    ("fedfomo", ()): "fedfomo uses validation samples without noise",
    ("l2c", ()): "l2c uses validation samples without noise",
    ("fedbn", ()): "batch statistics",
    ("cfl", (("best_of_tree", True),)): "the choice among models by validation samples",
}


@pytest.mark.parametrize(("name", "settings"), REFUSED)
def test_what_the_noise_does_not_cover_is_refused(name, settings):
    algorithm = make(name, **dict(settings))
    needs = {"validation_size": 2} if name == "cfl" else {}
    federation = toy_for(algorithm, dp="sample", dp_clip=1.0, **needs)
    with pytest.raises(pfl.InputError) as error:
        checked_program(algorithm, federation)  # before anything is compiled
    assert REFUSED[name, settings] in str(error.value)
    assert str(error.value).count(". ") == 0  # one sentence


def test_public_validation_samples_need_no_noise():
    federation = toy_for(make("fedfomo"), dp="sample", dp_clip=1.0, dp_public_validation=True)
    pfl.engine.runs.make_runs(make("fedfomo"), make("fedfomo").prepare(federation), (0,))


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"dp": "sample"}, "dp='sample' must have a dp_clip: noise without a bound hides nothing"),
        ({"dp_noise": 1.0}, "dp_noise must be absent without dp='client' or dp='sample', got 1.0"),
        ({**PRIVATE, "dp_noise": 1.0, "dp_epsilon": 1.0}, "Give one of dp_noise and dp_epsilon"),
        ({**PRIVATE, "dp_clip": 0}, r"dp_clip must be a finite number in \(0, inf\), got 0"),
        (
            {**PRIVATE, "dp_adaptive_clip": True},
            "dp_adaptive_clip must be absent without dp='client'",
        ),
        (
            {**PRIVATE, "dp_placement": "distributed"},
            "dp_placement must be absent without dp='client', got 'distributed'",
        ),
        ({"dp": "samples"}, "dp.*'samples'.*'sample'"),
    ],
)
def test_options_that_are_refused(options, message):
    with pytest.raises(pfl.InputError, match=message):
        toy_federation(**options)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"extra_loss": pfl.training.WeightDistribution(1.0)}, "WeightDistribution depends on all"),
        ({"dp_epsilon": 1e-7, "dp_delta": 1e-12}, "dp_epsilon must be reachable, got 1e-07"),
        ({"batch_order": "by_class"}, "each sample is in one known minibatch"),
        ({"dp_strict": True}, "take batch_order='poisson' in place of 'shuffled'"),
        ({"augment": lambda key, x: x}, "may mix samples of a minibatch"),
        ({"dtype": "bfloat16"}, "at least float32, got bfloat16"),
    ],
)
def test_federations_that_are_refused(options, message):
    federation = toy_federation(**PRIVATE, **options)
    with pytest.raises(pfl.InputError, match=message):
        checked_program(make("fedavg"), federation, 2)


@pytest.mark.parametrize("unit", ["sample", "client"])
def test_patience_needs_public_validation_samples(unit):
    options = PRIVATE | {"dp": unit, "dp_noise": 1.0, "validation_size": 2}
    with pytest.raises(pfl.InputError, match="patience uses validation samples without noise"):
        pfl.Simulation(make("fedavg"), toy_federation(**options)).check(2, patience=1)
    public = toy_federation(**options, dp_public_validation=True)
    pfl.Simulation(make("fedavg"), public).check(2, patience=1)


def test_poisson_draws_no_two_batches_of_a_step():
    federation = toy_federation(**PRIVATE, batch_order="poisson")
    with pytest.raises(pfl.InputError, match="takes 2 minibatches in a step, and batch_order"):
        pfl.simulate(make("perfedavg"), federation, 1)


# ------------------------------------------------------------------ gradients

COVERED = {
    name: settings
    for name in sorted(pfl.core.ALGORITHMS)
    for settings in [{"cwfedavg": {"wdr_weight": 0}, "sfl": {"graph": "neighbours"}}.get(name, {})]
    if (name, tuple(settings.items())) not in REFUSED and not make(name, **settings).unprotected
}


@pytest.mark.costly
@pytest.mark.parametrize("name", [name for name in COVERED if name != "floco"])
def test_without_noise_and_clip_it_is_training_without_privacy(name):
    """In batches that are full: an incomplete one counts as much as it has samples.

    So no term of a loss couples the samples of a minibatch. Floco draws a point of its simplex for
    each gradient, here for each sample.
    """
    options, algorithm = {"validation_size": 0, "drop_last": True}, make(name, **COVERED[name])
    private = {"dp": "sample", "dp_clip": 1e9}
    plain, other = (
        states_of(algorithm, toy_for(algorithm, **options, **more), 2)[-1] for more in ({}, private)
    )
    assert_close(other, plain, "state", 1e-9)


# ------------------------------------------------------------------ noise


def key_words(monkeypatch):
    """A set of the keys of noise that programs draw, and a list of those drawn twice."""
    drawn, twice, plain = set(), [], private_gradient.add_noise

    def seen(words):
        for word in np.asarray(words).reshape(-1, np.shape(words)[-1]):
            key = tuple(word.tolist())
            twice.extend([key] * (key in drawn))
            drawn.add(key)

    def add_noise(total, clip, noise, key):
        jax.debug.callback(seen, jax.random.key_data(key))
        return plain(total, clip, noise, key)

    monkeypatch.setattr(private_gradient, "add_noise", add_noise)
    return drawn, twice


@pytest.mark.costly
@pytest.mark.parametrize("name", COVERED)
def test_no_two_gradients_have_the_same_noise(name, monkeypatch):
    """With equal keys the difference of two gradients has no noise."""
    drawn, twice = key_words(monkeypatch)
    settings = {**COVERED[name], **({"batches": "shared"} if name == "ditto" else {})}
    algorithm, rounds = make(name, **settings), 2
    federation = algorithm.prepare(toy_for(algorithm, dp="sample", dp_clip=1.0, dp_noise=1.0))
    runs = pfl.engine.runs.make_runs(algorithm, federation, (0,))
    program = pfl.engine.program.Program(runs, federation, rounds, scored=())
    states = program.start()
    for t in range(rounds):
        states, buffers, _ = program.advance(states, t, 1)
        jax.block_until_ready(buffers)
    jax.effects_barrier()
    assert drawn and not twice
    taken = buffers["clients"]["local_steps"]
    per_batch = plan_of(algorithm, federation)["per_batch"]
    assert len(drawn) >= np.asarray(taken)[0, :rounds].sum() // per_batch


@pytest.mark.costly
@pytest.mark.parametrize(("order", "execution"), [("poisson", 2), ("shuffled", "vmap")])
def test_how_clients_run_does_not_matter(order, execution):
    """One by one, at once or in chunks, and in another order of the clients."""
    options = {**PRIVATE, "dp_noise": 1.0, "batch_order": order}
    algorithm = make("mrmtl", proximal_weight=0.5)
    plain, other = (
        states_of(algorithm, toy_federation(**options, client_execution=how), 2)[-1]
        for how in ("map", execution)
    )
    assert_close(other, plain, "state", 1e-9)
    turned = states_of(algorithm, toy_federation(**options, order=[3, 1, 0, 4, 2]), 2)[-1]
    assert_close(turned.own, jax.tree.map(lambda x: x[[3, 1, 0, 4, 2]], plain.own), "order", 1e-9)
    assert_close(turned.server, plain.server, "order", 1e-9)


@pytest.mark.costly
def test_new_clients_have_noise_of_their_own():
    noisy, again, plain = (
        adapted().final.personalize(toy_federation(**{**SINGLE, "dp_noise": noise}))
        for noise in (2.0, 2.0, 0.0)
    )
    assert_close(noisy, again, "the same key", 0)
    assert not np.allclose(*(jax.tree.leaves(models)[0] for models in (noisy, plain)))


@pytest.mark.costly
def test_new_clients_of_an_epsilon_are_refused():
    final = swept("shuffled").final
    with pytest.raises(pfl.InputError, match="take dp_noise, which new clients have too"):
        final.personalize(toy_federation(**PRIVATE, dp_epsilon=1.0))


# ------------------------------------------------------------------ accounting


@cache
def adapted():
    """A run with noise and an adaptation, which several tests read."""
    federation, adapt = toy_federation(**SINGLE, dp_noise=2.0), pfl.Adaptation(epochs=2)
    return pfl.simulate(make("fedavg"), federation, 3, seeds=(0, 1), adapt=adapt, eval_every=3)


@cache
def swept(order):
    """A run with two values of epsilon, which several tests read."""
    federation = toy_federation(**SINGLE | {"local_epochs": 1}, batch_order=order)
    settings = {"dp_epsilon": [1.0, 4.0]}
    return pfl.simulate(make("mrmtl"), federation, 3, settings=settings, eval_every=3)


def test_epsilon_is_that_of_the_recorded_steps():
    """Batches of 4 of clients with 7, 3, 1, 10 and 4 samples, for three rounds of two epochs.

    Two epochs of adaptation follow the last one, which makes four rounds of steps.
    """
    result = adapted()
    found = result.epsilons()
    assert found.shape == (2, 5)
    cost = [
        epsilon([Release(2.0, steps, rate)], 1e-3)
        for steps, rate in ((16, 4 / 7), (8, 1.0), (8, 1.0), (24, 0.4), (8, 1.0))
    ]
    np.testing.assert_allclose(found, [cost, cost], 1e-9)
    summary = result.summary()["privacy"]
    assert summary["unit"] == "sample" and summary["delta"] == 1e-3
    np.testing.assert_allclose(summary["epsilon"], max(cost), 1e-9)


def plan_of(algorithm, federation, adapt=None):
    facts = round_facts(one_run(algorithm), federation)
    return releases(algorithm, federation, facts, adapt)


def test_several_gradients_of_a_batch_are_one_release_with_less_noise():
    plan = plan_of(make("pfedme", inner_steps=4), toy_federation(**PRIVATE))
    assert training_releases(plan, 2.0, 0, 6 * 4) == [Release(1.0, 6, 4 / 7)]


def test_an_adaptation_of_the_algorithm_is_counted():
    plan = plan_of(make("fedavg_ft"), toy_federation(**PRIVATE))
    assert training_releases(plan, 2.0, 0, 6) == [Release(2.0, 6, 4 / 7), Release(2.0, 2, 4 / 7)]


def test_copies_that_are_only_scored_cost_no_privacy():
    """Their scores are their clients' diagnostics, and the noise of rounds stays the same."""
    federation = toy_federation(**PRIVATE)
    copies = plan_of(make("fedavg"), federation, pfl.Adaptation())
    assert copies == plan_of(make("fedavg"), federation)


def test_adaptation_has_minibatches_of_its_own():
    """Client 3 has 10 samples, of which 2 are expected in an adapting minibatch, 4 in others."""
    federation = toy_federation(**PRIVATE, batch_order="poisson", batch_size=4)
    algorithm = make("fedavg")
    plan = plan_of(algorithm, federation, pfl.Adaptation(steps=5, batch_size=2))
    made = training_releases(plan, 2.0, 3, 9)
    assert made == [Release(2.0, 9, 0.4, (10, 10)), Release(2.0, 5, 0.2, (10, 10))]
    assert federation.schedule.slots(100) == 4 + 12 and plan["adapted"][0][1] == 10


@pytest.mark.costly
@pytest.mark.parametrize("order", ["shuffled", "poisson"])
def test_noise_of_an_epsilon(order):
    """Each client has the noise of its own steps and rate; all spend what was asked for."""
    result = swept(order)
    for setting, wanted in enumerate((1.0, 4.0)):
        found, noise = result.epsilons(setting), result.privacy["noise"][setting]
        assert (found <= wanted).all() and (found > 0.995 * wanted).all()
        every_batch = noise_for_each(wanted, 1e-3, [[Release(1.0, 3)]])[0]
        np.testing.assert_allclose(noise[1], every_batch, 1e-3)
        assert noise[1] > noise[3]  # rate 0.4, nine steps
    said = "Poisson sampling" if order == "poisson" else "fixed minibatches accounted as Poisson"
    assert said in repr(result) and said in result.table()


@pytest.mark.costly
def test_absent_clients_spend_less():
    federation = toy_federation(**SINGLE, dp_epsilon=2.0, participation=0.4)
    result = pfl.simulate(make("fedavg"), federation, 3, seeds=(0, 1), eval_every=3)
    found = result.epsilons()
    came = result.clients["participated"][:, 0].sum(axis=1)
    assert (found[came < 3] < 1.9).all() and (found <= 2.0).all() and (found[came == 0] == 0).all()


@pytest.mark.costly
def test_clip_and_noise_are_swept_in_one_program():
    federation = toy_federation(**SINGLE, dp_noise=1.0)
    noises, clips = (0.0, 2.0, 4.0), (1.0, 0.5, 0.5)
    settings = [{"dp_noise": a, "dp_clip": b} for a, b in zip(noises, clips, strict=True)]
    algorithm, plain = make("fedavg"), adapted()
    result = pfl.simulate(algorithm, federation, 2, settings=settings)
    np.testing.assert_allclose(
        result.clients["train_loss"][0, 1], plain.clients["train_loss"][0, 0, :2], 1e-5
    )
    with count_compilations() as compiled:
        other = [{name: value + 1 for name, value in one.items()} for one in settings]
        pfl.simulate(algorithm, federation, 2, settings=other)
    assert not compiled
    with pytest.raises(pfl.InputError, match="one of dp_noise and dp_epsilon"):
        pfl.simulate(algorithm, federation, 2, settings={"dp_noise": [1.0], "dp_epsilon": [1.0]})
    with pytest.raises(pfl.InputError, match="dp_noise must be a finite number in"):
        pfl.simulate(algorithm, federation, 2, settings={"dp_noise": [-1.0]})
    with pytest.raises(pfl.InputError, match=r"'dp_noise' needs dp='client' or 'sample'"):
        pfl.simulate(algorithm, toy_federation(), 2, settings={"dp_noise": [1.0]})


def test_a_saved_result_says_what_it_cost(tmp_path):
    result = swept("shuffled")
    tables = result.table("personalized"), result.table("personalized", "plain")
    for text in (*tables, repr(result)):
        assert "sample-level differential privacy with epsilon 1 at delta 0.001" in text
    assert "Epsilon" in tables[0]
    result.save(tmp_path)
    spent = json.loads((tmp_path / "result.json").read_text())["privacy"]["guarantees"]
    assert [one["unit"] for one in spent] == ["sample", "sample"]
    assert spent[0]["epsilon"] <= 1.0 < spent[1]["epsilon"] <= 4.0
    again = pfl.Result.load(tmp_path)
    assert again.privacy == result.privacy and again.table() == result.table()


@pytest.mark.parametrize(
    ("delta", "unit", "said"),
    [
        (0.099, "sample", False),
        (0.1, "sample", True),
        (0.19, "client", False),
        (0.2, "client", True),
    ],
)
def test_a_delta_that_publishes_one_of_n_is_named(delta, unit, said, monkeypatch):
    result = SimpleNamespace(
        privacy={"unit": unit, "delta": delta, "sizes": [0, 10, 40]},
        clients={"participated": np.zeros((2, 1, 3, 5))},
    )
    monkeypatch.setattr(privacy, "guarantee", lambda result, setting: "spent")
    first, *further = privacy.remarks(result)
    assert first == "spent"
    assert bool(further) == said
    if said:
        assert f"not below 1/{10 if unit == 'sample' else 5}" in further[0]
