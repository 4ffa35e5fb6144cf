"""Unmodified clients log in with access keys, and are denied without, at a broker with access control."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from support.access import ADMIN, make_home
from support.client_programs import PROGRAMS, Client, bodies, numbered
from support.servers import server

KEYS = {"accessKey": "service", "secretKey": "secret of the service"}
ACCOUNTS = """
accounts:
  - accessKey: operator
    secretKey: secret of the operator
    admin: true
  - accessKey: service
    secretKey: secret of the service
    defaultTopicPerm: PUB|SUB
    defaultGroupPerm: SUB
  - accessKey: visitor
    secretKey: secret of a visitor
"""


@pytest.fixture(scope="module")
def addresses(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[str, str, Path]]:
    path = tmp_path_factory.mktemp("e2e_access")
    home = make_home(path / "home", ACCOUNTS)
    (path / "broker.conf").write_text(f"aclEnable=true\nrocketmqHome={home}\n", encoding="utf-8")
    options = ("--namesrv-port", "0", "--broker-port", "0", "-c", path / "broker.conf")
    with server("standalone", "--store", path / "store", *options, log=path / "log") as running:
        yield *running.addresses(), path
        assert running.stop() == 0


@pytest.fixture(params=["cpp", "ali_ons"])
def client(request: pytest.FixtureRequest, addresses: tuple[str, str, Path]) -> Client:
    if request.param == "cpp":
        return Client(sys.executable, PROGRAMS / "cpp", *addresses, ADMIN)
    return Client("node", request.getfixturevalue("installed"), *addresses, ADMIN)


@pytest.mark.slow
def test_messages_go_from_producer_to_consumer(client: Client) -> None:
    topic = client.create_topic()
    sent = client.send(numbered(topic, 5), **KEYS)
    assert all("error" not in answer for answer in sent)
    with client.program("consumer", group=f"G{topic}", topic=topic, **KEYS) as consumer:
        received = consumer.wait("message", 5)
    assert sorted(bodies(received)) == [f"message {number}" for number in range(5)]


@pytest.mark.slow
@pytest.mark.parametrize(
    "keys",
    [
        {},
        {"accessKey": "visitor", "secretKey": "secret of a visitor"},
        {"accessKey": "service", "secretKey": "not its secret"},
    ],
)
def test_messages_without_permission_are_refused(client: Client, keys: dict[str, str]) -> None:
    topic = client.create_topic()
    with client.program("producer", group="producers", **keys) as producer:
        producer.tell(*numbered(topic, 1))
        assert producer.wait("error", 1)
