"""macOS runs everything, Windows the client. Processes that lack the names of Linux do real work here."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from support.servers import server

TESTS = Path(__file__).parent
SUPPORT = (
    f"import sys; from pathlib import Path; sys.path.insert(0, {str(TESTS)!r}); import support.other_platforms as p"
)
MAIN = "from rucola.cli.main import main; main(prog_name='rucola')"
FREE_PORTS = ("--namesrv-port", "0", "--broker-port", "0")
WINDOWS = [sys.executable, "-c", f"{SUPPORT}; p.become_windows(); {MAIN}"]

CLIENT = """
import asyncio
import sys
from rucola.client import ConsumeFromWhere, Message, Producer, PushConsumer

async def send(namesrv, count):
    async with Producer("senders", namesrv=namesrv) as producer:
        for number in range(count):
            await producer.send(Message("T", f"{number}".encode(), keys="k", tags="a"))

async def receive(namesrv, group, count):
    consumer = PushConsumer(group, namesrv, consume_from=ConsumeFromWhere.CONSUME_FROM_FIRST_OFFSET)
    consumer.subscribe("T", "a")
    found = []
    async with consumer:
        async for message in consumer.messages(20_000):
            found.append(int(message.body))
            consumer.ack(message)
            if len(set(found)) == count:
                break
    print(sorted(set(found)) == list(range(count)))

namesrv, group, count = sys.argv[1], sys.argv[2], int(sys.argv[3])
if group == "sender":
    asyncio.run(send(namesrv, count))
else:
    asyncio.run(receive(namesrv, group, count))
"""


def macos(syncs: Path, program: str = MAIN) -> list[str]:
    return [sys.executable, "-c", f"{SUPPORT}; p.become_macos(Path({str(syncs)!r}))\n{program}"]


def output(command: list[str], *arguments: str | Path) -> str:
    done = subprocess.run([*command, *map(str, arguments)], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    return done.stdout.strip()


@pytest.mark.slow
def test_a_broker_on_macos_keeps_its_promise(tmp_path: Path) -> None:
    """With SYNC_FLUSH each message waits for the drive; a killed broker recovers; the store's tools work."""
    syncs, store, conf = tmp_path / "syncs", tmp_path / "store", tmp_path / "broker.conf"
    conf.write_text("flushDiskType=SYNC_FLUSH\nmappedFileSizeCommitLog=65536\nmappedFileSizeConsumeQueue=2000\n")
    program, client = macos(syncs), macos(syncs, CLIENT)
    serve = ("standalone", "--store", store, *FREE_PORTS, "-c", conf)

    with server(*serve, log=tmp_path / "1.log", program=program) as running:
        namesrv, _ = running.addresses()
        before = syncs.stat().st_size
        output(client, namesrv, "sender", "300")
        assert syncs.stat().st_size - before >= 300, "one message at a time, each acknowledged from the drive"
        assert output(client, namesrv, "one", "300") == "True"
    with server(*serve, log=tmp_path / "2.log", program=program) as running:  # it was killed
        namesrv, _ = running.addresses()
        assert output(client, namesrv, "other", "300") == "True"
        assert running.stop() == 0
    assert "Traceback" not in (tmp_path / "1.log").read_text() + (tmp_path / "2.log").read_text()

    settings = ("-c", conf)
    output(program, "store", "check", store)
    output(program, "store", "rebuild", store, *settings)
    output(program, "store", "check", store)
    output(program, "store", "repair", store, "--out", tmp_path / "copy", *settings)
    output(program, "store", "check", tmp_path / "copy")


FIXTURE = """
def test_it(rocketmq, tmp_path):
    import sys
    assert sys.platform == "darwin"
    rocketmq.send("T", b"hello")
    with rocketmq.broker_down():
        pass
    assert [message.body for message in rocketmq.messages("T")] == [b"hello"]
"""


@pytest.mark.slow
def test_the_fixture_works_on_macos(tmp_path: Path) -> None:
    (tmp_path / "test_fixture.py").write_text(FIXTURE)
    pytest_main = "import pytest; sys.exit(pytest.main(['-q', *sys.argv[1:]]))"
    arguments = ("-p", "no:cacheprovider", "--rootdir", tmp_path, tmp_path / "test_fixture.py")
    assert "1 passed" in output(macos(tmp_path / "syncs", pytest_main), *arguments)


PIECES = """
import os, mmap
from rucola import system_calls
from rucola.store.mapped_file import MappedFile

path = Path(sys.argv[1])
file = MappedFile.create(path, 1 << 20)
file.map[5000:5003] = b"abc"
file.reserve(1 << 19, 1 << 19)
assert bytes(file.map[5000:5003]) == b"abc"
assert path.stat().st_blocks * 512 >= 1 << 19, "blocks of a full disk would fail here, and not at the write"
file.warm(0, 1 << 20)
file.flush()
assert not file.is_zero_from(5002) and file.is_zero_from(5003)
assert file.erase(4096) and file.is_zero_from(0)
assert not file.erase(0)
file.close()
"""


@pytest.mark.parametrize("finds_holes", [True, False])
def test_files_of_macos_have_blocks_and_lose_them(tmp_path: Path, finds_holes: bool) -> None:
    hide = "" if finds_holes else "p._hide({p.os: ('SEEK_DATA', 'SEEK_HOLE')})\n"
    output(macos(tmp_path / "syncs", hide + PIECES), tmp_path / "file")


@pytest.mark.slow
def test_the_client_works_on_windows(tmp_path: Path) -> None:
    client = [sys.executable, "-c", f"{SUPPORT}; p.become_windows()\n{CLIENT}"]
    with server("standalone", "--store", tmp_path / "store", *FREE_PORTS, log=tmp_path / "log") as running:
        namesrv, _ = running.addresses()
        output(client, namesrv, "sender", "20")
        assert output(client, namesrv, "group", "20") == "True"
        assert running.stop() == 0


@pytest.mark.parametrize("command", [["standalone", "--store", "data"], ["broker"], ["store", "check", "."]])
def test_a_broker_on_windows_says_what_it_needs(command: list[str], tmp_path: Path) -> None:
    done = subprocess.run([*WINDOWS, *command], capture_output=True, text=True, cwd=tmp_path)
    assert done.returncode == 1
    needs = "a broker and its store need Linux or macOS; clients (rucola.client) also run on Windows"
    assert done.stderr == f"Error: {needs}\n"


def test_windows_imports_the_clients() -> None:
    program = "import rucola.client, rucola.client.sync, rucola.admin, rucola.message; print('imported')"
    assert output([sys.executable, "-c", f"{SUPPORT}; p.become_windows()\n{program}"]) == "imported"


@pytest.mark.slow
def test_macos_imports_data_source_and_jobs(tmp_path: Path) -> None:
    """The standard library's own module for proxies exists only on macOS, so it is imported before."""
    program = (
        "import rucola.spark.source.data_source, rucola.spark.source.batch_reader, rucola.spark.source.stream_reader\n"
        "import rucola.spark.source.sink, rucola.spark.lake\n"
        "from rucola.spark.jobs import archive, audit, rebuild, reconcile, replay, search\n"
        "print('imported')"
    )
    _, option, text = macos(tmp_path / "syncs", program)
    assert output([sys.executable, option, f"import urllib.request\n{text}"]) == "imported"
