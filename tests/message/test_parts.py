"""The small parts of a message: hosts, ids, sysflag, compression, delays, names, batches."""

from __future__ import annotations

import os
import time
from datetime import datetime

import lz4.frame
import pytest
import zstandard
from hypothesis import given
from hypothesis import strategies as st

from rucola.errors import ConfigError, InvalidMessage
from rucola.message import Message, ids, sysflag, topics
from rucola.message.batch import decode_batch, encode_batch
from rucola.message.compression import (
    RATIO_VARIABLE,
    SIZE_VARIABLE,
    CompressionType,
    ExpansionLimits,
    compress,
    compression_type,
    decompress,
    expansion_limits,
)
from rucola.message.delay import due_time_ms, parse_delay_levels
from rucola.message.host import decode_host, encode_host
from rucola.message.properties import join, parse
from support.errors import raises

# hosts and ids -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("text", "size", "printed"),
    [
        ("127.0.0.1:10911", 8, "127.0.0.1:10911"),
        ("[::1]:10911", 20, "0:0:0:0:0:0:0:1:10911"),
        ("fe80:0:0:0:1:0:0:ab:1", 20, "fe80:0:0:0:1:0:0:ab:1"),
        ("0.0.0.0:0", 8, "0.0.0.0:0"),
    ],
)
def test_hosts_round_trip(text: str, size: int, printed: str) -> None:
    data = encode_host(text)
    assert len(data) == size
    assert decode_host(data) == printed
    assert encode_host(printed) == data


@pytest.mark.parametrize(
    "text", ["", "127.0.0.1", ":1", "localhost:1", "1.2.3:4", "1.2.3.4:65536", "1.2.3.4:-1", "1.2.3.4:²"]
)
def test_invalid_hosts_are_refused(text: str) -> None:
    with pytest.raises(InvalidMessage):
        encode_host(text)


@pytest.mark.parametrize("data", [b"", bytes(7), bytes(21), b"\x7f\0\0\1\0\1\0\0"])
def test_invalid_host_bytes_are_refused(data: bytes) -> None:
    with pytest.raises(InvalidMessage):
        decode_host(data)


def test_offset_msg_id_round_trips() -> None:
    message_id = ids.offset_msg_id(encode_host("127.0.0.1:10911"), 0x2A3FC)
    assert message_id == "7F00000100002A9F000000000002A3FC"
    assert ids.parse_offset_msg_id(message_id) == ("127.0.0.1:10911", 0x2A3FC)
    v6 = ids.offset_msg_id(encode_host("[::1]:1"), 5)
    assert (len(v6), ids.parse_offset_msg_id(v6)) == (56, ("0:0:0:0:0:0:0:1:1", 5))


@pytest.mark.parametrize("host", ["127.0.0.1:10911", "[::1]:10911"])
def test_offset_msg_ids_of_several_records_are_joined(host: str) -> None:
    store_host, offsets = encode_host(host), [0, 0x2A3FC, 2**63 - 1]
    each = [ids.offset_msg_id(store_host, at) for at in offsets]
    assert ids.offset_msg_ids(store_host, offsets) == ",".join(each)
    assert [ids.host_digits(store_host) + ids.OFFSET_DIGITS % at for at in offsets] == [one.encode() for one in each]


@pytest.mark.parametrize(
    "text",
    [
        "",
        "7F",
        "G" * 32,
        "7F00000100002A9F800000000002A3FC",
        "7F000001FFFF2A9F000000000002A3FC",
        "0" * 33,
        " 7F00000100002A9F000000000002A3F",
    ],
)
def test_an_invalid_offset_msg_id_is_refused(text: str) -> None:
    with pytest.raises(InvalidMessage):
        ids.parse_offset_msg_id(text)


def test_unique_ids_differ_and_contain_their_time() -> None:
    before_ms = time.time_ns() // 1_000_000
    made = [ids.unique_id() for _ in range(1000)]
    after_ms = time.time_ns() // 1_000_000
    assert len(set(made)) == 1000
    assert all(len(bytes.fromhex(one)) == 16 and one == one.upper() for one in made)
    assert all(before_ms <= ids.unique_id_time_ms(one, after_ms) <= after_ms for one in made)
    assert int(made[0][8:12], 16) == os.getpid() & 0xFFFF


