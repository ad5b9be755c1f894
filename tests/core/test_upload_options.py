"""Privacy, attacks and compression in rounds, each by itself and together."""

import sys
from dataclasses import replace

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import scipy.stats

import fedjax_pfl as pfl
from fedjax_pfl.engine.arguments import checked_program
from fedjax_pfl.engine.runs import remarks
from fedjax_pfl.testing.toys import assert_close, run_rounds, toy_federation
from fedjax_pfl.uploads.compression import TopK
from fedjax_pfl.uploads.stage import UploadStage
from tests.algorithms.norms import ConvNorm
from tests.core.upload_rounds import flat, notes_uploads, run

RATE = 0.25
ATTACKERS = [3]

pytestmark = pytest.mark.usefixtures("double_precision")


def top_k(update):
    """The largest fourth of each leaf of the toy network, in NumPy."""
    sent, at = np.zeros_like(update), 0
    for size in (5, 20, 3, 15):  # biases before kernels
        part = update[at : at + size]
        largest = np.argsort(-np.abs(part), kind="stable")[: int(np.ceil(RATE * size))]
        sent[at + largest] = part[largest]
        at += size
    return sent


SUMS = {"dp": "client", "dp_clip": 1.0, "dp_placement": "distributed"}
SECURE = SUMS | {"dp_noise": 1.0, "secure_bits": 32}
CENTRE = {"aggregator": "cclip", "aggregator_options": {"keep_centre": True}}
WARM = pfl.make_algorithm("lg_fedavg", {"warmup_rounds": 2})
FEEDBACK = {"compress": "top_k", "error_feedback": "ef"}
COMPOSED = {
    "participation": 0.6,
    "compress": "top_k",
    "compress_options": {"rate": RATE},
    "error_feedback": "ef",
    "attack": "sign_flip",
    "attackers": ATTACKERS,
    "aggregator": "median",
}


@pytest.mark.costly
@pytest.mark.parametrize("execution", ["vmap", "map"])
def test_compression_attack_and_rule_in_one_run(execution):
    errors = np.zeros((5, 43))
    for before, trained, sent, after, present, _ in run(client_execution=execution, **COMPOSED):
        for j in present:
            wanted = trained[j] - before + errors[j]
            packed = top_k(wanted)
            errors[j] = wanted - packed
            wanted = before + (-packed if j in ATTACKERS else packed)
            np.testing.assert_allclose(sent[j], wanted, atol=1e-12)
        np.testing.assert_allclose(after, np.median(sent[present], 0), atol=1e-12)
    assert TopK(RATE).bits([20], 64) == 5 * (64 + 5)


