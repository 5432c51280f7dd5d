"""B1: whatever bytes `decode` is given, it raises DecodeError or returns a datapoint.

It does so within bounded memory, and imports, opens and starts nothing (seen by an audit hook).

Whoever can write bytes can write a fitting checksum, so most records here are sealed with one.
"""

import math
import os
import random
import struct
import subprocess
import sys
import tracemalloc
from pathlib import Path

import google_crc32c
import msgspec
import numpy as np
import pytest
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st

from towerpack.core import codec, tree

# The header's Python objects may take a hundred times its bytes; then what any call costs.
MEMORY_FACTOR, MEMORY_FLOOR = 110, 64 * 1024

ROOT = Path(__file__).parents[2]

_events: list[str] | None = None


def _hook(event: str, arguments: object) -> None:
    if _events is not None:
        _events.append(f"{event} {arguments!r:.200}")


sys.addaudithook(_hook)  # for the life of the process: a hook cannot be removed, only kept quiet


def decode_watched(data):
    """What `decode` gives, after checking how it behaved; None for a refused record."""
    global _events
    _events = events = []
    try:
        return codec.decode(data)
    except codec.DecodeError:
        return None
    finally:
        _events = None
        # "object.__getattr__" and its like are raised by looking at a traceback, not by decoding.
        assert not [event for event in events if not event.startswith("object.")]


def decode_within_memory(data):
    tracemalloc.start()
    try:
        result = decode_watched(data)
        peak = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    assert peak <= MEMORY_FACTOR * len(data) + MEMORY_FLOOR
    return result


def seal(header: bytes, payload: bytes | None = None) -> bytes:
    """A record with this content whose lengths and checksum are right; buffers begin aligned."""
    if payload is None:
        payload = b""
    else:
        payload = bytes(-(20 + len(header)) % 64) + payload
    checked = struct.pack("<IQ", len(header), len(payload)) + header + payload
    return b"TPK1" + struct.pack("<I", google_crc32c.value(checked)) + checked


def assert_ordinary(value) -> None:
    """What was accepted is made of the codec's types alone, and survives another round."""
    for leaf in tree.leaves(value):
        assert leaf is None or isinstance(
            leaf, bool | int | float | str | bytes | np.ndarray | np.generic
        )
        assert not isinstance(leaf, np.ndarray | np.generic) or leaf.dtype.kind != "O"
        if isinstance(leaf, np.ndarray) and leaf.size < 1000:
            leaf.tolist()  # every element can be read
    encoded = codec.encode(value)
    assert codec.encode(codec.decode(encoded)) == encoded


plausible_dtypes = (
    "<f4 |u1 <U0 |S0 |V0 <U3 <M8[ns] <m8 |O O f4 <f4,<f4 V9 (2,)<f4 |V2147483647 <U2147483647 <M8[ "
    "bfloat16 int4 object <f3 {'names':['a'],'formats':['<f4']} <M8[99999999999s] b1 |b1 =i4"
)
dtype_names = st.one_of(
    st.sampled_from(plausible_dtypes.split()),
    st.text(max_size=8),
    st.none(),
    st.integers(0, 9),
)
sizes = st.one_of(
    st.integers(0, 8), st.sampled_from([-1, 2**31, 2**40, 2**62, 2**63, True, 1.0, "1", None])
)
leaves = st.one_of(
    st.none(),
    st.booleans(),
    st.integers(-(2**63), 2**64 - 1),
    st.floats(),
    st.text(max_size=8),
    st.binary(max_size=8),
    st.builds(msgspec.msgpack.Ext, st.integers(-128, 127), st.binary(max_size=12)),
    st.datetimes(),
    st.dictionaries(st.text(max_size=2), st.integers(0, 9), max_size=2),
)
nodes = st.recursive(
    st.one_of(
        leaves,
        st.tuples(
            st.just("a"), dtype_names, st.lists(sizes, max_size=70), st.sampled_from("CFA")
        ).map(list),
        st.tuples(st.just("s"), dtype_names, st.one_of(st.binary(max_size=16), leaves)).map(list),
        st.tuples(st.sampled_from("bu"), sizes).map(list),
        st.tuples(st.just("i"), st.one_of(leaves, st.text("0123456789abcdefx-_ "))).map(list),
    ),
    lambda inner: st.one_of(
        st.lists(inner, max_size=4),
        st.lists(inner, max_size=4).map(lambda rest: ["l", *rest]),
        st.lists(inner, max_size=4).map(lambda rest: ["t", *rest]),
        st.lists(inner, max_size=6).map(lambda rest: ["d", *rest]),
    ),
    max_leaves=12,
)
honest = st.recursive(
    st.one_of(
        st.none(),
        st.booleans(),
        st.integers(-(2**80), 2**80),
        st.floats(allow_nan=False),
        st.text(max_size=300),
        st.binary(max_size=300),
        st.sampled_from(
            [
                np.arange(12, dtype="<f4").reshape(3, 4),
                np.asfortranarray(np.arange(12, dtype=">i8").reshape(3, 4)),
                np.array(["ab", ""]),
                np.array("2026-11-15", "M8[D]"),
                np.zeros((0, 3), np.uint8),
                np.ndarray((2,), "<U0"),
                np.float32(1.5),
                np.str_(""),
                np.bool_(True),
            ]
        ),
    ),
    lambda inner: st.one_of(
        st.lists(inner, max_size=4),
        st.lists(inner, max_size=4).map(tuple),
        st.dictionaries(st.one_of(st.text(max_size=3), st.integers(0, 9)), inner, max_size=3),
    ),
    max_leaves=8,
)


