"""Bodies in the output of `rucola store dump` and `grep`."""

from __future__ import annotations

import json
import os
import pty
import subprocess
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner, Result

from rucola.admin.message_view import message_text
from rucola.cli.main import main
from rucola.cli.store.body_view import BodyView, match_context
from rucola.message import MessageInner, properties, record
from rucola.store.tools.check import check
from support.servers import RUCOLA
from support.small_store import HOST, SmallStore

HOSTILE = b"price 5\x1b[2Jclear \xff end"
DOCUMENT = b'{"order": {"price": 12, "name": "M\xc3\xbcller"}}'


@pytest.fixture
def store(tmp_path: Path) -> Iterator[SmallStore]:
    store = SmallStore(tmp_path / "store")
    store.put("T", 0, body=DOCUMENT, KEYS="k\x1b[2Jey")
    store.put("T", 0, body=HOSTILE)
    store.put("T", 0, body=b"x" * 100 + b" pizza " + b"y" * 2000)
    yield store
    assert [found.what for found in check(tmp_path / "store")] == ["there is no checkpoint"]


def run(command: str, store: SmallStore, *options: object) -> Result:
    return CliRunner().invoke(main, ["store", command, str(store.path), *map(str, options)])


def rows(result: Result) -> list[dict[str, Any]]:
    assert result.exit_code == 0, result.output
    return [json.loads(line) for line in result.stdout.splitlines()]


def test_dump_shows_bodies_as_text_json_or_hex(store: SmallStore) -> None:
    assert "body" not in rows(run("dump", store))[0]
    first, second, third = rows(run("dump", store, "--body", "text", "--bodyLimit", 1000))
    assert (first["body"], second["body"]) == (DOCUMENT.decode(), "price 5\x1b[2Jclear \ufffd end")
    assert (len(third["body"]), third["bodyShown"], third["bodyLength"]) == (1000, 1000, 2107)
    first, second, third = rows(run("dump", store, "--body", "json", "--bodyLimit", 2107))
    assert first["body"]["order"] == {"price": 12, "name": "M\u00fcller"}
    assert second["body"].startswith("price 5")
    assert len(third["body"]) == 2107
    assert "bodyShown" not in third
    first, _, third = rows(run("dump", store, "--body", "hex", "--bodyLimit", 10))
    assert (bytes.fromhex(first["bodyHex"]), first["bodyShown"]) == (DOCUMENT[:10], 10)


def test_grep_shows_the_match_in_its_context(store: SmallStore) -> None:
    (row,) = rows(run("grep", store, "-s", "pizza"))
    assert row["match"] == "…" + "x" * 39 + " [pizza] " + "y" * 39 + "…"
    (row,) = rows(run("grep", store, "-r", "name.: .M.*ller"))
    assert row["match"] == '{"order": {"price": 12, "[name": "M\u00fcller]"}}'
    assert "match" not in rows(run("grep", store, "-t", "T"))[0]
    table = run("grep", store, "-s", "pizza", "--table").stdout
    assert "#Match" in table
    assert "[pizza]" in table


def test_grep_prints_blocks_for_people(store: SmallStore) -> None:
    shown = run("grep", store, "-t", "T", "--body", "json", "--bodyLimit", 1000).stdout
    assert '    {\n      "order": {\n        "price": 12,\n' in shown
    assert "    (not JSON)\n" in shown
    assert "(2107 bytes, the first 1000 are shown; see --bodyLimit)" in shown
    (line, match, body) = run("grep", store, "-s", "clear", "--body", "text").stdout.splitlines()
    assert line.startswith("T 0:1 at ")
    assert match == r"  match: price 5\x1b[2J[clear] end"
    assert body == "    price 5\\x1b[2Jclear \ufffd end"
    (_, _, *lines) = run("grep", store, "-s", "clear", "--body", "hex").stdout.splitlines()
    assert lines[0] == "    00000000  70 72 69 63 65 20 35 1b 5b 32 4a 63 6c 65 61 72  price 5.[2Jclear"
    (row,) = rows(run("grep", store, "-s", "clear", "--body", "text", "--json"))
    assert (row["body"], row["queueOffset"]) == (HOSTILE.decode("utf-8", "replace"), 1)
    assert run("grep", store, "--body", "text", "--table").exit_code == 2


def test_no_escape_sequence_reaches_the_terminal(store: SmallStore) -> None:
    for options in (("--table",), ("--body", "text"), ("--body", "json"), ("--body", "hex"), ()):
        result = run("grep", store, "-t", "T", *options)
        assert result.exit_code == 0
        assert "\x1b" not in result.stdout


def test_a_printed_message_cannot_forge_lines() -> None:
    inner = MessageInner("T", 0, b"a\nb\x1b[2J", properties.join({"p": "v\nStore Host: 1.2.3.4:5\x9b"}), 0, 0, 1, HOST)
    text = message_text(record.decode(record.encode(inner, 0, 0, 1, HOST), 0))
    assert "\x9b" not in text
    assert "\x1b" not in text
    assert "\nStore Host: 1.2.3.4" not in text


@pytest.mark.parametrize("form", ["text", "json", "hex"])
def test_views_are_bounded(form: str) -> None:
    body = b"[" * 5000
    view = BodyView(form, 64)
    assert len(json.dumps(view.fields(body))) < 400
    assert len(view.block(body)) < 1000


def test_a_context_begins_and_ends_with_whole_characters() -> None:
    body = ("\u00fc" * 50 + "x" + "\u00fc" * 50).encode()
    context = match_context(body, (100, 101))
    assert context == "…" + "\u00fc" * 20 + "[x]" + "\u00fc" * 20 + "…"
    assert match_context(b"ab", (1, 1)) == "a[]b"


@pytest.mark.slow
def test_lines_on_a_terminal_are_not_mixed_with_a_bar(store: SmallStore) -> None:
    for command in (["grep", "-t", "T"], ["dump"]):
        master, slave = pty.openpty()
        program = [*RUCOLA, "store", command[0], str(store.path), *command[1:]]
        process = subprocess.Popen(program, stdin=slave, stdout=slave, stderr=slave)
        os.close(slave)
        output = b""
        with suppress(OSError):  # EIO: the program has ended
            while piece := os.read(master, 65536):
                output += piece
        os.close(master)
        assert process.wait() == 0
        lines = [line for line in output.decode().split("\r\n") if "commitLogOffset" in line]
        assert [line[0] for line in lines] == ["{"] * 3, output