@pytest.mark.costly
def test_attackers_are_weighed_and_not_scored():
    options = COMPOSED | {"aggregator": "none", "participation": 1.0}
    federation = toy_federation((7, 3, 6, 10, 4), test_sizes=(2, 2, 2, 2, 2), **options)
    result = pfl.simulate(notes_uploads(), federation, rounds=2)
    scored = ~np.isnan(result.scores["personalized/test/accuracy"][0, 0, -1])
    assert scored.tolist() == [True, True, True, False, True]
    np.testing.assert_allclose(result.scalars["attackers_weight"], 10 / 30, rtol=1e-6)
    assert result.upload_bytes.tolist() == [
        -(-(2 * 67 + 5 * 69) // 8), -(-(1 * 66 + 4 * 68) // 8)]  # fmt: skip
    assert result.traffic()["up"].sum() == 2 * 5 * result.upload_bytes.sum()


def test_a_failed_client_counts_under_client_level_privacy():
    options = {"dp": "client", "dp_clip": 0.5, "dp_placement": "distributed", "diverging": 1}
    (before, trained, sent, after, _, record), *_ = run(1, **options)
    assert record["clients"]["diverged"].tolist() == [False, True, False, False, False]
    update = np.where(np.arange(5)[:, None] == 1, 0, trained - before)
    norms = np.linalg.norm(update, axis=1, keepdims=True).clip(1e-9)
    mean = before + np.mean(update * np.minimum(1, 0.5 / norms), axis=0)
    np.testing.assert_allclose(sent, np.tile(mean, (5, 1)), atol=1e-12)
    np.testing.assert_allclose(after, mean, atol=1e-12)


@pfl.core.struct
class AddsCounts(UploadStage):
    """Adds the numbers of members that count, and of those with samples, to every upload."""

    factors: object = (0.0, 0.0)

    def __call__(self, sent, reference, sending, memory):
        added = self.factors[0] * jnp.sum(sending.mask) + self.factors[1] * jnp.sum(
            sending.weighted
        )
        return jax.tree.map(lambda leaf: leaf + added, sent), memory


@pytest.mark.costly
def test_who_is_a_member_of_an_upload():
    """Not a failed client: attackers do not know it, and it keeps its error feedback.

    Clients without samples have no weight in a mean by sizes, so the others' noise must suffice.
    """
    made = pfl.make_algorithm("fedavg")
    federation = toy_federation((7, 0, 6, 10, 4), test_sizes=(1, 2, 3, 4, 2), diverging=4)
    servers = []
    for factors in ((0.0, 0.0), (1.0, 0.0), (0.0, 1.0)):
        counted = AddsCounts(factors)
        states, _ = run_rounds(made, replace(federation, uploads=counted), 1, scored=())
        servers.append(flat(states[1].server))
    np.testing.assert_allclose(servers[1] - servers[0], 4, atol=1e-9)
    np.testing.assert_allclose(servers[2] - servers[0], 3, atol=1e-9)


NOBODY = {"participation": 0.2, "sampling": "poisson"}  # one of five is expected, often none comes


def test_a_sum_of_nobody_has_noise():
    """Else a round without a member would reveal that no client was drawn.

    Other rounds divide the sum by the expected number of members, here one.
    """
    moved = []
    for before, _, sent, after, present, record in run(
        12, **NOBODY, **SUMS | {"dp_clip": 0.5, "dp_noise": 2.0}
    ):
        if len(present):
            total = (sent[present] - before).sum(0)
            np.testing.assert_allclose(after, before + total, atol=1e-12)
        else:
            moved.append(after - before)
            assert not record["matrices"]["mixing"].any()
    assert len(moved) > 2
    np.testing.assert_allclose(np.std(moved), 2.0 * 0.5 / (0.2 * 5), rtol=0.25)


@pytest.mark.costly
def test_numbers_of_secure_aggregation():
    """Of 51 values from -0.2 to 0.2: larger numbers are cut, others are rounded to a neighbour.

    A round of nobody keeps the model.
    """
    options = {"secure_bits": 8, "secure_options": {"span": 0.2, "levels": 50}}
    largest, empty = 0.0, 0
    for before, trained, sent, after, present, _ in run(12, **NOBODY, **options):
        updates, received = trained[present] - before, sent[present] - before
        moves = (received + 0.2) / 0.008
        np.testing.assert_allclose(moves, np.round(moves), atol=1e-6)
        assert np.abs(received - np.clip(updates, -0.2, 0.2)).max(initial=0) < 0.008
        largest, empty = max(largest, np.abs(updates).max(initial=0)), empty + (not len(present))
        if len(present):
            np.testing.assert_allclose(after, before + received.mean(0), atol=1e-12)
        else:
            np.testing.assert_array_equal(after, before)
    assert largest > 0.2 and empty > 2


@pytest.mark.costly
def test_secure_aggregation_divides_by_the_members():
    """Those that are late or have failed are not counted, as the server knows who sends."""
    federation = toy_federation(stragglers={0: 2, 1: 2}, diverging=2, secure_bits=32)
    _, records = run_rounds(pfl.make_algorithm("fedavg"), federation, 1, scored=())
    weights = records[0]["matrices"]["mixing"][0]
    np.testing.assert_allclose(weights[..., [3, 4]], 0.5)
    np.testing.assert_allclose(weights.sum(-1), 1)


@pytest.mark.costly
def test_sums_of_models_and_controls():
    """SCAFFOLD's server adds up two uploads of equal weights, each within its bound."""
    options = SUMS | {"dp_clip": 1e6, "secure_bits": 32, "participation": 0.6}
    made = pfl.make_algorithm("scaffold")
    plain, sums = (
        run_rounds(made, toy_federation((7, 3, 6, 10, 4), **one), 2, scored=())[0][-1]
        for one in ({"participation": 0.6}, options)
    )
    for name in ("server", "control"):
        gap = np.abs(flat(getattr(sums, name)) - flat(getattr(plain, name))).max()
        assert 0 < gap < 1e-4


def test_cohorts_of_poisson_sampling_are_binomial():
    part = pfl.options.ParticipationOptions(0.2, sampling="poisson").build(40)
    drawn, room = scipy.stats.binom(40, 0.2), part.cohort_size
    assert drawn.sf(room) < 1e-12 < drawn.sf(room - 1)
    draw = jax.jit(jax.vmap(lambda t: part.cohort(jax.random.key(3), t, jnp.arange(40)).mask.sum()))
    sizes = np.asarray(draw(jnp.arange(2000)))
    np.testing.assert_allclose(sizes.mean(), 8, rtol=0.05)
    np.testing.assert_allclose(sizes.var(), 40 * 0.2 * 0.8, rtol=0.12)


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"attack": "alie"}, "attack='alie' needs attackers"),
        ({"attackers": "0.2", "attack": "alie"}, "ids such as '3,7' or a share such as '20%'"),
        ({"attackers": [10**5000], "attack": "alie"}, "attacker must be a whole number"),
        ({"attackers": np.ones((1, 1)), "attack": "alie"}, "'20%', got an array"),
        ({"attackers": 3, "attack": "alie"}, "'20%', got 3"),
        ({"attackers": np.array([0.0]), "attack": "alie"}, r"'20%', got \[0\.0\]"),
        ({"attackers": "60%", "attack": "alie"}, "below 50%"),
        ({"attackers": "9", "attack": "alie"}, r"attackers must be ids of clients, got \[9\]"),
        ({"attackers": "0,1,2", "attack": "alie"}, "fewer than half of the 5 clients, got 3"),
        ({"attack_options": {"z": 1.0}}, "attack_options must be absent without attack, got"),
        (
            {"attack": "mimic", "attackers": "1", "attack_options": {"steps": 9}},
            "steps of mimic must be absent without warmup=0, got 9",
        ),
        (
            {"attack": "label_flip", "attackers": "1", "attack_options": {"seed": 9}},
            "seed of label_flip must be absent without how='random', got 9",
        ),
        (
            {"attack": "alie", "attackers": "1", "attack_options": {"zz": 1.0}},
            "option of alie 'zz'",
        ),
        (
            {"aggregator": "krum", "aggregator_options": {"f": 2}},
            "the 5 members of a round .*needs 7",
        ),
        ({"aggregator": "bulyan", "aggregator_options": {"f": 1}}, "needs 7"),
        ({"aggregator": "median", "aggregator_options": {"f": 3}}, "needs 7"),
        (
            {
                "aggregator": "krum",
                "sampling": "poisson",
                "participation": 0.9,
                "aggregator_options": {"f": 1},
            },
            "the 4 members of a round",
        ),
        ({"aggregator": "cclip", "aggregator_options": {"radius": 0}}, "radius of cclip"),
        (
            {"aggregator": "nnm", "aggregator_options": {"then": "kram"}},
            "then of nnm must be one of krum, multi_krum, rfa, .* got 'kram'",
        ),
        (
            {"aggregator": "nnm", "aggregator_options": {"then": "median", "radius": 1.0}},
            "The rule 'median' has no option radius",
        ),
        (
            {"aggregator": "self_clip", "aggregator_options": {"share": 0.2, "radius": 2.0}},
            "self_clip takes share or radius",
        ),
        ({"aggregator": "fltrust", "aggregator_options": {"root": 9}}, "root of fltrust must be"),
        ({"aggregator": "fltrust", "attack": "ipm", "attackers": "0"}, "is not an attacker, got 0"),
        ({"aggregator": "krum", "aggregator_options": [1]}, "aggregator_options must be a dict"),
        ({"compress": "top_k", "compress_options": {"rate": 2.0}}, "rate of top_k"),
        ({"compress": "qsgd", "compress_options": {"bits_per_number": 1}}, "at least 2"),
        ({"attack": "min_max", "attackers": "1", "attack_options": {"direction": "up"}}, "one of"),
        ({"error_feedback": "ef"}, "error_feedback must be absent without compress, got 'ef'"),
        ({"compress": "topkk"}, "Did you mean 'top_k'"),
        ({"dp": "client"}, "dp_clip"),
        ({"dp_adaptive_clip": True}, "dp_adaptive_clip must be absent without dp='client', got"),
        ({"dp_delta": 1e-6}, "dp_delta must be absent without dp='client' or dp='sample', got 1e"),
        ({"dp": "client", "dp_clip": 1.0, "dp_noise": float("inf")}, r"in \[0, inf\)"),
        ({"compress_options": {"rate": 0.1}}, "compress_options must be absent without compress"),
        ({"secure_bits": 8}, "wrap at 8 bits: take 25 bits"),
        ({"secure_bits": 8, "secure_options": {"levels": 100}}, "5 members with 100 levels wrap"),
        ({"secure_bits": 32, "secure_options": {"levels": 2**30}}, r"levels .* in 1\.\.16777216"),
        ({"secure_bits": 32, "secure_options": {"span": 0}}, "span of secure aggregation must be"),
        ({"secure_bits": 32, "secure_options": {"bits": 8}}, "absent: secure_bits has it"),
        (
            {"secure_bits": 32, "secure_options": {"range": 8}},
            "option of secure aggregation 'range",
        ),
        ({"secure_options": {"span": 1.0}}, "absent without secure_bits"),
        ({"attack": "backdoor", "attackers": "1"}, "images"),
        (
            {"attack": "label_flip", "attackers": "1", "attack_options": {"num_classes": 3}},
            "num_classes of label_flip must be absent: the data set has it, got 3",
        ),
        ({"sampling": "poison"}, "poisson"),
    ],
)
def test_bad_options(options, words):
    with pytest.raises(pfl.InputError, match=words):
        toy_federation(**options)


