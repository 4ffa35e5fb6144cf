"""A message whose body is not compressed as its sysFlag says: intact, and returned as stored by every reader."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
import pytest
from click.testing import CliRunner

from rucola.cli.main import main
from rucola.client.sync import Message, Producer, PushConsumer
from rucola.message import MessageExt
from rucola.message.compression import CompressionType
from rucola.spark.jobs import archive, replay, search
from rucola.spark.jobs.selection import Selection
from rucola.spark.session import LazySession
from rucola.store.tools.check import check
from rucola.store.tools.repair import repair
from rucola.testing.rocketmq import RocketMQ

HERE = LazySession("tests", use_spark=False)
STORED = b"no stream " * 500  # as long as bodies that a producer compresses
FLAGS = CompressionType.ZSTD.sys_flag
BODIES = [b"first", STORED, b"last"]


@pytest.fixture
def served(tmp_path: Path) -> Any:
    with RocketMQ(tmp_path) as rocketmq:
        rocketmq.create_topic("T", 1)
        with Producer("p", rocketmq.namesrv) as producer:
            for body in BODIES:
                message = Message("T", body, keys="k", body_flags=FLAGS if body == STORED else 0)
                producer.send(message)
        yield rocketmq
    assert check(rocketmq.store) == []


def is_whole(messages: list[MessageExt]) -> bool:
    """Tell whether these are the messages that were sent, and the one body is flagged."""
    return [(each.body, each.body_error is not None) for each in messages] == [(one, one == STORED) for one in BODIES]


def rows_of(*command: str) -> list[dict[str, Any]]:
    """Run a command that prints JSON and return its messages."""
    result = CliRunner().invoke(main, command, catch_exceptions=False)
    assert result.exit_code == 0, result.output
    lines = result.stdout.splitlines()
    found = [json.loads(line) for line in lines] if lines[0].endswith("}") else json.loads(result.stdout)
    found = found if isinstance(found, list) else found.get("messages", [found])
    return [each.get("message", each) for each in found]


def test_clients_and_commands_return_it(served: RocketMQ) -> None:
    group = PushConsumer("g", served.namesrv, max_reconsume_times=0)
    group.subscribe("T")
    consumed = []
    with group:
        for message in group.messages(idle_timeout_ms=30_000):
            consumed.append(message)
            if message.body_error is not None:
                group.reconsume_later(message)  # to the dead letter queue
            if len(consumed) == len(BODIES):
                break
    assert is_whole(sorted(consumed, key=lambda each: each.queue_offset))
    odd = consumed[1]
    place = ("-b", "broker-a", "-i", "0", "-o", "1")
    for command, count in (
        (("queryMsgByKey", "-t", "T", "-k", "k"), 3),
        (("queryMsgById", "-i", odd.offset_msg_id), 1),
        (("queryMsgByUniqueKey", "-t", "T", "-i", odd.msg_id), 1),
        (("queryMsgByOffset", "-t", "T", *place), 1),
        (("printMsg", "-t", "T"), 3),
        (("consumeMessage", "-t", "T"), 3),
        (("printMsgByQueue", "-t", "T", "-a", "broker-a", "-i", "0", "-p", "true"), 3),
    ):
        rows = rows_of("admin", *command, "-n", served.namesrv, "--json")
        assert (len(rows), sum("bodyError" in row for row in rows)) == (count, 1), command

    # The dead letter, and what is sent again, are compressed as the original claims to be.
    (letter,) = served.wait_for_dead_letters("g")
    assert (letter.body, letter.sys_flag & FLAGS, letter.body_error) == (STORED, FLAGS, odd.body_error)
    (row,) = rows_of("admin", "printDlq", "-g", "g", "-n", served.namesrv, "--json")
    assert row["bodyError"] == odd.body_error
    for form in ("jsonl", "parquet"):
        path = str(served.store.parent / form)
        rows_of("admin", "exportDlq", "-g", "g", "-f", form, "-o", path, "-n", served.namesrv, "--json")
    assert pq.read_table(served.store.parent / "parquet")["bodyError"].to_pylist() == [odd.body_error]
    rows_of("admin", "redriveDlq", "-g", "g", "--yes", "-n", served.namesrv, "--json")
    rows_of("admin", "queryMsgById", "-i", odd.offset_msg_id, "-s", "true", "-n", served.namesrv, "--json")
    for copy in served.messages("T")[len(BODIES) :]:
        assert (copy.body, copy.sys_flag & FLAGS, copy.body_error) == (STORED, FLAGS, odd.body_error)


def test_store_tools_and_jobs_return_it(served: RocketMQ) -> None:
    store, lake = served.store, served.store.parent / "lake"
    assert is_whole(served.messages("T"))
    assert ["bodyError" in row for row in rows_of("store", "dump", str(store))] == [body == STORED for body in BODIES]
    (row,) = rows_of("store", "grep", str(store), "-s", "stream")
    assert row["bodyLength"] == len(STORED)
    assert archive.run(HERE, store, lake).rows == len(BODIES)
    found = search.run(HERE, lake, Selection()).messages
    assert is_whole([each.message for each in reversed(found)])

    # A replay keeps what sysFlag says of the body, from a store as well as from a lake.
    for source, topic in ((store, "FromStore"), (lake, "FromLake")):
        served.create_topic(topic, 1)
        replay.run(
            HERE,
            source,
            replay.ReplayOptions(served.namesrv, store.parent / f"ledger of {topic}", topic),
            selection=Selection(("T",)),
        )
        copies = served.messages(topic)
        assert is_whole(copies)
        assert [each.sys_flag & FLAGS for each in copies] == [FLAGS if body == STORED else 0 for body in BODIES]

    with served.broker_down():
        result = repair(store, store.parent / "repaired")
    assert result.clean
    assert check(store.parent / "repaired") == []
