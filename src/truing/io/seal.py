"""A seal: the SHA-256 of a file, kept inside it where the readers of its format do not look.

It stands at the end of an `.npz` as the zip's comment, and before the footer of a Parquet or Arrow file. A program
that writes all of such a file anew drops it; one that changes a part, as zip tools do, keeps it and breaks it. The
digits count as absent in the sum, and words on either side of them tell a damaged seal from none.
"""

import hashlib
import re
from os import SEEK_END
from typing import BinaryIO

BEFORE, AFTER = b"truing-sha256:", b":truing-sealed"
DIGITS = 2 * hashlib.sha256().digest_size
BLANK = BEFORE + b"0" * DIGITS + AFTER

# How far from a file's end its seal is looked for: only the footer of a table comes after it.
TAIL_BYTES = 2**22
CHUNK_BYTES = 2**20


def seal(file: BinaryIO) -> None:
    """Fill in the blank seal near the end of a file that is open for reading and writing."""
    start, tail = _tail(file)
    digits = start + tail.rindex(BLANK) + len(BEFORE)
    found = _sum_without(file, digits)
    file.seek(digits)
    file.write(found.encode())


def check_seal(file: BinaryIO, path: object) -> None:
    """Refuse a file that is not as it was when sealed. One without a seal passes: it is not ours."""
    start, tail = _tail(file)
    # The last is the seal: those before it stand in what the file holds.
    seals = list(re.finditer(BEFORE + rb"([0-9a-f]{%d})" % DIGITS + AFTER, tail))
    if not seals:
        if BEFORE in tail or AFTER in tail:
            raise ValueError(f"{path} is damaged: its checksum is not whole")
    elif _sum_without(file, start + seals[-1].start(1)) != seals[-1][1].decode():
        raise ValueError(f"{path} is damaged: its checksum does not match its contents")
    file.seek(0)


def _tail(file: BinaryIO) -> tuple[int, bytes]:
    start = max(0, file.seek(0, SEEK_END) - TAIL_BYTES)
    file.seek(start)
    return start, file.read()


def _sum_without(file: BinaryIO, digits: int) -> str:
    """Return the SHA-256 of all but the seal's digits, which start at `digits`."""
    found = hashlib.sha256()
    file.seek(0)
    left = digits
    while left and (chunk := file.read(min(left, CHUNK_BYTES))):
        found.update(chunk)
        left -= len(chunk)
    file.seek(digits + DIGITS)
    while chunk := file.read(CHUNK_BYTES):
        found.update(chunk)
    return found.hexdigest()
