"""Seeds: every random choice is a pure function of where it stands.

A seed derives from the run seed and the names of the place (step, task, simulator, sample, turn, role), so
that one episode can be replayed alone and no choice depends on how many were made before it.
"""

from __future__ import annotations

import hashlib

import numpy as np


def derive_seed(*parts: int | str) -> int:
    """Return a seed in [0, 2**63) that depends on every part and on their order.

    Parts are hashed with their type, so that `derive_seed(1, "2")` differs from `derive_seed("1", 2)`.
    """
    digest = hashlib.blake2b(digest_size=8)
    for part in parts:
        kind = b"i" if isinstance(part, int) else b"s"
        payload = str(part).encode()
        digest.update(kind + len(payload).to_bytes(4, "big") + payload)
    return int.from_bytes(digest.digest(), "big") >> 1


def generator(*parts: int | str) -> np.random.Generator:
    """Return a NumPy generator (PCG64) seeded by `derive_seed(*parts)`."""
    return np.random.default_rng(derive_seed(*parts))
