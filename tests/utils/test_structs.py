"""Structs of different classes are different nodes of a pytree, and so have programs of their own.

JAX's own dataclass nodes compare equal across classes (jaxlib 0.10), and jit then now and then
takes the one's compiled program for the other.
"""

import importlib
import itertools
import pkgutil
from contextlib import nullcontext
from dataclasses import fields
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import fedjax_pfl as pfl
from fedjax_pfl.testing.toys import toy_federation
from fedjax_pfl.utils import structs

MANY = 80  # of as many empty dataclasses about ten got another's program


def every_dataclass() -> dict[type, object]:
    """One of each of the package's dataclasses, every field of it 0: only its class tells which."""
    result = {}
    for module in pkgutil.walk_packages(pfl.__path__, "fedjax_pfl."):
        for value in vars(importlib.import_module(module.name)).values():
            if isinstance(value, type) and "__dataclass_fields__" in vars(value):
                result[value] = object.__new__(value)
                for field in fields(value):
                    object.__setattr__(result[value], field.name, 0)
    return result


def is_leaf(node: object) -> bool:
    return jax.tree.structure(node) == jax.tree.structure(0)


def test_no_two_structs_are_the_same_node():
    result = {cls: node for cls, node in every_dataclass().items() if not is_leaf(node)}
    assert set(pfl.core.ALGORITHMS.values()) < set(result)
    assert pfl.Federation in result and pfl.training.WeightDistribution in result
    for one, other in itertools.combinations(result, 2):
        nodes = jax.tree.structure(result[one]), jax.tree.structure(result[other])
        assert nodes[0] != nodes[1], f"{one.__name__} and {other.__name__}"


def test_no_two_static_values_are_equal():
    """Tasks, schedules, optimizers and the like, which are part of a program by `==`."""
    result = {cls: node for cls, node in every_dataclass().items() if is_leaf(node)}
    statics = [field.name for field in fields(pfl.Federation) if field.metadata.get("static")]
    federation = toy_federation(dtype="float32")
    used = {type(getattr(federation, name)) for name in statics}
    used -= {int, str, bool, type(None), tuple}
    assert used <= set(result)  # no named tuples, which are equal across classes
    for one, other in itertools.combinations(result, 2):
        assert result[one] != result[other], f"{one.__name__} and {other.__name__}"


def test_no_two_algorithms_are_the_same_node_under_their_defaults():
    for one, other in itertools.combinations(pfl.core.ALGORITHMS, 2):
        nodes = [jax.tree.structure(pfl.make_algorithm(name)) for name in (one, other)]
        assert nodes[0] != nodes[1], f"{one} and {other}"


@pytest.mark.parametrize("values", [(1, 1.0), (1, True), (0.0, False), ((1, 2), (1, 2.0))])
def test_equal_values_of_other_types_are_other_programs(values):
    @pfl.core.struct
    class One:
        fixed: object = pfl.core.static()

    first, second = map(jax.tree.structure, map(One, values))
    assert values[0] == values[1] and first != second
    assert first == jax.tree.structure(One(values[0]))


def test_a_struct_comes_back_from_its_leaves():
    @pfl.core.struct
    class Mixed:
        name: str = pfl.core.static()
        first: object
        size: int = pfl.core.static()
        second: object

    node = Mixed("a", {"x": 1.0}, 3, 2.0)
    leaves, structure = jax.tree.flatten(node)
    assert leaves == [1.0, 2.0]
    assert jax.tree.unflatten(structure, leaves) == node
    paths = [jax.tree_util.keystr(path) for path, _ in jax.tree_util.tree_leaves_with_path(node)]
    assert paths == [".first['x']", ".second"]
    assert jax.tree.map(lambda x: 2 * x, node) == Mixed("a", {"x": 2.0}, 3, 4.0)


@pytest.mark.costly
def test_jit_never_takes_the_program_of_another_class():
    @jax.jit
    def number(node):
        return jnp.float32(node.number)

    def made(k):
        return structs.struct(type(f"Empty{k}", (), {"number": k}))

    nodes = [made(k)() for k in range(MANY)]
    assert [int(number(node)) for node in nodes] == list(range(MANY))
    assert [int(number(node)) for node in nodes] == list(range(MANY))


def test_a_field_of_a_state_without_its_axes_is_named():
    with pytest.raises(TypeError, match=r"State\.count must say which axes are client axes"):

        @pfl.core.struct
        class State:
            count: int = 0
            models: dict = pfl.core.per_client()

    with pytest.raises(TypeError, match=r"Other\.models must say which axes"):

        @pfl.core.struct
        class Other:
            models: dict = pfl.core.per_client
            server: dict = pfl.core.per_server()


@structs.struct
class Ranged:
    rate: float = structs.number(default=0.5, allowed="in (0, 1]")
    share: float = structs.number(default=0.5, allowed="in [0, 1)")
    weight: float = structs.number(default=1.0, allowed="at least 0")
    scale: float = structs.number(default=1.0, allowed="above 0")
    epochs: int | None = structs.static(default=None, allowed="at least 1")


@structs.struct
class OtherDefault(Ranged):
    weight: float = 2.0


@pytest.mark.parametrize(
    ("name", "outside", "ends"),
    [
        ("rate", (0, 1.01), (1e-6, 1)), ("share", (-0.01, 1), (0, 0.99)),
        ("epochs", (0,), (1, None)),
        ("weight", (-1e-6, jnp.nan), (0, 7)), ("scale", (0, -1), (1e-9,)),
    ],
)  # fmt: skip
def test_check_ranges(name, outside, ends):
    for cls in (Ranged, OtherDefault):
        for value in ends:
            structs.check_ranges(cls(**{name: value}))
        for value in outside:
            with pytest.raises(
                pfl.InputError, match=f"{name} must be (in|at least|above) .*, got "
            ):
                structs.check_ranges(cls(**{name: value}))


@structs.struct
class Dependent:
    kind: str = structs.static(default="plain")
    names: Any = structs.static(default=None)
    ranks: Any = structs.static(default=None)
    rate: float = structs.number(default=0.5, needs="kind='fast' or kind='slow'")
    width: int = structs.static(default=1, needs=("kind='fast'", "names or ranks"))


@structs.struct
class OtherRate(Dependent):
    rate: float = 0.1


@pytest.mark.parametrize("cls", [Dependent, OtherRate])
@pytest.mark.parametrize(
    ("values", "refusal"),
    [
        ({}, None),
        ({"rate": 0.2}, "rate of it must be absent without kind='fast' or kind='slow', got 0.2"),
        ({"rate": 0.2, "kind": "slow"}, None),
        ({"width": 2, "names": "a"}, "width of it must be absent without kind='fast', got 2"),
        ({"width": 2, "kind": "fast"}, "width of it must be absent without names or ranks, got 2"),
        ({"width": 2, "kind": "fast", "ranks": {}}, "absent without names or ranks"),
        ({"width": 2, "kind": "fast", "names": np.zeros(0)}, "absent without names or ranks"),
        ({"width": 2, "kind": "fast", "ranks": np.zeros(2)}, None),
        ({"width": 2, "kind": "fast", "names": 0}, None),
    ],
)
def test_check_needs(cls, values, refusal):
    with nullcontext() if refusal is None else pytest.raises(pfl.InputError, match=refusal):
        structs.check_needs(cls(**values), " of it")


def test_a_range_that_is_none():
    for allowed in ("at leat 0", "in 0..1", ">= 0"):
        with pytest.raises(TypeError, match="allowed must read"):
            structs.number(default=1.0, allowed=allowed)
