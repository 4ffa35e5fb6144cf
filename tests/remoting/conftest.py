"""Runs every asynchronous test on asyncio's own event loop and on one that batches writes."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping

import pytest

from rucola.remoting.batching_event_loop import BatchingEventLoop
from rucola.remoting.tls_config import TlsMode
from support.certificates import Certificates
from support.remoting_peers import SECURITY, Security


def pytest_asyncio_loop_factories(
    config: pytest.Config, item: pytest.Item
) -> Mapping[str, Callable[[], asyncio.AbstractEventLoop]]:
    """The event loops of the tests in this directory, by the name that appears in a test's id."""
    return {"immediate": asyncio.SelectorEventLoop, "batching": BatchingEventLoop}


@pytest.fixture(params=["plain", "tls"])
def transport(request: pytest.FixtureRequest, certificates: Certificates, monkeypatch: pytest.MonkeyPatch) -> Security:
    """Runs a test in plain text and by TLS: everything that connections promise holds for both."""
    if request.param == "tls":
        monkeypatch.setattr(SECURITY, "server", certificates.server(TlsMode.enforcing))
        monkeypatch.setattr(SECURITY, "client", certificates.client())
    return SECURITY