def test_unique_id_layout_across_months() -> None:
    source = ids.UniqueIds(b"\xc0\x00\x02\x02", 0x12DAF, 0x5FFD2B27)
    last_ms = int(datetime(2026, 11, 30, 23, 59, 59, 999000).timestamp() * 1000)
    first = source.next(last_ms)
    second = source.next(last_ms + 1)
    third = source.next(int(datetime(2026, 12, 31, 12).timestamp() * 1000))
    assert first[:20] == "C00002022DAF5FFD2B27"
    assert second[20:] == "000000000001"
    now_ms = int(datetime(2027, 1, 2).timestamp() * 1000)
    assert ids.unique_id_time_ms(second, last_ms + 1) == last_ms + 1
    assert ids.unique_id_time_ms(first, last_ms + 5) == last_ms
    assert ids.unique_id_time_ms(third, now_ms) == int(datetime(2026, 12, 31, 12).timestamp() * 1000)


def test_a_forked_process_generates_other_ids() -> None:
    read, write = os.pipe()
    child = os.fork()
    if child == 0:
        os.write(write, ids.unique_id().encode())
        os._exit(0)
    os.waitpid(child, 0)
    theirs = os.read(read, 64).decode()
    os.close(read)
    os.close(write)
    assert theirs[:20] != ids.unique_id()[:20]
    assert int(theirs[8:12], 16) == child & 0xFFFF


@pytest.mark.parametrize("text", ["", "xyz", "00" * 15, "0" * 31 + "g"])
def test_an_invalid_unique_id_is_refused(text: str) -> None:
    with pytest.raises(InvalidMessage):
        ids.unique_id_time_ms(text, 0)


# sysflag and compression ---------------------------------------------------------------------------------------------


def test_sysflag_bits_are_read_and_set() -> None:
    assert [CompressionType.LZ4.sys_flag, CompressionType.ZSTD.sys_flag, CompressionType.ZLIB.sys_flag] == [
        0x101,
        0x201,
        0x301,
    ]
    assert [sysflag.is_dispatched(state | 0x701) for state in (0x0, 0x4, 0x8, 0xC)] == [True, False, True, False]
    assert sysflag.with_transaction_state(0x704, sysflag.TRANSACTION_COMMIT) == 0x708
    assert sysflag.transaction_state(0x70C) == sysflag.TRANSACTION_ROLLBACK
    assert [sysflag.host_sizes(flag) for flag in (0, 0x10, 0x20, 0x30)] == [(8, 8), (20, 8), (8, 20), (20, 20)]


@given(st.binary(max_size=2000), st.sampled_from(CompressionType), st.integers(1, 9))
def test_compressed_bodies_round_trip(body: bytes, kind: CompressionType, level: int) -> None:
    packed = compress(body, kind, level)
    assert decompress(memoryview(packed), kind.sys_flag) == body
    for size in range(len(packed)):
        with pytest.raises(InvalidMessage):
            decompress(packed[:size], kind.sys_flag)


@pytest.mark.parametrize("kind", CompressionType)
def test_a_decompression_bomb_is_refused(kind: CompressionType) -> None:
    packed = compress(bytes(10_000_000), kind)
    with raises(InvalidMessage, subject=SIZE_VARIABLE):
        decompress(packed, kind.sys_flag, ExpansionLimits(max_size=1_000_000))
    with raises(InvalidMessage, subject=RATIO_VARIABLE):
        decompress(packed, kind.sys_flag, ExpansionLimits(max_ratio=2, free_size=1000))
    assert len(decompress(packed, kind.sys_flag, ExpansionLimits(10_000_000, 1, 10_000_000))) == 10_000_000


def test_a_few_kilobytes_expand_to_megabytes_at_most() -> None:
    packed = compress(bytes(100_000_000), CompressionType.ZSTD)
    assert len(packed) < 10_000
    with raises(InvalidMessage, subject=RATIO_VARIABLE):
        decompress(packed, CompressionType.ZSTD.sys_flag)
    window = compress(bytes(64 << 20), CompressionType.ZSTD)[:4] + b"\x00\x88\x00\x00\x00"  # declares 128 MiB
    with raises(InvalidMessage, subject=RATIO_VARIABLE):
        decompress(window, CompressionType.ZSTD.sys_flag)


def test_the_environment_raises_the_limits_of_decompression(monkeypatch: pytest.MonkeyPatch) -> None:
    packed = compress(bytes(20_000_000), CompressionType.ZSTD)
    monkeypatch.setenv(RATIO_VARIABLE, "100000")
    expansion_limits.cache_clear()
    try:
        assert len(decompress(packed, CompressionType.ZSTD.sys_flag)) == 20_000_000
        monkeypatch.setenv(SIZE_VARIABLE, "many")
        expansion_limits.cache_clear()
        with raises(ConfigError, subject=SIZE_VARIABLE):
            decompress(packed, CompressionType.ZSTD.sys_flag)
    finally:
        expansion_limits.cache_clear()


