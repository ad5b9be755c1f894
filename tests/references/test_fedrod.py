"""FedRoD's reference: both losses, both heads, who keeps what."""

import numpy as np
import pytest

from tests.references import fedavg, fedrod, network
from tests.references.local_sgd import sgd
from tests.references.small import (
    CLASSES,
    COUNT,
    EVERYBODY,
    PARTIAL,
    RATES,
    SIZES,
    assert_same,
    defaults,
    differences,
    flat,
)


def generic(of_client):
    """A personalized model without its personal head."""
    return {layer: leaves for layer, leaves in of_client.items() if layer != "personal_head"}


def other_head(seed=6):
    return network.random_parameters(np.random.default_rng(seed), 5, 6, CLASSES)["head"]


def without_class(setting, client, missing):
    """The setting in which a client has no sample of a class, and its samples and offset."""
    own = setting["clients"][client]["samples"]
    y = setting["y"].copy()
    y[own[y[own] == missing]] = (missing + 1) % CLASSES
    y[own[0]] = (missing + 2) % CLASSES  # more than one class is left
    return {**setting, "y": y}, own, fedrod.log_counts(y[own], CLASSES)


# ------------------------------------------------------------------ the losses


def test_counts_of_classes():
    np.testing.assert_allclose(
        fedrod.log_counts(np.array([0, 2, 2, 2]), 4), [0, -np.inf, np.log(3), -np.inf]
    )


@pytest.mark.parametrize("missing", [None, 1])
def test_balanced_loss_and_its_gradient(setting, missing):
    own = setting["clients"][3]["samples"]
    offset = fedrod.log_counts(setting["y"][own], CLASSES)
    if missing is not None:
        setting, own, offset = without_class(setting, 3, missing)
    x, y, like = setting["x"][own], setting["y"][own], setting["initial"]
    loss, gradient = fedrod.generic_loss(like, x, y, offset)
    # Each class's exponential counts as often as the class occurs.
    counts = np.bincount(y, minlength=CLASSES)
    powers = counts * np.exp(network.logits(like, x))
    shares = powers / powers.sum(axis=1, keepdims=True)
    np.testing.assert_allclose(loss, -np.log(shares[np.arange(len(y)), y]).mean(), rtol=1e-13)

    def at(vector):
        return fedrod.generic_loss(network.unflat(vector, like), x, y, offset)[0]

    np.testing.assert_allclose(flat(gradient), differences(at, flat(like)), rtol=1e-6, atol=1e-9)
    if missing is not None:
        assert counts[missing] == 0
        assert not gradient["head"]["kernel"][:, missing].any()
        assert gradient["head"]["bias"][missing] == 0.0


def test_personal_loss_and_its_gradient(setting):
    own = setting["clients"][3]["samples"]
    x, y, like, head = setting["x"][own], setting["y"][own], setting["initial"], other_head()
    loss, gradient = fedrod.personal_loss(like, head, x, y)
    joint = {**like, "head": network.add({"head": like["head"]}, {"head": head})["head"]}
    np.testing.assert_allclose(loss, network.loss_and_gradient(joint, x, y)[0], rtol=1e-13)

    def at(vector):
        moved = network.unflat(vector, {"head": head})["head"]
        return fedrod.personal_loss(like, moved, x, y)[0]

    numeric = differences(at, flat({"head": head}))
    np.testing.assert_allclose(flat({"head": gradient}), numeric, rtol=1e-6, atol=1e-9)


def test_one_step_by_hand_takes_both_gradients_at_the_same_point(setting):
    """The personal loss moves nothing but the personal head, and sees the model before the step."""
    batch = setting["clients"][3]["samples"][:5]
    x, y, like, head = setting["x"], setting["y"], setting["initial"], other_head()
    offset = fedrod.log_counts(y[setting["clients"][3]["samples"]], CLASSES)
    model, own = fedrod.train_client(like, head, [batch], x, y, 0.3, offset)

    def balanced(vector):
        model = network.unflat(vector, like)
        return fedrod.generic_loss(model, x[batch], y[batch], offset)[0]

    def both(vector, model=like):
        moved = network.unflat(vector, {"head": head})["head"]
        return fedrod.personal_loss(model, moved, x[batch], y[batch])[0]

    start, first = flat(like), flat({"head": head})
    np.testing.assert_allclose(flat(model), start - 0.3 * differences(balanced, start), atol=1e-9)
    wanted = first - 0.3 * differences(both, first)
    np.testing.assert_allclose(flat({"head": own}), wanted, atol=1e-9)
    late = first - 0.3 * differences(lambda v: both(v, model), first)
    assert np.abs(wanted - late).max() > 1e-3


# ------------------------------------------------------------------ the rounds


