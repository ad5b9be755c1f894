"""Leaf plans: blocks, heads, what is shared; and federations whose clients keep leaves."""

import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np
import pytest

import fedjax_pfl as pfl
from fedjax_pfl import InputError
from fedjax_pfl.aggregation.leaf_plan_of_model import leaf_plan
from fedjax_pfl.aggregation.sharing import SharedLayers, describe_rule
from fedjax_pfl.testing.toys import assert_close, run_rounds, toy_federation
from fedjax_pfl.utils.trees import join


class Normed(nn.Module):
    """Linear, batch-norm, linear."""

    @nn.compact
    def __call__(self, x, train=False):
        x = nn.Dense(5, name="first")(x)
        x = nn.BatchNorm(use_running_average=not train, name="norm")(x)
        return nn.Dense(3, name="second")(x)


def shapes(module, inputs=(1, 4)):
    return jax.eval_shape(lambda: module.init(jax.random.key(0), jnp.zeros(inputs)))


PATHS = (
    "batch_stats/norm/mean",
    "batch_stats/norm/var",
    "params/first/bias",
    "params/first/kernel",
    "params/norm/bias",
    "params/norm/scale",
    "params/second/bias",
    "params/second/kernel",
)


def flags(**options):
    """Which of PATHS are shared, as a string of 0 and 1."""
    return "".join(str(int(s)) for s in leaf_plan(shapes(Normed()), **options).shared)


def test_blocks_sizes_and_head():
    plan = leaf_plan(shapes(Normed()), batch_norm="affine_shared")
    assert plan.paths == PATHS
    assert plan.sizes == (5, 5, 5, 20, 5, 5, 3, 15)
    assert plan.blocks == ("norm", "first", "second") and plan.num_blocks == 3
    assert plan.block_of == (0, 0, 1, 1, 0, 0, 2, 2)
    assert plan.head == "second"
    assert plan.num_parameters == 53
    # The running statistics stay with the clients and do not travel:
    np.testing.assert_array_equal(plan.shared_block_sizes(), [10, 25, 18])


@pytest.mark.parametrize(
    ("batch_norm", "share", "wanted"),
    [
        ("affine_shared", "all", "00111111"),
        ("shared", "all", "11111111"),
        ("local", "all", "00110011"),
        ("affine_shared", "none", "00000000"),
        ("shared", "none", "00000000"),
        ("affine_shared", "head", "00000011"),
        ("affine_shared", "body", "00111100"),
        ("shared", "body", "11111100"),
        ("local", "body", "00110000"),
    ],
)
def test_what_is_shared(batch_norm, share, wanted):
    assert flags(batch_norm=batch_norm, share=share) == wanted


def test_groups_and_their_parts():
    plan = leaf_plan(shapes(Normed()))
    stages = plan.grouped("stages")
    np.testing.assert_array_equal(plan.groups_of_blocks(stages), [0, 0, 1])
    model = jax.tree.unflatten(jax.tree.structure(shapes(Normed())), range(8))
    for by, wanted in (
        ("blocks", {0: [4, 5], 1: [2, 3], 2: [6, 7]}),
        ("stages", {0: [2, 3, 4, 5], 1: [6, 7]}),
        ("tensor", {i: [i] for i in range(2, 8)}),
    ):
        parts = plan.compared_parts(by, model, model)
        assert {g: jax.tree.leaves(one) for g, (one, _) in parts.items()} == wanted
        assert all(one == other for one, other in parts.values())
    head = leaf_plan(shapes(Normed()), share="head")
    assert list(head.compared_parts("blocks", model)) == [2]


def test_top_shared_blocks():
    plan = leaf_plan(shapes(Normed()), share=lambda path: "norm" not in path)
    np.testing.assert_array_equal(plan.shared_blocks, [False, True, True])
    scores = jnp.array([[0.9, 0.1, 0.2], [0.9, 0.5, 0.5], [0.0, 0.3, 0.1]])
    one = plan.top_shared_blocks(scores, 1)
    np.testing.assert_array_equal(one, [[0, 0, 1], [0, 1, 0], [0, 1, 0]])
    np.testing.assert_array_equal(plan.top_shared_blocks(scores, 0), np.zeros((3, 3)))
    np.testing.assert_array_equal(plan.top_shared_blocks(scores, 9), [[0, 1, 1]] * 3)


def test_a_predicate_decides_leaf_by_leaf():
    assert flags(share=lambda path: path.endswith("kernel")) == "00010001"
    assert flags(share=lambda path: True, batch_norm="local") == "00110011"


