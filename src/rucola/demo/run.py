"""Steps of the demonstration; each reports its result without assuming knowledge of RocketMQ.

    1. start      start `rucola standalone` on an empty store, in a separate process
    2. send       send every flight as a message, with many requests in flight
    3. receive    read all messages back by tag in a consumer group, and show its backlog
    4. find       find messages by key (a tail number), by unique key and by offsetMsgId
    5. retry      let another group fail until messages become dead letters, track them, and send them to it again
    6. archive    write the store to Parquet with Spark, query the archive with SQL, and draw a chart
    7. check      compare the numbers of sent, stored, consumed and archived messages, and validate the store

All steps use real sockets and files; the directory is kept for inspection.
"""

from __future__ import annotations

import asyncio
import re
import shutil
import sys
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import msgspec
from pyspark.sql import SparkSession
from rich.console import Console

from rucola.admin import AdminClient, RedriveStatus, TopicConfig, TrackType
from rucola.client import ConsumeFromWhere, Producer, PushConsumer
from rucola.demo import flights
from rucola.demo.chart import draw
from rucola.demo.report import Report
from rucola.errors import MQError
from rucola.message import MessageExt
from rucola.spark.archive import Archive
from rucola.spark.jobs import archive
from rucola.spark.session import local_session
from rucola.store.tools.check import check

GROUP = "flight-readers"
FAILING_GROUP = "flight-auditors"
DEAD_LETTERS = 3
QUEUES = 4
IDLE_TIMEOUT_MS = 20_000
"""Idle time after which a consumer gives up, so that the demonstration cannot hang."""
STOP_TIMEOUT_S = 30
MARKER = ".rucola-demo"
"""Marks the output of an earlier demonstration, which may be deleted."""

CARRIERS_BY_DELAY = """
    SELECT tags AS carrier, round(avg(flight.dep_delay), 1) AS mean_delay, count(*) AS flights
    FROM flights GROUP BY tags HAVING count(flight.dep_delay) > 0 ORDER BY mean_delay DESC LIMIT 8"""
MESSAGES_BY_HOUR = """
    SELECT flight.hour AS hour, count(*) AS messages FROM flights
    WHERE flight.hour IS NOT NULL GROUP BY 1 ORDER BY 1"""
FLIGHT_SCHEMA = "dep_delay INT, hour INT"


@dataclass(slots=True)
class Totals:
    """Message counts and mismatches of all steps. At-least-once delivery permits `repeated` messages."""

    sent: int = 0
    stored: int = 0
    consumed: int = 0
    repeated: int = 0
    archived: int = 0
    problems: list[str] = field(default_factory=list)

    def expect(self, what: str, found: object, expected: object) -> None:
        if found != expected:
            self.problems.append(f"{what}: {found}, expected {expected}")


def run(count: int, out: Path, console: Console) -> bool:
    """Run all steps with the first `count` flights in the directory `out`; return whether all checks succeeded."""
    begin = time.monotonic()
    _prepare_directory(out)
    report = Report(console)
    totals = asyncio.run(_run_steps(count, out, report))
    if totals.archived:
        _compare_totals(out / "store", totals)
    report.begin("Check")
    report.say(
        f"sent {totals.sent:,} = stored {totals.stored:,} = received {totals.consumed:,} = archived {totals.archived:,}"
        + (f" ({totals.repeated:,} received twice)" if totals.repeated else "")
    )
    for problem in totals.problems:
        report.problem(problem)
    if not totals.problems:
        report.say("The store was read from its first byte to its last, and is undamaged.")
        report.result(f"All numbers agree, after {time.monotonic() - begin:.0f} s.", f"The files are in {out}/")
        report.details(
            "To look at them in a browser, at http://127.0.0.1:8080/, start these two:\n"
            f"  rucola standalone --store {out / 'store'}\n"
            f"  rucola console --lake {out / 'lake'}"
        )
    return not totals.problems


