"""Networks: the papers' numbers of parameters, blocks and stages, and what they refuse."""

from functools import cache

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from fedjax_pfl.aggregation.leaf_plan_of_model import leaf_plan
from fedjax_pfl.models.kernels.forms import by_definition
from fedjax_pfl.models.networks import MODELS, make_model
from fedjax_pfl.models.task import EVALUATION, LinenTask
from fedjax_pfl.utils.errors import InputError
from tests.models.small import COLOUR, GREY, TEXT, TINY

LARGE = (224, 224, 3)
SMALL_TEXT = {"vocab_size": 32_000, "hidden": 32}

# (name, input, C, options, trainable parameters in all, parameters of blocks)
PAPERS = [
    ("femnist_cnn", GREY, 62, {}, 2_278_334,
     {"conv_0": 832, "conv_1": 51_264, "fc": 2_099_200, "head": 127_038}),
    ("mtfl_cnn", COLOUR, 10, {}, 1_204_874,
     {"conv_0": 896, "bn_0": 64, "conv_1": 18_496, "bn_1": 128, "fc": 1_180_160, "head": 5_130}),
    ("resnet8", TINY, 200, {}, 90_392,
     {"stem": 464, "block_0": 4_672, "block_1": 14_528, "block_2": 57_728, "head": 13_000}),
    ("lenet5", GREY, 10, {}, 61_706,
     {"conv_0": 156, "conv_1": 2_416, "fc_0": 48_120, "fc_1": 10_164, "head": 850}),
    ("lenet5_unpadded", GREY, 10, {}, 44_426, {}),
    ("dla", COLOUR, 10, {}, 16_291_386,
     {"conv": 7_472, "tree_0": 140_032, "tree_1": 1_445_376, "tree_2": 5_774_336,
      "tree_3": 8_919_040, "head": 5_130}),
    ("cnn", GREY, 10, {}, 582_026,
     {"conv_0": 832, "conv_1": 51_264, "fc": 524_800, "head": 5_130}),
    ("cnn", COLOUR, 10, {}, 878_538, {"conv_0": 2_432, "fc": 819_712}),
    ("cnn", TINY, 200, {}, 5_694_600, {"fc": (10_816 + 1) * 512, "head": 513 * 200}),
    ("spfl_cnn", GREY, 10, {}, 431_080,
     {"conv_0": 520, "conv_1": 25_050, "fc": 400_500, "head": 5_010}),
    ("spfl_cnn", COLOUR, 10, {}, 657_080, {"conv_0": 1_520, "fc": 625_500}),
    ("spfl_cnn", GREY, 10, {"hidden": 512}, 440_812, {}),
    ("plga_cnn", GREY, 10, {}, 431_080, {}),
    ("plga_cnn", COLOUR, 10, {}, 62_006, {}),
    ("pfedla_lenet", GREY, 10, {}, 85_822,
     {"conv_0": 416, "conv_1": 12_832, "fc_0": 61_560, "fc_1": 10_164, "head": 850}),
    ("pfedla_lenet_bn", COLOUR, 10, {}, 121_278,
     {"conv_0": 1_216, "bn_0": 32, "conv_1": 12_832, "bn_1": 64, "fc_0": 96_120}),
    ("pfedla_karhoutam", GREY, 10, {}, 14_210_378, {}),
    ("pfedla_karhoutam_bn", COLOUR, 10, {}, 18_146_250, {}),
    ("tfconvnet", COLOUR, 10, {}, 122_570, {"fc": 65_600}),
    ("sattler_convnet", GREY, 62, {}, 18_506, {"head": 257 * 62}),
    ("fasttext", TEXT, 4, SMALL_TEXT, 1_025_188,
     {"embedding": 1_024_000, "fc": 32 * 32 + 32, "head": 4 * 32 + 4}),
    ("textcnn", TEXT, 4, SMALL_TEXT, 1_063_904,
     {"conv_0": 9_700, "conv_1": 12_900, "conv_2": 16_100, "head": 1_204}),
    ("resnet18", LARGE, 1000, {"stem": "large"}, 11_689_512, {"stem": 9_536}),
    ("resnet18", COLOUR, 10, {}, 11_173_962,
     {"stem": 1_856, "block_0": 73_984, "block_2": 230_144, "head": 5_130}),
    ("resnet18_gn", COLOUR, 10, {}, 11_173_962, {"stem": 1_856}),
    ("vit_tiny", LARGE, 1000, {"patch": 16}, 5_717_416,
     {"embed": 147_648 + 192 + 197 * 192, "block_0": 444_864, "norm": 384, "head": 193_000}),
    ("vit_tiny", COLOUR, 10, {}, 5_362_762, {"embed": 9_408 + 192 + 65 * 192, "head": 1_930}),
    ("char_lstm", (80,), 90, {"vocab_size": 90}, 820_522,
     {"embedding": 720, "lstm_0": 271_360, "lstm_1": 525_312, "head": 23_130}),
    ("text_transformer", TEXT, 4, {"vocab_size": 32_000}, 4_915_460,
     {"embedding": 4_096_000, "positions": 25_600, "block_0": 198_272, "norm": 256, "head": 516}),
    ("mlp", (8, 8, 1), 10, {}, 64 * 64 + 64 + 650, {}),
    ("softmax", (8, 8, 1), 10, {}, 650, {"head": 650}),
]  # fmt: skip


