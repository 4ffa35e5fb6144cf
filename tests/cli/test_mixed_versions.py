"""docs/upgrade.md, "Which versions work together": clients, lakes and outboxes of the oldest version and of today's."""

from __future__ import annotations

import json
import sqlite3
import subprocess
from contextlib import closing
from pathlib import Path

import pytest
from click.testing import CliRunner

from rucola.cli.main import main
from rucola.reliable import Tables
from rucola.store.tools.check import check
from support.earlier import VERSIONS, earlier
from support.servers import RUCOLA, server
from support.waiting import wait_until

pytestmark = pytest.mark.slow

FREE_PORTS = ("--namesrv-port", "0", "--broker-port", "0")
SETTINGS = "messageDelayLevel=1s 1s 1s\ntransactionTimeOut=100\ntransactionCheckInterval=200\n"
CLIENTS = """
import asyncio, sys
from rucola.client import *
from rucola.message.properties import DELAY

async def main(namesrv):
    received, all_there, failed = [], asyncio.Event(), []
    wanted = {b"plain", b"first", b"second", b"late", b"retried", b"committed", b"checked"}

    async def listen(message):
        if message.body == b"retried" and not failed:
            failed.append(message.body)
            raise RuntimeError("once")
        received.append(message.body)
        if wanted <= set(received):
            all_there.set()

    consumer = PushConsumer("readers", namesrv, consume_from=ConsumeFromWhere.CONSUME_FROM_FIRST_OFFSET)
    consumer.subscribe("T")
    consumer.listen(listen)
    producer = TransactionProducer("tx", namesrv, check=lambda message: LocalTransactionState.COMMIT_MESSAGE)
    async with producer:
        (await producer.send(Message("T", b"plain", keys="k1", tags="tag"))).status.name
        await producer.send_batch([Message("T", b"first"), Message("T", b"second")])
        await producer.send(Message("T", b"late", properties={DELAY: "1"}))
        await producer.send(Message("T", b"retried"))
        for body, state in (b"committed", "COMMIT_MESSAGE"), (b"never", "ROLLBACK_MESSAGE"), (b"checked", "UNKNOW"):
            state = getattr(LocalTransactionState, state)
            await producer.send_in_transaction(Message("T", body), lambda *_: state)
        async with consumer:
            await asyncio.wait_for(all_there.wait(), 60)
        async with PullConsumer("pulling", namesrv) as pulling:
            queues = await pulling.queues("T")
            pulled = [message.body for queue in queues for message in (await pulling.pull(queue, 0)).messages]
    assert len(received) == len(set(received)) == len(wanted), received
    assert set(pulled) == wanted, pulled

asyncio.run(main(sys.argv[1]))
"""
COMMANDS = (
    "clusterList", "brokerStatus -b {broker}", "topicStatus -t T", "queryMsgByKey -t T -k k1",
    "consumerProgress -g readers", "updateSubGroup -g new -b {broker}", "resetOffsetByTime -g readers -t T -s 0 --yes",
)  # fmt: skip
"""What an operator's program of one version asks a cluster of another one."""


@pytest.fixture(params=["an earlier client", "an earlier broker"])
def programs(request: pytest.FixtureRequest, earlier_versions: Path) -> tuple[list[str], list[str]]:
    """The programs `rucola` of the server and of its clients."""
    old = earlier(next(iter(VERSIONS)), earlier_versions)
    return (RUCOLA, old) if request.param == "an earlier client" else (old, RUCOLA)


def run(program: list[str], *arguments: str | Path) -> str:
    """What a command of a version prints; today's run in this process, which has the modules."""
    if program is RUCOLA:
        result = CliRunner().invoke(main, list(map(str, arguments)))
        assert result.exit_code == 0, f"{arguments}: {result.output}"
        return result.stdout
    return run_process([*program, *map(str, arguments)])


def run_process(command: list[str]) -> str:
    done = subprocess.run(command, capture_output=True, text=True)
    assert done.returncode == 0, f"{command}: {done.stdout}{done.stderr}"
    return done.stdout


def run_code(program: list[str], code: str, *arguments: str) -> str:
    """What a program in Python prints with the packages of a version."""
    return run_process([*program[: program.index("-c")], "-c", code, *arguments])


def test_clients_and_servers_of_two_versions_work_together(
    programs: tuple[list[str], list[str]], tmp_path: Path
) -> None:
    serving, asking = programs
    conf = tmp_path / "broker.conf"
    conf.write_text(SETTINGS)
    arguments = ("standalone", "--store", tmp_path / "store", *FREE_PORTS, "-c", conf)
    with server(*arguments, log=tmp_path / "log", program=serving) as running:
        namesrv, broker = running.addresses()
        run(asking, "admin", "updateTopic", "-n", namesrv, "-b", broker, "-t", "T", "-r", "2", "-w", "2")
        run_code(asking, CLIENTS, namesrv)
        for command in COMMANDS:
            name, *options = command.format(broker=broker).split()
            run(asking, "admin", name, "-n", namesrv, *options)
        assert running.stop() == 0
    assert check(tmp_path / "store") == []