def _prepare_directory(out: Path) -> None:
    """Create an empty directory. Deletes only the output of an earlier run, otherwise MQError."""
    if out.exists() and any(out.iterdir()) and not (out / MARKER).exists():
        raise MQError(f"{out} contains files that no demonstration has written; choose another directory with --out")
    shutil.rmtree(out, ignore_errors=True)
    out.mkdir(parents=True)
    (out / MARKER).touch()


async def _run_steps(count: int, out: Path, report: Report) -> Totals:
    """Run the steps that need the broker, including the archive: it reads the store while it is served."""
    totals = Totals()
    # Spark takes seconds to start: start it while messages are sent and consumed.
    spark = asyncio.create_task(asyncio.to_thread(local_session, "rucola demo", is_short=True))
    async with _standalone(out) as (namesrv, ready_s):
        report.begin("Start")
        report.say(
            f"A broker, which stores messages, and a name server, where clients find the broker, at {namesrv}. "
            f"They were ready after {ready_s:.1f} s."
        )
        async with AdminClient(namesrv) as admin:
            address = (await admin.cluster.info()).broker_addr_table.popitem()[1].broker_addrs[0]
            topic = TopicConfig(topic_name=flights.TOPIC, read_queue_nums=QUEUES, write_queue_nums=QUEUES)
            await admin.topics.create_or_update(address, topic)
            sample = await _send(count, namesrv, totals, report)
            totals.stored = sum(end.max_offset for end in (await admin.topics.stats(flights.TOPIC)).values())
            await _consume(sample.carriers, namesrv, totals, report)
            await _show_backlog(admin, totals, report)
            await _query(admin, sample, totals, report)
            await _redrive(admin, namesrv, min(count, DEAD_LETTERS), totals, report)
        await asyncio.to_thread(_archive_and_query, await spark, out, totals, report)
    return totals


@asynccontextmanager
async def _standalone(out: Path) -> AsyncIterator[tuple[str, float]]:
    """Run `rucola standalone` in a process; yield name server address and start-up time in seconds."""
    begin = time.monotonic()
    command = [sys.executable, "-m", "rucola", "standalone", "--store", str(out / "store")]
    command += ["--namesrv-port", "0", "--broker-port", "0"]
    with (out / "broker.log").open("wb") as log:
        process = await asyncio.create_subprocess_exec(*command, stdout=asyncio.subprocess.PIPE, stderr=log)
    assert process.stdout is not None
    try:
        line = (await process.stdout.readline()).decode()
        ready = re.match(r"rucola ready namesrv=(\S+) broker=\S+", line)
        if ready is None:
            raise MQError(f"the broker did not start (exit code {await process.wait()}); {out / 'broker.log'} says why")
        yield ready[1], time.monotonic() - begin
    finally:
        if process.returncode is None:
            process.terminate()
        try:
            async with asyncio.timeout(STOP_TIMEOUT_S):
                await process.wait()
        except TimeoutError:
            process.kill()
            await process.wait()
    if process.returncode:
        raise MQError(f"the broker ended with exit code {process.returncode}; {out / 'broker.log'} says why")


@dataclass(slots=True)
class Sample:
    """Facts about the sent messages that later steps verify."""

    carriers: dict[str, int]
    tail_number: str
    tail_count: int
    unique_key: str
    offset_msg_id: str


async def _send(count: int, namesrv: str, totals: Totals, report: Report) -> Sample:
    rows = flights.rows(count)
    sample = Sample({}, "", 0, "", "")

    def messages() -> Any:
        for row in rows:
            carrier, tail_number = row["carrier"], row["tailnum"]
            sample.carriers[carrier] = sample.carriers.get(carrier, 0) + 1
            sample.tail_number = sample.tail_number or tail_number or ""
            sample.tail_count += bool(tail_number) and tail_number == sample.tail_number
            yield flights.message(row)

    begin = time.monotonic()
    async with Producer("flight-writers", namesrv=namesrv) as producer:
        report.begin("Send")
        with report.progress() as progress:
            task = progress.add_task(report.take_title(), total=count)
            async for result in producer.send_many(messages()):
                totals.sent += 1
                # Any message would do as a sample; one from the middle is not at the edge of a file.
                if totals.sent == count // 2 + 1:
                    sample.unique_key, sample.offset_msg_id = result.msg_id, result.offset_msg_id
                if totals.sent % 1000 == 0:
                    progress.update(task, completed=totals.sent)
            progress.update(task, completed=totals.sent)
    report.say(
        f"Each flight is a message of the topic {flights.TOPIC}, and its airline is the message's tag. "
        f"The broker acknowledged each one: {totals.sent / (time.monotonic() - begin):,.0f} a second."
    )
    totals.expect("flights sent", totals.sent, count)
    return sample


