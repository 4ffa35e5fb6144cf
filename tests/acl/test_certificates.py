"""Certificates of clients: their subjects in callers and in the audit log, for requests and for replication."""

from __future__ import annotations

import datetime
import json
import ssl
from pathlib import Path
from typing import Any

import pytest
from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import NameOID

from rucola.access import Interceptor
from rucola.acl.credentials import Credentials
from rucola.broker.broker import Broker
from rucola.broker.config import BrokerConfig
from rucola.protocol.codes import RequestCode, ResponseCode
from rucola.protocol.command import RemotingCommand
from rucola.protocol.replication import encode_report
from rucola.protocol.topic import CreateTopicRequestHeader
from rucola.remoting.byte_stream import open_stream
from rucola.remoting.client import RemotingClient
from rucola.remoting.tls import ClientTls, subject_of
from rucola.remoting.tls_config import ClientAuth
from rucola.store.config import StoreConfig
from rucola.store.tools.check import check
from support.access import ADMIN, STRANGER, make_home
from support.certificates import Certificates
from support.cluster import HOST, SMALL_FILES
from support.documents import Document

SUBJECT = "CN=Rucola client"
"""That of the client's certificate which `rucola tls init` makes."""


def documented_interceptor(subjects: dict[str, str]) -> Interceptor:
    """The one of docs/access-control.md: each of these users needs a certificate with this subject."""
    section = Document.read("docs/access-control.md").sections()["Certificates of clients"]
    (block,) = [block for block in section.blocks if block.language == "python"]
    program: dict[str, Any] = {}
    exec(block.text, program)
    made: Interceptor = program["BoundToCertificate"](subjects)
    return made


def broker_of(path: Path, certificates: Certificates, subjects: dict[str, str], need: ClientAuth) -> Broker:
    config = BrokerConfig(
        bind_address=HOST, broker_ip1=HOST, listen_port=0, ha_listen_port=0, acl_enable=True,
        rocketmq_home=make_home(path / "home"), tls=certificates.config(server_need_client_auth=need),
    )  # fmt: skip
    store = StoreConfig(store_path_root_dir=path / "store", **SMALL_FILES)
    return Broker(config, store, interceptors=[documented_interceptor(subjects)])


async def create_topic(broker: Broker, tls: ClientTls, keys: Credentials, topic: str) -> int:
    header = CreateTopicRequestHeader(
        topic=topic, default_topic="TBW102", read_queue_nums=1, write_queue_nums=1, perm=6,
        topic_filter_type="SINGLE_TAG",
    )  # fmt: skip
    client = RemotingClient(tls=tls, credentials=keys)
    try:
        answer = await client.invoke(
            broker.address, RemotingCommand.request(RequestCode.UPDATE_AND_CREATE_TOPIC, header)
        )
    finally:
        await client.close()
    return answer.code


async def test_interceptors_and_the_audit_log_see_the_subject(certificates: Certificates, tmp_path: Path) -> None:
    tls = certificates.client_with_certificate()
    async with broker_of(tmp_path, certificates, {"operator": SUBJECT}, ClientAuth.require) as broker:
        assert await create_topic(broker, tls, ADMIN, "A") == ResponseCode.SUCCESS
        assert await create_topic(broker, tls, STRANGER, "B") == ResponseCode.NO_PERMISSION
        stream = await open_stream(f"{HOST}:{broker.config.ha_listen_port}", tls.follow())
        assert stream.certificate == "CN=Rucola server"  # each side knows that of the other
        await stream.write(encode_report(0))
        assert await stream.read(100) == b""
        stream.close()
    lines = [json.loads(line) for line in (tmp_path / "store" / "audit" / "audit.jsonl").read_text().splitlines()]
    assert [(line["certificate"], line["action"], line["outcome"]) for line in lines] == [
        (SUBJECT, "ALTER_TOPIC", "done"),
        (SUBJECT, "ALTER_TOPIC", "denied"),
        (SUBJECT, "REPLICATE", "denied"),
    ]
    assert check(tmp_path / "store") == []


async def test_a_client_without_a_certificate_has_no_subject(certificates: Certificates, tmp_path: Path) -> None:
    async with broker_of(tmp_path, certificates, {"operator": SUBJECT}, ClientAuth.optional) as broker:
        without = certificates.client()
        assert await create_topic(broker, without, ADMIN, "A") == ResponseCode.NO_PERMISSION
        assert await create_topic(broker, certificates.client_with_certificate(), ADMIN, "A") == ResponseCode.SUCCESS
    lines = [json.loads(line) for line in (tmp_path / "store" / "audit" / "audit.jsonl").read_text().splitlines()]
    assert [line["certificate"] for line in lines] == [None, SUBJECT]
    assert check(tmp_path / "store") == []


NAMES: list[list[tuple[x509.ObjectIdentifier, str]]] = [
    [(NameOID.COMMON_NAME, "webshop")],
    [(NameOID.COUNTRY_NAME, "DE"), (NameOID.ORGANIZATION_NAME, "Example, Inc."), (NameOID.COMMON_NAME, "web+shop")],
    [(NameOID.ORGANIZATION_NAME, "#1"), (NameOID.COMMON_NAME, ' a"b\\c;<d>  ')],
    [(NameOID.COMMON_NAME, "operator,O=Example")],
    [(NameOID.COMMON_NAME, "Bücher")],
]


@pytest.mark.parametrize("names", NAMES)
def test_a_subject_reads_as_in_rfc_4514(names: list[tuple[x509.ObjectIdentifier, str]], tmp_path: Path) -> None:
    """As the library cryptography writes it; `=` in a value is escaped as well, which RFC 4514 allows."""
    name = x509.Name([x509.NameAttribute(kind, value) for kind, value in names])
    expected = name.rfc4514_string()
    assert subject_of(decoded(name, tmp_path / "certificate.pem")).replace("\\=", "=") == expected


def test_no_value_can_pass_for_another_name_or_break_a_line() -> None:
    assert subject_of({"subject": ((("commonName", "a\n\x1b[2J,O=b"),),)}) == r"CN=a\0A\1B[2J\,O\=b"
    assert subject_of({"subject": ((("commonName", "a"), ("userId", "b")), (("emailAddress", "c@d"),))}) == (
        "emailAddress=c@d,CN=a+UID=b"
    )
    assert subject_of(None) == subject_of({}) == ""


def decoded(name: x509.Name, path: Path) -> dict[str, Any]:
    """A certificate with this subject as a connection gives it, from a handshake in memory."""
    key = ec.generate_private_key(ec.SECP256R1())
    now = datetime.datetime.now(datetime.UTC)
    builder = x509.CertificateBuilder().subject_name(name).issuer_name(name).public_key(key.public_key())
    builder = builder.serial_number(1).not_valid_before(now - datetime.timedelta(1))
    certificate = builder.not_valid_after(now + datetime.timedelta(1)).sign(key, hashes.SHA256())
    pem = serialization.Encoding.PEM
    path.write_bytes(
        certificate.public_bytes(pem)
        + key.private_bytes(pem, serialization.PrivateFormat.PKCS8, serialization.NoEncryption())
    )
    server, client = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER), ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    server.load_cert_chain(path)
    client.load_verify_locations(path)
    client.check_hostname = False
    to_server, to_client = ssl.MemoryBIO(), ssl.MemoryBIO()
    one, other = client.wrap_bio(to_client, to_server), server.wrap_bio(to_server, to_client, server_side=True)
    for side in (one, other, one):
        try:
            side.do_handshake()
        except ssl.SSLWantReadError:
            pass
    found = one.getpeercert()
    assert found
    return dict(found)
