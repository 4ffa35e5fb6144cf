"""Accounts of the console: login, roles, sessions, proxies; and the JSON API that obeys them."""

from __future__ import annotations

import asyncio
import re
import socket
from pathlib import Path

import httpx
import pytest

from rucola.admin.commands import CATALOGUE, Risk
from rucola.admin.commands.arguments import is_local
from rucola.console.accounts import MAX_FAILURES, hash_password
from rucola.console.api import document
from rucola.console.config import ConsoleConfig
from rucola.console.json_results import safe_json
from rucola.errors import ConfigError
from support.cluster import cluster
from support.console import Visitor, field, live_cluster, text_of, visitor
from support.errors import raises


def accounts(path: Path) -> Path:
    (path / "accounts.properties").write_text(
        f"ann={hash_password('right')} admin\nbob={hash_password('also')} viewer Topic:Ord*, viewer Group:billing\n"
        "eve=- operator Topic:Orders\n"
    )
    return path / "accounts.properties"


async def log_in(console: Visitor, name: str, password: str) -> httpx.Response:
    return await console.post("/login", {"name": name, "password": password, "then": "/topics"})


def test_a_console_that_others_reach_needs_accounts() -> None:
    with raises(ConfigError, subject="accounts"):
        ConsoleConfig(bind_address="0.0.0.0")
    with raises(ConfigError, subject="user_header"):
        ConsoleConfig(user_header="x-user")
    with raises(ConfigError, subject="prefix"):
        ConsoleConfig(prefix="rucola/")


async def test_logins_that_are_tried_at_once_are_limited(tmp_path: Path) -> None:
    async with live_cluster(tmp_path) as running, visitor(running.namesrv, accounts=accounts(tmp_path)) as console:
        await console.get("/login")
        token = field(await console.get("/login"), "token")
        tries = [
            console.http.post(console.url("/login"), data={"name": "ann", "password": str(n), "token": token})
            for n in range(12)
        ]
        answers = [answer.status_code for answer in await asyncio.gather(*tries)]
        assert sorted(answers) == [403] * 5 + [429] * 7


async def test_a_session_sees_what_its_account_may(tmp_path: Path) -> None:
    config = {"accounts": accounts(tmp_path), "directory": tmp_path / "console"}
    async with live_cluster(tmp_path) as running:
        async with visitor(running.namesrv, **config) as console:
            refused = await console.get("/topics?q=Ord")
            assert refused.status_code == 303
            assert refused.headers["location"] == "/login?then=%2Ftopics%3Fq%3DOrd"
            assert (await console.get("/api/v1/topicList")).status_code == 401
            assert (await log_in(console, "ann", "wrong")).status_code == 403
            entered = await log_in(console, "bob", "also")
            assert (entered.status_code, entered.headers["location"]) == (303, "/topics")
            assert "Orders" in await console.text("/topics")
            assert "BenchmarkTest" not in await console.text("/topics?kind=all")
            for path in ("/topic?name=TBW102", "/run/topicStatus?topic=TBW102", "/audit", "/run/topicList"):
                assert (await console.get(path)).status_code in (403, 404), path
            sent = await console.post("/run/sendMessage", {"topic": "Orders", "body": "x"})
            assert sent.status_code == 403
            assert (await console.get("/api/v1/topicStatus?topic=Orders")).status_code == 200
            assert (await console.get("/api/v1/topicStatus?topic=TBW102")).status_code == 403
            of_all = await console.get("/api/v1/consumerProgress?topic=Orders")
            assert of_all.status_code == 400, "without a group it would be every group's"
            endless = await console.get("/message?topic=Orders&broker=broker-a&queue=0&offset=" + "9" * 5000)
            assert endless.status_code == 400
            now = await console.get("/scan?topic=Orders&end=now")
            assert re.fullmatch(r"/scan\?topic=Orders&end=\d{13}", now.headers["location"])
            kept = {**console.http.cookies}
        async with visitor(running.namesrv, **config) as console:
            console.http.cookies.update(kept)
            assert "Orders" in await console.text("/topics"), "a session outlives a restart"
            await console.post("/logout", {}, form="/")
            assert (await console.get("/topics")).status_code == 303
            console.http.cookies.update(kept)
            assert (await console.get("/topics")).status_code == 303, "the session has ended, not only the cookie"
            elsewhere = await console.post("/login", {"name": "ann", "password": "right", "then": "//evil.example/"})
            assert elsewhere.headers["location"] == "/"
            assert [one.result.partition(":")[0] for one in await console.console.audit.entries()] == ["failure"]
            assert (await console.get("/audit")).status_code == 200
    assert b"right" not in (tmp_path / "console" / "console.db").read_bytes()


