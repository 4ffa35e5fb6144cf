"""Resend: what is lost is sent again, what is not is left alone, and what cannot be settled is told to a person."""

from __future__ import annotations

import asyncio
import http.server
import json
import socketserver
import ssl
import threading
import urllib.error
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import pytest

from rucola.client import PullConsumer, ReconsumeLater
from rucola.message import MessageExt
from rucola.reliable.alerts import SHOWN, Alert, Alerts, email_sink, webhook_sink
from rucola.reliable.policy import Decision, GroupProgress, GroupState, KeyedResend, Policy, Position, SentStub, decide
from rucola.reliable.relay import Relay
from rucola.testing.rocketmq import RocketMQ
from support import waiting
from support.certificates import Certificates
from support.cluster import cluster
from support.databases import OutboxDatabase
from support.outbox import (
    FAST_POLICY,
    RecordingSink,
    RepairableConsumer,
    add,
    change,
    consumer_of,
    receive,
    relay,
    statuses,
    stubs,
    until,
)
from support.servers import run

HOUR_MS = 3_600_000
AT_7 = Position("T", "b", 0, 7)
AFTER_REDRIVE = SentStub(1, False, 0, AT_7, dead_letters=1)
POLICY = Policy(max_sends=3)


@pytest.mark.parametrize(
    ("stub", "state", "decision"),
    [
        (SentStub(1, False, 0, AT_7), GroupState(None, GroupProgress(7, 8)), Decision.WAIT),
        (SentStub(1, False, 0, AT_7), GroupState(None, GroupProgress(None, 8)), Decision.WAIT),
        (SentStub(1, False, 0, AT_7), GroupState(None, None), Decision.WAIT),
        (SentStub(1, False, 0, AT_7), GroupState(None, GroupProgress(8, 9)), Decision.RESEND),
        (SentStub(1, False, 0, AT_7), GroupState(0, GroupProgress(8, 9)), Decision.WAIT),
        (SentStub(1, False, 0, AT_7), GroupState(None, GroupProgress(None, 7)), Decision.RESEND),
        (SentStub(1, False, 0, AT_7), GroupState(None, GroupProgress(3, 7)), Decision.RESEND),
        # The broker lost its disk: the offset that a worker committed from memory is of the queue before.
        (SentStub(1, False, 0, AT_7), GroupState(None, GroupProgress(500, 9)), Decision.WAIT),
        (SentStub(1, True, 0, AT_7), GroupState(None, GroupProgress(500, 9)), Decision.WAIT),
        (SentStub(1, False, 0, AT_7), GroupState(None, GroupProgress(500, 7)), Decision.RESEND),
        (SentStub(1, False, 0, AT_7), GroupState(None, GroupProgress(500, 500)), Decision.RESEND),
        (SentStub(1, False, 0, None), GroupState(None, None), Decision.RESEND),
        (SentStub(1, False, 0, None), GroupState(0, None), Decision.WAIT),
        (SentStub(1, False, 0, AT_7), GroupState(None, GroupProgress(8, 9), is_retried=True), Decision.WAIT),
        (SentStub(3, True, 0, None), GroupState(None, None, is_retried=True), Decision.WAIT),
        # A search for its copies failed.
        (SentStub(1, False, 0, AT_7), GroupState(None, GroupProgress(8, 9), is_retried=None), Decision.WAIT),
        (SentStub(1, False, 0, AT_7), GroupState(None, GroupProgress(8, 9), dead_letters=None), Decision.WAIT),
        (SentStub(3, True, 0, None), GroupState(None, None, is_retried=None), Decision.WAIT),
        (SentStub(1, False, 24 * HOUR_MS, None), GroupState(None, None, is_retried=None), Decision.STUCK),
        (SentStub(1, False, 0, AT_7), GroupState(6 * HOUR_MS, None, dead_letters=None), Decision.STUCK),
        (SentStub(1, False, 24 * HOUR_MS, None), GroupState(None, None, is_retried=True), Decision.STUCK),
        (SentStub(1, False, 0, None), GroupState(None, None, dead_letters=1, is_retried=True), Decision.DEAD),
        (SentStub(3, False, 0, AT_7), GroupState(None, GroupProgress(8, 9)), Decision.MANUAL),
        (SentStub(3, False, 0, AT_7), GroupState(None, GroupProgress(7, 9)), Decision.WAIT),
        (SentStub(1, True, 0, AT_7), GroupState(None, GroupProgress(8, 9)), Decision.MANUAL),
        (SentStub(1, True, 0, AT_7), GroupState(None, GroupProgress(7, 9)), Decision.WAIT),
        (SentStub(1, False, 0, AT_7), GroupState(6 * HOUR_MS, GroupProgress(8, 9)), Decision.STUCK),
        (SentStub(1, False, 24 * HOUR_MS, AT_7), GroupState(None, GroupProgress(7, 8)), Decision.STUCK),
        (SentStub(1, False, 0, AT_7), GroupState(0, GroupProgress(8, 9), dead_letters=1), Decision.DEAD),
        (
            AFTER_REDRIVE,
            GroupState(0, GroupProgress(8, 9), dead_letters=1),
            Decision.WAIT,
        ),
        (
            AFTER_REDRIVE,
            GroupState(0, GroupProgress(8, 9), dead_letters=2),
            Decision.DEAD,
        ),
    ],
)
def test_decision_follows_receipt_offsets_and_age(stub: SentStub, state: GroupState, decision: Decision) -> None:
    assert decide(stub, {"g": state}, POLICY)[0] is decision


