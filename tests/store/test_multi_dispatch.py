"""Further queues of a record: the same units by put, replication, recovery and rebuild, whole and in pieces."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Any

import hypothesis
import pytest
from hypothesis import given
from hypothesis import strategies as st

from rucola.message import MessageInner, properties
from rucola.message.topics import SCHEDULE_TOPIC, TRANS_HALF_TOPIC
from rucola.store.config import BrokerRole, PutMessageStatus
from rucola.store.message_store import MessageStore
from rucola.store.multi_dispatch import MultiDispatch, further_units
from rucola.store.tools.check import check
from rucola.store.tools.parallel_rebuild import UnitRun, log_files, scan_log_file, write_consume_queue
from rucola.store.tools.rebuild import rebuild
from support.examples import examples
from support.stores import config, crashed_copy, files_of, inner, sound_store

MESSAGES = st.lists(
    st.tuples(
        st.sampled_from([("T", 0), ("T", 1), ("U", 1), ("%LMQ%a", 0)]),
        st.lists(st.sampled_from(["%LMQ%a", "%LMQ%b", "%LMQ%c"]), max_size=3),
        st.sampled_from([{}, {"INNER_MULTI_QUEUE_OFFSET": "3,1"}, {"TAGS": "A"}]),
        st.integers(0, 300),
    ),
    min_size=1,
    max_size=60,
)


def message(queue: tuple[str, int], names: list[str], more: dict[str, str], size: int) -> MessageInner:
    pairs = {**more, **({"INNER_MULTI_DISPATCH": ",".join(names)} if names else {})}
    return inner(*queue, bytes(size), tags=more.get("TAGS"), properties=properties.join(pairs))


def copy_log(master: MessageStore, slave: MessageStore) -> None:
    assert slave.replica is not None
    begin = 0
    while begin < master.max_physical_offset:
        held = master.hold_bytes(begin, master.max_physical_offset - begin)
        assert held is not None
        with held:
            slave.replica.append(begin, held.view)
            begin += len(held)


@pytest.mark.parametrize("enable_lmq", [True, False])
@given(MESSAGES, st.data())
@hypothesis.settings(max_examples=examples(10), deadline=None)
def test_every_way_builds_the_same_queues(
    tmp_path_factory: pytest.TempPathFactory,
    enable_lmq: bool,
    messages: list[tuple[tuple[str, int], list[str], dict[str, str], int]],
    data: st.DataObject,
) -> None:
    path = tmp_path_factory.mktemp("stores")
    settings: dict[str, Any] = {"enable_lmq": enable_lmq, "enable_multi_dispatch": True}
    master, slave = (
        MessageStore(config(path / role.value, broker_role=role, **settings))
        for role in (BrokerRole.ASYNC_MASTER, BrokerRole.SLAVE)
    )
    checkpoint_at = data.draw(st.integers(0, 60))
    with master:
        expected: dict[tuple[str, int], int] = {}
        for number, (own, names, more, size) in enumerate(messages):
            result = master.put(message(own, names, more, size), 1000 + 5000 * number)
            assert result.status is PutMessageStatus.PUT_OK
            for queue in {own, *((name, 0 if enable_lmq else own[1]) for name in names)}:
                expected[queue] = expected.get(queue, 0) + 1
            if number == checkpoint_at:
                master.reput()
                master.checkpoint()
        assert {queue: end for queue, (_, end) in master.queues().items()} == expected
        for (topic, queue_id), count in expected.items():
            begin = found = 0
            while begin < count:
                page = master.get(topic, queue_id, begin, 32)
                found, begin = found + page.count, page.next_begin_offset
            assert found == count
        with slave:
            copy_log(master, slave)
        crashed = crashed_copy(master, path / "crashed")
    with crashed:
        pass
    shutil.copytree(path / "ASYNC_MASTER", path / "lost")
    shutil.rmtree(path / "lost" / "consumequeue")
    with MessageStore(config(path / "lost", **settings)):
        pass
    if messages:
        rebuild(path / "ASYNC_MASTER", path / "rebuilt", settings=master.config)
        pieces: dict[tuple[str, int], list[UnitRun]] = {}
        log = path / "ASYNC_MASTER" / "commitlog"
        for file in log_files(log):
            for item in scan_log_file(log, int(file.name), master.config):
                if isinstance(item, UnitRun):
                    pieces.setdefault((item.topic, item.queue_id), []).append(item)
        for runs in pieces.values():
            write_consume_queue(log, path / "pieces", runs, master.config)
        for name in ("SLAVE", "crashed", "lost", "rebuilt", "pieces"):
            assert files_of(path / name / "consumequeue") == files_of(path / "ASYNC_MASTER" / "consumequeue"), name
    for name in ("ASYNC_MASTER", "SLAVE", "crashed", "lost"):
        assert check(path / name) == []


def test_a_waiting_message_has_no_further_units_and_no_offsets_of_its_sender(tmp_path: Path) -> None:
    forged = properties.join({"INNER_MULTI_DISPATCH": "%LMQ%a", "INNER_MULTI_QUEUE_OFFSET": "5"})
    with sound_store(tmp_path / "store", enable_lmq=True, enable_multi_dispatch=True) as store:
        for topic in (SCHEDULE_TOPIC, TRANS_HALF_TOPIC):
            assert store.put(inner(topic, properties=forged), 1000).status is PutMessageStatus.PUT_OK
        assert {topic for topic, _ in store.queues()} == {SCHEDULE_TOPIC, TRANS_HALF_TOPIC}


def test_more_light_message_queues_than_allowed_are_refused(tmp_path: Path) -> None:
    settings = config(tmp_path / "store", enable_lmq=True, enable_multi_dispatch=True, max_lmq_consume_queue_num=2)
    with MessageStore(settings) as store:
        put = lambda names: store.put(message(("T", 0), names, {}, 1), 1000).status  # noqa: E731
        assert put(["%LMQ%a", "%LMQ%b"]) is put(["%LMQ%b"]) is PutMessageStatus.PUT_OK
        assert put(["%LMQ%c"]) is PutMessageStatus.LMQ_CONSUME_QUEUE_NUM_EXCEEDED
        assert store.max_offset("T", 0) == 2
    assert check(tmp_path / "store") == []


@pytest.mark.parametrize("offsets", ["", "1", "1,2,3", "1,x", "1,-2", "1,²", "1,99999999999999999"])
def test_offsets_that_do_not_fit_the_names_are_no_units(offsets: str) -> None:
    pairs = {"INNER_MULTI_DISPATCH": "%LMQ%a,%LMQ%b", **({"INNER_MULTI_QUEUE_OFFSET": offsets} if offsets else {})}
    assert further_units(properties.join(pairs), ("T", 1), MultiDispatch.LMQ) == {}
