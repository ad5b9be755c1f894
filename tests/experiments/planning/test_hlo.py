"""Texts of compiled programs are read."""

import pytest

from experiments.planning import hlo
from tests.experiments.planning.programs import line


def read(text):
    (one,) = hlo.parse(f"ENTRY %main (a: f32[]) -> f32[] {{\n{text}\n}}").computations["main"]
    return one


def test_instruction():
    one = read(line("fusion.3", "fusion", cycles=12, calls="%fused_computation.4"))
    assert (one.name, one.kind, one.cycles) == ("fusion.3", "fusion", 12)
    assert one.shape == "f32[4,8]{1,0:T(8,128)}"
    assert one.scope == "jit(f)"
    assert one.attribute("calls") == "fused_computation.4"
    assert one.attribute("body") is None
    assert read(line("a", "add")).cycles == 0


@pytest.mark.parametrize(
    ("kind", "shape", "size"),
    [
        ("all-reduce", "f32[3,5]{1,0:T(8,128)S(1)}", 60),
        ("all-reduce", "(f32[3]{0}, /*index=1*/bf16[5]{0})", 22),
        ("all-gather-start", "(f32[3]{0}, f32[12]{0})", 48),
        ("collective-permute-start", "(s8[7]{0}, s8[7]{0}, u32[]{:S(2)}, u32[]{:S(2)})", 7),
        ("all-reduce-start", "(f32[3]{0}, f32[2]{0})", 20),
        ("all-reduce", "pred[]", 1),
    ],
)
def test_bytes_of_a_result(kind, shape, size):
    assert read(line("x", kind, shape)).result_bytes == size
