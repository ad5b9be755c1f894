"""Given initial values: of trees and files, matched by path; and leaves that are kept once."""

import json

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import fedjax_pfl as pfl
from fedjax_pfl.engine.arguments import checked_program
from fedjax_pfl.models.weight_files import read_safetensors
from fedjax_pfl.testing.toys import (
    OverflowingNormed,
    assert_close,
    run_rounds,
    states_of,
    toy_federation,
)
from fedjax_pfl.utils import keys

SHAPES = {"fc_0/kernel": (4, 5), "fc_0/bias": (5,), "head/kernel": (5, 3), "head/bias": (3,)}


def federation(**options):
    return toy_federation(**{"dtype": "float32", "validation_size": 0} | options)


def values(*names, rng=None):
    rng = rng or np.random.default_rng(3)
    return {name: rng.normal(size=SHAPES[name]).astype(np.float32) for name in names or SHAPES}


def safetensors(path, arrays, **damage):
    """Writes a file as the format's description says."""
    header, content = {"__metadata__": {"format": "np"}}, b""
    for name, array in arrays.items():
        kind = "BF16" if array.dtype == jnp.bfloat16 else f"F{8 * array.itemsize}"
        end = len(content) + array.nbytes
        at = [len(content), end]
        header[name] = {"dtype": kind, "shape": list(array.shape), "data_offsets": at} | damage
        content += array.tobytes()
    text = json.dumps(header).encode()
    path.write_bytes(len(text).to_bytes(8, "little") + text + content)
    return path


def initial(federation, seed=0):
    return federation.initial_model(keys.derive(jax.random.key(seed), "init"))["params"]


def assert_given(federation, wanted):
    model = initial(federation)
    for name, value in wanted.items():
        layer, leaf = name.split("/")
        np.testing.assert_array_equal(model[layer][leaf], value)


@pytest.mark.costly
def test_trees_and_files_give_the_same(tmp_path):
    wanted = values()
    nested: dict = {"params": {"fc_0": {}, "head": {}}}
    for name, value in wanted.items():
        layer, leaf = name.split("/")
        nested["params"][layer][leaf] = jnp.asarray(value)
    np.savez(tmp_path / "whole.npz", **{f"params/{name}": v for name, v in wanted.items()})
    dotted = {name.replace("/", "."): value for name, value in wanted.items()}
    for given in (
        nested,
        nested["params"],
        str(tmp_path / "whole.npz"),
        safetensors(tmp_path / "whole.safetensors", dotted),
    ):
        one = federation(initial_model=given)
        assert_given(one, wanted)
        assert str(one.initial_match) == "4 of 4 leaves given (43 of 43 numbers)"
        assert one.same_initial_model


def test_what_matched_and_what_not_is_said(tmp_path):
    given = values("fc_0/kernel", "fc_0/bias") | {
        "head/kernel": np.zeros((5, 10)),
        "norm/scale": np.ones(5),
    }
    with pytest.raises(pfl.InputError, match=r"fits the network only in part: 2 of 4 .* partial=T"):
        federation(initial_model=given)
    one = federation(initial_model=given, partial=True)
    assert str(one.initial_match) == (
        "2 of 4 leaves given (25 of 43 numbers); drawn, as none is given: params/head/bias; "
        "drawn, as the shapes differ: params/head/kernel [5, 10] for [5, 3]; given, but not in the "
        "network: norm/scale"
    )
    assert_given(one, values("fc_0/kernel", "fc_0/bias"))
    drawn = initial(federation())["head"]["kernel"]
    np.testing.assert_array_equal(initial(one)["head"]["kernel"], drawn)
    assert not one.same_initial_model


def test_half_precision_is_read(tmp_path):
    given = {"head.bias": np.asarray([1, -2.5, 3], jnp.bfloat16)}
    path = safetensors(tmp_path / "half.safetensors", given)
    assert_given(federation(initial_model=path, partial=True), {"head/bias": [1, -2.5, 3]})


@pytest.mark.parametrize(
    ("given", "message"),
    [
        (3, r"initial_model must be a model \(a dict of arrays\), or .*, got 'int'"),
        ({}, "initial_model must be a model"),
        ({"head": {"bias": 1}}, "initial_model at 'head/bias' must be an array, got 'int'"),
        ({"head/bias": np.array(["a", "b", "c"])}, "initial_model at 'head/bias' must be numbers"),
        (
            {"head/bias": np.array([1, np.nan, 0])},
            "must be finite in float32, got 'NaN",
        ),
        ({"head/bias": np.array([1, 1e300, 0])}, "must be finite in float32"),
        ({"top": np.zeros(3)}, "Nothing of initial_model fits the network's params/fc_0/bias, .*"),
        (
            {"head/bias": np.zeros(3), "params": {"head": {"bias": np.zeros(3)}}},
            "initial_model must be given once, got 'params/head/bias'",
        ),
        ("absent.npz", "No file absent.npz"),
        ("absent.safetensors", "absent.safetensors can't be read"),
        ("model.pt", "initial_model can't be 'model.pt', as reading a pickle runs code"),
        ("model.h5", "initial_model must be a file NAME.npz or NAME.safetensors, got 'model.h5'"),
    ],
)
def test_what_can_not_be_an_initial_model(given, message):
    with pytest.raises(pfl.InputError, match=message), np.errstate(over="ignore"):
        federation(initial_model=given)


