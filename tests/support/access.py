"""Accounts for tests of access control: a plain_acl.yml, and servers and clients that use it."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from pathlib import Path
from typing import Any

from rucola.acl.credentials import Credentials, credentials_of_file
from rucola.broker.broker import Broker
from rucola.namesrv.config import NamesrvConfig
from rucola.namesrv.server import Namesrv
from rucola.protocol.command import Header, RemotingCommand
from support.cluster import HOST, Cluster

ADMIN = Credentials("operator", "secret of the operator")
WRITER = Credentials("writer1", "secret of the writer")
READER = Credentials("reader1", "secret of the reader")
STRANGER = Credentials("stranger", "secret of a stranger")

ACCOUNTS = """
accounts:
  - accessKey: operator
    secretKey: secret of the operator
    admin: true
  - accessKey: writer1
    secretKey: secret of the writer
    defaultTopicPerm: DENY
    defaultGroupPerm: DENY
    topicPerms:
      - Orders=PUB
  - accessKey: reader1
    secretKey: secret of the reader
    defaultTopicPerm: DENY
    defaultGroupPerm: DENY
    topicPerms:
      - Orders=SUB
    groupPerms:
      - readers=SUB
"""


def make_home(path: Path, accounts: str = ACCOUNTS) -> Path:
    """A home directory with conf/plain_acl.yml, and a tools.yml of the operator."""
    conf = path / "conf"
    conf.mkdir(parents=True, exist_ok=True)
    for name, text in (
        ("plain_acl.yml", accounts),
        ("tools.yml", "accessKey: operator\nsecretKey: secret of the operator\n"),
    ):
        (conf / name).touch(mode=0o600)
        (conf / name).write_text(text)
    return path


def signed(keys: Credentials, code: int, header: Header | None = None, body: bytes = b"") -> RemotingCommand:
    """A request of one user, which a client without credentials can send."""
    request = RemotingCommand.request(code, header, body)
    request.ext = dict(request.ext_fields)
    keys.sign(request.ext, body)
    return request


class GuardedCluster(Cluster):
    """A cluster with access control."""

    def __init__(self, path: Path, home: Path, namesrv: Namesrv, stack: AsyncExitStack) -> None:
        super().__init__(path, namesrv, stack)
        self.home = home

    async def start_broker(self, directory: str = "store", **settings: Any) -> Broker:
        access = {"rocketmq_home": self.home, "credentials_file": self.home / "conf" / "tools.yml"}
        return await super().start_broker(directory=directory, **{"acl_enable": True} | access | settings)


@asynccontextmanager
async def guarded_cluster(path: Path, accounts: str = ACCOUNTS) -> AsyncIterator[GuardedCluster]:
    """A name server with access control; brokers are started on it."""
    home = make_home(path / "home", accounts)
    assert credentials_of_file(home / "conf" / "tools.yml") == ADMIN
    async with AsyncExitStack() as stack:
        config = NamesrvConfig(acl_enable=True, rocketmq_home=home, audit_log_path=path / "namesrv-audit.jsonl")
        namesrv = await stack.enter_async_context(Namesrv(HOST, 0, config=config))
        yield GuardedCluster(path, home, namesrv, stack)
