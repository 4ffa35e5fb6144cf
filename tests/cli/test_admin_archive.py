"""`--archive LAKE`: queries of live brokers and the archive, after the first file of the log was deleted."""

from __future__ import annotations

import json
import re
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from rucola.spark.archive import Archive
from rucola.spark.jobs import archive
from rucola.spark.session import local_session
from support.console import visitor
from support.golden_cluster import GoldenCluster
from support.servers import server

pytestmark = [pytest.mark.spark, pytest.mark.usefixtures("_utc")]
FILE_SIZE = 1 << 20


@pytest.fixture(scope="module")
def lake(golden: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("archived") / "lake"
    archive.run(local_session("tests", cores=2, is_short=True), golden / "g1-clean" / "store", path)
    return path


@pytest.fixture(scope="module")
def aged(golden: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[GoldenCluster]:
    """Serve a copy of the golden store without the first file of its log."""
    directory = tmp_path_factory.mktemp("aged")
    store = Path(shutil.copytree(golden / "g1-clean" / "store", directory / "store"))
    (store / "commitlog" / f"{0:020d}").unlink()
    conf = shutil.copy(golden / "g1-clean" / "broker.conf", directory)
    ports = ("--namesrv-port", "0", "--broker-port", "0")
    with server("standalone", "--store", store, *ports, "-c", conf, log=directory / "log") as standalone:
        yield GoldenCluster(*standalone.addresses(), "")


@pytest.fixture(scope="module")
def stored(golden: Path) -> list[dict[str, Any]]:
    """The archived messages, oldest first."""
    return [json.loads(line) for line in (golden / "g1-clean" / "expected.jsonl").read_text().splitlines()]


def has_key(message: dict[str, Any], topic: str, key: str) -> bool:
    return message["topic"] == topic and key in message["properties"].get("KEYS", "").split()


def test_a_key_query_searches_broker_and_archive(aged: GoldenCluster, lake: Path, stored: list[dict[str, Any]]) -> None:
    wanted = [message for message in stored if has_key(message, "GSpam", "grp-0")]
    live = [message for message in wanted if message["commitLogOffset"] >= FILE_SIZE]
    assert 0 < len(live) < len(wanted)
    command = "queryMsgByKey -t GSpam -k grp-0 --max 1000"
    assert len(aged.json(command)["messages"]) == len(live)
    assert "from" not in aged.json(command)["messages"][0]
    answer = aged.json(f"{command} --archive {lake}")
    assert [(each["offsetMsgId"], each["from"]) for each in answer["messages"]] == [
        (each["offsetMsgId"], "log" if each in live else "archive")
        for each in sorted(wanted, key=lambda each: (each["storeTimestamp"], each["commitLogOffset"]), reverse=True)
    ]
    assert not answer["cut"]
    header, *rows = aged.rows(f"queryMsgByKey -t GSpam -k grp-0 --archive {lake} -m 15")
    assert header[-1] == "#From"
    assert [row[-1] for row in rows] == ["log"] * len(live) + ["archive"] * (15 - len(live))
    result = aged.admin(f"queryMsgByKey -t GSpam -k grp-0 --archive {lake} -m 15")
    assert result.stderr.startswith("these are the newest 15, there may be more")
    since = sorted(each["storeTimestamp"] for each in wanted)[5]
    answer = aged.json(f"{command} --archive {lake} --since {since}")
    assert len(answer["messages"]) == sum(each["storeTimestamp"] >= since for each in wanted)


async def test_the_console_searches_broker_and_archive(
    aged: GoldenCluster, lake: Path, stored: list[dict[str, Any]]
) -> None:
    wanted = [message for message in stored if has_key(message, "GSpam", "grp-0")]
    gone = wanted[0]
    async with visitor(aged.namesrv, lake=Archive(lake)) as console:
        page = await console.get("/search?q=grp-0&topic=GSpam")
        links = set(re.findall(r"/message\?id=(\w+)", page.text))
        newest = sorted(wanted, key=lambda each: (each["storeTimestamp"], each["commitLogOffset"]))[-64:]
        assert links == {each["offsetMsgId"] for each in newest}
        assert "archive" in await console.text(f"/search?q={gone['offsetMsgId']}")
        for path in (f"id={gone['offsetMsgId']}", f"topic=GSpam&id={gone['msgId']}"):
            text = await console.text(f"/message?{path}")
            assert "archived copy" in text
            assert gone["offsetMsgId"] in text
        text = await console.shows("/", "Not archived yet")
        assert re.search(r"Last commit of the lake: 20\d\d-.* Not archived yet \S+/g1-clean/store unknown ", text)


async def test_a_scan_reads_the_log_and_then_what_only_the_archive_has(
    aged: GoldenCluster, lake: Path, stored: list[dict[str, Any]]
) -> None:
    spam = [message for message in stored if message["topic"] == "GSpam"]
    live = {message["offsetMsgId"] for message in spam if message["commitLogOffset"] >= FILE_SIZE}
    since, until = spam[3]["storeTimestamp"], spam[-1]["storeTimestamp"]
    gone = [one for one in spam if one["offsetMsgId"] not in live]
    chosen = [one for one in gone if since <= one["storeTimestamp"] <= until and has_key(one, "GSpam", "grp-0")]
    assert 0 < len(chosen) < len(gone)
    async with visitor(aged.namesrv, lake=Archive(lake)) as console:
        path = f"/scan?topic=GSpam&text=grp-0&begin={since}&end={until}"
        await console.shows(path, "messages were read.")
        (scan,) = console.console.scans._scans.values()
        wanted = [one for one in spam if since <= one["storeTimestamp"] <= until]
        assert (scan.scanned, scan.failures) == (len(wanted), {}), "each once"
        archived = {hit.message.offset_msg_id for hit in scan.hits if hit.is_archived}
        assert archived == {one["offsetMsgId"] for one in chosen}
        assert " archive " in await console.text(path)
        await console.shows("/scan?topic=GSpam&filter=none%20IS%20NOT%20NULL", "messages were read.")
        *_, filtered = console.console.scans._scans.values()
        assert filtered is not scan
        assert filtered.hits == []


def test_a_unique_key_query_searches_broker_and_archive(
    aged: GoldenCluster, lake: Path, stored: list[dict[str, Any]]
) -> None:
    spam = [message for message in stored if message["topic"] == "GSpam"]
    for message, origin in ((spam[0], "archive"), (spam[-1], "log")):
        command = f"queryMsgByUniqueKey -t GSpam -i {message['msgId']} --archive {lake}"
        (found,) = aged.json(command)["messages"]
        assert (found["offsetMsgId"], found["from"]) == (message["offsetMsgId"], origin)
        assert aged.rows(command)[-1] == ["From:", origin]
    result = aged.admin(f"queryMsgByUniqueKey -t GSpam -i none --archive {lake}")
    assert (result.exit_code, result.stdout) == (0, "")


def test_an_id_query_searches_broker_and_archive(aged: GoldenCluster, lake: Path, stored: list[dict[str, Any]]) -> None:
    """The broker whose address is in the recorded ids no longer exists."""
    gone = next(message for message in stored if message["topic"] == "GSpam")
    assert aged.admin(f"queryMsgById -i {gone['offsetMsgId']}").exit_code == 1
    (found,) = aged.json(f"queryMsgById -i {gone['offsetMsgId']} --archive {lake}")
    assert (found["msgId"], found["from"]) == (gone["msgId"], "archive")
    absent = gone["offsetMsgId"][:-1] + "1"
    result = aged.admin(f"queryMsgById -i {absent} --archive {lake}")
    assert result.exit_code == 1
    assert "127.0.0.1:10911" in result.stderr
    assert aged.admin(f"queryMsgById -i {absent} -s true --archive {lake}").exit_code == 2


def test_the_archive_answers_if_no_broker_does(aged: GoldenCluster, lake: Path, stored: list[dict[str, Any]]) -> None:
    """A deleted topic is not a failure; a name server that does not answer is one."""
    gone = next(message for message in stored if message["topic"] == "GSpam")
    away = GoldenCluster("127.0.0.1:1", aged.broker, "")
    result = away.admin(f"queryMsgByUniqueKey -t GSpam -i {gone['msgId']} --archive {lake}")
    assert result.exit_code == 1
    assert gone["offsetMsgId"] in result.stdout
    assert result.stderr.startswith("the messages of the brokers are missing: ")
    result = aged.admin(f"queryMsgByKey -t NoSuchTopic -k grp-0 --archive {lake}")
    assert result.exit_code == 0
    assert result.stderr == "not found in the searchable range: unknown\n"
