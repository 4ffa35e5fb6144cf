"""OpenTelemetry: one trace from a transaction over outbox, relay and consumer to the effect."""

from __future__ import annotations

import asyncio
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from opentelemetry.trace import SpanKind
from sqlalchemy.orm import Session

from rucola.client import Message, MessageExt, Producer
from rucola.reliable import Outbox, Relay, ReliableError, idempotent
from rucola.testing.rocketmq import RocketMQ
from support.databases import OutboxDatabase
from support.outbox import FAST_POLICY, consumer_of, statuses, stubs, until
from support.servers import RUCOLA, Server
from support.telemetry import Recorded


@pytest.fixture
def recorded() -> Recorded:
    return Recorded()


def add(outbox: Outbox, db: OutboxDatabase, *messages: Message) -> None:
    with Session(db.engine()) as session, session.begin():
        for message in messages:
            outbox.add(session, message)


async def test_a_transaction_its_send_and_its_effect_are_one_trace(
    sqlite_db: OutboxDatabase, shared_rocketmq: RocketMQ, topic: str, recorded: Recorded
) -> None:
    db, group = sqlite_db, shared_rocketmq.unique("billing")
    outbox = Outbox([group], tables=db.tables, trace=recorded.telemetry)

    @idempotent(db.engine(), group, tables=db.tables)
    def write_invoice(message: MessageExt, session: Session) -> None:
        with recorded.tracer.start_as_current_span("invoice"):
            pass

    message = Message(topic, b"pizza")
    with recorded.tracer.start_as_current_span("order"):
        add(outbox, db, message)
    assert "traceparent" not in message.properties, "it may be added again, in another trace"
    consumer = consumer_of(shared_rocketmq.namesrv, group, topic, write_invoice, trace=recorded.telemetry)
    relay = Relay(db.engine(), shared_rocketmq.namesrv, outbox=outbox, policy=FAST_POLICY, trace=recorded.telemetry)
    async with relay, consumer:
        await until(lambda: statuses(db) == {"CONFIRMED": 1})
        await until(lambda: bool(recorded.spans(f"process {topic}")))
    order, send, process, invoice = map(recorded.span, ("order", f"send {topic}", f"process {topic}", "invoice"))
    assert send.kind is SpanKind.PRODUCER
    assert [one.parent.span_id for one in (send, process, invoice)] == [
        one.context.span_id for one in (order, order, process)
    ]


async def test_messages_that_are_sent_together_link_to_their_transactions(
    sqlite_db: OutboxDatabase, shared_rocketmq: RocketMQ, topic: str, recorded: Recorded
) -> None:
    db = sqlite_db
    outbox = Outbox(tables=db.tables, trace=recorded.telemetry)
    for name in ("first", "second"):
        with recorded.tracer.start_as_current_span(name):
            add(outbox, db, Message(topic, name.encode()))
    with recorded.tracer.start_as_current_span("elsewhere"):
        forwarded = recorded.telemetry.inject(Message(topic, b"forwarded"))
    with recorded.tracer.start_as_current_span("forwards"):
        add(outbox, db, forwarded)
    async with Relay(db.engine(), shared_rocketmq.namesrv, outbox=outbox, trace=recorded.telemetry):
        await until(lambda: statuses(db) == {"CONFIRMED": 3})
    send = recorded.span(f"send {topic}")
    added = [recorded.span(name).context.span_id for name in ("first", "second", "elsewhere")]
    assert (send.kind, send.parent) == (SpanKind.CLIENT, None)
    assert [link.context.span_id for link in send.links] == added
    carried = {one.body: one.properties["traceparent"].split("-")[2] for one in shared_rocketmq.messages(topic)}
    assert carried == {
        body: f"{span_id:016x}" for body, span_id in zip((b"first", b"second", b"forwarded"), added, strict=True)
    }


async def test_a_failed_send_ends_its_span_and_without_trace_nothing_is_stored(
    sqlite_db: OutboxDatabase, recorded: Recorded
) -> None:
    db = sqlite_db
    with recorded.tracer.start_as_current_span("order"):
        add(Outbox(tables=db.tables), db, Message("Orders", b"pizza"))
    assert [stub.properties for stub in stubs(db)] == ["{}"]
    async with Relay(db.engine(), "127.0.0.1:1", tables=db.tables, policy=FAST_POLICY, trace=recorded.telemetry):
        await until(lambda: bool(recorded.spans("send Orders")))
    assert all(span.attributes["error.type"] for span in recorded.spans("send Orders"))
    assert statuses(db) == {"NEW": 1}


def test_a_producer_of_your_own_has_its_own_trace(sqlite_db: OutboxDatabase, recorded: Recorded) -> None:
    with pytest.raises(ReliableError):
        Relay(sqlite_db.engine(), producer=Producer("relay"), trace=recorded.telemetry)


def test_without_telemetry_nothing_of_it_is_imported() -> None:
    """The package redis imports OpenTelemetry by itself, if it is installed."""
    code = "import sys, rucola.cli.reliable; print('rucola.client.otel' in sys.modules)"
    printed = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert printed.stdout == "False\n"


SPANS = """
import sys
from opentelemetry import trace
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import ConsoleSpanExporter, SimpleSpanProcessor

provider = TracerProvider()
spans = open(sys.argv.pop(1), "w", buffering=1)
exporter = ConsoleSpanExporter(out=spans, formatter=lambda span: f"{span.name} {span.parent.span_id:016x}\\n")
provider.add_span_processor(SimpleSpanProcessor(exporter))
trace.set_tracer_provider(provider)
"""


@pytest.mark.slow
async def test_the_relay_as_a_process_records_by_the_providers_of_its_program(
    sqlite_db: OutboxDatabase, shared_rocketmq: RocketMQ, topic: str, tmp_path: Path, recorded: Recorded
) -> None:
    """As `opentelemetry-instrument` sets them up, before the command."""
    db = sqlite_db
    with recorded.tracer.start_as_current_span("order"):
        add(Outbox(tables=db.tables, trace=recorded.telemetry), db, Message(topic, b"pizza"))
    program = [*RUCOLA[:2], SPANS + RUCOLA[2], str(tmp_path / "spans")]
    where = ["-n", shared_rocketmq.namesrv, "-d", db.url, "--prefix", db.tables.prefix]
    relay = await asyncio.to_thread(
        Server, "reliable", "relay", "--otel", *where, log=tmp_path / "log", program=program
    )
    try:
        await until(lambda: statuses(db) == {"CONFIRMED": 1})
    finally:
        assert await asyncio.to_thread(relay.stop) == 0
    expected: Any = recorded.span("order").context.span_id
    assert (tmp_path / "spans").read_text() == f"send {topic} {expected:016x}\n"