async def _consume(carriers: dict[str, int], namesrv: str, totals: Totals, report: Report) -> None:
    counts: dict[str, int] = {}
    seen: set[str] = set()
    consumer = PushConsumer(GROUP, namesrv, consume_from=ConsumeFromWhere.CONSUME_FROM_FIRST_OFFSET)
    consumer.subscribe(flights.TOPIC, " || ".join(carriers))
    begin = time.monotonic()
    async with consumer:
        report.begin("Receive")
        with report.progress() as progress:
            task = progress.add_task(report.take_title(), total=totals.sent)
            async for message in consumer.messages(IDLE_TIMEOUT_MS):
                # Delivery is at least once: a rebalance or a lost acknowledgement may repeat a message.
                if message.msg_id in seen:
                    totals.repeated += 1
                else:
                    seen.add(message.msg_id)
                    counts[message.tags or ""] = counts.get(message.tags or "", 0) + 1
                if len(seen) % 1000 == 0:
                    progress.update(task, completed=len(seen))
                if len(seen) == totals.sent:
                    consumer.ack(message)
                    break
            progress.update(task, completed=len(seen))
    totals.consumed = len(seen)
    report.say(
        f"A consumer of the group {GROUP} received them all: {len(seen) / (time.monotonic() - begin):,.0f} a second. "
        "Most are from "
        + ", ".join(f"{carrier} ({counts[carrier]:,})" for carrier in sorted(counts, key=counts.__getitem__)[:-4:-1])
        + "."
    )
    totals.expect("messages by carrier", counts, carriers)


async def _show_backlog(admin: AdminClient, totals: Totals, report: Report) -> None:
    stats = await admin.groups.consume_stats(GROUP, flights.TOPIC)
    rows = [
        (queue.queue_id, place.broker_offset, place.consumer_offset)
        for queue, place in sorted(stats.offset_table.items())
    ]
    report.say(f"The topic has {len(rows)} queues. What {GROUP} has received of each, and what it has not:")
    report.table(("queue", "stored", "received", "left"), [(*row, row[1] - row[2]) for row in rows])
    totals.expect("messages that the group has not consumed", sum(row[1] - row[2] for row in rows), 0)


async def _query(admin: AdminClient, sample: Sample, totals: Totals, report: Report) -> None:
    begin = time.perf_counter()
    by_key = await admin.messages.query_by_key(flights.TOPIC, sample.tail_number, max_count=sample.tail_count + 1)
    key_ms = (time.perf_counter() - begin) * 1000
    by_unique_key = await admin.messages.query_by_unique_key(flights.TOPIC, sample.unique_key)
    by_id = await admin.messages.get(sample.offset_msg_id)
    report.begin("Find")
    report.say(
        f"{_count(len(by_key.messages), 'message')} about the airplane {sample.tail_number} "
        f"were found by this key in {key_ms:.0f} ms. One other was found by the id that it got when it was sent, and "
        "by its address in the log:"
    )
    found = [("key", one) for one in by_key.messages[:3]]
    found += [("id", one) for one in by_unique_key.messages] + [("address", by_id)]
    report.table(("found by", "flight", "from", "to", "minutes late"), [(how, *_flight(one)) for how, one in found])
    totals.expect(f"messages with the key {sample.tail_number}", len(by_key.messages), sample.tail_count)
    totals.expect("unique keys found", [m.unique_key for m in by_unique_key.messages], [sample.unique_key])
    totals.expect("the message by offsetMsgId", by_id.unique_key, sample.unique_key)


