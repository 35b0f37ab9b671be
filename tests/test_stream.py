import gzip
import io
import os
import random
import struct
import sys
import zlib

import fsspec
import pytest
import zstandard

from clawcli.errors import DataError, StoreError
from clawcli.ingest.read.find import Found
from clawcli.ingest.read.stream import bomb_problem, is_splittable, open_bytes

LINES = b"".join(b'{"id":"a","n":1,"content":"hello world %d"}\n' % i for i in range(20_000))
GZ = gzip.compress(LINES, 6)


def zst(data, level=3, **options):
    return zstandard.ZstdCompressor(level=level, **options).compress(data)


ZST = zst(LINES)
CHECKED = zst(LINES, write_content_size=False, write_checksum=True)
SKIPPABLE = b"\x5f\x2a\x4d\x18" + struct.pack("<I", 4) + b"abcd"


def read(tmp_path, data, name="a.jsonl", start=0):
    path = tmp_path / name
    path.write_bytes(data)
    with open_bytes(Found(str(path)), start) as stream:
        return stream.read(), stream.problem


@pytest.mark.parametrize(
    ("data", "plain"),
    [
        (GZ, LINES),
        (GZ + GZ, LINES + LINES),
        (GZ + b"\0" * 70_000 + GZ + b"\0" * 512, LINES + LINES),
        (gzip.compress(b"", mtime=0), b""),
        (ZST, LINES),
        (CHECKED, LINES),
        (ZST + SKIPPABLE + CHECKED, LINES + LINES),
        (SKIPPABLE + ZST, LINES),
        (zst(b""), b""),
        (zst(os.urandom(300_000)), None),
        (zst(b"\0" * 300_000), b"\0" * 300_000),
        (LINES[:10_000], LINES[:10_000]),
        (b"", b""),
        (b"{", b"{"),
        (b"\x1f", b"\x1f"),
    ],
)
@pytest.mark.parametrize("name", ["a.jsonl", "a.jsonl.gz"])
def test_open_undoes_what_the_first_bytes_tell_whatever_the_name(tmp_path, name, data, plain):
    plain = zstandard.ZstdDecompressor().decompress(data) if plain is None else plain
    assert read(tmp_path, data, name) == (plain, None)


@pytest.mark.parametrize(
    ("data", "num_lines", "reason"),
    [
        (GZ[:-4], 20_000, "it ends early"),
        (GZ + GZ[:1], 20_000, "it ends early"),
        (GZ + b"garbage!", 20_000, "bytes that are no gzip stream follow it"),
        (GZ[:-8] + b"\1\2\3\4" + GZ[-4:], 20_000, "incorrect data check"),
        (GZ + GZ[:-8] + b"\1\2\3\4" + GZ[-4:], 40_000, "incorrect data check"),
        (ZST[:-1], None, "it ends early"),
        (ZST + ZST[:2], 20_000, "it ends early"),
        (ZST + ZST[:5], 20_000, "it ends early"),
        (ZST + SKIPPABLE[:-1], 20_000, "it ends early"),
        (ZST + b"garbage!", 20_000, "bytes that are no zstd frame follow it"),
        (CHECKED[:-4] + b"\0\0\0\0", 20_000, "Restored data doesn't match checksum"),
    ],
)
def test_open_stream_that_is_damaged_gives_what_was_good_and_says_why(
    tmp_path, data, num_lines, reason
):
    plain, problem = read(tmp_path, data)
    kind = "zstd" if data.startswith(ZST[:4]) else "gzip"
    assert problem == f"{tmp_path}/a.jsonl: the {kind} stream breaks off: {reason}."
    assert (LINES + LINES).startswith(plain)
    assert num_lines is None or plain.count(b"\n") == num_lines


@pytest.mark.parametrize("packed", [GZ, ZST], ids=["gzip", "zstd"])
def test_open_stream_cut_anywhere_gives_a_prefix_and_a_problem(tmp_path, packed):
    cuts = [4, 5, 11, 18, *random.Random(0).sample(range(len(packed)), 20), len(packed) - 1]
    for cut in cuts:
        plain, problem = read(tmp_path, packed[:cut])
        assert problem is not None
        assert LINES.startswith(plain)
        # what was lost is less than a block of zstd, and a few bytes of gzip
        share = 1 if packed is ZST else 0.95
        assert len(plain) >= share * (len(LINES) * cut / len(packed) - (1 << 17) * 2)