@pytest.mark.parametrize("cohorts", [EVERYBODY, PARTIAL])
def test_with_equal_counts_the_generic_model_is_fedavgs(setting, cohorts):
    y, clients = setting["y"].copy(), []
    for client in setting["clients"]:
        own = client["samples"]
        y[own] = np.arange(len(own)) % CLASSES
        clients.append({"samples": own[: len(own) // CLASSES * CLASSES]})
    common = {**setting, "cohorts": cohorts, "y": y, "clients": clients}
    for models, expected in zip(fedrod.run(**common), fedavg.run(**common), strict=True):
        assert_same(models["global"], expected["global"])


def test_with_unequal_counts_it_is_not(setting):
    after, expected = fedrod.run(**setting)[-1], fedavg.run(**setting)[-1]
    assert np.abs(flat(after["global"]) - flat(expected["global"])).max() > 1e-3


def test_personal_heads_do_not_reach_the_server(setting):
    """Heads of zeros that don't learn leave the balanced FedAvg, in every client's model."""
    zero = {name: 0.0 * leaf for name, leaf in setting["initial"]["head"].items()}
    still = fedrod.run(**setting, personal_initial=zero, personal_rate=0.0)
    for models, others in zip(still, fedrod.run(**setting), strict=True):
        assert_same(models["global"], others["global"])
        for i in range(COUNT):
            assert_same(generic(models["personalized"][i]), models["global"])
            assert not flat({"head": models["personalized"][i]["personal_head"]}).any()
            assert (others["personal_heads"][i]["kernel"] != 0).any()


def test_a_round_by_hand(setting):
    (after,) = fedrod.run(**{**setting, "rounds": 1, "cohorts": [[1, 3]]})
    x, y, trained = setting["x"], setting["y"], {}
    for i in (1, 3):
        offset = fedrod.log_counts(y[setting["clients"][i]["samples"]], CLASSES)
        model, own = fedrod.train_client(
            setting["initial"],
            setting["initial"]["head"],
            setting["batches"][0][i],
            x,
            y,
            RATES[0],
            offset,
        )
        trained[i] = model
        assert_same(generic(after["trained"][i]), model)
        assert after["personalized"][i]["personal_head"] is after["personal_heads"][i]
        assert_same({"head": after["personal_heads"][i]}, {"head": own})
    total = SIZES[1] + SIZES[3]
    mean = (SIZES[1] * flat(trained[1]) + SIZES[3] * flat(trained[3])) / total
    np.testing.assert_allclose(flat(after["global"]), mean, rtol=1e-12)


def test_absent_clients_keep_their_heads_and_get_the_new_model(setting):
    heads = [setting["initial"]["head"]] * COUNT
    for cohort, models in zip(PARTIAL, fedrod.run(**{**setting, "cohorts": PARTIAL}), strict=True):
        for i in range(COUNT):
            assert (models["personal_heads"][i] is heads[i]) == (i not in cohort)
            assert_same(generic(models["personalized"][i]), models["global"])
        heads = models["personal_heads"]
    (nobody,) = fedrod.run(**{**setting, "rounds": 1, "cohorts": [[]]})
    assert nobody["global"] is setting["initial"] and nobody["trained"] == {}


def test_classes_are_counted_in_the_training_split_not_in_the_batches(setting):
    """A loader that drops its last batch would miss samples, as in a published code."""
    fewer = [[own[:1] for own in of_round] for of_round in setting["batches"]]
    (after,) = fedrod.run(**{**setting, "rounds": 1, "batches": fewer})
    seen = [{"samples": own[0]} for own in fewer[0]]
    (counted,) = fedrod.run(**{**setting, "rounds": 1, "batches": fewer, "clients": seen})
    assert np.abs(flat(after["global"]) - flat(counted["global"])).max() > 1e-3


def test_a_client_of_one_sample_learns_nothing_generic(setting):
    """One class is left in its softmax, so its balanced loss is 0 whatever the model is."""
    clients = [{"samples": np.array([7])}, *setting["clients"][1:]]
    batches = [[[np.array([7])], *of_round[1:]] for of_round in setting["batches"]]
    alone = {**setting, "clients": clients, "batches": batches, "cohorts": [[0]] * 3}
    after = fedrod.run(**alone)[-1]
    np.testing.assert_array_equal(flat(after["global"]), flat(setting["initial"]))
    assert (after["personal_heads"][0]["bias"] != setting["initial"]["head"]["bias"]).any()


def test_one_client_trains_alone(setting):
    common = {**setting, "cohorts": [[2]] * 3}
    y = setting["y"].copy()
    own = setting["clients"][2]["samples"][:4]
    y[own] = np.arange(4)  # equal counts: plain cross-entropy
    common = {**common, "y": y, "clients": [{"samples": own}] * COUNT}
    model = setting["initial"]
    for t, models in enumerate(fedrod.run(**common)):
        model = sgd(model, setting["batches"][t][2], setting["x"], y, RATES[t])
        assert_same(models["global"], model)


def test_defaults_are_those_of_the_specification():
    assert defaults(fedrod.run) == {"personal_initial": None, "personal_rate": 1.0}