def test_decision_considers_every_awaited_group() -> None:
    waits, lost = GroupState(None, GroupProgress(7, 8)), GroupState(None, GroupProgress(8, 9))
    assert decide(SentStub(1, False, 0, AT_7), {"a": waits, "b": lost}, POLICY)[0] is Decision.RESEND
    assert decide(SentStub(1, False, 0, AT_7), {}, POLICY)[0] is Decision.RESEND
    in_any_order = Policy(keyed_resend=KeyedResend.SEND)
    assert decide(SentStub(1, True, 0, AT_7), {"a": lost}, in_any_order)[0] is Decision.RESEND


def test_waits_double_up_to_a_limit() -> None:
    policy = Policy(retry_ms=100, max_retry_ms=1000, confirm_timeout_ms=500, jitter=0)
    assert [policy.retry_wait_ms(sends) for sends in (1, 2, 3, 4, 5, 99)] == [100, 200, 400, 800, 1000, 1000]
    assert [policy.confirm_wait_ms(sends) for sends in (1, 2, 3)] == [500, 1000, 1000]
    assert policy.check_wait_ms(1, 100 * HOUR_MS) == policy.max_check_ms
    waits = {Policy().retry_wait_ms(4) for _ in range(50)}
    assert len(waits) > 1
    assert all(8000 <= wait <= 9600 for wait in waits)


async def test_lost_message_is_resent_until_it_needs_an_operator(
    db: OutboxDatabase, shared_rocketmq: RocketMQ, topic: str
) -> None:
    group, told = shared_rocketmq.unique("g"), RecordingSink()
    (message_id,) = add(db, topic, [b"x"], groups=[group])

    policy = Policy(max_sends=3, confirm_timeout_ms=1, poll_ms=10, jitter=0, retry_ms=1)
    async with (
        PullConsumer(group, shared_rocketmq.namesrv) as consumer,
        relay(db, shared_rocketmq, policy=policy, alerts=Alerts([told])),
    ):
        (queue,) = await consumer.queues(topic)

        async def is_told() -> bool:
            """Skip all messages in the queue, as a worker does that acknowledges what it has not received."""
            await consumer.commit(queue, await consumer.max_offset(queue))
            return bool(told.alerts)

        await waiting.until(is_told, 30)
    (stub,) = stubs(db)
    assert (stub.status, stub.sends, stub.due_at) == ("MANUAL", 3, None)
    assert "sent 3 times" in stub.error
    assert {m.msg_id for m in shared_rocketmq.messages(topic)} == {message_id}
    assert len(shared_rocketmq.messages(topic)) == 3
    (alert,) = told.alerts
    assert (alert.kind, alert.count, alert.message_ids) == ("MANUAL", 1, (message_id,))
    assert "resend" in alert.text()


