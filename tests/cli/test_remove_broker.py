"""docs/operation.md: the only broker of a topic is removed under load by the page's commands, with a ledger."""

from __future__ import annotations

from contextlib import ExitStack
from pathlib import Path

import pytest

from rucola.client import ConsumeFromWhere
from rucola.client import instance as instance_module
from rucola.client.consumer import push_consumer
from rucola.client.sync import PushConsumer
from rucola.store.tools.check import check
from support.ledger import Ledger
from support.ports import HOST, free_ports
from support.servers import Server, run_here, server
from support.waiting import wait_until

ROUTE_S = "3"


def admin(namesrv: str, *arguments: str) -> str:
    done = run_here("admin", *arguments, ROCKETMQ_NAMESRV=namesrv)
    assert done.returncode == 0, done.stderr
    return done.stdout


@pytest.mark.slow
def test_a_broker_is_removed_under_load(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(instance_module, "ROUTE_INTERVAL_MS", 200)
    monkeypatch.setattr(push_consumer, "PERSIST_INTERVAL_MS", 100)
    with ExitStack() as stack:
        (port, *ports) = free_ports(3, 1)
        namesrv, brokers = f"{HOST}:{port}", dict(zip(("broker-a", "broker-b"), ports, strict=True))

        def start(command: str, name: str, **settings: object) -> Server:
            conf = tmp_path / f"{name}.conf"
            settings |= {"bindAddress": HOST}
            conf.write_text("".join(f"{key}={value}\n" for key, value in settings.items()))
            log = tmp_path / f"{name}.log"
            running = stack.enter_context(server(command, "-c", conf, log=log))
            assert running.first_line, log.read_text()
            return running

        running = [start("namesrv", "namesrv", listenPort=port)]
        running += [
            start(
                "broker", name, listenPort=own, haListenPort=own + 1, brokerName=name, brokerIP1=HOST,
                namesrvAddr=namesrv, storePathRootDir=tmp_path / name, mappedFileSizeCommitLog=1 << 20,
                cleanFileForciblyEnable="false", autoCreateTopicEnable="false",
            )
            for name, own in brokers.items()
        ]  # fmt: skip
        admin(namesrv, "updateTopic", "-b", f"{HOST}:{brokers['broker-a']}", "-t", "T", "-r", "4", "-w", "4")
        found: set[bytes] = set()
        consumer = PushConsumer("readers", namesrv, consume_from=ConsumeFromWhere.CONSUME_FROM_FIRST_OFFSET)
        consumer.subscribe("T")
        consumer.listen(lambda message: found.add(message.body))
        with consumer:
            ledger = Ledger(namesrv)
            try:
                ledger.grows()
                moving = (
                    "--from",
                    "broker-a",
                    "--to",
                    "broker-b",
                    "--interval",
                    "0.2",
                    "--routeTime",
                    ROUTE_S,
                    "--yes",
                )
                admin(namesrv, "moveTopic", "-t", "T", *moving)
                admin(namesrv, "drain", "-b", "broker-a", "--interval", "0.2", "--routeTime", ROUTE_S, "--yes")
                removed = running.pop(1)
                assert removed.stop() == 0
                ledger.grows()
            finally:
                wanted = ledger.stop()
            wait_until(lambda: wanted <= found, 60)
        for one in reversed(running):
            assert one.stop() == 0
    for name in brokers:
        assert check(tmp_path / name) == []