async def test_a_script_names_its_account_in_each_request(tmp_path: Path) -> None:
    async with live_cluster(tmp_path) as running, visitor(running.namesrv, accounts=accounts(tmp_path)) as console:
        url = console.url("/api/v1/topicStatus?topic=Orders")
        async with httpx.AsyncClient() as script:
            for _ in range(2):
                assert (await script.get(url, auth=("bob", "also"))).status_code == 200
            assert (await script.get(url.replace("Orders", "TBW102"), auth=("bob", "also"))).status_code == 403
            assert (await script.get(console.url("/topics"), auth=("bob", "also"))).status_code == 303, "the API only"
            for given in ("Basic !", "Basic YQ", "Bearer x", "Basic /w=="):
                refused = await script.get(url, headers={"authorization": given})
                assert (refused.status_code, "www-authenticate" in refused.headers) == (401, False)
            codes = [(await script.get(url, auth=("bob", str(n)))).status_code for n in range(MAX_FAILURES + 1)]
            assert codes[-2:] == [401, 429]
            assert (await script.get(url, auth=("bob", "also"))).status_code == 429, "or guesses could go on"


async def test_guesses_are_limited(tmp_path: Path) -> None:
    async with cluster(tmp_path) as running, visitor(running.namesrv, accounts=accounts(tmp_path)) as console:
        codes = [(await log_in(console, "ann", "wrong")).status_code for _ in range(MAX_FAILURES)]
        assert codes == [403] * MAX_FAILURES
        assert (await log_in(console, "ann", "right")).status_code == 429
        assert (await log_in(console, "eve", "-")).status_code == 429


async def test_a_trusted_proxy_names_the_user_and_serves_below_a_path(tmp_path: Path) -> None:
    config = {"accounts": accounts(tmp_path), "user_header": "X-Remote-User", "prefix": "/tools/rucola"}
    async with live_cluster(tmp_path) as running:
        async with visitor(running.namesrv, trusted_proxies=("127.0.0.1",), **config) as console:
            user = {"x-remote-user": "eve", "host": "intranet.example", "x-forwarded-proto": "https"}
            page = await console.get("/topics", **user)
            assert 'href="/tools/rucola/topic?name=Orders"' in page.text
            assert "Path=/tools/rucola" in page.headers["set-cookie"]
            assert "Secure" in page.headers["set-cookie"]
            assert (await console.get("/topics", **{"x-remote-user": "nobody"})).status_code == 303
            # A proxy may remove the path itself.
            stripped = await console.http.get(console.url("/topics").replace("/tools/rucola", ""), headers=user)
            assert 'href="/tools/rucola/topic?name=Orders"' in stripped.text
            user |= {"cookie": f"rucola_session={page.cookies['rucola_session']}"}  # Secure, and this is no TLS
            fields = {"topic": "Orders", "body": "from eve"}
            asked = await console.http.post(
                console.url("/run/sendMessage"), data=fields | {"token": field(page, "token")}, headers=user
            )  # fmt: skip
            fields |= {"token": field(page, "token"), "seen": field(asked, "seen")}
            done = await console.http.post(console.url("/run/sendMessage"), data=fields, headers=user)
            assert "SEND_OK" in text_of(done)
            (entry,) = await console.console.audit.entries()
            assert (entry.account, entry.result) == ("eve", "success")
        async with visitor(running.namesrv, trusted_proxies=("127.0.0.9",), **config) as console:
            assert (await console.get("/topics", **user)).status_code == 303, "another peer may not name a user"