@pytest.mark.parametrize(
    ("name", "options", "words"),
    [
        ("fedavg", {"aggregator": "self_clip"}, "rule for mixing matrices, and fedavg has a mean"),
        ("ifca", {"aggregator": "foolsgold"}, "one mean of all clients"),
        ("ifca", CENTRE, "keep_centre is for algorithms with one mean"),
        ("cfl", {"aggregator": "fltrust"}, "one mean of the round's members"),
        ("feddwa", {"aggregator": "median"}, "rule for one mean, and feddwa mixes models"),
        ("scaffold", {"aggregator": "median"}, "no mean or mixing matrix"),
        ("feddwa", {"secure_bits": 32}, "needs single models, which secure_bits hides"),
        ("feddwa", SUMS, "needs single models, which dp_placement='distributed' hides"),
        ("fednova", SUMS, "one mean with equal weights, and fednova does not"),
        ("fedasync", SUMS, "one mean with equal weights, and fedasync does not"),
        ("ifca", {"dp": "client", "dp_clip": 1.0}, "the choice of a cluster beside its uploads"),
        ("fedavg", {**SUMS, "aggregator": "median"}, "A robust rule needs single uploads"),
        ("fedavg", {"secure_bits": 32, "compress": "sign"}, "can't be used with compress"),
        ("fedavg", {**SUMS, "attack": "ipm", "attackers": "1"}, "relies on the noise of all"),
        ("fedavg", {**SUMS, "dp_noise": 0.6, "dp_adaptive_clip": True}, "dp_noise must be below"),
        ("fedavg", {**SUMS, "dp_placement": "local", "dp_adaptive_clip": True}, "it needs"),
        ("fedavg", {**SUMS, "secure_bits": 32, "dp_adaptive_clip": True}, "span of secure"),
        ("fedavg", {**SECURE, "secure_options": {"span": 1.0}}, "must be at least 3.68328"),
        (
            "fedavg",
            {
                **SECURE,
                "sampling": "poisson",
                "participation": 0.5,
                "secure_options": {"span": 5.0},
            },
            "must be at least 7",
        ),
        ("fedavg", {**SUMS, "dtype": "bfloat16"}, "at least float32, got bfloat16"),
        ("fedavg", {**SUMS, "dp_strict": True, "participation": 0.6}, "take sampling='poisson'"),
        ("ifca", {"secure_bits": 32}, "a cluster beside its uploads, which secure_bits does not"),
        ("fedas", SUMS, "fedas weighs members by the Fisher information"),
        ("fedas", {"secure_bits": 32}, "fedas weighs members by the Fisher information"),
        ("ccvr", {"secure_bits": 32}, "Secure aggregation can't cover the whole numbers"),
        (
            "fedpac",
            {"dp": "client", "dp_clip": 1.0},
            "counts of samples, in the upload 'statistics'",
        ),
        ("local", SUMS, "local uploads no model here: leave dp out"),
        ("fedavg", {"share": "none", "compress": "sign"}, "uploads no model here"),
        ("fedavg", {"share": "none", "aggregator": "cclip"}, "no model here: leave aggregator out"),
        ("fedper", {"freeze": "body", "aggregator": "krum"}, "no model here: leave aggregator out"),
        ("fedproto", {"compress": "sign"}, "fedproto uploads no models"),
        ("weight_erosion", FEEDBACK, "gradients, on which error_feedback does not act: leave it"),
        (
            pfl.make_algorithm("ifca", {"averaging": "gradients"}),
            FEEDBACK,
            "ifca uploads no models here, which error_feedback could act on: leave it out",
        ),
        (WARM, FEEDBACK, "error_feedback remembers all shared layers, and lg_fedavg sends or av"),
        (WARM, {"attack": "mimic", "attackers": "1"}, "a part of them together: take warmup=0"),
        (WARM, {"aggregator": "foolsgold"}, "a part of them together: leave it out"),
        (WARM, CENTRE, "keep_centre of cclip remembers all shared layers, and lg_fedavg sends"),
        ("fedpac", {"aggregator": "foolsgold"}, "foolsgold remembers all shared layers, and fedp"),
        ("fedgc", CENTRE, "keep_centre of cclip remembers all shared layers, and fedgc sends or"),
    ],
)
def test_algorithms_that_an_option_does_not_fit(name, options, words):
    algorithm = pfl.make_algorithm(name) if isinstance(name, str) else name
    with pytest.raises(pfl.InputError, match=words):
        pfl.simulate(algorithm, toy_federation(**options), rounds=1)