@pytest.mark.parametrize(
    "damage",
    [
        {"dtype": "F128"},
        {"shape": [4, 6]},
        {"shape": [-1, -20]},
        {"data_offsets": [0, 10**9]},
        {"data_offsets": [80, 0]},
        {"shape": "wide"},
        {"shape": None},
        {"shape": [float("inf")]},
        {"shape": [2**63, 2**63]},
        {"data_offsets": [0, float("inf")]},
    ],
)
def test_damaged_safetensors_are_refused(damage, tmp_path):
    path = safetensors(tmp_path / "bad.safetensors", values("fc_0/kernel"), **damage)
    with pytest.raises(
        pfl.InputError, match=r"bad.safetensors can't be read as a safetensors file"
    ):
        read_safetensors(path)
    path.write_bytes(path.read_bytes()[:40])
    with pytest.raises(pfl.InputError, match=r"can't be read as a safetensors file: .*header"):
        read_safetensors(path)


def test_of_a_runs_models_the_global_one_is_taken(tmp_path):
    bias, kernel = np.arange(6.0).reshape(2, 3), np.arange(40.0).reshape(2, 4, 5)
    models = {
        "global": pfl.Broadcast({"params": {"head": {"bias": bias}}}),
        "backbone": pfl.Broadcast({"params": {"fc_0": {"kernel": kernel}}}),
        "personalized": {"params": {"head": {"bias": np.ones((2, 5, 3))}}},
    }
    pfl.save_models(tmp_path / "models.npz", models)
    one = federation(initial_model=tmp_path / "models.npz", partial=True)
    assert_given(one, {"head/bias": bias[0], "fc_0/kernel": kernel[0]})
    assert one.initial_match.unused == ()
    pfl.save_models(tmp_path / "own.npz", {"personalized": models["personalized"]})
    with pytest.raises(pfl.InputError, match="holds models of single clients, and no global one"):
        federation(initial_model=tmp_path / "own.npz")


def test_ifca_needs_models_that_differ():
    ifca = pfl.make_algorithm("ifca")
    with pytest.raises(pfl.InputError, match="ifca begins with different models"):
        pfl.Simulation(ifca, federation(initial_model=values())).check()
    pfl.Simulation(ifca, federation(initial_model=values("fc_0/kernel"), partial=True)).check()


@pytest.mark.costly
def test_frozen_layers_are_in_no_model():
    one = federation(freeze="fc_*")
    assert one.plan.blocks == ("head",) and one.plan.num_parameters == 18
    assert one.num_frozen == 25 and federation().num_frozen == 0
    record = run_rounds(pfl.make_algorithm("fedavg"), one, 1)[1][0]
    assert record["up"].shape[-1] == 1  # one block travels


@pytest.mark.costly
def test_training_is_that_of_leaves_that_do_not_move():
    """Of those an algorithm may freeze, which stay in every model; the suite holds them."""
    with jax.enable_x64(True):
        kept = federation(freeze="fc_0", dtype="float64", momentum=0.5, participation=0.6)
        whole = federation(dtype="float64", momentum=0.5, participation=0.6).with_frozen("body")
        local = pfl.make_algorithm("local")
        for mine, other in zip(states_of(local, kept), states_of(local, whole), strict=True):
            assert list(mine.models["params"]) == ["head"]
            assert_close(mine.models["params"]["head"], other.models["params"]["head"], "heads")


@pytest.mark.costly
def test_frozen_layers_are_kept_once_for_each_seed():
    frozen = federation(freeze="fc_0", test_sizes=(0,) * 5)
    result = pfl.simulate(pfl.make_algorithm("local"), frozen, 1, seeds=(0, 5))
    backbone = result.final.backbone()
    for k, seed in enumerate((0, 5)):
        whole = initial(federation(), seed)["fc_0"]
        assert_close(jax.tree.map(lambda x, k=k: x[k], backbone["params"]["fc_0"]), whole, "", 0)
    assert jax.tree.map(np.shape, result.final.models())["personalized"]["params"] == {
        "head": {"bias": (2, 5, 3), "kernel": (2, 5, 5, 3)}
    }
    # Of 43 parameters, for 5 clients and 2 seeds.
    program = checked_program(pfl.make_algorithm("local"), federation(freeze="fc_0"))
    assert program.held().state == 4 * 5 * 18


