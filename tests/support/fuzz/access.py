"""Targets of access control: its files and bodies, and a broker that requires signatures.

Against the broker, `guarded` sends mutated requests as they are: without a valid signature none may succeed. `signed`
signs each with the keys of an administrator, so that it passes and reaches the services.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from rucola.acl.credentials import Credentials
from rucola.acl.plain_acl import parse_file
from rucola.acl.policies import parse_entry
from rucola.acl.user_store import UserStore
from rucola.acl.yaml_file import parse_yaml
from rucola.broker.broker import Broker
from rucola.broker.config import BrokerConfig
from rucola.domain.user import AclInfo, UserInfo
from rucola.errors import MQError
from rucola.namesrv import config as namesrv_config
from rucola.protocol.body import decode_request
from rucola.protocol.codes import RequestCode, ResponseCode
from rucola.protocol.command import RemotingCommand
from rucola.protocol.frame import FrameDecoder
from rucola.settings import parse
from rucola.store.config import StoreConfig
from rucola.store.tools.check import check
from support.access import ACCOUNTS, ADMIN, make_home
from support.cluster import HOST, SMALL_FILES
from support.fuzz.loop import Target
from support.fuzz.servers import requests_of, running

WHITE = "globalWhiteRemoteAddresses: [10.0.0.1, '10.0.5-9.*', '1050::5:600:300c:1-200', '10.1.2.{3,4}']\n"
VERSION = "dataVersion:\n  - {counter: 3, timestamp: 1732149000123}\n"
USERS = json.dumps(
    {
        "users": [
            {"username": "operator", "password": "p", "userType": "Super", "userStatus": "enable"},
            {"username": "u", "password": "q", "userType": "Normal", "userStatus": "disable"},
        ],
        "acls": [
            {
                "subject": "User:u",
                "policies": [
                    {
                        "policyType": "Custom",
                        "entries": [
                            {
                                "resource": "Topic:orders-*", "actions": ["Pub", "Sub"],
                                "sourceIps": ["10.0.0.0/8", "::1"], "decision": "Allow",
                            }
                        ],
                    }
                ],
            }
        ],
    }
).encode()  # fmt: skip
_SECRET_CHANGES = {RequestCode.UPDATE_AND_CREATE_ACL_CONFIG, RequestCode.UPDATE_BROKER_CONFIG}
"""They could change what the fuzzer signs with."""


def access_targets(directory: Path) -> list[Target]:
    """Return the targets of files and bodies."""
    path = directory / "auth.json"
    user, acl = json.loads(USERS)["users"][1], json.loads(USERS)["acls"][0]
    namesrv = b"listenPort=9876\naclEnable=true\ntls.server.mode = permissive\ntls.server.keyPassword=env:X\n"
    return [
        # A file of the operator, which a thread reads: PyYAML takes 3 µs for each byte.
        Target("plain-acl", [(ACCOUNTS + WHITE + VERSION).encode(), b"accounts: []\n", b"{}"], _plain_acl, stall_s=2.0),
        Target("users", [USERS, b"{}"], lambda data: _users(path, data)),
        Target("access-bodies", [json.dumps(user).encode(), json.dumps(acl).encode()], _bodies),
        Target("namesrv-conf", [namesrv], lambda data: _namesrv_conf(data.decode("utf-8", "replace"))),
    ]


def _plain_acl(data: bytes) -> None:
    path = Path("plain_acl.yml")
    parse_file(parse_yaml(data, path), path)


def _users(path: Path, data: bytes) -> None:
    path.write_bytes(data)
    store = UserStore(path, "c")
    for user in store.current.values():
        user.is_admin, store.policies(f"User:{user.name}")


def _bodies(data: bytes) -> None:
    with suppress(MQError):
        decode_request(UserInfo, data)
    for policy in decode_request(AclInfo, data).policies:
        for entry in policy.entries:
            parse_entry(entry.resource or "", entry.actions, entry.source_ips or [], entry.decision or "")


def _namesrv_conf(text: str) -> None:
    namesrv_config.from_properties(parse(text))


@contextmanager
def guarded_targets(golden: Path, directory: Path) -> Iterator[list[Target]]:
    """Yield the two targets of one broker with access control; its store is checked at the end."""
    home = make_home(directory / "home")
    config = BrokerConfig(
        bind_address=HOST, listen_port=0, ha_listen_port=0, broker_name="broker-a", broker_ip1=HOST, acl_enable=True,
        rocketmq_home=home, max_topic_nums=300, max_subscription_group_nums=200, enable_property_filter=True,
    )  # fmt: skip
    loop = asyncio.new_event_loop()
    try:
        store = StoreConfig(store_path_root_dir=directory / "store", **SMALL_FILES)
        with running(Broker(config, store), loop) as server:
            requests = requests_of(golden, to_namesrv=False)
            forged = [_signed(request, Credentials("operator", "guessed")) or request for request in requests]

            def guarded(data: bytes) -> None:
                server.run(data)
                for answer in server.answers():
                    assert answer.code != ResponseCode.SUCCESS, f"a request without an account succeeded: {answer}"

            def signed(data: bytes) -> None:
                server.run(_signed(data, ADMIN) or data)

            yield [Target("guarded", [*requests, *forged], guarded), Target("signed", requests, signed)]
        assert check(directory / "store") == []
    finally:
        loop.close()


def _signed(frame: bytes, keys: Credentials) -> bytes | None:
    """Return a request with a signature; None if it cannot be decoded, or could change the keys."""
    try:
        frame = max(len(frame) - 4, 4).to_bytes(4, "big") + frame[4:].ljust(4, b"\0")
        (command,) = FrameDecoder().receive_data(frame)
        command.ext = dict(command.ext_fields)
        if type(command) is not RemotingCommand or command.code in _SECRET_CHANGES:
            return None
        keys.sign(command.ext, command.body)
        return command.encode()
    except (MQError, ValueError, OverflowError):
        return None