LOCAL = {"dp": "client", "dp_clip": 1.0, "dp_noise": 1.0}


def test_what_client_level_privacy_does_not_refuse():
    """Sampled cohorts with noise on every upload, and statistics that stay with the clients."""
    strict = toy_federation(**LOCAL, dp_strict=True, participation=0.6)
    checked_program(pfl.make_algorithm("fedavg"), strict, 1)
    norms = {"model": ConvNorm(), **LOCAL}
    checked_program(pfl.make_algorithm("fedavg"), toy_federation(**norms, batch_norm="local"), 1)
    with pytest.raises(pfl.InputError, match="can't cover running statistics such as batch_stats"):
        shared = toy_federation(**norms, batch_norm="shared")
        checked_program(pfl.make_algorithm("fedavg"), shared, 1)


@pytest.mark.costly
@pytest.mark.parametrize(
    "options",
    [
        COMPOSED | {"dp": "client", "dp_clip": 0.5, "dp_noise": 0.1},
        SUMS | {"dp_noise": 0.1, "dp_adaptive_clip": True, "participation": 0.6},
        {"aggregator": "foolsgold", "participation": 0.6},
        CENTRE,
        {"attack": "mimic", "attack_options": {"warmup": 2}, "attackers": [3]},
    ],
)
def test_host_state_keeps_errors_and_bounds(options):
    wanted = run(**options)
    got = run(client_state="host", **options)
    for one, other in zip(got, wanted, strict=True):
        assert_close(one[:4], other[:4], "host state", 1e-12)


