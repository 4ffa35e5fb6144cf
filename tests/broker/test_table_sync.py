"""Changes of the master's tables reach the slave within a second, and cost only what changed."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rucola import fastjson
from rucola.broker.broker import Broker
from rucola.broker.replication import table_sync
from rucola.broker.tables.offsets import ConsumerOffsetTable
from rucola.client import Producer
from rucola.message import Message
from rucola.protocol.body import encode_body
from rucola.protocol.codes import RequestCode, ResponseCode
from rucola.protocol.command import RemotingCommand
from rucola.protocol.kv import KVTable
from rucola.protocol.topic import TableCopyHeader, TableVersionHeader
from rucola.remoting.connection import Connection, Processor
from support.broker_peer import broker_peer
from support.cluster import Cluster, cluster
from support.replication import caught_up, pair, send, sound_cluster
from support.waiting import until


async def body_of(running: Cluster, broker: Broker, code: RequestCode) -> bytes:
    return (await running.peer(broker).ask(code)).body


@pytest.mark.slow
async def test_changes_arrive_between_two_full_copies(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Only the first run copies everything here: what follows is shipped as a change."""
    monkeypatch.setattr(table_sync, "RUNS_PER_FULL_COPY", 1 << 30)
    async with pair(tmp_path) as (running, master, slave):

        async def equal(code: RequestCode, part: bytes) -> None:
            async def is_so() -> bool:
                body = await body_of(running, slave, code)
                return part in body and fastjson.loads(body) == fastjson.loads(await body_of(running, master, code))

            await until(is_so)

        source = running.peer(master)
        await source.commit(17)
        await source.commit(3, "other")
        await equal(RequestCode.GET_ALL_CONSUMER_OFFSET, b'"T@g":{0:17}')
        await source.commit(18)
        await equal(RequestCode.GET_ALL_CONSUMER_OFFSET, b'"T@g":{0:18}')
        await running.create_topic(master, "Later", queues=3)
        await equal(RequestCode.GET_ALL_TOPIC_CONFIG, b"Later")
        await source.alter_group(retry_max_times=7)
        await equal(RequestCode.GET_ALL_SUBSCRIPTIONGROUP_CONFIG, b'"retryMaxTimes":7')
        async with Producer("p", running.namesrv) as producer:
            await producer.send(Message("T", b"soon", properties={"DELAY": "1"}))
        await caught_up(running, master, slave)
        file = tmp_path / "slave" / "config" / "delayOffset.json"
        await until(lambda: file.exists() and fastjson.loads(file.read_bytes())["offsetTable"] == {1: 1})


async def test_a_restarted_master_sends_all_offsets_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(table_sync, "RUNS_PER_FULL_COPY", 1 << 30)
    async with pair(tmp_path) as (running, master, slave):
        await send(running, 1)
        await caught_up(running, master, slave)
        await running.peer(master).commit(5)
        port = master.config.listen_port
        await master.stop()
        await running.peer(slave).commit(9, "only at the slave")
        master = await running.start_broker(port=port, store={"broker_role": master.store_config.broker_role})
        await running.peer(master).commit(6)

        async def has_both() -> bool:
            offsets = fastjson.loads(await body_of(running, slave, RequestCode.GET_ALL_CONSUMER_OFFSET))["offsetTable"]
            return bool(offsets.get("T@g") == {0: 6} and offsets.get("T@only at the slave") == {0: 9})

        await until(has_both)


async def test_an_equal_version_is_answered_without_the_table_and_none_as_by_apache(tmp_path: Path) -> None:
    async with broker_peer(tmp_path) as peer:

        async def ask(code: RequestCode, version: str | None) -> tuple[str | None, bytes]:
            response = await peer.ask(code, TableVersionHeader(table_version=version))
            return response.decode_header(TableVersionHeader).table_version, response.body

        for code in (RequestCode.GET_ALL_TOPIC_CONFIG, RequestCode.GET_ALL_SUBSCRIPTIONGROUP_CONFIG):
            version, body = await ask(code, "")
            assert body == (await ask(code, None))[1] != b""
            assert (await ask(code, None))[0] is None
            assert await ask(code, version) == (version, b"")
            assert await ask(code, "another") == (version, body)
        first, body = await ask(RequestCode.GET_ALL_CONSUMER_OFFSET, "")
        assert body == b'{"offsetTable":{}}'
        await peer.commit(1, topic="TBW102")
        second, body = await ask(RequestCode.GET_ALL_CONSUMER_OFFSET, first)
        assert body == b'{"offsetTable":{"TBW102@g":{0:1}}}'
        assert await ask(RequestCode.GET_ALL_CONSUMER_OFFSET, second) == (second, b'{"offsetTable":{}}')
        assert (await ask(RequestCode.GET_ALL_CONSUMER_OFFSET, "0:1"))[1] == body


