"""`rucola store` on golden stores, undamaged and damaged."""

from __future__ import annotations

import fcntl
import json
import os
import pty
import shutil
import struct
import subprocess
import termios
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from datetime import datetime
from pathlib import Path

import pytest
from click.testing import CliRunner, Result

from rucola.cli.main import main
from rucola.store.message_store import MessageStore
from support.apache_stores import with_ext, with_lmq
from support.servers import RUCOLA
from support.stores import config


def run(*arguments: object) -> Result:
    return CliRunner().invoke(main, ["store", *map(str, arguments)])


@pytest.fixture
def store(golden: Path, tmp_path: Path) -> Path:
    return Path(shutil.copytree(golden / "g1-clean" / "store", tmp_path / "store"))


@pytest.fixture
def conf(golden: Path) -> Path:
    return golden / "g1-clean" / "broker.conf"


def damage(store: Path, physical_offset: int) -> None:
    log = store / "commitlog" / f"{0:020}"
    data = bytearray(log.read_bytes())
    data[physical_offset] ^= 1
    log.write_bytes(data)


@pytest.mark.parametrize(
    ("name", "expected"),
    [
        ("g1-clean/store", "g1-clean/expected.jsonl"),
        ("g1-clean/store-after-restart", "g1-clean/after-expected.jsonl"),
        ("g2-crash/store", "g2-crash/expected.jsonl"),
    ],
)
def test_dump_prints_what_apaches_decoder_reads(golden: Path, name: str, expected: str) -> None:
    result = run("dump", golden / name)
    assert result.exit_code == 0, result.stderr
    printed = [json.loads(line) for line in result.stdout.splitlines()]
    assert printed == [json.loads(line) for line in (golden / expected).read_text(encoding="utf-8").splitlines()]


def test_check_of_a_sound_store_finds_nothing(golden: Path) -> None:
    result = run("check", golden / "g1-clean" / "store")
    assert (result.exit_code, result.stderr) == (0, "")
    assert result.stdout.endswith("store is clean\n")
    result = run("check", golden / "g1-clean" / "store", "--json")
    assert (result.exit_code, json.loads(result.stdout)) == (0, [])


def test_check_and_stat_show_the_features_of_a_store(tmp_path: Path) -> None:
    for store, names in (
        (with_ext(tmp_path), {"ConsumeQueueExt"}),
        (with_lmq(tmp_path), {"LMQ queues", "LMQ consumer offsets"}),
    ):
        checked = run("check", store)
        assert checked.exit_code == 0, checked.output
        counted = run("stat", store, "--json")
        features = json.loads(counted.stdout)["features"]
        assert {feature["name"] for feature in features} == names
        shown = run("stat", store).stdout
        for feature in features:
            assert feature["path"] in checked.stderr
            assert feature["path"] in shown
    refused = run("repair", store, "--out", tmp_path / "out")
    assert refused.exit_code != 0
    assert not (tmp_path / "out").exists()


def test_check_names_the_damage(store: Path) -> None:
    damage(store, 88)  # where the body of the first record begins
    log = store / "commitlog" / f"{0:020}"
    result = run("check", store)
    assert result.exit_code == 1
    assert f"{log} at byte 0: " in result.stdout
    result = run("check", store, "--json")
    assert result.exit_code == 1
    findings = json.loads(result.stdout)
    assert (str(log), 0) in {(finding["path"], finding["position"]) for finding in findings}
    assert all(finding["what"] for finding in findings)


def test_what_is_no_store_is_an_error(tmp_path: Path) -> None:
    for command in ("check", "dump"):
        for path in (tmp_path, tmp_path / "nothing"):
            result = run(command, path)
            assert (result.exit_code, result.stdout) == (2, "")
            assert path.name in result.stderr