def fuzz(max_examples: int):
    return settings(
        max_examples=max_examples, deadline=None, suppress_health_check=list(HealthCheck)
    )


@fuzz(300)
@given(st.binary(max_size=200))
@example(b"")
@example(b"TPK1")
def test_B1_random_bytes_are_refused(data):
    assert decode_watched(data) is None


@fuzz(300)
@given(st.binary(max_size=60), st.binary(max_size=100))
@example(b"\xdd\xff\xff\xff\xff", b"")  # an array of four billion elements
@example(b"\xdf\xff\xff\xff\xff", b"")  # a map of as many
@example(b"\xdb\xff\xff\xff\xff", b"")  # a string of as many bytes
@example(b"\xd6\xff\x00\x00\x00\x00", b"")  # a time stamp
@example(b"\x91" * 5000 + b"\xc0", b"")  # nested deeper than the stack
@example(b"\x92\xa1l" * 5000 + b"\xc0", b"")
def test_B1_sealed_header_of_random_bytes(header, payload):
    value = decode_within_memory(seal(header, payload))
    if value is not None:
        assert_ordinary(value)


def check_sealed_nodes(node, payload):
    value = decode_within_memory(seal(msgspec.msgpack.encode(node), payload))
    if value is not None:
        assert_ordinary(value)


bombs = [
    ["a", "<U0", [2**40], "C"],  # numpy gives an empty string one character when it copies
    ["a", "|V0", [2**62, 2**62], "C"],
    ["a", "<f4", [2**62, 0, 2**62], "C"],
    ["a", "<f4", [2**62, 2**62], "C"],
    ["a", "|u1", [1] * 100, "C"],
    ["a", "|O", [1], "C"],
    ["a", "<f4,<f4", [1], "C"],
    ["a", "(2,)<f4,<i4", [1], "C"],  # numpy compiles what stands in the brackets
    ["s", "|V2147483647", b""],
    ["i", 3.5],
    ["s", "<U1", b"\xff\xff\xff\xff"],  # beyond the last character there is
    ["b", 2**62],
    ["b", True],
    ["d", [1], 2],
    ["d", "a", 1, "a", 2],
]


@pytest.mark.parametrize("node", bombs, ids=repr)
def test_B1_bombs_are_refused_within_memory(node):
    for payload in (None, b"", bytes(64)):
        assert decode_within_memory(seal(msgspec.msgpack.encode(node), payload)) is None


@fuzz(600)
@given(nodes, st.binary(max_size=100))
def test_B1_sealed_headers_of_strange_nodes(node, payload):
    check_sealed_nodes(node, payload)


@fuzz(300)
@given(honest, st.data())
def test_B1_damaged_records(value, data):
    record = bytearray(codec.encode(value))
    for _ in range(data.draw(st.integers(1, 4))):
        record[data.draw(st.integers(0, len(record) - 1))] = data.draw(st.integers(0, 255))
    if record != codec.encode(value):
        assert decode_watched(record) is None
    header_length = min(struct.unpack_from("<I", record, 8)[0], len(record) - 20)
    start = 20 + header_length
    aligned = start + -start % 64
    resealed = seal(
        bytes(record[20:start]), bytes(record[aligned:]) if start < len(record) else None
    )
    decoded = decode_within_memory(resealed)
    if decoded is not None:
        assert_ordinary(decoded)


@fuzz(300)
@given(honest)
def test_B1_honest_records_come_back_exact(value):
    decoded = decode_watched(codec.encode(value))
    assert same(value, decoded)


def same(a, b) -> bool:
    if type(a) is not type(b):
        return False
    if isinstance(a, list | tuple):
        return len(a) == len(b) and all(map(same, a, b))
    if isinstance(a, dict):
        return list(a) == list(b) and all(same(a[key], b[key]) for key in a)
    if isinstance(a, np.ndarray):
        return a.dtype == b.dtype and a.shape == b.shape and a.tobytes("A") == b.tobytes("A")
    if isinstance(a, np.generic):
        return a.dtype == b.dtype and a.tobytes() == b.tobytes()
    return a == b or (isinstance(a, float) and math.isnan(a))


def test_B1_every_truncation_is_refused():
    record = codec.encode([np.arange(30), {"label": 1, "text": "x" * 300}, (None, b"y" * 300)])
    for length in range(len(record)):
        assert decode_watched(record[:length]) is None