def test_split_join_uploaded_and_head_mask():
    model = Normed().init(jax.random.key(0), jnp.zeros((1, 4)))
    plan = leaf_plan(model, share="body", batch_norm="shared")
    shared, private = plan.split(model)
    assert private["params"]["first"]["bias"] is None
    assert shared["params"]["second"]["kernel"] is None
    assert_close(join(shared, private), model, "joined", 0)
    uploaded = plan.trainable_shared(model)
    assert [leaf.shape for leaf in jax.tree.leaves(uploaded)] == [(5,), (4, 5), (5,), (5,)]
    mask = plan.head_mask(model)
    assert jax.tree.leaves(mask) == [False] * 6 + [True] * 2
    memory = {"seen": jnp.zeros(2)}  # a collection that the plan does not have
    assert plan.head_mask({**model, "memory": memory}) == {**mask, "memory": {"seen": False}}


def test_a_block_named_head_is_the_head():
    tree = {"params": {"head": {"w": jnp.zeros(2)}, "zoom": {"w": jnp.zeros(3)}}}
    assert leaf_plan(tree).head == "head"
    assert leaf_plan(tree, head="zoom").head == "zoom"
    nested = {"params": {"net": {"a": {"w": jnp.zeros(2)}, "b": {"w": jnp.zeros(3)}}}}
    assert leaf_plan(nested).blocks == ("net/a", "net/b")
    assert leaf_plan(nested, head="net/a", share="head").shared == (True, False)


def test_lists_of_layers_and_flat_dicts():
    layers = {"params": [(jnp.zeros((4, 5)), jnp.zeros(5)), (jnp.zeros((5, 3)), jnp.zeros(3))]}
    plan = leaf_plan(layers)
    assert plan.blocks == ("0", "1") and plan.head == "1" and plan.sizes == (20, 5, 15, 3)
    flat = leaf_plan({"params": {"bias": jnp.zeros(3), "kernel": jnp.zeros((4, 3))}})
    assert flat.blocks == ("bias", "kernel") and flat.num_parameters == 15


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"share": "bodi"}, "Unknown pattern of layers 'bodi'. Did you mean 'body'"),
        ({"batch_norm": "locals"}, "Unknown batch-norm policy 'locals'. Did you mean 'local'"),
        ({"head": "secnd"}, "Unknown block for the head 'secnd'. Did you mean 'second'"),
    ],
)
def test_errors(options, message):
    with pytest.raises(InputError, match=message):
        leaf_plan(shapes(Normed()), **options)


def test_a_model_without_leaves_is_refused():
    with pytest.raises(InputError, match="at least one array"):
        leaf_plan({"params": {}})


def plan_of(module):
    """The plan of a federation, which knows the order in which a network makes its layers."""
    return toy_federation(model=module, dtype="float32").plan


def test_the_head_of_eleven_layers_is_the_last_one():
    class Deep(nn.Module):
        @nn.compact
        def __call__(self, x):
            for _ in range(10):
                x = nn.Dense(4)(x)
            return nn.Dense(3)(x)

    assert plan_of(Deep()).head == "Dense_10"


def test_the_head_is_the_last_layer_whatever_its_name():
    class Named(nn.Module):
        @nn.compact
        def __call__(self, x):
            return nn.Dense(3, name="fc_out")(nn.Dense(5, name="stem")(x))

    plan = plan_of(Named())
    assert (plan.blocks, plan.head) == (("stem", "fc_out"), "fc_out")


def leaves(tree):
    return jax.tree.leaves(tree)


@pytest.mark.costly
def test_sharing_nothing_is_local_training(double_precision):
    federation = toy_federation(share="none", validation_size=0)
    states, records = run_rounds(pfl.make_algorithm("fedavg"), federation)
    alone, scored = run_rounds(pfl.make_algorithm("local"), toy_federation(validation_size=0))
    for state, wanted in zip(states, alone, strict=True):
        assert not leaves(state.server)
        assert_close(state.private, wanted.models, "private models", 1e-12)
    name = "personalized/test/loss"
    np.testing.assert_allclose(records[-1]["scores"][name], scored[-1]["scores"][name], 1e-12)
    assert not federation.plan.shared_block_sizes().any()


@pytest.mark.parametrize("share", [object, lambda path: 1 / 0])
def test_a_rule_of_ones_own_that_does_not_run(share):
    with pytest.raises(InputError, match="share must take the path of a leaf, 'batch_stats/norm/"):
        leaf_plan(shapes(Normed()), share=share)