SEND = """
import sys
from rucola.client import Message
from rucola.client.sync import Producer
namesrv, begin, end = sys.argv[1:]
with Producer("p", namesrv) as producer:
    for number in range(int(begin), int(end)):
        assert producer.send(Message("T", b"%d" % number, keys=f"k{number}")).is_ok
"""


def archive(program: list[str], store: Path, lake: Path) -> None:
    run(program, "pipeline", "archive", "--store", store, "--brokerName", "a", "--out", lake)


def search(program: list[str], lake: Path) -> int:
    """How many messages a version finds in a lake."""
    found = json.loads(run(program, "pipeline", "search", "--lake", lake, "-t", "T", "--json"))
    return len(found["messages"] if isinstance(found, dict) else found)


def test_a_lake_goes_from_one_version_to_the_other_and_back(earlier_versions: Path, tmp_path: Path) -> None:
    oldest, before = [earlier(name, earlier_versions) for name in VERSIONS]
    store, lake, older_lake = tmp_path / "store", tmp_path / "lake", tmp_path / "older-lake"
    with server("standalone", "--store", store, *FREE_PORTS, log=tmp_path / "log") as running:
        namesrv, _ = running.addresses()
        run_code(oldest, SEND, namesrv, "0", "10")
        archive(oldest, store, older_lake)
        # Each version finds what both have written.
        for number, program in enumerate((before, RUCOLA)):
            archive(program, store, lake)
            assert search(RUCOLA, lake) == 10 * number + 10
            run_code(program, SEND, namesrv, str(10 * number + 10), str(10 * number + 20))
        archive(before, store, lake)
        assert search(before, lake) == 30
        # A lake from before tables is refused until it is converted, by the next run; there is no way back.
        refused = CliRunner().invoke(main, ["pipeline", "status", "--lake", str(older_lake)])
        assert (refused.exit_code, "rucola pipeline compact" in refused.stderr) == (1, True)
        for target in (older_lake, lake):
            archive(RUCOLA, store, target)
            assert search(RUCOLA, target) == 30
        late = [*oldest, "pipeline", "archive", "--store", store, "--brokerName", "a", "--out", older_lake]
        assert subprocess.run(list(map(str, late)), capture_output=True).returncode == 1
        assert running.stop() == 0
    for target in (older_lake, lake):
        run(RUCOLA, "pipeline", "check", "--lake", target, "--store", store, "--brokerName", "a")
    assert check(store) == []


ADD = """
import sys
from sqlalchemy import create_engine
from sqlalchemy.orm import Session
from rucola.client import Message
from rucola.reliable import Outbox
url, body = sys.argv[1:]
with Session(create_engine(url)) as session, session.begin():
    print(Outbox([]).add(session, Message("T", body.encode())))
"""


def statuses(database: Path) -> dict[str, int]:
    with closing(sqlite3.connect(database)) as connection:
        return dict(connection.execute(f"SELECT status, count(*) FROM {Tables().stub.name} GROUP BY status"))


def test_an_outbox_is_migrated_and_programs_before_work_with_it(earlier_versions: Path, tmp_path: Path) -> None:
    old = earlier(next(iter(VERSIONS)), earlier_versions)
    url = f"sqlite:///{tmp_path / 'shop.db'}"
    where = ("--database", url)
    run(old, "reliable", "init", *where)
    run_code(old, ADD, url, "before")
    refused = CliRunner().invoke(main, ["reliable", "list", *where])
    assert (refused.exit_code, "rucola reliable migrate" in refused.stderr) == (1, True)
    run(RUCOLA, "reliable", "migrate", *where)
    with server("standalone", "--store", tmp_path / "store", *FREE_PORTS, log=tmp_path / "log") as running:
        namesrv, _ = running.addresses()
        # Added by one version, relayed by the other: first the message from before the migration, by the old relay.
        for adding, relaying in ((None, old), (old, RUCOLA), (RUCOLA, old)):
            if adding is not None:
                run_code(adding, ADD, url, "after")
            log = tmp_path / "relay.log"
            with server("reliable", "relay", "-n", namesrv, *where, log=log, program=relaying) as relay:
                assert relay.first_line, log.read_text()
                wait_until(
                    lambda: (
                        {one["status"] for one in json.loads(run(RUCOLA, "reliable", "list", *where, "--json"))}
                        <= {"CONFIRMED"}
                    )
                )
                assert relay.stop() == 0
        assert statuses(tmp_path / "shop.db") == {"CONFIRMED": 3}
        assert running.stop() == 0
    assert check(tmp_path / "store") == []
