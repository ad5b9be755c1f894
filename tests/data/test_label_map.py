"""Concept shift: a label map is the same as relabelled samples, in training and in evaluation."""

from dataclasses import replace

import jax
import numpy as np
import pytest

import fedjax_pfl as pfl
from fedjax_pfl.testing.toys import assert_close, run_rounds, toy_federation


@pytest.mark.costly
def test_a_label_map_is_relabelling():
    with jax.enable_x64(True):
        plain = toy_federation()
        data = plain.data
        turned = np.array([[0, 1, 2], [1, 2, 0], [2, 0, 1], [0, 2, 1], [1, 0, 2]], np.int32)
        labels = np.array(data.labels)
        for i in range(5):
            for split in ("train", "validation", "test"):
                part = data.split(split)
                mine = np.asarray(part.index)[int(part.offset[i]) :][: int(part.size[i])]
                labels[mine] = turned[i, labels[mine]]
        mapped = replace(plain, data=replace(data, label_map=jax.numpy.asarray(turned)))
        relabelled = replace(plain, data=replace(data, labels=jax.numpy.asarray(labels)))
        algorithm = pfl.make_algorithm("fedavg")
        (states, records), (others, measured) = (
            run_rounds(algorithm, federation) for federation in (mapped, relabelled)
        )
        assert_close(states[-1], others[-1], "trained")
        assert_close(records[-1]["scores"], measured[-1]["scores"], "scored")
        unmapped, _ = run_rounds(algorithm, plain)  # the program of the relabelled samples
        moved = np.abs(jax.tree.leaves(unmapped[-1])[0] - jax.tree.leaves(states[-1])[0]).max()
        assert moved > 1e-3