@pytest.mark.parametrize(
    ("answer", "said"), [(3, "3"), (None, "None"), ("no", "'no'"), (np.ones(2), r"\[1\.0, 1\.0\]")]
)
def test_a_rule_of_ones_own_says_true_or_false(answer, said):
    said = f"^share must return True or False, got {said} for 'batch_stats/norm/mean'\\.$"
    with pytest.raises(InputError, match=said):
        leaf_plan(shapes(Normed()), share=lambda path: answer)
    assert all(leaf_plan(shapes(Normed()), share=lambda path: np.True_).chosen)


class Grouped(nn.Module):
    """Layers with and without normalization, a module of two layers, a head that is not last."""

    @nn.compact
    def __call__(self, x, train=False):
        def norm(name):
            return nn.BatchNorm(use_running_average=not train, name=name)

        class Block(nn.Module):
            @nn.compact
            def __call__(self, x):
                return nn.Dense(5, name="b")(nn.Dense(5, name="a")(x))

        x = norm("norm_0")(nn.Dense(5, name="stem")(norm("before")(x)))
        x = nn.Dense(5, name="zoom")(Block(name="block")(x))
        return nn.Dense(3, name="head")(x)


LAYERS = (("before", "stem", "norm_0"), ("block/a", "block/b"), ("zoom",), ("head",))


def test_layers_are_modules_in_the_networks_order():
    plan = plan_of(Grouped())
    assert plan.layers == (("before",), ("stem", "norm_0"), *LAYERS[1:])
    assert plan.normalized == {"before", "norm_0"}
    nested = {"params": {"net": {"a": {"w": jnp.zeros(2)}, "b": {"w": jnp.zeros(3)}}}}
    assert leaf_plan(nested).layers == (("net/a",), ("net/b",))
    deeper = {"params": {"net": {k: {"c": {"w": jnp.zeros(2)}} for k in "xyz"}}}
    assert leaf_plan(deeper).layers == (("net/x/c",), ("net/y/c",), ("net/z/c",))
    assert leaf_plan({"params": {"w": jnp.zeros(2)}}).layers == (("w",),)
    inner = {"conv": {"w": jnp.zeros(2)}}
    stages = leaf_plan({"params": {k: {"block": inner} for k in "abc"}})
    assert stages.layers == (("a/block/conv",), ("b/block/conv",), ("c/block/conv",))


@pytest.mark.parametrize(
    ("rule", "words", "wanted"),
    [
        (SharedLayers(last=1), "the last layer", {"head"}),
        (SharedLayers(last=2), "the last 2 layers", {"zoom", "head"}),
        (SharedLayers(first=2), "the first 2 layers", {"before", "stem", "norm_0"}),
        (
            SharedLayers(last=2, others=True),
            "all but the last 2 layers",
            {"before", "stem", "norm_0", "block/a", "block/b"},
        ),
        (SharedLayers(first=1, last=1), "the first layer and the last layer", {"before", "head"}),
        (SharedLayers(last=9, others=True), "all but the last 9 layers", set()),
        (SharedLayers(), "no layer", set()),
        (SharedLayers(others=True), "all layers", set(sum(LAYERS, ()))),
    ],
)
def test_rules_that_count_layers(rule, words, wanted):
    plan = plan_of(Grouped()).with_share(rule)
    blocks = {plan.blocks[b] for b, on in zip(plan.block_of, plan.chosen, strict=True) if on}
    assert str(rule) == words and blocks == wanted


def test_a_rule_that_counts_takes_whole_numbers():
    with pytest.raises(InputError, match=r"SharedLayers\.last must be .* at least 0, got -1"):
        SharedLayers(last=-1)


def test_an_algorithm_has_a_rule_and_the_user_the_last_word():
    plan = leaf_plan(shapes(Normed()))
    assert plan.chosen is None and plan.shared == leaf_plan(shapes(Normed()), share="all").shared
    body = plan.with_defaults("body", "shared")
    assert body == leaf_plan(shapes(Normed()), share="body", batch_norm="shared")
    assert body.with_defaults("head", "local") == body
    for rule, words in (("all", "all layers"), ("none", "no layer"), ("body", "the body")):
        assert describe_rule(plan.with_share(rule)) == words
    assert describe_rule(plan.with_share(lambda path: "first" in path)) == "first"
