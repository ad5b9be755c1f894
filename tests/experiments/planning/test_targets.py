"""Targets: names, facts, and what is said where something is missing."""

import re
from dataclasses import replace

import pytest

from experiments.planning import targets


def test_target_names():
    one, four = targets.parse("v5e"), targets.parse("V5E:2X2")
    assert one.single and not four.single
    assert targets.parse("v5e:1x1") == replace(one, name="v5e:1x1")
    assert one.chip is four.chip
    assert (one.topology, four.topology) == ("2x2", "2x2")
    assert targets.parse("h100:8").topology == "8"
    for name in ("v5e:2x2", "v5e:4x8", "v6e:2x2", "v2:2x2", "h100", "h200", "a100", "a100-40gb"):
        targets.parse(name)
        assert name in targets.names()


@pytest.mark.parametrize("chip", targets.chips().values(), ids=lambda chip: chip.name)
def test_facts_of_chips(chip):
    """Everything has a source; only TPUs have a clock; what a GPU is described by is its own."""
    assert chip.source and chip.memory > 2**32
    assert (chip.clock is not None) == (chip.platform == "tpu") == (chip.bandwidth is not None)
    assert (chip.description is not None) == (chip.platform == "gpu")
    if chip.description:
        text = (targets.FOLDER / chip.description).read_text()
        whole = int(re.search(r"device_memory_size: (\d+)", text)[1])
        assert chip.memory == 3 * whole // 4
        said = re.search(r'device_description_str: "(.*)"', text)[1]
        assert all(part.upper() in said for part in chip.name.split("-"))
        assert text.startswith("#") and "NVIDIA" in text.partition("gpu_device_info")[0]