async def test_a_trusted_proxy_says_its_path_and_scheme(tmp_path: Path) -> None:
    """Each request may come by another path; what others say, or what is no path, does not count."""
    said = {"x-forwarded-prefix": "/tools/rucola/", "x-forwarded-proto": "https"}
    config = {"accounts": accounts(tmp_path)}
    async with live_cluster(tmp_path) as running:
        async with visitor(running.namesrv, trusted_proxies=("127.0.0.1",), **config) as console:
            for path in ("/topics", "/tools/rucola/topics"):
                refused = await console.get(path, **said)
                assert refused.headers["location"] == "/tools/rucola/login?then=%2Ftools%2Frucola%2Ftopics"
            assert "Path=/tools/rucola; SameSite=strict; Secure" in refused.headers["set-cookie"]
            page = await console.get("/login", **said)
            assert 'action="/tools/rucola/login"' in page.text
            assert 'href="/tools/rucola/static/console.css' in page.text
            cookie = {"cookie": f"rucola_session={page.cookies['rucola_session']}"}  # Secure, and this is no TLS
            fields = {"name": "ann", "password": "right", "token": field(page, "token"), "then": "/tools/rucola/topics"}
            entered = await console.http.post(console.url("/login"), data=fields, headers=said | cookie)
            assert entered.headers["location"] == "/tools/rucola/topics"
            assert (await console.get("/tools/rucola/static/console.css", **said)).status_code == 200
            cookie = {"cookie": f"rucola_session={entered.cookies['rucola_session']}"}
            described = (await console.get("/api/v1/openapi.json", **said, **cookie)).json()
            assert described["servers"] == [{"url": "/tools/rucola/api/v1"}]
            for other in ("//evil.example", "https://evil.example", "/a b", "/\\evil.example", '/"><script>'):
                refused = await console.get("/topics", **{"x-forwarded-prefix": other})
                assert refused.headers["location"] == "/login?then=%2Ftopics", other
        async with visitor(running.namesrv, trusted_proxies=("127.0.0.9",), **config) as console:
            refused = await console.get("/topics", **said)
            assert refused.headers["location"] == "/login?then=%2Ftopics"
            assert "Secure" not in refused.headers["set-cookie"]


async def test_the_api_runs_the_catalogue(tmp_path: Path) -> None:
    async with live_cluster(tmp_path) as running, visitor(running.namesrv) as console:
        found = (await console.get("/api/v1/topicStatus?topic=Orders")).json()
        assert [one["maxOffset"] for one in found["result"]] == [10, 10, 10, 10]
        new = {"topic": "New", "cluster": "DefaultCluster", "read_queue_nums": 3}
        url = console.url("/api/v1/updateTopic")
        assert (await console.get("/api/v1/updateTopic?topic=New&cluster=DefaultCluster")).status_code == 405
        assert (await console.http.post(url, data=new)).status_code == 415, "a form of another site"
        done = (await console.http.post(url, json=new)).json()
        assert (len(done["result"]["brokerAddrs"]), done["failed"]) == (2, False)
        assert [entry.result for entry in await console.console.audit.entries()] == ["success"]
        assert console.console.collector.snapshot.topics["New"].read_queues == 6
        wrong = await console.http.post(url, json=new | {"perm": 5})
        assert (wrong.status_code, wrong.json()["subject"]) == (400, "perm")
        assert (
            await console.http.post(url, content=b"[", headers={"content-type": "application/json"})
        ).status_code == 400
        for path, code in (
            ("none", 404),
            ("updateTopicList", 404),
            ("topicStatus?topic=none", 404),
            ("topicStatus", 400),
        ):
            assert (await console.get(f"/api/v1/{path}")).status_code == code, path
        paths = (await console.get("/api/v1/openapi.json")).json()["paths"]
        assert paths.keys() == document()["paths"].keys()


