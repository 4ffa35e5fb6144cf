"""`rucola produce` and `rucola consume` with standard input and output."""

from __future__ import annotations

import json
import signal
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from rucola.store.tools.check import check
from support.servers import RUCOLA, server

ALL = ("--from-beginning", "--no-follow")


class Cluster:
    def __init__(self, namesrv: str) -> None:
        self.namesrv = namesrv

    def run(self, *arguments: str, stdin: bytes = b"") -> subprocess.CompletedProcess[bytes]:
        return subprocess.run([*RUCOLA, *arguments, "-n", self.namesrv], input=stdin, capture_output=True)

    def done(self, *arguments: str, stdin: bytes = b"") -> bytes:
        """What a command that succeeds prints."""
        done = self.run(*arguments, stdin=stdin)
        assert done.returncode == 0, done.stderr
        return done.stdout

    def start(self, *arguments: str) -> subprocess.Popen[bytes]:
        return subprocess.Popen(
            [*RUCOLA, *arguments, "-n", self.namesrv], stdin=subprocess.PIPE, stdout=subprocess.PIPE
        )


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    path = tmp_path_factory.mktemp("messages")
    ports = ("--namesrv-port", "0", "--broker-port", "0")
    with server("standalone", "--store", path / "store", *ports, log=path / "log") as running:
        yield Cluster(running.addresses()[0])
        assert running.stop() == 0
    assert check(path / "store") == []


def test_each_line_is_a_message(cluster: Cluster) -> None:
    lines = [b"one pizza", "größer".encode(), b"\xff\x00\xfe", *(b"%d" % number for number in range(1000))]
    cluster.done("produce", "Lines", "-k", "k1", "-k", "k2", "-c", "food", "-H", "a=b=c", stdin=b"\n\n".join(lines))
    assert sorted(cluster.done("consume", "Lines", *ALL).split(b"\n")[:-1]) == sorted(lines)
    shown = cluster.done("consume", "Lines", *ALL, "-N", "1", "-f", r"{topic}\t{keys}\t{tags}\t{properties[a]}\n")
    assert shown == b"Lines\tk1 k2\tfood\tb=c\n"
    assert cluster.done("consume", "Lines", *ALL, "-s", "drinks") == b""


def test_json_copies_messages(cluster: Cluster, tmp_path: Path) -> None:
    content = bytes(range(256))
    (tmp_path / "body").write_bytes(content)
    cluster.done("produce", "Source", "-p", f"@{tmp_path / 'body'}", "-k", "k", "-H", "a=b")
    cluster.done("produce", "Source", "--json", stdin=b'{"body": "text", "keys": ["x", "y"], "tags": "t"}')
    lines = cluster.done("consume", "Source", *ALL, "--json")
    cluster.done("produce", "Copies", "--json", stdin=lines)

    def contents(topic: str) -> list[tuple[str, ...]]:
        found = [json.loads(line) for line in cluster.done("consume", topic, *ALL, "--json").splitlines()]
        return sorted(tuple(str(one.get(name)) for name in ("body", "bodyBase64", "keys", "tags")) for one in found)

    assert contents("Copies") == contents("Source")
    assert {(keys, tags) for _, _, keys, tags in contents("Copies")} == {("k", "None"), ("x y", "t")}


def test_a_group_does_not_receive_a_message_again(cluster: Cluster) -> None:
    cluster.done("produce", "Shared", stdin=b"1\n2\n3\n")
    first = cluster.done("consume", "Shared", "-g", "kitchen", "--from-beginning", "-N", "2").split()
    rest = cluster.done("consume", "Shared", "-g", "kitchen", "--no-follow").split()
    assert sorted(first + rest) == [b"1", b"2", b"3"]
    assert len(first) == 2


def test_messages_are_printed_as_they_arrive(cluster: Cluster) -> None:
    """A line is sent before the input ends; Ctrl-C ends the command that follows."""
    cluster.done("produce", "Live", stdin=b"old\n")
    follower = cluster.start("consume", "Live", "--from-beginning")
    producer = cluster.start("produce", "Live")
    assert follower.stdout is not None
    assert producer.stdin is not None
    assert follower.stdout.readline() == b"old\n"
    producer.stdin.write(b"new\n")
    producer.stdin.flush()
    assert follower.stdout.readline() == b"new\n"
    producer.stdin.close()
    assert producer.wait() == 0
    follower.send_signal(signal.SIGINT)
    assert follower.wait() == 130
    follower.stdout.close()
    assert producer.stdout is not None
    producer.stdout.close()


@pytest.mark.parametrize(
    ("arguments", "stdin", "code"),
    [
        (("produce", "Lines", "-H", "a"), b"", 2),
        (("produce", "a b"), b"", 1),
        (("produce", "Lines", "-p", ""), b"", 2),
        (("produce", "Lines", "--json", "-p", "x"), b"", 2),
        (("produce", "Lines", "-p", "@/does/not/exist"), b"", 1),
        (("produce", "Lines", "--json"), b'{"body": "x"}\n{"keys": "k"}\n', 1),
        (("produce", "Lines", "--json"), b'{"bodyBase64": "?"}\n', 1),
        (("produce", "bad topic"), b"x\n", 1),
        (("consume", "Missing", "--no-follow"), b"", 1),
        (("consume", "Lines", "-f", "{nothing}"), b"", 2),
        (("consume", "Lines", "-f", "{keys}", "--json"), b"", 2),
        (("consume", "Lines", "-f", "{keys[a]}"), b"", 2),
        (("consume", "Lines", "-f", r"%s\n"), b"", 2),
    ],
)
def test_wrong_input_is_named(cluster: Cluster, arguments: tuple[str, ...], stdin: bytes, code: int) -> None:
    done = cluster.run(*arguments, stdin=stdin)
    assert (done.returncode, b"Traceback" in done.stderr, b"rror" in done.stderr) == (code, False, True), done.stderr
