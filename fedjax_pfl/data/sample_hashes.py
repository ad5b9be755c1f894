"""Hashes of single samples, by which a file can say which samples it was made from."""

import hashlib

import numpy as np


def sample_hashes(samples: np.ndarray) -> np.ndarray:
    """Return the first 64 bits of a hash of each stored sample, uint64 [n].

    A sample that is stored otherwise, such as resized or scaled, has another hash.

    Args:
      samples: [n, ...].
    """
    rows = np.ascontiguousarray(samples, samples.dtype.newbyteorder("<")).reshape(len(samples), -1)
    digests = b"".join(hashlib.blake2b(row.tobytes(), digest_size=8).digest() for row in rows)
    return np.frombuffer(digests, "<u8").astype(np.uint64)