async def _redrive(admin: AdminClient, namesrv: str, count: int, totals: Totals, report: Report) -> None:
    """Create dead letters, track one, and re-drive them; a second run must find none."""
    consumer = PushConsumer(FAILING_GROUP, namesrv, consume_from=ConsumeFromWhere.CONSUME_FROM_FIRST_OFFSET)
    consumer.subscribe(flights.TOPIC)
    rejected: list[MessageExt] = []
    async with consumer:
        async for message in consumer.messages(IDLE_TIMEOUT_MS):
            rejected.append(message)
            # A negative delay level makes the message a dead letter at once, without retries.
            await consumer.reconsume_later(message, delay_level=-1)
            if len(rejected) == count:
                break
    letters = await admin.dead_letters.stats(FAILING_GROUP)
    tracks = {track.consumer_group: track.track_type for track in await admin.messages.track(rejected[0])}
    redriven = [one.status for one in await admin.dead_letters.redrive(FAILING_GROUP, only_group=True)]
    again = [one.status for one in await admin.dead_letters.redrive(FAILING_GROUP, only_group=True)]
    report.begin("Retry")
    report.say(
        f"Another group, {FAILING_GROUP}, fails on {_count(len(rejected), 'message')}. The broker keeps them in the "
        f"group's dead letter queue, which now has {letters.count}. Then they are sent to the group again: "
        f"{len(redriven)} the first time, {len(again)} when that is repeated."
    )
    totals.expect("dead letters", letters.count, count)
    totals.expect("state of a dead letter", tracks[FAILING_GROUP], TrackType.IN_DLQ)
    totals.expect("re-driven dead letters", redriven, count * [RedriveStatus.SENT])
    totals.expect("dead letters re-driven twice", again, [])


def _flight(message: MessageExt) -> list[str]:
    row = msgspec.json.decode(message.body)
    delay = row["dep_delay"]
    return [flights.flight_id(row), row["origin"], row["dest"], "unknown" if delay is None else str(delay)]


def _count(count: int, what: str) -> str:
    return f"{count:,} {what}" if count == 1 else f"{count:,} {what}s"


def _archive_and_query(spark: SparkSession, out: Path, totals: Totals, report: Report) -> None:
    store, lake, chart = out / "store", out / "lake", out / "flights.svg"
    begin = time.monotonic()
    try:
        summary = archive.run(spark, str(store), str(lake))
        report.begin("Archive")
        report.say(
            f"Spark wrote {summary.rows:,} messages to Parquet files in {time.monotonic() - begin:.1f} s: the flights, "
            "the dead letters and what was sent again."
        )
        carriers, hours = _query_lake(spark, lake, totals)
    finally:
        spark.stop()
    report.say("SQL on these files: the airlines whose flights are late the most,")
    report.table(("airline", "mean delay in minutes", "flights"), carriers)
    report.say("and the hours of the day with most departures:")
    busiest = sorted(hours, key=lambda row: row[1], reverse=True)[:5]
    report.table(("hour", "flights"), busiest)
    way = [
        ("sent", totals.sent),
        ("stored", totals.stored),
        ("received", totals.consumed),
        ("archived", totals.archived),
    ]
    draw(chart, way, [row[:2] for row in carriers], hours)
    report.say(f"Both, and the way of the messages, as a chart: {chart}")


def _query_lake(spark: SparkSession, lake: Path, totals: Totals) -> tuple[list[Any], list[Any]]:
    archived = Archive(lake).scan().rows(spark).where(f"topic = '{flights.TOPIC}'")
    totals.archived = archived.count()
    archived.selectExpr(
        "tags", f"from_json(cast(body AS string), '{FLIGHT_SCHEMA}') AS flight"
    ).createOrReplaceTempView("flights")
    answers = [[tuple(row) for row in spark.sql(query).collect()] for query in (CARRIERS_BY_DELAY, MESSAGES_BY_HOUR)]
    return answers[0], answers[1]


def _compare_totals(store: Path, totals: Totals) -> None:
    totals.expect("messages stored", totals.stored, totals.sent)
    totals.expect("messages consumed", totals.consumed, totals.sent)
    totals.expect("messages archived", totals.archived, totals.sent)
    totals.problems += [str(finding) for finding in check(store)]
