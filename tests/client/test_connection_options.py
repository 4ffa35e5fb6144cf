"""ConnectionOptions: name servers, TLS and credentials of clients, stated once."""

from __future__ import annotations

import pickle
from collections.abc import Callable
from typing import Any

import pytest

from rucola.admin import AdminClient
from rucola.client import (
    ClientInstance,
    ClientTls,
    ConfigError,
    ConnectionOptions,
    Credentials,
    LocalTransactionState,
    Producer,
    PullConsumer,
    PushConsumer,
    TransactionProducer,
)
from rucola.client.trace import MessageTrace
from support.errors import raises

KEYS = Credentials("webshop", "change-me")
TLS = ClientTls(verify=False)
CLUSTER = ConnectionOptions("127.0.0.1:1;127.0.0.1:2", TLS, KEYS)

CLIENTS: list[Callable[..., object]] = [
    AdminClient,
    ClientInstance,
    lambda *given, **options: Producer("g", *given, **options),
    lambda *given, **options: PullConsumer("g", *given, **options),
    lambda *given, **options: PushConsumer("g", *given, **options),
    lambda *given, **options: TransactionProducer(
        "g", *given, check=lambda message: LocalTransactionState.UNKNOW, **options
    ),
    MessageTrace,
]


def connection_of(client: object) -> ConnectionOptions:
    if isinstance(client, MessageTrace):
        client = client._producer
    connection = (client if isinstance(client, (AdminClient, ClientInstance)) else client.instance).connection  # type: ignore[attr-defined]
    assert isinstance(connection, ConnectionOptions)
    return connection


@pytest.mark.parametrize("client", CLIENTS)
async def test_every_client_takes_keywords_or_the_options_in_place_of_addresses(client: Callable[..., object]) -> None:
    assert connection_of(client(CLUSTER)) == CLUSTER
    assert connection_of(client("127.0.0.1:1;127.0.0.1:2", tls=TLS, credentials=KEYS)) == CLUSTER
    for twice in ({"tls": TLS}, {"credentials": KEYS}):
        with pytest.raises(ConfigError):
            client(CLUSTER, **twice)


async def test_the_environment_completes_the_options(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("ROCKETMQ_NAMESRV", "NAMESRV_ADDR", "ROCKETMQ_TLS_CONFIG_FILE"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("ROCKETMQ_ACCESS_KEY", "operator")
    monkeypatch.setenv("ROCKETMQ_SECRET_KEY", "change-me-too")
    operator = Credentials("operator", "change-me-too")
    assert ConnectionOptions().complete() == ConnectionOptions("localhost:9876", None, operator)
    assert CLUSTER.complete() == CLUSTER
    monkeypatch.setenv("ROCKETMQ_NAMESRV", "127.0.0.1:3")
    assert connection_of(PullConsumer("g")) == ConnectionOptions("127.0.0.1:3", None, operator)


async def test_a_shared_instance_has_the_connection_of_its_clients() -> None:
    shared = ClientInstance(CLUSTER)
    assert Producer("p", instance=shared).instance.connection == CLUSTER
    for keyword, value in (("tls", TLS), ("credentials", KEYS)):
        with raises(ConfigError, subject=keyword):
            Producer("q", instance=shared, **{keyword: value})  # type: ignore[arg-type]


@pytest.mark.parametrize(
    "options",
    [
        {"namesrv": ["h:1"]},
        {"tls": True},
        {"credentials": ("a", "b")},
    ],
)
def test_options_of_another_type_are_refused(options: dict[str, Any]) -> None:
    for make in (ConnectionOptions, ClientInstance, lambda **given: Producer("g", **given)):
        with raises(ConfigError, subject=next(iter(options))):
            make(**options)


def test_options_are_pickled_and_do_not_show_the_secret_key() -> None:
    assert pickle.loads(pickle.dumps(CLUSTER)) == CLUSTER
    assert "change-me" not in repr(CLUSTER)