@pytest.mark.costly
@pytest.mark.parametrize("name", ["fedrod", "apfl", "moon", "fedproto", "pfedhn", "fedbabu"])
def test_other_tasks_are_made_of_what_is_left(name):
    one = federation(freeze="fc_0", compute_dtype="bfloat16")
    if name == "fedbabu":  # freezes the head: nothing would be left
        with pytest.raises(pfl.InputError, match="this network is only a head"):
            pfl.Simulation(pfl.make_algorithm(name), one).lower(jax.local_devices()[:1])
    else:
        pfl.Simulation(pfl.make_algorithm(name), one).lower(jax.local_devices()[:1])


def test_a_frozen_head_has_no_personal_one_beside_it():
    with pytest.raises(pfl.InputError, match="A frozen head can't have a personal one beside it"):
        pfl.Simulation(pfl.make_algorithm("fedrod"), federation(freeze="head")).check()


@pytest.mark.costly
def test_frozen_statistics_stay_too():
    one = federation(model=OverflowingNormed(3, (5,)), freeze="fc_0,bn")
    assert one.plan.paths == ("params/head/bias", "params/head/kernel")
    backbone = jax.eval_shape(lambda: one.with_backbone(jax.random.key(0)).backbone)
    assert set(backbone) == {"params", "batch_stats"}
    pfl.Simulation(pfl.make_algorithm("fedavg"), one).lower(jax.local_devices()[:1])


@pytest.mark.costly
def test_new_clients_have_frozen_layers():
    trained, new = pfl.split_new_clients(federation(freeze="fc_0", initial_model=values()), 2)
    result = pfl.simulate(pfl.make_algorithm("fedavg"), trained, 1)
    scores = pfl.score_new_clients(result.final, new, steps=(1,))
    assert scores.shape == (1, 1, 1, 2) and 0 <= scores[0, 0, 0, 0] <= 1


@pytest.mark.parametrize(
    ("rule", "message"),
    [
        ("conv", "Unknown pattern of layers 'conv'. .*Valid: all, body, fc_0, head"),
        ("fc_0,conv_*", r"Unknown pattern of layers 'conv_\*'"),
        ("fc_0,head", "fc_0,head can't be frozen: nothing of the model would be trained"),
        ("all", "all can't be frozen"),
    ],
)
def test_patterns_are_checked(rule, message):
    with pytest.raises(pfl.InputError, match=message):
        federation(freeze=rule)


def torch_values():
    """As PyTorch names and lays out `values`, and counts batches."""
    turned = values()
    layers = {"net.0": "fc_0", "net.2": "head"}
    state = {f"{there}.weight": turned[f"{here}/kernel"].T for there, here in layers.items()}
    state |= {f"{there}.bias": turned[f"{here}/bias"] for there, here in layers.items()}
    return {name: np.ascontiguousarray(value) for name, value in state.items()}


def test_values_under_pytorchs_names_are_converted(tmp_path):
    state = torch_values()
    for given in (state, safetensors(tmp_path / "torch.safetensors", state)):
        one = federation(initial_model=given)
        assert_given(one, values())
        assert str(one.initial_match) == "4 of 4 leaves given (43 of 43 numbers)"
    other = state | {
        "net.2.weight": np.zeros((9, 5)),
        "net.2.bias": np.zeros(9),
        "scale": np.ones(3),
    }
    match = str(federation(initial_model=other, partial=True).initial_match)
    assert "net.2.bias [9] for params/head/bias [3], net.2.weight [9, 5] for params/h" in match
    assert "none is given" not in match
    assert match.endswith("given, but not in the network: scale")


def test_kernels_with_pytorchs_axes_are_refused():
    turned = {"fc_0.kernel": values()["fc_0/kernel"].T, "head.bias": values()["head/bias"]}
    allowed = r"initial_model at 'fc_0.kernel' has the shape \[5, 4\], PyTorch's order of axes"
    with pytest.raises(pfl.InputError, match=allowed):
        federation(initial_model=turned)


@pytest.mark.costly
def test_axes_that_shapes_do_not_tell_are_named():
    data = pfl.load_dataset("digits")
    partition = pfl.make_partition("iid", data, 3, seed=0)
    kernels = {"fc_0.kernel": np.eye(64), "head.kernel": np.zeros((64, 10))}
    one = pfl.federate(data, partition, "mlp", initial_model=kernels, partial=True)
    assert one.initial_match.unclear == ("params/fc_0/kernel",)
    text = "taken in Flax's order, channels last, which shapes can't confirm: params/fc_0/kernel"
    assert str(one.initial_match).endswith(text)
    flat = {"fc.kernel": np.zeros((128, 64))}  # behind 2x2 pixels of 32 channels
    one = pfl.federate(data, partition, "cnn", initial_model=flat, partial=True)
    assert one.initial_match.unclear == ("params/fc/kernel",)


def test_single_numbers_in_a_file_of_a_run(tmp_path):
    np.savez(
        tmp_path / "m.npz", **{"axes/global": "seed", "global/params/head/bias": np.float32(1)}
    )
    with pytest.raises(
        pfl.InputError, match=r"'global/params/head/bias' in .* must be one model for"
    ):
        federation(initial_model=tmp_path / "m.npz")