async def test_message_in_a_backlog_or_with_a_receipt_is_not_sent_again(
    db: OutboxDatabase, shared_rocketmq: RocketMQ, topic: str
) -> None:
    group = shared_rocketmq.unique("g")
    waits, received = add(db, topic, [b"1", b"2"], groups=[group])
    receive(db, received, group)

    async with relay(db, shared_rocketmq, policy=FAST_POLICY):
        await until(lambda: statuses(db) == {"SENT": 2})
        first_due = [stub.due_at for stub in stubs(db)]
        await until(lambda: all(stub.due_at > due for stub, due in zip(stubs(db), first_due, strict=True)))
    assert [stub.sends for stub in stubs(db)] == [1, 1]
    assert [m.msg_id for m in shared_rocketmq.messages(topic)] == [waits, received]


async def test_message_that_a_group_has_returned_without_a_receipt_is_not_lost(
    sqlite_db: OutboxDatabase, shared_rocketmq: RocketMQ, topic: str
) -> None:
    """While the consumer's database is down, it fails before it writes a receipt."""
    group = shared_rocketmq.unique("g")
    delayed, retried = add(sqlite_db, topic, [b"delayed", b"retried"], groups=[group], shard_key="k")
    deliveries: list[tuple[bytes, int]] = []

    async def fails(message: MessageExt) -> None:
        deliveries.append((message.body, message.reconsume_times))
        raise ReconsumeLater(1 if message.body == b"retried" and not message.reconsume_times else 18)

    consumer = consumer_of(shared_rocketmq.namesrv, group, topic, fails)
    policy = Policy(confirm_timeout_ms=3_600_000, poll_ms=10)
    async with relay(sqlite_db, shared_rocketmq, policy=policy) as running:
        async with consumer:
            await waiting.until(lambda: (b"retried", 1) in deliveries and (b"delayed", 0) in deliveries, 30)
        change(sqlite_db, due_at=1)
        running.wake()
        await until(lambda: min(stub.due_at or 0 for stub in stubs(sqlite_db)) > 1)
    assert [(stub.message_id, stub.status, stub.sends, stub.error) for stub in stubs(sqlite_db)] == [
        (delayed, "SENT", 1, None),
        (retried, "SENT", 1, None),
    ]


@pytest.mark.parametrize("names", ["b", "ab"])
async def test_message_is_not_lost_while_a_broker_does_not_tell_whether_it_has_its_retry(
    sqlite_db: OutboxDatabase, tmp_path: Path, names: str
) -> None:
    """Broker b has the message and its retry, and no index to find it by."""
    returned = asyncio.Event()

    async def fails(message: MessageExt) -> None:
        returned.set()
        raise ReconsumeLater(18)

    async with cluster(tmp_path) as running:
        stores: dict[str, dict[str, Any]] = {name: {"message_index_enable": name != "b"} for name in names}
        brokers = {name: await running.start_broker(name, store=store) for name, store in stores.items()}
        await running.create_topic(brokers["b"], "T", 1)
        add(sqlite_db, "T", [b"x"], groups=["g"])
        policy = Policy(confirm_timeout_ms=3_600_000, poll_ms=10)
        async with Relay(sqlite_db.engine(), running.namesrv, tables=sqlite_db.tables, policy=policy) as relaying:
            consumer = consumer_of(running.namesrv, "g", "T", fails)
            async with consumer:
                await returned.wait()
            change(sqlite_db, due_at=1)
            relaying.wake()
            await until(lambda: (stubs(sqlite_db)[0].due_at or 0) > 1)
    (stub,) = stubs(sqlite_db)
    assert (stub.status, stub.sends, stub.error) == ("SENT", 1, None)


