"""`rucola conformance` against a broker that lacks one thing, and against none."""

from __future__ import annotations

import asyncio
import json
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from rucola.conformance.scenarios import SCENARIOS
from rucola.remoting.tls import ClientTls
from support.access import guarded_cluster
from support.certificates import Certificates
from support.ports import free_ports
from support.servers import run, server


def test_what_a_server_lacks_is_named(tmp_path: Path) -> None:
    conf = tmp_path / "broker.conf"
    conf.write_text("enablePropertyFilter=false\ncleanFileForciblyEnable=false\n")
    options = ("--store", tmp_path / "store", "--namesrv-port", "0", "--broker-port", "0", "-c", conf)
    with server("standalone", *options, log=tmp_path / "log") as running:
        command = ("conformance", "--endpoint", running.grpc_endpoint(), "--topic", "Test")
        with ThreadPoolExecutor() as pool:
            table, document = pool.map(lambda options: run(*command, *options), ((), ("--json",)))
        assert running.stop() == 0
    expected = dict.fromkeys(SCENARIOS, "passed") | {"sql92": "failed", "order": "skipped"}
    outcomes = json.loads(document.stdout)
    assert (table.returncode, document.returncode) == (1, 1)
    assert {one["scenario"]: one["result"] for one in outcomes} == expected
    assert [one["scenario"] for one in outcomes if one["why"]] == ["sql92", "order"]
    assert dict(line.split()[:2] for line in table.stdout.splitlines()[1:]) == expected


def test_a_server_that_is_away_is_an_error() -> None:
    (port,) = free_ports(1)
    done = run("conformance", "--endpoint", f"127.0.0.1:{port}", "--topic", "Test")
    assert (done.returncode, done.stdout) == (1, "")
    assert "Traceback" not in done.stderr


async def test_accounts_and_tls(tmp_path: Path) -> None:
    certificates = Certificates(tmp_path / "certificates")
    variables = {ClientTls.VARIABLE: str(certificates.directory / "client.properties")}
    async with guarded_cluster(tmp_path) as cluster:
        tls = certificates.config()
        broker = await cluster.start_broker(grpc_server_port=0, enable_property_filter=True, tls=tls)
        command = ("conformance", "--endpoint", broker.grpc_endpoint, "--topic", "Test", "--json")
        account = ("--credentials", cluster.home / "conf" / "tools.yml")
        done = await asyncio.to_thread(run, *command, *account, **variables)
    results = {one["scenario"]: one["result"] for one in json.loads(done.stdout)}
    assert (results, done.returncode) == (dict.fromkeys(SCENARIOS, "passed") | {"order": "skipped"}, 0)