def expanding_headers(size):
    """Headers of this size whose elements take the most memory for their bytes."""
    for element in (b"\x90", b"\xc0", b"\x80", b"\x91\xc0"):  # lists, None, maps, lists of None
        count = (size - 5) // len(element)
        yield b"\xdd" + struct.pack(">I", count) + element * count


def test_B1_memory_follows_the_header():
    for header in expanding_headers(1 << 17):
        assert decode_within_memory(seal(header)) is None


def test_B1_header_above_the_limit_is_not_read():
    record = seal(next(expanding_headers(codec.MAX_HEADER + 1)))
    tracemalloc.start()
    try:
        assert decode_watched(record) is None
        assert tracemalloc.get_traced_memory()[1] <= MEMORY_FLOOR
    finally:
        tracemalloc.stop()


@pytest.mark.parametrize("installed", [True, False])
def test_B1_dtype_of_ml_dtypes_is_read_without_an_import(installed):
    header = msgspec.msgpack.encode(["a", "bfloat16", [1], "C"])
    program = f"""
import sys
if not {installed}:
    sys.modules["ml_dtypes"] = None
from towerpack.core import codec
sys.addaudithook(lambda event, arguments: event != "import" or sys.exit(f"imports {{arguments}}"))
try:
    print(codec.decode({seal(header, bytes(2))!r}).dtype)
except codec.DecodeError as error:
    print(error)
"""
    finished = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, check=True
    )
    refusal = (
        "dtype bfloat16 needs the package ml_dtypes, which is not installed; "
        "run: pip install ml_dtypes"
    )
    assert finished.stdout.strip() == ("bfloat16" if installed else refusal)


def test_B1_text_array_with_impossible_characters_is_refused():
    for name, raw in [("<U2", b"a\0\0\0\0\0\x11\0"), (">U1", b"\0\x11\0\0")]:
        node = msgspec.msgpack.encode(["a", name, [1], "C"])
        assert decode_watched(seal(node, raw)) is None
    greatest = np.array(["a\U0010ffff"], ">U2")
    assert decode_watched(codec.encode(greatest)) == greatest


def test_B1_the_watch_sees_what_decoding_does(monkeypatch):
    def careless(name):
        with open(os.devnull):
            return np.dtype("<f4")

    monkeypatch.setattr(codec, "_cached_dtype", careless)
    with pytest.raises(AssertionError, match="open"):
        decode_watched(codec.encode(np.float32([1.0])))


@pytest.mark.soak
def test_B1_soak_largest_header_stays_within_memory():
    for header in expanding_headers(codec.MAX_HEADER):
        assert decode_within_memory(seal(header)) is None


@pytest.mark.soak
@pytest.mark.timeout(3600)
def test_B1_soak_strange_nodes():
    fuzz(20_000)(given(nodes, st.binary(max_size=100))(check_sealed_nodes))()


MUTATED = [
    [np.arange(12, dtype="<f4").reshape(3, 4), 3],
    {"a": np.array(["ab", "c"]), "b": ("x" * 300, b"y" * 300, 2**70), "c": [None, True, 1.5]},
    [np.str_("z"), np.float32(1), np.array("2026-11-15", "M8[D]"), np.ndarray((2,), "<U0")],
]


@pytest.mark.soak
@pytest.mark.timeout(3600)
def test_B1_soak_mutations():
    """Millions of flips of honest records: dumb, and far faster than drawing examples."""
    rng = random.Random(int(os.environ.get("PYTEST_RANDOMLY_SEED", "0") or 0))
    for _ in range(1_000_000):
        record = bytearray(codec.encode(rng.choice(MUTATED)))
        for _ in range(rng.randint(1, 6)):
            record[rng.randrange(8, len(record))] = rng.randrange(256)
        struct.pack_into("<I", record, 4, google_crc32c.value(bytes(record[8:])))
        value = decode_watched(record)
        if value is not None:
            assert_ordinary(value)


ATHERIS = """
import sys, atheris
with atheris.instrument_imports(include=["towerpack.core.codec"]):
    from towerpack.core import codec
from tests.core.test_codec_fuzz import seal, decode_watched, assert_ordinary

def one(data):
    cut = data[0] if data else 0
    value = decode_watched(seal(data[1 : 1 + cut], data[1 + cut :]))
    if value is not None:
        assert_ordinary(value)

atheris.Setup([*sys.argv, "-rss_limit_mb=1024", "-max_len=1024"], one)
atheris.Fuzz()
"""


@pytest.mark.soak
@pytest.mark.timeout(1200)
def test_B1_soak_coverage_guided(tmp_path):
    pytest.importorskip("atheris")
    for number, value in enumerate(MUTATED):  # to begin with what is understood
        record = codec.encode(value)
        (length,) = struct.unpack_from("<I", record, 8)
        start = 20 + length
        content = bytes([length]) + record[20:start] + record[start + -start % 64 :]
        (tmp_path / f"seed{number}").write_bytes(content)
    finished = subprocess.run(
        [sys.executable, "-c", ATHERIS, "-max_total_time=600", tmp_path],
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=False,
    )
    assert finished.returncode == 0, finished.stderr[-4000:]