def test_a_store_before_its_first_message_is_clean(tmp_path: Path) -> None:
    with MessageStore(config(tmp_path)):
        assert {path.name for path in tmp_path.iterdir()} == {"abort", "lock"}
        served = run("check", tmp_path)
        assert (served.exit_code, served.stdout) == (0, f"{tmp_path} is clean, as far as it was checked\n")
    closed = run("check", tmp_path)
    assert (closed.exit_code, closed.stdout) == (0, f"{tmp_path} is clean\n")


# stat, grep, rebuild, repair ------------------------------------------------------------------------------------------


def test_stat_prints_a_table_or_json(store: Path) -> None:
    result = run("stat", store)
    assert (result.exit_code, result.stderr) == (0, "")
    assert "2556 messages" in result.stdout
    assert "#Topic" in result.stdout
    counted = json.loads(run("stat", store, "--json").stdout)
    assert counted["log"]["records"]["messages"] == 2556
    assert {queue["topic"] for queue in counted["queues"]} >= {"GA", "GB", "SCHEDULE_TOPIC_XXXX"}


def test_grep_prints_what_dump_prints(store: Path) -> None:
    dumped = [json.loads(line) for line in run("dump", store).stdout.splitlines()]
    result = run("grep", store, "-t", "GA", "-g", "TagB", "-i", 0)
    expected = [
        row for row in dumped if (row["topic"], row["queueId"], row["properties"].get("TAGS")) == ("GA", 0, "TagB")
    ]
    assert [json.loads(line) for line in result.stdout.splitlines()] == expected
    assert result.exit_code == 0
    assert len(run("grep", store, "-t", "GA", "-n", 2).stdout.splitlines()) == 2
    table = run("grep", store, "-t", "GA", "-k", "order-6", "--table").stdout
    assert "#MsgId" in table
    assert "order-6" in table


def test_grep_exits_by_its_result(store: Path) -> None:
    result = run("grep", store, "-t", "GA", "-k", "no such key")
    assert (result.exit_code, result.stdout, result.stderr) == (1, "", "")
    for wrong in (("-r", "("), ("-b", "yesterday"), ("--table", "--json")):
        assert run("grep", store, *wrong).exit_code == 2


def test_grep_takes_a_time_window(store: Path) -> None:
    dumped = [json.loads(line) for line in run("dump", store).stdout.splitlines()]
    begin, end = dumped[10]["storeTimestamp"], dumped[500]["storeTimestamp"]
    as_text = datetime.fromtimestamp(begin / 1000).isoformat()
    found = [json.loads(line) for line in run("grep", store, "-b", as_text, "-e", end).stdout.splitlines()]
    assert found == [row for row in dumped if begin <= row["storeTimestamp"] < end]


def test_impossible_offsets_and_files_are_refused(store: Path, tmp_path: Path) -> None:
    """A file in place of a directory, and a configuration that is not text: one line, no traceback."""
    file = tmp_path / "file"
    file.write_bytes(bytes(range(256)))
    for arguments in (
        ["repair", store, "--out", file / "copy"],
        ["rebuild", store, "--out", file / "derived"],
        ["stat", store, "-c", file],
        ["check", store, "-c", file],
    ):
        result = run(*arguments)
        assert isinstance(result.exception, SystemExit), arguments
        assert result.exit_code == 1
        (line,) = result.stderr.splitlines()
        assert str(file) in line
    result = run("grep", store, "-b", "2000", "-e", "1000")
    assert result.exit_code == 2
    assert "-b 2000 is not before -e 1000" in result.stderr


def test_rebuild_in_place_needs_the_brokers_delay_levels(store: Path, conf: Path) -> None:
    shutil.rmtree(store / "index")
    result = run("rebuild", store, "-c", conf)
    assert (result.exit_code, result.stderr) == (0, "")
    assert "2556 messages read; 2556 units" in result.stdout
    assert run("check", store).stdout.endswith("is clean\n")
    assert json.loads(run("rebuild", store, "-c", conf, "--json").stdout)["units"] == 2556


