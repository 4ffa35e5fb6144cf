"""What is shown to somebody who has to explain a fault: one archive, which says what it lacks, and the capacity."""

from __future__ import annotations

import json
import stat
import tarfile
from pathlib import Path

from click.testing import CliRunner

from rucola.cli.main import main
from support.golden_cluster import GoldenCluster


def test_an_archive_has_what_a_cluster_says(cluster: GoldenCluster, tmp_path: Path) -> None:
    path, log = tmp_path / "support.tar.gz", tmp_path / "broker.log"
    log.write_bytes(b"a line\n" * 1_000_000)
    arguments = ["support", "-n", cluster.namesrv, "-o", str(path), "--log", str(log)]
    result = CliRunner().invoke(main, arguments)
    assert result.exit_code == 0, result.output
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    with tarfile.open(path) as archive:
        contents = {one.name: (archive.extractfile(one) or log.open("rb")).read() for one in archive.getmembers()}
    broker = f"brokers/{cluster.broker.replace(':', '_')}"
    assert json.loads(contents["about.json"])["nameServers"] == cluster.namesrv
    assert "NO_CLIENT" in {one["reason"] for one in json.loads(contents["health.json"])}
    assert b"brokerName=broker-a" in contents[f"{broker}/config.properties"]
    assert b"Secret" not in contents[f"{broker}/config.properties"]
    assert json.loads(contents[f"{broker}/pending.json"])["backlogTotal"] > 0
    assert b"thread MainThread" in contents[f"{broker}/process.txt"] or b" tasks\n" in contents[f"{broker}/process.txt"]
    assert len(contents["logs/1-broker.log"]) == 2 << 20
    assert contents["errors.txt"] == b""
    before = path.read_bytes()
    again = CliRunner().invoke(main, arguments)
    assert (again.exit_code, str(path) in again.stderr, path.read_bytes() == before) == (2, True, True)


def test_what_does_not_answer_is_named(tmp_path: Path) -> None:
    path = tmp_path / "support.tar.gz"
    result = CliRunner().invoke(main, ["support", "-n", "127.0.0.1:1", "-o", str(path), "--store", str(tmp_path)])
    assert result.exit_code == 0
    with tarfile.open(path) as archive:
        assert "about.json" in archive.getnames()
        errors = archive.extractfile("errors.txt")
        assert errors is not None
        lines = errors.read().decode().splitlines()
    assert "cluster.json" in {line.split(":")[0] for line in lines}
    assert all(line in result.stderr for line in lines)


def test_capacity_is_of_all_masters(cluster: GoldenCluster) -> None:
    result = CliRunner().invoke(main, ["admin", "capacity", "-n", cluster.namesrv, "--json"])
    assert {one["brokerAddr"] for one in json.loads(result.stdout)} == {cluster.broker}


def test_capacity_names_a_server_that_does_not_say(cluster: GoldenCluster) -> None:
    """A name server knows the requests as little as Apache's broker does."""
    result = cluster.admin(f"capacity -b {cluster.namesrv} --json")
    assert (result.exit_code, json.loads(result.stdout)) == (1, [])
    assert cluster.namesrv in result.stderr
