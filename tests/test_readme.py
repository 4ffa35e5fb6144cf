"""README.md does what it says: its programs run against a real broker, and its commands exist."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest

from support.documentation import check_command, commands_of
from support.servers import server

REPOSITORY = Path(__file__).resolve().parent.parent
README = (REPOSITORY / "README.md").read_text(encoding="utf-8")
PAGES = [README, *(path.read_text(encoding="utf-8") for path in sorted((REPOSITORY / "docs").glob("*.md")))]
PROGRAMS = re.findall(r"```python\n(.*?)```", README, re.DOTALL)
COMMANDS = sorted({line for page in PAGES for line in commands_of(page)})


@pytest.fixture(scope="module")
def namesrv(tmp_path_factory: pytest.TempPathFactory) -> Any:
    path = tmp_path_factory.mktemp("readme")
    ports = ("--namesrv-port", "0", "--broker-port", "0")
    with server("standalone", "--store", path / "store", *ports, log=path / "log") as running:
        yield running.addresses()[0]
        assert running.stop() == 0


def program(word: str, namesrv: str) -> dict[str, Any]:
    """Run the one program that has this word, with the address of a running name server in it."""
    (source,) = [source for source in PROGRAMS if word in source]
    names: dict[str, Any] = {"__name__": "readme"}
    exec(compile(source.replace("127.0.0.1:9876", namesrv), "README.md", "exec"), names)
    return names


def test_send_and_receive(namesrv: str, capsys: pytest.CaptureFixture[str]) -> None:
    program("PushConsumer(", namesrv)
    sent, received = capsys.readouterr().out.splitlines()
    assert re.fullmatch("[0-9A-F]{32}", sent)
    assert received == "order-1 b'one pizza'"


def test_without_asyncio(namesrv: str) -> None:
    program("rucola.client.sync", namesrv)


async def test_transaction(namesrv: str) -> None:
    names = program("TransactionProducer(", namesrv)
    await names["order"]()


@pytest.mark.parametrize("line", COMMANDS)
def test_commands_exist_with_their_options(line: str) -> None:
    check_command(line)
