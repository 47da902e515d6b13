"""Results made to hurt. Imports nothing, for a child reads this too."""

ITEMS = 1 << 18
BYTES = 4 << 20
MERSENNE = (1 << 61) - 1  # ints have their hash modulo this


def full(token: bytes) -> bytes:
    """A list of as many as items and bytes allow."""
    count = min(ITEMS - 1, (BYTES - 20) // max(1, len(token) - 3))
    return b'["l",%d]\n' % count + token * count


def colliding(sets: int, size: int) -> bytes:
    """Sets of ints of one hash value."""
    tokens = b"".join(b'["i","%x"]\n' % (MERSENNE * (number + 8)) for number in range(size))
    return b'["l",%d]\n' % sets + (b'["S",%d]\n' % size + tokens) * sets


# Named by the issue first: "100 MB result against a 4 MB limit; colliding ints; [[],[],...".
TEXTS = {
    "100 MB of text": lambda: b'"' + b"x" * 100_000_000 + b'"\n',
    "100 MB of items": lambda: b'["l",50000000]\n' + b"0\n" * 50_000_000,
    "colliding ints": lambda: colliding(1, 150_000),
    "colliding ints, 64 each": lambda: colliding(2_300, 64),
    "raw [[],[],...": lambda: b"[" + b"[]," * (BYTES // 3 - 1) + b"[]]\n",
    "raw [[[[...": lambda: b"[" * (BYTES // 2) + b"]" * (BYTES // 2 - 1) + b"\n",
    "empty lists": lambda: full(b'["l",0]\n'),
    "empty sets": lambda: full(b'["S",0]\n'),
    "empty dicts": lambda: full(b'["d",0]\n'),
    "small ints": lambda: full(b"0\n"),
    "decimals": lambda: full(b'["D","1.5"]\n'),
    "paths": lambda: full(b'["P","YQ=="]\n'),
    "times": lambda: full(b'["ti","03:04:05",0,"+1"]\n'),
    "promised items": lambda: b'["l",4611686018427387904]\n' + b"0\n" * 1000,
    "digits of one int": lambda: b'["i","' + b"f" * (BYTES - 100) + b'"]\n',
    "digits of one Decimal": lambda: b'["D","' + b"9" * (BYTES - 100) + b'"]\n',
}
