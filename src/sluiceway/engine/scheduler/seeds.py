"""The seeds of the choices of one request, derived from the seed that the request brings."""

from __future__ import annotations

import hashlib

_MASK = (1 << 64) - 1


def seed_of_choice(seed: int, choice: int) -> int:
    """Returns the seed of a choice: that of choice 0 is the request's own, those of others are 64 bits of a hash.

    The seed is an integer of 64 bits, signed or unsigned. A sum would not do in place of a hash: with `seed + choice`
    two requests with neighbouring seeds share all their choices but one.
    """
    if choice == 0:
        return seed
    material = (seed & _MASK).to_bytes(8, "little") + choice.to_bytes(8, "little")
    return int.from_bytes(hashlib.blake2b(material, digest_size=8, person=b"choice").digest(), "little")