@pytest.mark.parametrize("command", ["reliable resend", "admin redriveDlq"])
async def test_dead_letter_is_dead_until_its_message_is_sent_again(
    sqlite_db: OutboxDatabase, shared_rocketmq: RocketMQ, topic: str, command: str
) -> None:
    """An operator repairs the consumer and runs a command that the alert names. The old letter does not count again."""
    group, told = shared_rocketmq.unique("g"), RecordingSink()
    (message_id,) = add(sqlite_db, topic, [b"x"], groups=[group])
    consumer = RepairableConsumer(sqlite_db, shared_rocketmq, group, topic)
    options = {
        "reliable resend": ["-d", sqlite_db.url, "--prefix", sqlite_db.tables.prefix, message_id],
        "admin redriveDlq": ["-g", group, "-n", shared_rocketmq.namesrv],
    }
    async with consumer.client, relay(sqlite_db, shared_rocketmq, alerts=Alerts([told])):
        await until(lambda: bool(told.alerts))
        assert statuses(sqlite_db) == {"DEAD": 1}
        assert told.alerts[0].kind == "DEAD"
        assert "redriveDlq" in told.alerts[0].text()
        consumer.is_repaired = True
        done = await asyncio.to_thread(run, *command.split(), *options[command], "--yes")
        assert done.returncode == 0, done.stderr
        await until(lambda: statuses(sqlite_db) == {"CONFIRMED": 1})
    assert consumer.effects == [message_id]
    assert stubs(sqlite_db)[0].sends == 1
    assert len(shared_rocketmq.dead_letters(group)) == 1


@pytest.mark.rocketmq(brokerRole="SYNC_MASTER")
async def test_message_without_send_ok_stays_unconfirmed(sqlite_db: OutboxDatabase, rocketmq: RocketMQ) -> None:
    add(sqlite_db, "T", [b"x"])

    rocketmq.create_topic("T", 1)
    async with relay(sqlite_db, rocketmq):
        await until(lambda: stubs(sqlite_db)[0].sends >= 2)  # SLAVE_NOT_AVAILABLE each time
    (stub,) = stubs(sqlite_db)
    assert stub.status in ("SENT", "MANUAL")
    assert stub.broker is not None


# Alerts.


def fail(db: OutboxDatabase, message_id: str, status: str = "DEAD") -> None:
    stub = db.tables.stub
    change(db, stub.c.message_id == message_id, status=status, due_at=2)


async def test_alerts_are_digests_with_one_per_kind_and_interval(
    sqlite_db: OutboxDatabase, shared_rocketmq: RocketMQ
) -> None:
    told = RecordingSink()
    ids = add(sqlite_db, "T", [b"x"] * 50)
    change(sqlite_db, status="STUCK", due_at=1, error="why")

    async with relay(sqlite_db, shared_rocketmq, alerts=Alerts([told])) as running:
        await until(lambda: bool(told.alerts))
        await until(lambda: all(stub.due_at is None for stub in stubs(sqlite_db)))
        (one_more,) = add(sqlite_db, "T", [b"x"])
        fail(sqlite_db, one_more, status="STUCK")
        running.wake()
        await until(lambda: stubs(sqlite_db)[-1].due_at > stubs(sqlite_db)[-1].created_at + 1000)
    (alert,) = told.alerts
    assert (alert.kind, alert.count, alert.detail) == ("STUCK", 50, "why")
    assert alert.message_ids == tuple(ids[:SHOWN])
    assert "and 30 more" in alert.text()


async def test_alert_counts_all_messages_that_are_due_however_many_batches_they_fill(
    db: OutboxDatabase, shared_rocketmq: RocketMQ
) -> None:
    told = RecordingSink()
    add(db, "T", [b"x"] * 45)
    change(db, status="DEAD", due_at=1)

    async with relay(db, shared_rocketmq, alerts=Alerts([told]), policy=Policy(batch=10, poll_ms=10)):
        await until(lambda: all(stub.due_at is None for stub in stubs(db)))
    assert [(alert.kind, alert.count) for alert in told.alerts] == [("DEAD", 45)]


async def test_a_sink_that_fails_gets_what_the_others_were_told_before(
    sqlite_db: OutboxDatabase, shared_rocketmq: RocketMQ
) -> None:
    works, recovers, is_away = RecordingSink(), RecordingSink(), True

    def fails_at_first(alert: Alert) -> None:
        if is_away:
            raise OSError("no route to host")
        recovers(alert)

    async with relay(sqlite_db, shared_rocketmq, alerts=Alerts([fails_at_first, works], interval_ms=1)) as running:
        for number in (1, 2):
            message_id, *_ = add(sqlite_db, "T", [b"x"])
            fail(sqlite_db, message_id)
            running.wake()
            await until(lambda count=number: len(works.alerts) == count)
        assert all(stub.due_at is not None for stub in stubs(sqlite_db))
        is_away = False
        await until(lambda: all(stub.due_at is None for stub in stubs(sqlite_db)))
    ids = [stub.message_id for stub in stubs(sqlite_db)]
    assert [(alert.count, *alert.message_ids) for alert in works.alerts] == [(1, message_id) for message_id in ids]
    assert {message_id for alert in recovers.alerts for message_id in alert.message_ids} == set(ids)


