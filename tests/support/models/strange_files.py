"""Files of strangers: what is valid, with some bytes flipped, cut out, put in or repeated."""

import contextlib
import random
import struct

from hypothesis import given, settings
from hypothesis import strategies as st

from mirror_rt.errors import MirrorError


def check_any_change(path, read, *others):
    """Assert that a valid file is read, and that changes of it are, or raise one of our errors."""
    read(path)
    content = path.read_bytes()

    @settings(max_examples=400)
    @given(st.integers(0, 2**63), st.binary(max_size=20))
    def check(seed, prefix):
        path.write_bytes(prefix * (seed % 5 == 0) + mutated(content, seed))
        with contextlib.suppress(MirrorError, *others):
            read(path)

    check()


def mutated(content, seed):
    generator, changed = random.Random(seed), bytearray(content)
    for _ in range(generator.randint(1, 6)):
        place = generator.randrange(len(changed) + 1)
        kind = generator.choice(["flip", "cut", "insert", "repeat", "number"])
        if kind == "flip" and place < len(changed):
            changed[place] ^= 1 << generator.randrange(8)
        elif kind == "cut":
            del changed[place : place + generator.randint(1, 20)]
        elif kind == "insert":
            changed[place:place] = generator.choice([
                b"\0", b"\n", b'"', b"[" * 50, b"{" * 50, b"9" * 30, b"\xff\xfe", b",", b"\t" * 9,
                b"-1", b"1e999", b"NaN", b"|", b"=", generator.randbytes(8),
            ])  # fmt: skip
        elif kind == "repeat":
            changed[place:place] = changed[place : place + 30] * generator.randint(1, 50)
        elif place + 8 <= len(changed):
            changed[place : place + 8] = struct.pack("<q", generator.choice([-1, 0, 2**31, 2**62]))
    return bytes(changed)