@pytest.mark.parametrize("kind", CompressionType)
@given(st.binary(max_size=50))
def test_garbage_bodies_are_refused(kind: CompressionType, body: bytes) -> None:
    if body[:4] in (b"\x04\x22\x4d\x18", b"\x28\xb5\x2f\xfd") or body[:1] == b"\x78":
        return
    with pytest.raises(InvalidMessage):
        decompress(body, kind.sys_flag)


def test_streams_of_other_compressors_are_read() -> None:
    """Java's writers give frames without a content size, unlike the one-shot calls here."""
    body = b"rucola" * 1000
    zstd = zstandard.ZstdCompressor(write_content_size=False).compress(body)
    assert decompress(zstd, 0x201) == body
    assert decompress(lz4.frame.compress(body, store_size=False), 0x101) == body
    assert decompress(compress(body), sysflag.COMPRESSED) == body, "type 0 is zlib"
    assert decompress(body, 0x300) == body, "without bit 0 nothing is compressed"
    with pytest.raises(InvalidMessage):
        compression_type(0x401)


# delays and names ----------------------------------------------------------------------------------------------------


def test_delay_levels_are_parsed() -> None:
    levels = parse_delay_levels()
    assert len(levels) == 18
    assert (levels[0], levels[4], levels[17]) == (1000, 60_000, 7_200_000)
    assert parse_delay_levels("1d 2s") == [86_400_000, 2000]
    assert due_time_ms(levels, 1, 500) == 1500
    assert due_time_ms(levels, 99, 500) == 7_200_500
    for text in ("", "5", "s", "-1s", "1s,5s", "1S", "١s"):
        with raises(ConfigError, subject="messageDelayLevel"):
            parse_delay_levels(text)


def test_topic_and_group_names_are_checked() -> None:
    for name in ("T", "%RETRY%g-1_x|y", "t" * 127):
        topics.check_topic(name)
    topics.check_group("g" * 255)
    for name in ("", " ", "a b", "ü", "a\n", "t" * 128, "a.b", "x/../y"):
        with pytest.raises(InvalidMessage):
            topics.check_topic(name)
    with pytest.raises(InvalidMessage):
        topics.check_group("g" * 256)
    assert (topics.retry_topic("g"), topics.dlq_topic("g")) == ("%RETRY%g", "%DLQ%g")
    assert topics.reply_topic("DefaultCluster") == "DefaultCluster_REPLY_TOPIC"
    assert topics.is_system_topic("TBW102")
    assert topics.is_system_topic("rmq_sys_x")
    assert not topics.is_system_topic("Flights")
    assert "TBW102" not in topics.NOT_ALLOWED_SEND_TOPICS
    assert topics.SCHEDULE_TOPIC in topics.NOT_ALLOWED_SEND_TOPICS


# batches -------------------------------------------------------------------------------------------------------------

words = st.text(st.characters(exclude_characters="\x01\x02", exclude_categories=["Cs"]), min_size=1, max_size=9)
messages = st.builds(
    Message,
    topic=st.just("T"),
    body=st.binary(max_size=50),
    properties=st.dictionaries(words, words, max_size=3),
    flag=st.integers(-(2**31), 2**31 - 1),
)


@given(st.lists(messages, max_size=5))
def test_a_batch_round_trips(sent: list[Message]) -> None:
    decoded = decode_batch(encode_batch(sent))
    assert [(flag, bytes(body), parse(data)) for flag, body, data in zip(*decoded, strict=True)] == [
        (message.flag, message.body, message.properties) for message in sent
    ]


@given(st.binary(min_size=1, max_size=200))
def test_a_garbage_batch_is_refused_or_whole(body: bytes) -> None:
    try:
        decoded = decode_batch(body)
    except InvalidMessage:
        return
    assert sum(22 + len(one) + len(data) for _, one, data in zip(*decoded, strict=True)) == len(body)


def test_a_batch_cut_or_changed_is_refused() -> None:
    whole = encode_batch([Message("T", b"one", tags="A"), Message("T", b"two")])
    first = 22 + 3 + len(join({"TAGS": "A"}))
    for size in range(1, len(whole)):
        if size != first:
            with raises(InvalidMessage, subject=str(0 if size < first else first)):
                decode_batch(whole[:size])
    for position in (*range(4), *range(16, 20)):
        for bit in range(8):
            damaged = bytearray(whole)
            damaged[position] ^= 1 << bit
            with raises(InvalidMessage, subject="0"):
                decode_batch(damaged)


def test_a_batch_refuses_fields_that_it_cannot_carry() -> None:
    with pytest.raises(InvalidMessage):
        encode_batch([Message("T", b"", flag=2**31)])
    with pytest.raises(InvalidMessage):
        encode_batch([Message("T", b"", properties={"a": ""})])