@pytest.fixture(autouse=True)
def literal():
    """Convolutions by their definition: the same shapes, traced in half the time."""
    with by_definition():
        yield


def shapes_of(name, shape, classes, options):
    """(task, shapes of one model, shape of a batch of two); a network is traced once."""
    return _traced(name, shape, classes, **options)


@cache
def _traced(name, shape, classes, **options):
    task = LinenTask(make_model(name, shape, classes, **options))
    inputs = jax.ShapeDtypeStruct((2, *shape), jnp.int32 if "vocab_size" in options else "float32")
    return task, jax.eval_shape(task.initial_model, jax.random.key(0), inputs), inputs


def parameters_in(plan, prefix):
    """Trainable parameters of the blocks whose name begins with `prefix`."""
    return sum(
        size
        for path, size, block in zip(plan.paths, plan.sizes, plan.block_of, strict=True)
        if path.startswith("params/") and plan.blocks[block].startswith(prefix)
    )


DEEP = ("dla", "resnet8", "resnet18", "resnet18_gn", "text_transformer", "vit_tiny")


@pytest.mark.parametrize(
    ("name", "shape", "classes", "options", "total", "blocks"),
    [pytest.param(*row, marks=[pytest.mark.costly] if row[0] in DEEP else []) for row in PAPERS],
    ids=[f"{name}-{shape[0]}-{classes}-{total}" for name, shape, classes, _, total, _ in PAPERS],
)
def test_parameters_are_the_papers(name, shape, classes, options, total, blocks):
    task, model, inputs = shapes_of(name, shape, classes, options)
    plan = leaf_plan(model)
    assert plan.num_parameters == total
    assert {block: parameters_in(plan, block) for block in blocks} == blocks
    assert plan.head == "head"
    assert parameters_in(plan, "head") == sum(
        np.prod(leaf.shape) for leaf in jax.tree.leaves(model["params"]["head"])
    )
    logits, statistics, said = jax.eval_shape(
        lambda m, x: task.apply(m, x, True, jax.random.key(1), jnp.ones(2, bool)), model, inputs
    )
    assert logits.shape == (2, classes) and logits.dtype == jnp.float32
    assert jax.tree.map(jnp.shape, statistics) == {
        name: jax.tree.map(jnp.shape, model[name]) for name in model if name != "params"
    }
    assert said.shape == (2, model["params"]["head"]["kernel"].shape[0])


TRAINING = (True, jax.random.key(1), jnp.ones(2, bool))


@pytest.mark.costly
@pytest.mark.parametrize("mode", [EVALUATION, TRAINING], ids=["evaluation", "training"])
def test_the_head_of_the_features_are_the_logits(mode):
    """Operation by operation; and none of them is a convolution, which under a client axis would
    be a grouped one."""
    for name, shape, classes, options, *_ in {case[0]: case for case in PAPERS}.values():
        task, model, inputs = shapes_of(name, shape, classes, options)

        def apart(model, inputs, task=task):
            features, statistics = task.embed(model, inputs, *mode)
            return task.classify(model, features), statistics, features

        def whole(model, inputs, task=task):
            return tuple(task.outputs(model, inputs, *mode))

        programs = [jax.make_jaxpr(fn)(model, inputs) for fn in (apart, whole)]
        width = model["params"]["head"]["kernel"].shape[0]
        assert programs[1].out_avals[-1].shape == (2, width), name
        one, other = map(str, programs)
        assert one == other and "dot_general" in other, name
        assert "conv_general" not in other, name


def test_every_network_is_in_the_table():
    assert set(MODELS) == {name for name, *_ in PAPERS}


