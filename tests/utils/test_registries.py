"""Names of registries: who may take one, and who may take it again."""

import pytest

import fedjax_pfl as pfl
from fedjax_pfl.utils.registries import registering


def made():
    def function():
        return 1

    return function


def test_a_name_is_taken_once_and_defined_again_by_its_own_module():
    rows = {}
    first, again = made(), made()
    assert registering("thing", rows, "a")(first) is first
    registering("thing", rows, "a", lambda one: (one,))(again)  # a notebook's cell, run twice
    assert rows == {"a": (again,)}
    with pytest.raises(pfl.InputError, match="The thing 'a' is registered already, by another"):
        registering("thing", rows, "a")(len)
    assert rows == {"a": (again,)}
    for name in ("", " ", 3):
        with pytest.raises(pfl.InputError, match="name of the thing must be text"):
            registering("thing", rows, name)
    with pytest.raises(pfl.InputError, match="thing 'b' must be a function, got 'int'"):
        registering("thing", rows, "b")(3)


@pytest.mark.parametrize(
    ("register", "what"),
    [
        (pfl.data.register_rule("iid"), "partition rule 'iid'"),
        (pfl.data.register_dataset("digits", "mine"), "data set 'digits'"),
        (pfl.models.register_model("mlp"), "model 'mlp'"),
        (pfl.training.register_optimizer("sgd"), "optimizer 'sgd'"),
    ],
)
def test_names_of_the_package_are_not_overwritten(register, what):
    with pytest.raises(pfl.InputError, match=f"The {what} is registered already"):
        register(made())
