"""Tutorials of the documentation do what they say."""

from __future__ import annotations

from pathlib import Path

import pytest

from support.documents import Document
from support.installation import REPOSITORY
from support.ports import free_ports
from support.reader import Reader
from support.waiting import wait_until

SERVER = "rucola standalone --store store"
READY = "rucola ready namesrv=127.0.0.1:9876 broker=127.0.0.1:10911 grpc=127.0.0.1:8081\n"


@pytest.mark.slow
@pytest.mark.parametrize(
    ("page", "begin"),
    [("first-message.md", "Start a name server"), ("opentelemetry.md", "## Spans"), ("search.md", "Send three orders")],
)
def test_a_tutorial_works_as_written(page: str, begin: str, tmp_path: Path) -> None:
    """From the first command after the installation, which tests/test_readme.py follows."""
    chapter = Document.read(f"docs/tutorials/{page}").after(begin)
    with Reader(tmp_path) as reader:
        if SERVER not in chapter.text:
            reader.type(SERVER, READY)
        reader.follow(chapter)
        reader.interrupt("rucola standalone")
        reader.type("rucola store check store")


@pytest.mark.slow
def test_the_pair_of_brokers_works_as_written(tmp_path: Path) -> None:
    """The reader does what stands between the blocks: waits for the slave, kills the master, waits for its return."""
    sections = Document.read("docs/tutorials/pair.md").sections()
    ports = dict(zip(("9876", "10911", "10912", "10921", "10922"), map(str, free_ports(5)), strict=True))
    with Reader(tmp_path, ports) as reader:
        reader.follow(sections["Start the pair"])
        master = "rucola broker -c master.conf"
        wait_until(lambda: "requests the log" in reader.printed(master))
        reader.follow(sections["Send, and receive"])
        reader.kill(master)
        reader.follow(sections["Lose the master"])
        reader.follow(sections["Make the slave the master"])
        *start, use = sections["Take the old master back"].blocks
        reader.follow(start)
        wait_until(lambda: "requests the log" in reader.printed("rucola broker -c slave.conf"))
        reader.follow([use])
        for server in ("rucola broker -c returned.conf", "rucola broker -c slave.conf", "rucola namesrv"):
            reader.interrupt(server)
        for store in ("master", "slave"):
            reader.type(f"rucola store check {store}")


def test_every_tutorial_is_tested() -> None:
    tutorials = {path.name for path in (REPOSITORY / "docs" / "tutorials").glob("*.md")}
    assert tutorials == {
        "first-message.md", "hung-consumer.md", "opentelemetry.md", "search.md", "pair.md", "rocketmq-5.md",
    }  # fmt: skip


@pytest.mark.slow
def test_the_first_steps_of_access_control_work_as_written(tmp_path: Path) -> None:
    with Reader(tmp_path) as reader:
        reader.follow(Document.read("docs/access-control.md").sections()["First steps"])


@pytest.mark.slow
def test_the_consumer_that_hangs_works_as_written(tmp_path: Path) -> None:
    """The reader kills the program between the blocks, and looks into the file until the offset is there."""
    sections = Document.read("docs/tutorials/hung-consumer.md").sections()
    with Reader(tmp_path) as reader:
        reader.type(SERVER, READY)
        for title in ("Five messages, one hangs", "The offset stays"):
            reader.follow(sections[title])
        reader.kill("python kitchen.py")
        reader.follow(sections["After a crash"])
        reader.interrupt("rucola standalone")
        reader.type("rucola store check store")