@pytest.mark.costly
@pytest.mark.parametrize("swept", [False, True])
def test_rounds_of_an_epsilon_are_not_continued(swept, tmp_path):
    given = {"dp_noise": 1.0} if swept else {"dp_epsilon": 2.0}
    federation = toy_federation(dp="client", dp_clip=0.5, **given)
    settings = {"dp_epsilon": [1.0, 2.0]} if swept else None
    fedavg = pfl.make_algorithm("fedavg")
    simulation = pfl.Simulation(fedavg, federation, settings=settings)
    whole = pfl.simulate(fedavg, federation, rounds=3, settings=settings)
    kept = pfl.Checkpoints(tmp_path, every_seconds=0, extendable=True)
    simulation.run(1)
    pfl.simulate(fedavg, federation, rounds=2, settings=settings, checkpoints=kept, chunk=1)
    for checkpoints in (None, kept):
        with pytest.warns(UserWarning, match="begins with the first round again"):
            parts = simulation.run(3, checkpoints=checkpoints)
        np.testing.assert_array_equal(parts.scores["personalized/test/loss"],
                                      whole.scores["personalized/test/loss"])  # fmt: skip
    assert (whole.epsilons() <= 2.0).all()


@pytest.mark.parametrize(
    ("options", "who"),
    [
        ({}, "2 attackers among 10 members"),
        ({"participation": 0.5}, "1 attacker among 5 members"),
        ({"attackers": "1,2,3"}, None),
        ({"attack_options": {"z": 0.5}}, None),
    ],
)
def test_a_remark_says_that_alie_does_nothing(options, who):
    options = {"attack": "alie", "attackers": "1,2", "dtype": "float32", **options}
    federation = toy_federation((4,) * 10, test_sizes=(1,) * 10, **options)
    common, _ = remarks(pfl.make_algorithm("fedavg"), federation, {}, 3)
    wanted = f"attackers send the honest mean, as alie's z is 0 with {who}: give z"
    assert [one for one in common if "honest" in one] == [wanted] * (who is not None)
    if who is not None:
        _, single = remarks(pfl.make_algorithm("fedavg"), federation, {"attack_z": [0.0, 1.0]}, 3)
        assert single == ((wanted,), ())