@contextmanager
def server(server: socketserver.BaseServer) -> Iterator[int]:
    thread = threading.Thread(target=server.serve_forever, daemon=True)
    thread.start()
    yield server.server_address[1]  # type: ignore[misc]
    server.shutdown()
    server.server_close()
    thread.join()


ALERT = Alert("DEAD", 2, ("A", "B"), "in the dead letter queue of group g")


async def test_webhook_sink_posts_alerts() -> None:
    posted: list[Any] = []
    answers = [500, 200]

    class Hook(http.server.BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            posted.append(json.loads(self.rfile.read(int(self.headers["Content-Length"]))))
            self.send_response(answers.pop(0))
            self.end_headers()

        def log_message(self, *arguments: Any) -> None: ...

    with server(http.server.ThreadingHTTPServer(("127.0.0.1", 0), Hook)) as port:
        sink = webhook_sink(f"http://127.0.0.1:{port}/hook")
        with pytest.raises(urllib.error.HTTPError):
            await asyncio.to_thread(sink, ALERT)
        await asyncio.to_thread(sink, ALERT)
    assert posted[1]["kind"] == "DEAD"
    assert posted[1]["message_ids"] == ["A", "B"]
    assert posted[1]["text"] == ALERT.text()


async def test_email_sink_sends_alerts() -> None:
    mails: list[str] = []

    class Smtp(socketserver.StreamRequestHandler):
        def handle(self) -> None:
            self.wfile.write(b"220 here\r\n")
            lines: list[str] = []
            while line := self.rfile.readline().decode().strip():
                match line.split()[0].upper():
                    case "EHLO" | "HELO" | "MAIL" | "RCPT":
                        self.wfile.write(b"250 ok\r\n")
                    case "DATA":
                        self.wfile.write(b"354 go on\r\n")
                        while (text := self.rfile.readline().decode().rstrip("\r\n")) != ".":
                            lines.append(text)
                        mails.append("\n".join(lines))
                        self.wfile.write(b"250 ok\r\n")
                    case _:
                        self.wfile.write(b"221 bye\r\n")
                        return

    with server(socketserver.ThreadingTCPServer(("127.0.0.1", 0), Smtp)) as port:
        sink = email_sink("127.0.0.1", port, "rucola@example.org", ["a@example.org", "b@example.org"])
        await asyncio.to_thread(sink, ALERT)
    (mail,) = mails
    assert "Subject: rucola: 2 messages DEAD" in mail
    assert "To: a@example.org, b@example.org" in mail
    assert "redriveDlq" in mail


async def test_a_mail_server_is_verified_before_it_gets_the_password(certificates: Certificates) -> None:
    """STARTTLS with a certificate that no authority of the system has signed: anyone could answer like that."""
    received: list[str] = []
    context = certificates.server().context

    class Smtp(socketserver.StreamRequestHandler):
        def handle(self) -> None:
            self.wfile.write(b"220 here\r\n")
            while line := self.rfile.readline().decode().strip():
                received.append(line)
                if line.upper() == "STARTTLS":
                    self.wfile.write(b"220 go on\r\n")
                    with suppress(OSError), context.wrap_socket(self.request, server_side=True) as secured:
                        received.append(secured.recv(1024).decode())
                    return
                self.wfile.write(b"250-here\r\n250-AUTH PLAIN\r\n250 STARTTLS\r\n")

    with server(socketserver.ThreadingTCPServer(("127.0.0.1", 0), Smtp)) as port:
        sink = email_sink(
            "127.0.0.1", port, "rucola@example.org", ["a@example.org"], user="u", password="p", starttls=True
        )
        with pytest.raises(ssl.SSLCertVerificationError):
            await asyncio.to_thread(sink, ALERT)
    assert received[-1] in ("STARTTLS", "")