def test_batch_norms_are_blocks_of_their_own_and_bring_statistics():
    _, model, _ = shapes_of("mtfl_cnn", COLOUR, 10, {})
    plan = leaf_plan(model)
    assert set(plan.blocks) == {"conv_0", "bn_0", "conv_1", "bn_1", "fc", "head"}
    names = {p for p, b in zip(plan.paths, plan.block_of, strict=True) if plan.blocks[b] == "bn_1"}
    assert names == {
        "params/bn_1/scale", "params/bn_1/bias", "batch_stats/bn_1/mean", "batch_stats/bn_1/var"
    }  # fmt: skip
    _, model, _ = shapes_of("resnet8", TINY, 10, {})
    blocks = leaf_plan(model).blocks
    assert {"stem/conv", "stem/bn", "block_1/shortcut/conv", "block_1/second/bn"} <= set(blocks)


def test_stages_are_groups_of_blocks():
    _, model, _ = shapes_of("spfl_cnn", GREY, 10, {})
    plan = leaf_plan(model)
    stages = plan.grouped("stages")
    assert stages.blocks == ("body", "head") and stages.head == "head"
    assert stages.shared_block_sizes().tolist() == [426_070, 5_010]
    assert plan.grouped("blocks") == plan
    assert plan.grouped("model").shared_block_sizes().tolist() == [431_080]
    mine = plan.grouped(lambda block: "late" if block in ("fc", "head") else "early")
    assert mine.blocks == ("early", "late") and mine.head == "late"
    with pytest.raises(InputError, match="grouping of blocks"):
        plan.grouped("layers")


@pytest.mark.parametrize("policy", ["shared", "local", "affine_shared"])
def test_groups_keep_what_is_shared(policy):
    _, model, _ = shapes_of("mtfl_cnn", COLOUR, 10, {})
    plan = leaf_plan(model, batch_norm=policy)
    assert plan.grouped("model").shared == plan.shared


@pytest.mark.parametrize(
    ("name", "shape", "options", "sentence"),
    [
        ("lenet", GREY, {}, "Unknown model 'lenet'. Did you mean"),
        ("cnn", (64,), {}, "takes images .* of at least 4x4 pixels"),
        ("femnist_cnn", (14, 28, 1), {}, "at least 16x16 pixels"),
        ("pfedla_karhoutam", (3, 3, 1), {}, "at least 4x4 pixels"),
        ("mtfl_cnn", (9, 9, 3), {}, "at least 10x10 pixels"),
        ("spfl_cnn", GREY, {"width": 3}, "Unknown option of model 'spfl_cnn' 'width'"),
        ("cnn", COLOUR, {"hidden": 5}, "Unknown option of model 'cnn' 'hidden'.*projection"),
        (
            "cnn",
            COLOUR,
            {"projection": 0},
            "projection must be a whole number of at least 1, got 0",
        ),
        ("mlp", (200,), {"vocab_size": 9}, "takes no texts. Use 'fasttext' or 'textcnn'"),
        ("fasttext", (200,), {}, "takes texts"),
        ("textcnn", (4,), {"vocab_size": 9}, "at least 5 tokens"),
        ("resnet18", COLOUR, {"stem": "huge"}, "Unknown stem of 'resnet18' 'huge'"),
        ("resnet18_gn", COLOUR, {"groups": 3}, "groups must be a divisor of 64, got 3"),
        ("vit_tiny", (30, 30, 1), {}, "patches of 4x4, and 30x30 pixels aren't a multiple"),
        ("vit_tiny", COLOUR, {"heads": 5}, "heads must be a divisor of the 192 hidden units"),
        ("text_transformer", TEXT, {"vocab_size": 9, "heads": 3}, "a divisor of the 128 hidden"),
        (
            "text_transformer",
            TEXT,
            {"vocab_size": 9, "tied": True},
            "tied must be False unless the",
        ),
        ("char_lstm", (80,), {"vocab_size": 9, "layers": 0}, "layers must be a whole number of at"),
    ],
)
def test_networks_say_what_they_take(name, shape, options, sentence):
    with pytest.raises(InputError, match=sentence):
        make_model(name, shape, 10, **options)


def test_smallest_images_work():
    for name, size in {"femnist_cnn": 16, "mtfl_cnn": 10, "tfconvnet": 18, "lenet5": 12}.items():
        _, model, _ = shapes_of(name, (size, size, 1), 3, {})
        assert min(np.prod(leaf.shape) for leaf in jax.tree.leaves(model)) > 0
        with pytest.raises(InputError):
            make_model(name, (size - 1, size - 1, 1), 3)