BOUNDED = {"aggregator": "norm_bound", "aggregator_options": {"radius": 1.0}}
SHARED = {"aggregator": "self_clip", "aggregator_options": {"share": 0.5}}


@pytest.mark.parametrize(
    ("name", "options", "swept", "words"),
    [
        ("fedavg", BOUNDED, "aggregator_radius", "aggregator_radius must be a finite number above"),
        ("fedavg", {}, "attack_factor", "'attack_factor' needs an attack whose option factor"),
        ("feddwa", SHARED, "aggregator_radius", "self_clip takes share or radius"),
    ],
)
def test_swept_strengths_that_can_not_be(name, options, swept, words):
    federation = toy_federation(**options)
    settings = {swept: [100.0, -1.0 if options is BOUNDED else 0.001]}
    with pytest.raises(pfl.InputError, match=words):
        pfl.Simulation(pfl.make_algorithm(name), federation, settings=settings).check()


def test_notes_have_the_strength_of_their_row():
    federation = toy_federation(
        attack="scale", attackers="1", attack_options={"factor": 5.0}, dtype="float32",
        aggregator="norm_bound", aggregator_options={"radius": 3.0},
    )  # fmt: skip
    algorithm, attacked = pfl.make_algorithm("fedavg"), "1 of 5 clients is Byzantine"
    common, single = remarks(algorithm, federation, {"attack_factor": [1.0, 0.25]}, 3)
    assert [notes[0] for notes in single] == [
        f"{attacked} (scale, factor={factor}) and is not scored" for factor in ("1", "0.25")
    ]
    assert "aggregator norm_bound, radius=3" in common
    common, _ = remarks(algorithm, federation, {}, 3)
    assert f"{attacked} (scale, factor=5) and is not scored" in common
    private = {"dp": "client", "dp_clip": 1.0, "dp_epsilon": 8.0, "compress": "qsgd"}
    common, _ = remarks(algorithm, toy_federation(**private, dtype="float32"), {}, 3)
    assert any("compressed by qsgd" in note for note in common)  # the noise is not known yet


@pytest.mark.costly
@pytest.mark.parametrize("name", ["apfl", "pfedme"])
def test_failed_clients_count_in_loops_of_their_own(name):
    options = {"dp": "client", "dp_clip": 0.5, "dp_noise": 1.0, "diverging": 1}
    made = pfl.make_algorithm(name)
    _, records = run_rounds(made, toy_federation((7, 3, 6, 10, 4), **options), 1, scored=())
    (weights,) = records[0]["matrices"].values()
    assert records[0]["clients"]["diverged"][1] and weights.reshape(-1)[1] > 0


@pytest.mark.costly
def test_noisy_fisher_information_gives_weights():
    """Of which none is negative; noise is a hundred times the bound."""
    options = {"dp": "client", "dp_clip": 0.5, "dp_noise": 100.0}
    made = pfl.make_algorithm("fedas", {"align_epochs": 0})
    _, records = run_rounds(made, toy_federation((7, 3, 6, 10, 4), **options), 3, scored=())
    weights = np.array([record["matrices"]["mixing"][0] for record in records])
    assert (weights >= 0).all() and (weights == 0).any()
    np.testing.assert_allclose(weights.sum(1), (weights > 0).any(1))


def test_privacy_needs_its_library_before_a_run(monkeypatch):
    monkeypatch.setitem(sys.modules, "dp_accounting", None)
    federation = toy_federation(dp="client", dp_clip=1.0, dp_noise=1.0)
    with pytest.raises(pfl.InputError, match=r"pip install 'fedjax_pfl\[privacy\]'"):
        pfl.simulate(pfl.make_algorithm("fedavg"), federation, rounds=1)


def test_any_client_may_attack_a_rule_without_a_trusted_one():
    options = {"attack": "ipm", "attackers": "0", "aggregator": "median"}
    assert toy_federation(**options).aggregator is not None
