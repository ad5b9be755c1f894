"""The table of faults, and which tests run for one."""

import pytest

from tools import mutants


def test_every_fault_stands_once_in_its_file():
    table = mutants.faults()
    assert len(table) == len(set(table)) >= 60
    for fault in table:
        text = (mutants.ROOT / fault.file).read_text(encoding="utf-8")
        assert text.count(fault.old) == 1, fault
        assert fault.old != fault.new


def test_chosen_faults_have_ten_of_algorithms():
    every = mutants.faults()
    one, other = (mutants.chosen(every, seed) for seed in ("a", "b"))
    inside = [{f for f in some if f.file.startswith(mutants.ALGORITHMS)} for some in (one, other)]
    assert [len(some) for some in inside] == [10, 10] and inside[0] != inside[1]
    assert len(one) >= 60 and set(one) - inside[0] == set(other) - inside[1]


@pytest.mark.costly
def test_tests_of_a_file_name_it_or_its_importers():
    imports = mutants.Imports(mutants.ROOT)
    direct, further, _ = imports.tests_of("fedjax_pfl/aggregation/mixing.py")
    assert "tests/aggregation/test_mixing.py" in direct
    assert "tests/aggregation/test_robust.py" in further
    direct, *_ = imports.tests_of("fedjax_pfl/algorithms/fedamp.py")
    assert direct[0] == "tests/algorithms/test_fedamp.py"
