"""Given initial values: of trees and files, matched by path and by PyTorch's names."""

import jax.numpy as jnp
import numpy as np
import pytest

import fedjax_pfl as pfl
from fedjax_pfl.models.mlp import MLP
from fedjax_pfl.models.weight_files import read_safetensors
from tests.federation.given_values import assert_given, federation, initial, safetensors, values


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


def test_what_matched_and_what_not_is_said():
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
        ({"head/bias": np.ma.masked_array(np.ones(3), [0, 1, 0])}, "'head/bias' .* without a mask"),
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
    with pytest.warns(UserWarning, match="takes the first seed's of 2 global models") as given:
        one = federation(initial_model=tmp_path / "models.npz", partial=True)
    assert given[0].filename.endswith("given_values.py")  # the user's line, not the library's
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


def test_names_of_layers_are_given(tmp_path):
    """Of a file whose order of layers is lost, and of values under Flax's names."""
    turned, names = values(), {"out": "head", "into": "fc_0"}
    state = {f"model.out.{name}": value for name, value in
             {"weight": turned["head/kernel"].T, "bias": turned["head/bias"]}.items()}  # fmt: skip
    state |= {"model.into.weight": turned["fc_0/kernel"].T, "model.into.bias": turned["fc_0/bias"]}
    path = safetensors(tmp_path / "torch.safetensors", {n: np.array(x) for n, x in state.items()})
    given = [path, state, {name.replace("fc_0", "into").replace("head", "out"): x
                           for name, x in turned.items()}]  # fmt: skip
    for one in given:
        made = federation(initial_model=one, names=names)
        assert_given(made, turned)
        assert made.initial_match.drawn == made.initial_match.unused == ()
    with pytest.raises(
        pfl.InputError, match=r"Unknown layer of initial_model 'inot'. Did you mean"
    ):
        federation(initial_model=given[2], names={"inot": "fc_0"})
    for wrong, message in (
        ({"into": 3}, "names must be texts, the names of the network's layers"),
        ("into", "names must be a dict such as"),
    ):
        with pytest.raises(pfl.InputError, match=message):
            federation(initial_model=given[2], names=wrong)
    with pytest.raises(pfl.InputError, match="names must be absent without initial_model"):
        federation(names=names)


def test_layers_that_a_file_gives_in_no_order_are_named(tmp_path):
    layers = {"later": 1.0, "earlier": 2.0}
    state = {f"{name}.weight": np.full((5, 5), x, np.float32) for name, x in layers.items()}
    state |= {"a.weight": np.ones((5, 4), np.float32), "z.weight": np.ones((3, 5), np.float32)}
    options = {"model": MLP(3, (5, 5, 5))}
    path = safetensors(tmp_path / "torch.safetensors", state)
    with pytest.raises(pfl.InputError, match="'earlier' and 'later' have the same shape, and a sa"):
        federation(initial_model=path, partial=True, **options)
    names = {"a": "fc_0", "later": "fc_2", "earlier": "fc_1", "z": "head"}
    made = federation(initial_model=path, partial=True, names=names, **options)
    assert_given(made, {"fc_1/kernel": state["earlier.weight"].T})


def test_integers_are_no_weights():
    given = values() | {"head/bias": np.ones(3, np.int8)}
    message = "initial_model at 'params/head/bias' must be floating-point numbers, got 'int8'"
    with pytest.raises(pfl.InputError, match=message):
        federation(initial_model=given)


@pytest.mark.costly
def test_pfllibs_cnn_in_a_file_is_matched_whole(tmp_path):
    """Its `fc` is the last layer, and not this network's hidden layer of that name."""
    shapes = {
        "conv1.0": (16, 1, 3, 3),
        "conv2.0": (32, 16, 3, 3),
        "fc1.0": (64, 128),
        "fc": (10, 64),
    }
    state = {f"{layer}.weight": np.full(shape, 0.1, np.float32) for layer, shape in shapes.items()}
    state |= {f"{layer}.bias": np.ones(shape[0], np.float32) for layer, shape in shapes.items()}
    data = pfl.load_dataset("digits")
    partition = pfl.make_partition("iid", data, 3, seed=0)
    path = safetensors(tmp_path / "pfllib.safetensors", dict(sorted(state.items())))
    one = pfl.federate(data, partition, "cnn", initial_model=path)
    assert str(one.initial_match) == "8 of 8 leaves given (13,706 of 13,706 numbers)"
    half = {name: value.astype(np.float16) for name, value in state.items()}
    made = initial(pfl.federate(data, partition, "cnn", initial_model=half))
    np.testing.assert_array_equal(made["head"]["kernel"], np.full((64, 10), np.float16(0.1)))