def test_a_rebuild_that_stops_names_the_next_command(store: Path) -> None:
    damage(store, 88)
    result = run("rebuild", store)
    assert result.exit_code == 1
    assert "rucola store repair DIR --out COPY" in result.stderr
    (store / "index" / f"{0:017}").write_bytes(bytes(100))
    result = run("rebuild", store)
    assert result.exit_code == 1
    assert "maxHashSlotNum" in result.stderr


def test_repair_lists_what_it_leaves_out(store: Path, conf: Path, tmp_path: Path) -> None:
    damage(store, 88)
    result = run("repair", store, "--out", tmp_path / "copy", "-c", conf)
    assert (result.exit_code, result.stderr) == (0, "")
    assert "CRC" in result.stdout
    assert "GB|1|0" in result.stdout
    assert "2555 messages" in result.stdout
    assert run("check", tmp_path / "copy").exit_code == 0
    output = json.loads(run("repair", store, "--out", tmp_path / "again", "-c", conf, "--json").stdout)
    assert (output["kept"], output["lost"], output["clean"]) == (2555, 1, False)
    assert output["leftOut"][0]["messages"] == ["GB|1|0"]
    result = run("repair", store, "--out", tmp_path / "copy")
    assert result.exit_code == 1
    assert "is not empty" in result.stderr


def test_damage_that_stops_a_command_names_the_next_command(store: Path) -> None:
    log = store / "commitlog"
    (log / f"{1 << 20:020}").rename(log / f"{2 << 20:020}")
    result = run("stat", store)
    assert result.exit_code == 1
    assert "a file before it is missing" in result.stderr
    assert "rucola store repair DIR --out COPY" in result.stderr
    (log / f"{2 << 20:020}").rename(log / f"{1 << 20:020}")
    next((store / "index").iterdir()).write_bytes(bytes(77))
    result = run("grep", store, "-t", "GA", "-k", "order-6")
    assert result.exit_code == 1
    assert "rucola store rebuild DIR" in result.stderr


@pytest.mark.slow
@pytest.mark.parametrize("command", ["check", "stat", "dump", "grep", "rebuild", "repair"])
def test_a_progress_bar_is_shown_on_a_terminal_and_kept_out_of_the_output(
    store: Path, conf: Path, tmp_path: Path, command: str
) -> None:
    arguments = [*RUCOLA, "store", command, store]
    if command == "rebuild":
        arguments += ["-c", conf]
    if command == "repair":
        arguments += ["-c", conf, "--out", tmp_path / "out"]
    plain = subprocess.run(arguments, capture_output=True, text=True)
    assert (plain.returncode, plain.stderr) == (0, "")
    shutil.rmtree(tmp_path / "out", ignore_errors=True)
    terminal, side = pty.openpty()
    fcntl.ioctl(side, termios.TIOCSWINSZ, struct.pack("4H", 24, 400, 0, 0))
    environment = os.environ | {"TERM": "xterm", "COLUMNS": "400"}
    with (
        ThreadPoolExecutor(1) as thread,
        subprocess.Popen(arguments, stdout=subprocess.PIPE, stderr=side, env=environment) as shown,
        os.fdopen(terminal, "rb", buffering=0) as screen,
    ):
        os.close(side)
        assert shown.stdout is not None
        answer = thread.submit(shown.stdout.read)
        drawn = bytearray()
        with suppress(OSError):  # a closed terminal raises it
            while more := screen.read(4096):
                drawn += more
        assert answer.result().decode() == plain.stdout
    assert shown.returncode == 0
    assert f"{command} {store}" in drawn.decode()
    assert "100%" in drawn.decode()


def test_dump_and_grep_always_print_json(store: Path) -> None:
    for arguments in (("dump", store), ("grep", store, "-t", "GA")):
        result = run(*arguments, "--json")
        assert (result.exit_code, result.stdout) == (0, run(*arguments).stdout)
