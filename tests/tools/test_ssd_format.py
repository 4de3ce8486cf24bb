"""Reads the committed cache directory with nothing but what docs/ssd-format.md says."""

import struct
from pathlib import Path
from typing import NamedTuple

import pytest

FIXTURE = Path(__file__).parents[2] / "crates/store/tests/fixtures/format-1"
BLOCK = 4096
SEGMENT_BYTES = 65536
# The largest generation is that of the segment a crash left open.
PAGES_SEALED, PAGES_OPEN = [0, 1, 2, 3, 8], [5]


class Page(NamedTuple):
    block: int
    generation: int
    sequence: int
    size: int
    crc: int
    namespace: bytes
    key: bytes
    parent: bytes | None
    depth: int
    boundary: int
    group: int
    shard: int
    shards: int


def crc64_table() -> list[int]:
    polynomial = int(f"{0xAD93D23594C93659:064b}"[::-1], 2)
    table = []
    for value in range(256):
        for _ in range(8):
            value = value >> 1 ^ (polynomial if value & 1 else 0)
        table.append(value)
    return table


TABLE = crc64_table()


def crc64(data: bytes) -> int:
    crc = 2**64 - 1
    for byte in data:
        crc = TABLE[(crc ^ byte) & 0xFF] ^ crc >> 8
    return crc ^ (2**64 - 1)


def described(block: bytes, magic: bytes) -> bytes | None:
    """A whole block of format 1, or nothing."""
    if len(block) != BLOCK or block[:8] != magic.ljust(8, b"\0"):
        return None
    if struct.unpack("<Q", block[4088:])[0] != crc64(block[:4088]):
        return None
    assert struct.unpack("<I", block[8:12])[0] == 1
    return block


def segment(number: int) -> bytes:
    """Zeros at the end are not in the fixture."""
    return (FIXTURE / f"segment-{number:06}.okv").read_bytes().ljust(SEGMENT_BYTES, b"\0")


def pages_of_footer(data: bytes, number: int, floor: int) -> list[Page] | None:
    trailer = described(data[-BLOCK:], b"OKVFOOT")
    if trailer is None:
        return None
    found, generation, first, size, crc = struct.unpack("<I4Q", trailer[12:48])
    block, blocks, entries, namespaces = struct.unpack("<4I", trailer[48:64])
    assert found == number
    assert size == len(data)
    assert (block + blocks + 1) * BLOCK == size
    assert blocks == -(-(96 * entries + 32 * namespaces) // BLOCK)
    footer = data[block * BLOCK : -BLOCK]
    if generation < floor or crc64(footer) != crc:
        return None
    table = footer[96 * entries :]
    pages = []
    for index in range(entries):
        entry = footer[96 * index : 96 * index + 96]
        key, parent, payload_crc, place, size = struct.unpack("<32s32sQII", entry[:80])
        depth, boundary, namespace, group, shard, shards = struct.unpack("<IIHHHH", entry[80:])
        if not place >> 25 & 1:
            digest = table[32 * namespace : 32 * namespace + 32]
            parent = parent if place >> 24 & 1 else None
            where = (place & 0xFFFFFF, generation, first + index, size, payload_crc)
            pages.append(Page(*where, digest, key, parent, depth, boundary, group, shard, shards))
    return pages


def page_at(data: bytes, number: int, block: int) -> Page | None:
    header = described(data[block * BLOCK : (block + 1) * BLOCK], b"OKVPAGE")
    if header is None:
        return None
    found, generation, sequence, where, size, crc = struct.unpack("<IQQIIQ", header[12:48])
    namespace, key, parent, depth, boundary = struct.unpack("<32s32s32sII", header[48:152])
    group, shard, shards, flags = struct.unpack("<4H", header[152:160])
    if (found, where) != (number, block):
        return None
    parent = parent if flags & 1 else None
    where = (block, generation, sequence, size, crc)
    return Page(*where, namespace, key, parent, depth, boundary, group, shard, shards)


def pages_of_headers(data: bytes, number: int, floor: int) -> list[Page]:
    pages, block = [], 1
    while block < len(data) // BLOCK:
        page = page_at(data, number, block)
        if page is None or page.generation < floor:
            block += 1
            continue
        pages.append(page)
        block += 1 + -(-page.size // BLOCK)
    return pages


def payload(data: bytes, page: Page) -> bytes:
    start = (page.block + 1) * BLOCK
    return data[start : start + page.size]


def number_of(page: Page) -> int:
    return struct.unpack("<Q", page.key[:8])[0]


def generation_of_head(number: int) -> int:
    head = described(segment(number)[:BLOCK], b"OKVSEGM")
    assert head is not None
    found, generation, _, size = struct.unpack("<IQQQ", head[12:40])
    assert (found, size) == (number, SEGMENT_BYTES)
    return generation


def test_the_check_value_of_the_checksum() -> None:
    assert crc64(b"123456789") == 0xAE8B14860A799888


def test_a_sealed_segment_is_read_by_its_footer_and_by_its_headers() -> None:
    data, floor = segment(0), generation_of_head(0)
    pages = pages_of_footer(data, 0, floor)
    assert pages is not None
    assert [number_of(page) for page in pages] == PAGES_SEALED
    assert pages == pages_of_headers(data, 0, floor)
    for page in pages:
        # The contents that the fixture's maker gives to a page: words that count up from its number.
        words = -(-page.size // 8)
        first = number_of(page) << 20
        want = struct.pack(f"<{words}Q", *range(first, first + words))[: page.size]
        assert payload(data, page) == want
        assert crc64(want) == page.crc
        assert (page.shards, page.group, page.shard) == (1, 0, 0)


def test_an_open_segment_has_headers_only() -> None:
    data, floor = segment(1), generation_of_head(1)
    assert pages_of_footer(data, 1, floor) is None
    assert [number_of(page) for page in pages_of_headers(data, 1, floor)] == PAGES_OPEN
    assert pages_of_headers(data, 1, floor + 1) == []


def test_the_checkpoint_and_the_owner() -> None:
    checkpoint = (FIXTURE / "checkpoint").read_bytes()
    front = described(checkpoint[:BLOCK], b"OKVCKPT")
    assert front is not None
    epoch, next_sequence, segments, forgotten, crc = struct.unpack("<IQIIQ", front[12:40])
    assert crc == crc64(checkpoint[BLOCK:])
    assert (epoch, forgotten) == (1, 0)
    lines = [struct.unpack("<IIQQQII", checkpoint[BLOCK + 40 * i :][:40]) for i in range(segments)]
    sealed, opened = lines
    assert sealed[:4] == (0, 2, generation_of_head(0), SEGMENT_BYTES)
    assert sealed[4:] == (13 * BLOCK, len(PAGES_SEALED), 1)
    assert opened[:3] == (1, 1, generation_of_head(1))
    assert next_sequence == len(PAGES_SEALED) + 1
    owner = described((FIXTURE / "owner").read_bytes(), b"OKVOWNR")
    assert owner is not None
    assert struct.unpack("<I", owner[12:16])[0] == 1


@pytest.mark.parametrize("at", [20, 100, 4000, 4095])
def test_a_damaged_header_is_no_page(at: int) -> None:
    data = bytearray(segment(0))
    data[BLOCK + at] ^= 1
    assert page_at(bytes(data), 0, 1) is None
    assert page_at(segment(0), 0, 1) is not None