async def test_a_copy_of_offsets_names_the_bounds_of_the_log_if_a_version_asks_for_them(tmp_path: Path) -> None:
    async with broker_peer(tmp_path) as peer:
        await peer.send(topic="TBW102")
        end = peer.broker.role.position()
        assert (end.epoch, end.end > 0) == (1, True)
        for code in (RequestCode.GET_ALL_CONSUMER_OFFSET, RequestCode.GET_ALL_DELAY_OFFSET):
            assert (await peer.ask(code)).ext_fields == {}
            header = (await peer.ask(code, TableVersionHeader(table_version=""))).decode_header(TableCopyHeader)
            assert (header.log_epoch, header.log_begin, header.log_end) == (end.epoch, 0, end.end)


@given(
    st.lists(
        st.one_of(
            st.tuples(st.just("commit"), st.sampled_from("ab"), st.integers(0, 2), st.integers(0, 3)),
            st.tuples(st.just("copy"), st.booleans()),
        )
    )
)
def test_a_slave_that_merges_changes_has_the_masters_offsets(steps: list[tuple[Any, ...]]) -> None:
    master, slave = (ConsumerOffsetTable(Path(name)) for name in ("master", "slave"))
    version: str | None = None
    for step in [*steps, ("copy", False)]:
        if step[0] == "commit":
            master.commit(step[1], "T", step[2], step[3])
        else:
            changes = master.changes_since("" if step[1] else version)
            slave.merge({key: dict(queues) for key, queues in changes.items()})
            version = master.version
            assert master.changes_since(version) == {}
            assert slave.table() == master.table()


async def test_tables_of_a_master_without_versions_are_copied_as_a_whole(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Apache's broker ignores the field of the request, and answers without one."""
    monkeypatch.setattr(table_sync, "SYNC_INTERVAL_MS", 20)
    monkeypatch.setattr(table_sync, "RUNS_PER_FULL_COPY", 3)
    versions: list[str | None] = []

    def offsets(connection: Connection, command: RemotingCommand) -> RemotingCommand:
        versions.append(command.decode_header(TableVersionHeader).table_version)
        body = fastjson.dumps({"offsetTable": {"T@g": {0: len(versions)}}})
        return command.response(ResponseCode.SUCCESS, body=body)

    async with cluster(tmp_path) as running:
        await running.scripted_broker("broker-a", "T", {RequestCode.GET_ALL_CONSUMER_OFFSET: offsets})
        slave = await running.start_slave()

        async def has_the_third_answer() -> bool:
            body = await body_of(running, slave, RequestCode.GET_ALL_CONSUMER_OFFSET)
            return bool(fastjson.loads(body)["offsetTable"]["T@g"][0] >= 3)

        await until(has_the_third_answer)
    assert set(versions) == {""}, "no change is asked for"


async def test_a_master_that_names_no_end_with_a_table_is_asked_for_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As Apache's, which answers where its log ends. The slave has nothing of that log here."""
    monkeypatch.setattr(table_sync, "SYNC_INTERVAL_MS", 20)
    monkeypatch.setattr(table_sync, "RUNS_PER_FULL_COPY", 1)
    log_end, asked = 100, 0

    def delay_offsets(connection: Connection, command: RemotingCommand) -> RemotingCommand:
        return command.response(ResponseCode.SUCCESS, body=b'{"offsetTable":{1:5}}')

    def runtime_info(connection: Connection, command: RemotingCommand) -> RemotingCommand:
        nonlocal asked
        asked += 1
        table = {"commitLogMinOffset": str(log_end - 1), "commitLogMaxOffset": str(log_end)}
        return command.response(ResponseCode.SUCCESS, body=encode_body(KVTable(table=table)))

    processors: dict[int, Processor] = {
        RequestCode.GET_ALL_DELAY_OFFSET: delay_offsets,
        RequestCode.GET_BROKER_RUNTIME_INFO: runtime_info,
    }
    async with sound_cluster(tmp_path) as running:
        await running.scripted_broker("broker-a", "T", processors)
        await running.start_slave()
        file = tmp_path / "slave" / "config" / "delayOffset.json"
        await until(lambda: asked >= 3)
        assert not file.exists()
        log_end = 0  # it has lost its log, and begins at -1 as Apache's without files
        await until(file.exists)
        assert fastjson.loads(file.read_bytes())["offsetTable"] == {1: 5}