async def test_a_look_at_bodies_is_recorded_and_what_it_may_change_is_guarded(tmp_path: Path) -> None:
    async with live_cluster(tmp_path) as running, visitor(running.namesrv, accounts=accounts(tmp_path)) as console:
        await log_in(console, "bob", "also")
        found = (await console.get("/api/v1/queryMsgByKey?topic=Orders&key=7")).json()["result"]["messages"]
        assert [one["body"] for one in found] == ["order 7"]
        offset_id = found[0]["offsetMsgId"]
        by_id = f"/api/v1/queryMsgByUniqueKey?unique_key={offset_id}"
        assert (await console.get(f"{by_id}&topic=Orders")).json()["result"]["messages"][0]["keys"] == "7"
        url = console.url("/api/v1/queryMsgById")
        for given in ({}, {"resend": True}, {"consumer_group": "billing", "client_id": "c"}):
            assert (await console.http.post(url, json={"msg_ids": offset_id} | given)).status_code == 403
        wrong_topic = await console.get(f"{by_id}&topic=Order")
        assert wrong_topic.status_code in (400, 404), "of another topic, which he may view"
        looks = [entry.action for entry in await console.console.audit.entries()]
        assert looks[1:] == [
            f"rucola admin queryMsgByUniqueKey -t Orders -i {offset_id}", "rucola admin queryMsgByKey -t Orders -k 7"
        ]  # fmt: skip

        await log_in(console, "ann", "right")
        # A server of somebody else, which an id or an option may name, is not asked.
        with socket.create_server(("127.0.0.1", 0)) as other:
            other.settimeout(0)
            port = other.getsockname()[1]
            foreign_id = f"7F000001{port:08X}{0:016X}"
            for path in (f"queryMsgById?msg_ids={foreign_id}", f"brokerStatus?address=127.0.0.1:{port}"):
                refused = await console.get(f"/api/v1/{path}")
                assert (refused.status_code, refused.json()["subject"]) == (400, f"127.0.0.1:{port}"), path
            with pytest.raises(BlockingIOError):
                other.accept()
        without_group = await console.http.post(url, json={"msg_ids": offset_id, "client_id": "c"})
        assert without_group.status_code == 400
        wrong_topic = await console.get(f"{by_id}&topic=TBW102")
        assert (wrong_topic.status_code, wrong_topic.json()["subject"]) == (400, offset_id)
        assert (await console.get(f"/api/v1/queryMsgById?msg_ids={offset_id}&resend=true")).status_code == 405
        asked = await console.get(f"/run/queryMsgById?msg_ids={offset_id}&resend=true")
        assert f"send a copy of message {offset_id}" in text_of(asked)
        fields = {name: field(asked, name) for name in ("msg_ids", "resend", "seen", "token")}
        assert (await console.http.post(console.url("/run/queryMsgById"), data=fields)).status_code == 200
        found = (await console.get("/api/v1/queryMsgByKey?topic=Orders&key=7")).json()["result"]["messages"]
        assert len(found) == 2


def test_the_document_has_every_command_with_its_risk() -> None:
    paths = document("/p")["paths"]
    assert paths.keys() == {f"/{name}" for name, one in CATALOGUE.items() if not is_local(one)}
    for path, operations in paths.items():
        one = CATALOGUE[path[1:]]
        methods = ({"get"} if one.risk is Risk.READ else {"post"}) | ({"post"} if one.effects else set())
        assert operations.keys() == methods
        assert {described["x-risk"] for described in operations.values()} == {one.risk.value}


@pytest.mark.parametrize("number", [2**53, -(2**53), 2**63 - 1])
def test_numbers_that_javascript_rounds_are_texts(number: int) -> None:
    assert safe_json({"a": [number, 2**53 - 1, True]}) == {"a": [str(number), 2**53 - 1, True]}