def test_open_flipped_byte_keeps_what_came_before(tmp_path):
    at = len(GZ) // 2
    plain, problem = read(tmp_path, GZ[:at] + bytes([GZ[at] ^ 255]) + GZ[at + 1 :])
    assert "breaks off" in problem
    assert plain[: len(LINES) // 3] == LINES[: len(LINES) // 3]


def test_open_gzip_that_breaks_gives_all_that_its_own_decoder_can(tmp_path):
    zeros = gzip.compress(bytes(400_000))
    for packed in (GZ[: len(GZ) // 2], *(zeros[:cut] for cut in range(20, len(zeros)))):
        assert read(tmp_path, packed)[0] == zlib.decompressobj(31).decompress(packed)


def zeros(kind, mib):
    if kind == "gzip":
        packer = zlib.compressobj(9, zlib.DEFLATED, 31)
    else:
        packer = zstandard.ZstdCompressor(level=19).compressobj()
    return b"".join(packer.compress(bytes(1 << 20)) for _ in range(mib)) + packer.flush()


@pytest.mark.parametrize("kind", ["gzip", "zstd"])
def test_open_bomb_is_read_to_64_mib_and_told(tmp_path, kind):
    path = tmp_path / "bomb"
    path.write_bytes(zeros(kind, 150))
    num_bytes = 0
    with open_bytes(Found(str(path))) as stream:
        while piece := stream.read(1 << 20):
            num_bytes += len(piece)
    assert stream.problem == (
        f"{path} unpacks to more than 200 times its size, as bombs do: it was read to 64 MiB only."
    )
    assert num_bytes <= 64 << 20


def test_bomb_problem_a_long_log_of_usual_ratio_is_none():
    gib = 1 << 30
    assert bomb_problem("a", 3000 * gib, 300 * gib) is None
    assert bomb_problem("a", 63 * gib, gib // 2) is None
    assert bomb_problem("a", 65 * gib, gib // 2) is not None
    assert bomb_problem("a", 65 * gib, 64 * gib) is None


def test_open_zstd_that_wants_more_memory_than_it_may_have_is_a_problem(tmp_path):
    options = zstandard.ZstdCompressionParameters.from_level(1, window_log=28)
    packer = zstandard.ZstdCompressor(compression_params=options).compressobj()
    packed = packer.compress(LINES) + packer.flush()
    plain, problem = read(tmp_path, packed)
    assert plain == b""
    assert problem.endswith("breaks off: it needs a window of 256 MiB, and 128 is the limit.")


def test_open_zstd_with_a_dictionary_is_a_problem(tmp_path):
    dictionary = zstandard.ZstdCompressionDict(LINES[:1000] * 10, zstandard.DICT_TYPE_RAWCONTENT)
    trained = zstandard.train_dictionary(2000, [b"line %d of it all" % i for i in range(2000)])
    assert read(tmp_path, zst(LINES, dict_data=dictionary))[1] is not None
    plain, problem = read(tmp_path, zst(LINES, dict_data=trained))
    assert (plain, "it needs the dictionary" in problem) == (b"", True)


@pytest.mark.parametrize("data", [LINES, GZ, ZST], ids=["plain", "gzip", "zstd"])
@pytest.mark.parametrize("start", [0, 1, 500_000, len(LINES), len(LINES) + 5])
def test_open_at_an_offset_counts_plain_bytes(tmp_path, data, start):
    assert read(tmp_path, data, start=start) == (LINES[start:], None)


@pytest.mark.parametrize(("lead", "kind"), [(b"BZh9", "bzip2"), (b"\xfd7zXZ", "xz")])
def test_open_other_compression_is_refused_by_name(tmp_path, lead, kind):
    with pytest.raises(DataError, match=f"a.jsonl is compressed with {kind}"):
        read(tmp_path, lead + b"x" * 100)


def test_open_what_is_no_file_is_refused_at_once(tmp_path):
    os.mkfifo(tmp_path / "pipe")
    for name, reason in (
        ("pipe", "is no regular file"),
        (".", "is no regular file"),
        ("gone.jsonl", "cannot be read: No such file"),
    ):
        with pytest.raises(StoreError, match=reason):
            open_bytes(Found(str(tmp_path / name)))


def test_open_remote_object_gives_its_bytes_and_missing_ones_an_error():
    store = fsspec.filesystem("memory")
    store.pipe("/stream-test/a.gz", GZ)
    with open_bytes(Found("memory://stream-test/a.gz"), 10) as stream:
        assert (stream.read(), stream.problem, stream.compression) == (LINES[10:], None, "gzip")
    store.rm("/stream-test", recursive=True)
    with pytest.raises(StoreError, match=r"memory://stream-test/a.gz cannot be read: nothing is"):
        open_bytes(Found("memory://stream-test/a.gz"))


class Failing(io.BytesIO):
    """An object whose connection breaks after some bytes."""

    def read(self, size=-1):
        if piece := super().read(size):
            return piece
        raise ConnectionError("connection reset by peer")


class FailingStore(fsspec.AbstractFileSystem):
    protocol = "failing"
    data = b""

    def _open(self, path, mode="rb", **_):
        return Failing(self.data)


@pytest.mark.parametrize("data", [LINES, GZ], ids=["plain", "gzip"])
def test_open_remote_that_breaks_off_keeps_what_came_and_says_so(data, monkeypatch):
    fsspec.register_implementation("failing", FailingStore, clobber=True)
    monkeypatch.setattr(FailingStore, "data", data[:50_000])
    with open_bytes(Found("failing://bucket/a.jsonl")) as stream:
        plain = stream.read()
    assert stream.problem == "failing://bucket/a.jsonl cannot be read on: connection reset by peer."
    assert LINES.startswith(plain)
    assert len(plain) >= 50_000


class Piped:
    """Standard input that gives its bytes one by one, as slow pipes do."""

    def __init__(self, data):
        self.buffer = self
        self.data = io.BytesIO(data)

    def read(self, size):
        return self.data.read(min(size, 1 if self.data.tell() < 10 else size))


@pytest.mark.parametrize("data", [LINES, GZ, ZST], ids=["plain", "gzip", "zstd"])
def test_open_standard_input_comes_again_after_a_look(monkeypatch, data):
    monkeypatch.setattr(sys, "stdin", Piped(data))
    for num_bytes in (100, 5000):
        with open_bytes(Found("-"), keep=True) as stream:
            assert stream.read(num_bytes) == LINES[:num_bytes]
    with open_bytes(Found("-"), 10) as stream:
        assert (stream.read(), stream.problem) == (LINES[10:], None)
    with open_bytes(Found("-")) as stream:
        assert stream.read() == b""


def test_open_standard_input_that_is_closed_is_an_error(monkeypatch):
    monkeypatch.setattr(sys, "stdin", None)
    with pytest.raises(StoreError, match="Standard input is closed"):
        open_bytes(Found("-"))


def test_is_splittable_only_plain_local_files(tmp_path):
    for name, data in (("a", LINES), ("gz", GZ), ("zst", ZST), ("pq", b"PAR1"), ("empty", b"")):
        (tmp_path / name).write_bytes(data)
    names = [Found(str(tmp_path / name)) for name in ("a", "empty", "gz", "zst", "pq", "gone")]
    others = [Found("-"), Found("s3://b/a"), Found(str(tmp_path), members=("a",))]
    assert [is_splittable(source) for source in names + others] == [True, True] + [False] * 7


def test_stored_bytes_reach_the_size(tmp_path):
    for data in (LINES, GZ, ZST):
        (tmp_path / "a").write_bytes(data)
        with open_bytes(Found(str(tmp_path / "a"))) as stream:
            stream.read()
            assert stream.stored_bytes == len(data)


def test_open_folder_that_is_one_source_stops_at_a_file_that_is_gone(tmp_path):
    (tmp_path / "event-0-a.json").write_bytes(b"{}")
    (tmp_path / "event-1-b.json").write_bytes(b"[1]")
    (tmp_path / "event-3-c.json").write_bytes(b"{}")
    names = ("event-0-a.json", "event-1-b.json", "event-2-x.json", "event-3-c.json")
    with open_bytes(Found(str(tmp_path), members=names)) as stream:
        assert stream.read() == b"{}\n[1]"
    assert stream.problem.startswith(f"{tmp_path}/event-2-x.json cannot be read")
    (tmp_path / "event-1-b.json").write_bytes(GZ[:-1])
    with open_bytes(Found(str(tmp_path), members=names)) as stream:
        assert stream.read() == b"{}\n" + LINES.replace(b"\n", b" ")
    assert stream.problem.startswith(f"{tmp_path}/event-1-b.json: the gzip stream breaks off")
