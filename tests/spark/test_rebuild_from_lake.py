"""The rebuild job from a lake: a store that a broker opens and the next archive run continues, with its own offsets."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import zstandard
from click.testing import CliRunner

from rucola.cli.main import main
from rucola.client import ConsumeFromWhere, PushConsumer
from rucola.errors import ConfigError, StoreError
from rucola.message import MessageExt
from rucola.message.compression import CompressionType, compress
from rucola.message.record import decode
from rucola.message.sysflag import COMPRESSED
from rucola.message.topics import is_system_topic
from rucola.namesrv.server import Namesrv
from rucola.spark.archive import Archive
from rucola.spark.jobs import archive, rebuild
from rucola.spark.session import AnySession, LazySession
from rucola.store.config import StoreConfig
from rucola.store.directory_reader import StoreReader
from rucola.store.mapped_file import MappedFileQueue
from rucola.store.scan import RecordRun, scan
from rucola.store.tools.check import check
from rucola.store.tools.rebuild import detect_config
from rucola.store.tools.rebuild import rebuild as rebuild_here
from support.aging_broker import aging_broker
from support.cluster import Tally
from support.errors import raises
from support.ports import HOST
from support.small_store import FILE_SIZE, SmallStore
from support.stores import GOLDEN_DELAYS, all_messages, inner
from support.tiered import SIZES, TIME_MS, odd_messages, opened_store, run_archive, same_message

HERE = LazySession("tests", use_spark=False)


def records_of(store: Path) -> dict[int, tuple[MessageExt, bytes]]:
    """The messages of a log by physical offset, without those of the system and what fills holes."""
    found: dict[int, tuple[MessageExt, bytes]] = {}
    log = MappedFileQueue.open(store / "commitlog")
    for item in scan(log, log.begin):
        if isinstance(item, RecordRun):
            for position in item.positions.tolist():
                message = decode(item.file.map, position)
                if not is_system_topic(message.topic) and "REPAIRED" not in message.properties:
                    record = item.file.map[position : position + message.store_size]
                    found[message.physical_offset] = message, record
    log.close()
    return found


@pytest.mark.parametrize("in_spark", [False, pytest.param(True, marks=pytest.mark.spark)])
@pytest.mark.parametrize("name", ["g1-clean", "g2-crash"])
def test_apaches_store_is_written_again(
    golden: Path, tmp_path: Path, name: str, in_spark: bool, request: pytest.FixtureRequest
) -> None:
    session: AnySession = request.getfixturevalue("spark") if in_spark else HERE
    theirs, out = golden / name / "store", tmp_path / "store"
    settings = detect_config(theirs)
    settings.message_delay_level = GOLDEN_DELAYS
    rows = archive.run(HERE, theirs, tmp_path / "lake", broker_name="broker-a").rows
    done = rebuild.run_from_lake(session, tmp_path / "lake", out, settings=settings)
    assert (done.kept, done.left_out) == (rows, [])
    assert check(out) == []
    expected, found = records_of(theirs), records_of(out)
    assert {at: same_message(each) for at, (each, _) in found.items()} == {
        at: same_message(each) for at, (each, _) in expected.items()
    }
    # Others have a property twice, or a body that Java has compressed.
    differing = [each for at, (each, record) in expected.items() if record != found[at][1]]
    assert {each.topic for each in differing if not each.sys_flag & COMPRESSED} == {"GBatch"}
    derived = rebuild_here(theirs, tmp_path / "derived", settings=settings).path
    for queue in (derived / "consumequeue").glob("*/*/*"):
        if not is_system_topic(queue.parts[-3]):
            assert (out / queue.relative_to(derived)).read_bytes() == queue.read_bytes()
    # The lake goes on with it.
    assert archive.run(HERE, out, tmp_path / "lake", broker_name="broker-a").rows == 0


async def test_a_broker_goes_on_with_a_store_that_was_lost(tmp_path: Path) -> None:
    """Messages of every kind, and system topics at the end of the log, which the lake lacks."""
    with opened_store(tmp_path) as store:
        for number, fields in enumerate(odd_messages() * 6):
            store.put(inner(**fields), TIME_MS + 100 * number)
            store.put(inner("SCHEDULE_TOPIC_XXXX", number % 3), TIME_MS + 100 * number)
        store.put(inner("SCHEDULE_TOPIC_XXXX", body=bytes(40_000)), TIME_MS + 10_000)
        store.put(inner("SCHEDULE_TOPIC_XXXX", body=bytes(40_000)), TIME_MS + 10_000)
        store.checkpoint()
        originals, end = all_messages(store), store.max_physical_offset
    run_archive(tmp_path)
    (tmp_path / "store").rename(tmp_path / "lost")
    done = rebuild.run_from_lake(
        HERE, tmp_path / "lake", tmp_path / "store", broker_name="broker-a", settings=StoreConfig(tmp_path, **SIZES)
    )
    assert (done.kept, done.end, done.left_out) == (len(originals), end, [])

    async with Namesrv(HOST, 0) as namesrv:
        address = f"{HOST}:{namesrv.port}"
        settings = {"namesrv_addr": address, "broker_ip1": HOST}
        async with aging_broker(tmp_path / "store", store=dict(SIZES), **settings) as (peer, _):
            assert peer.broker.parts is not None
            found = all_messages(peer.broker.parts.storage.store)
            assert [*map(same_message, found)] == [*map(same_message, originals)]
            assert [each.store_size for each in found] == [each.store_size for each in originals]
            consumed: Tally[tuple[int, str]] = Tally()
            consumer = PushConsumer("all", address, consume_from=ConsumeFromWhere.CONSUME_FROM_FIRST_OFFSET)
            consumer.subscribe("T")
            consumer.listen(lambda message: consumed.add((message.queue_offset, message.offset_msg_id)))
            async with consumer:
                ids = await consumed.reach(len(originals))
            assert sorted(ids) == [(each.queue_offset, each.offset_msg_id) for each in originals]
            await peer.send(b"new", topic="T")
    assert check(tmp_path / "store") == []
    run_archive(tmp_path)
    lake = Archive(tmp_path / "lake")
    offsets = sorted(row for batch in lake.scan(["T"]).batches(["queueOffset"]) for row in batch[0].to_pylist())
    assert offsets == [*range(len(originals) + 1)]


def test_messages_that_the_lake_lacks_are_named(small_store: SmallStore, tmp_path: Path) -> None:
    lake, out = tmp_path / "lake", tmp_path / "out"
    command = ["pipeline", "rebuild", "--lake", str(lake), "--out", str(out), "-c", str(tmp_path / "broker.conf")]
    (tmp_path / "broker.conf").write_text(f"mappedFileSizeCommitLog={FILE_SIZE}\n")
    for day in range(3):
        for number in range(40):
            small_store.put("T", number % 2, KEYS=f"k{number}", at_ms=1_700_000_000_000 + day * 86_400_000)
        archive.run(HERE, small_store.path, lake)
    forgotten = [file for file in lake.rglob("*.parquet") if "date=2023-11-15" in str(file)]
    forget = ["pipeline", "forget", "--lake", str(lake), "--yes", *map(str, forgotten)]
    assert CliRunner().invoke(main, forget).exit_code == 0
    result = CliRunner().invoke(main, [*command, "--json"])
    assert result.exit_code == 0, result.output
    done: dict[str, Any] = json.loads(result.stdout)
    assert (done["kept"], done["lost"]) == (80, 40)
    lost = {message for each in done["leftOut"] for message in each["messages"]}
    assert lost == {f"T|{queue}|{offset}" for queue in range(2) for offset in range(20, 40)}
    assert check(out) == []
    topics = json.loads((out / "config" / "topics.json").read_text())["topicConfigTable"]
    assert topics["T"]["readQueueNums"] == 2


def test_queues_begin_where_they_began(small_store: SmallStore, tmp_path: Path) -> None:
    """The first file of the log was deleted before it was archived, and a topic was created again after that."""
    for _ in range(50):
        small_store.put("T")
        small_store.put("U", 1)
    (small_store.path / "commitlog" / f"{0:020d}").unlink()
    archive.run(HERE, small_store.path, tmp_path / "lake")
    del small_store.next_offsets["T", 0]
    for _ in range(20):
        small_store.put("T")
    small_store.put("U", 1)
    archive.run(HERE, small_store.path, tmp_path / "lake")
    settings = StoreConfig(tmp_path, mapped_file_size_commit_log=FILE_SIZE)
    done = rebuild.run_from_lake(HERE, tmp_path / "lake", tmp_path / "out", settings=settings)
    assert (done.begin, done.end, done.left_out) == (FILE_SIZE, small_store.end, [])
    assert check(tmp_path / "out") == []
    expected = {at: record for at, (_, record) in records_of(small_store.path).items()}
    assert {at: record for at, (_, record) in records_of(tmp_path / "out").items()} == expected
    with StoreReader(tmp_path / "out") as reader:
        queues = reader.queues()
    assert queues["T", 0] == (0, 20)
    assert queues["U", 1][0] > 0
    assert queues["U", 1][1] == 51


def test_a_body_that_does_not_fit_into_its_place_is_named(small_store: SmallStore, tmp_path: Path) -> None:
    text = b"spam and eggs, " * 400
    small_store.put("T")
    smallest = zstandard.ZstdCompressor(level=9, write_content_size=False).compress(text)
    assert len(smallest) < min(len(compress(text, CompressionType.ZSTD, level)) for level in (5, 9))
    small_store.put("T", body=smallest, sys_flag=CompressionType.ZSTD.sys_flag)
    small_store.put("T")
    archive.run(HERE, small_store.path, tmp_path / "lake")
    settings = StoreConfig(tmp_path, mapped_file_size_commit_log=FILE_SIZE)
    done = rebuild.run_from_lake(HERE, tmp_path / "lake", tmp_path / "out", settings=settings)
    assert [each.messages for each in done.left_out] == [["T|0|1"]]
    assert (done.kept, check(tmp_path / "out")) == (2, [])


def test_what_cannot_be_written_is_refused(small_store: SmallStore, tmp_path: Path) -> None:
    lake, out = tmp_path / "lake", tmp_path / "out"
    for _ in range(3):
        small_store.put("T", body=bytes(1000))
    with pytest.raises(StoreError):
        rebuild.run_from_lake(HERE, lake, out)
    archive.run(HERE, small_store.path, lake, broker_name="broker-a")
    with raises(ConfigError, subject="broker-b"):
        rebuild.run_from_lake(HERE, lake, out, broker_name="broker-b")
    with raises(ConfigError, subject="mappedFileSizeCommitLog"):
        rebuild.run_from_lake(HERE, lake, out, settings=StoreConfig(out, mapped_file_size_commit_log=1500))
    assert not out.exists()
    with raises(StoreError, subject=str(small_store.path)):
        rebuild.run_from_lake(HERE, lake, small_store.path)
    archive.run(HERE, small_store.path, lake, broker_name="broker-b")
    with pytest.raises(ConfigError):  # of which store
        rebuild.run_from_lake(HERE, lake, out)
    for wrong in ([], [str(small_store.path), "--lake", str(lake)], ["--lake", str(lake)]):
        assert CliRunner().invoke(main, ["pipeline", "rebuild", *wrong]).exit_code == 2
