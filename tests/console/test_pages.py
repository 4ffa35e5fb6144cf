"""The pages of a live cluster of two brokers, as a browser without JavaScript sees them."""

from __future__ import annotations

import hashlib
import re
from pathlib import Path

import pytest

from rucola.admin import AdminClient
from rucola.admin.commands import CATALOGUE, Risk
from rucola.admin.commands.arguments import is_local
from rucola.admin.commands.diagnosis import REMEDIES
from rucola.console import visit
from rucola.console.app import HEADERS
from rucola.console.collector import KINDS, Alarm
from rucola.console.pages import PAGES
from support.cluster import cluster
from support.console import field, live_cluster, text_of, visitor

CONSOLE = visit.DIRECTORY
OF_ONE = (
    "/broker", "/topic", "/group", "/message", "/scan", "/tail", "/tail/events", "/why", "/dead_letter",
    "/dead_letters/export", "/logout",
)  # fmt: skip
PATHS = [page.path for page in PAGES if "{" not in page.path and page.path not in OF_ONE]


async def test_a_visitor_sees_cluster_topics_and_groups(tmp_path: Path) -> None:
    async with live_cluster(tmp_path) as running, visitor(running.namesrv) as console:
        text = await console.text("/")
        assert re.search(r"broker-a master 127.0.0.1:\d+ V4_9_8", text)
        topics = await console.text("/topics")
        assert "Orders normal 2 4" in topics
        assert "SCHEDULE_TOPIC_XXXX" not in topics
        assert "SCHEDULE_TOPIC_XXXX delayed" in await console.text("/topics?kind=all")
        assert "broker-a system" in await console.text("/topics?kind=system")
        assert " 1 rows" in await console.text("/topics?q=ORD")
        topic = await console.text("/topic?name=Orders")
        assert re.search(r"broker-a 0 0 10 10 .* broker-b 1 0 10 10 ", topic)
        assert "billing" in topic
        await console.shows("/groups", "billing 30 – ")  # it has consumed nothing of a queue: unknown
        group = await console.text("/group?name=billing")
        assert re.search(r"Orders broker-a 0 5 10 5 \S+ m?s .* Orders broker-b 1 0 10 10 ", group)
        for path in ("/topic?name=none", "/group?name=none", "/why?group=none", "/topic"):
            assert (await console.get(path)).status_code == 404
        assert (await console.get("/run/none")).status_code == 404
        language = {"accept-language": "zh-CN,en;q=0.5"}
        assert '<html lang="zh"' in (await console.get("/", **language)).text
        assert "没有告警" in (await console.get("/", **language)).text


async def test_what_does_not_answer_is_shown_beside_the_rest(tmp_path: Path) -> None:
    async with live_cluster(tmp_path) as running:
        await running.register("broker-c", "Orders", "127.0.0.1:1")
        async with visitor(running.namesrv) as console:
            text = await console.text("/")
            assert re.search(r"broker-c master 127.0.0.1:1 unreachable", text)
            assert re.search(r"broker-b master 127.0.0.1:\d+ V4_9_8", text)
            await console.shows("/groups", "billing 30")
            # A broker that did not answer from the start may have any topic and group.
            for path in ("/topics", "/groups", "/clients", "/topic?name=Orders", "/group?name=billing"):
                text = await console.text(path)
                assert "broker-c could not be read: its topics and groups are missing" in text, path
            for path in ("/topic?name=Elsewhere", "/group?name=elsewhere", "/tail?topic=Elsewhere"):
                assert "broker-c could not be read, and may have it" in text_of(await console.get(path)), path
            await running.first_namesrv.stop()
            await console.console.collector.refresh()
            alarms = console.console.collector.snapshot.alarms()
            assert "name servers" in [alarm.subject for alarm in alarms]
            assert "broker-a" in await console.text("/"), "the last state stays, with its age"


async def test_an_action_is_previewed_audited_and_refused_if_the_state_has_changed(tmp_path: Path) -> None:
    async with live_cluster(tmp_path) as running, visitor(running.namesrv) as console, AdminClient(
        running.namesrv
    ) as admin:  # fmt: skip
        path = "/run/resetOffsetByTime"
        asked = await console.post(path, {"group": "billing", "topic": "Orders", "timestamp_ms": "now"})
        assert (await admin.groups.consume_stats("billing")).offset_table, "asking changes nothing"
        assert "group billing on topic Orders to the end" in text_of(asked)
        assert re.search("broker-a 0 5 10 0 5 broker-a 1 0 10 0 10 broker-b 0 5 10 0 5", text_of(asked))
        seen = {name: field(asked, name) for name in ("group", "topic", "timestamp_ms", "seen", "token")}
        changed = await console.http.post(console.url(path), data=seen | {"group": "other"})
        assert "has changed" in text_of(changed)
        assert await console.console.audit.entries() == []
        done = await console.http.post(console.url(path), data=seen)
        assert done.status_code == 200, text_of(done)
        stats = await admin.groups.consume_stats("billing")
        assert all(at.consumer_offset == at.broker_offset for at in stats.offset_table.values())
        (entry,) = await console.console.audit.entries()
        line = "rucola admin resetOffsetByTime -g billing -t Orders -s -1"
        assert (entry.account, entry.peer, entry.action) == ("local", "127.0.0.1", line)
        before = "broker-a:0:5,broker-a:1:0,broker-b:0:5,broker-b:1:0"
        assert entry.result == f"success; undo: rucola admin resetOffsets -g billing -t Orders -o {before}"
        assert "billing 0 0 s" in await console.text("/groups"), "the new state is shown at once"
        assert line in await console.text("/audit")

        undo = {name: field(done, name) for name in ("token", "group", "topic", "offsets")}
        asked = await console.http.post(console.url("/run/resetOffsets"), data=undo)
        assert "broker-a 0 10 5 5 0 " in text_of(asked)
        done = await console.http.post(console.url("/run/resetOffsets"), data=undo | {"seen": field(asked, "seen")})
        stats = await admin.groups.consume_stats("billing")
        assert [at.consumer_offset for at in stats.offset_table.values()] == [5, 0, 5, 0]
        partly = undo | {"offsets": "broker-a:0:4,broker-a:1:99"}
        asked = await console.http.post(console.url("/run/resetOffsets"), data=partly)
        done = await console.http.post(console.url("/run/resetOffsets"), data=partly | {"seen": field(asked, "seen")})
        assert "broker-a:1 is unchanged" in text_of(done)
        for wrong in ("", "broker-a:0", "broker-a:0:x"):
            refused = await console.http.post(console.url("/run/resetOffsets"), data=undo | {"offsets": wrong})
            assert refused.status_code == 400

        fields = {"cluster": "DefaultCluster", "topic": "bad topic!"}
        refused = await console.http.post(console.url("/run/updateTopic"), data=fields | {"token": seen["token"]})
        fields |= {"seen": field(refused, "seen"), "token": seen["token"]}
        refused = await console.http.post(console.url("/run/updateTopic"), data=fields)
        assert refused.status_code == 400
        assert (await console.console.audit.entries())[0].result.startswith("failure: ")  # type: ignore[union-attr]


async def test_every_form_needs_its_token_and_every_answer_has_the_policy(tmp_path: Path) -> None:
    async with cluster(tmp_path) as running, visitor(running.namesrv) as console:
        await running.start_broker()
        commands = [f"/run/{one.name}" for one in CATALOGUE.values() if not is_local(one)]
        for path in [page.path for page in PAGES if page.takes_forms and "{" not in page.path] + commands:
            await console.get("/")
            refused = await console.http.post(console.url(path), data={"token": "0" * 64})
            assert refused.status_code == 403, path
        for path in [*PATHS, "/run/topicList", "/none", "/static/console.css", "/api/v1/topicList"]:
            response = await console.get(path)
            assert response.status_code < 500, path
            assert response.headers["content-security-policy"] == HEADERS["content-security-policy"]
            for cookie in response.headers.get_list("set-cookie"):
                assert "HttpOnly" in cookie
                assert "SameSite=strict" in cookie
        for one in CATALOGUE.values():
            if one.risk is not Risk.READ and not is_local(one):
                assert 'method="post"' in (await console.get(f"/run/{one.name}?topic=T")).text
        assert await console.console.audit.entries() == []
        other = await console.http.get(console.url("/"), headers={"host": "evil.example:80"})
        assert other.status_code == 421, "a name that resolves to this machine"


async def test_hostile_names_are_text(tmp_path: Path) -> None:
    name = "<script>alert(1)</script>\u202e{{7*7}}"
    async with cluster(tmp_path) as running:
        await running.register(f"b{name}", name, "127.0.0.1:1")
        broker = await running.start_broker()
        async with visitor(running.namesrv) as console:
            await running.create_topic(broker, "Orders")
            for path in ("/", f"/topics?q={name}", f"/topic?name={name}", f"/run/sendMessage?topic={name}", "/groups"):
                page = (await console.get(path)).text
                assert "<script>alert" not in page
                assert "\u202e" not in page or path.startswith(("/topics", "/run"))  # a field returns what was typed
            assert "&lt;script&gt;alert(1)&lt;/script&gt;\\u202e{{7*7}}" in (await console.get("/")).text


def test_every_text_of_the_pages_is_translated() -> None:
    sources = [path.read_text(encoding="utf-8") for path in CONSOLE.rglob("*") if path.suffix in (".html", ".py")]
    texts = {text for one in sources for text in re.findall(r"""(?:\bt|\.text)\(\s*(?:"([^"]+)"|'([^']+)')""", one)}
    wanted = {one or other for one, other in texts} | {page.navigation for page in PAGES if page.navigation} | {*KINDS}
    wanted |= {one for source in sources for one in re.findall(r'Alarm\([^,]+, "([^"]+)"', source)}
    wanted |= {remedy.text for remedy in REMEDIES.values()}
    wanted |= {one.subject for one in CATALOGUE.values() if not is_local(one)}
    assert wanted - visit.translations("zh").keys() == set()
    assert Alarm("a", "b").fields == {}
    for english, chinese in visit.translations("zh").items():
        assert sorted(re.findall(r"\{\w*\}", english)) == sorted(re.findall(r"\{\w*\}", chinese))


def test_no_template_has_inline_code_or_style() -> None:
    for path in (CONSOLE / "templates").glob("*.html"):
        found = re.findall(r"<style|style=|<script(?! src=)|\son\w+=|javascript:|\|safe|hx-on", path.read_text("utf-8"))
        assert found == [], path.name


VENDORED = {
    "htmx-4.0.1.min.js": "a0abb04f2f45a1f89d1d4844023245537e5e6014c87b144553e0607b4cc32130",
    "uplot-1.6.32.min.css": "df630c6a8d6f8eeaff264b50f73ce5b114f646ffd9a0bb74f049b0a00135fa04",
    "uplot-1.6.32.min.js": "19c8d4c6ad88929a79f4ae49d6f7161566dfd0ba3d15cc495e974f787eb78f1f",
}
"""Of the packages htmx.org and uplot, as their registry has them."""


@pytest.mark.parametrize(("name", "digest"), VENDORED.items())
def test_vendored_files_are_those_of_their_packages(name: str, digest: str) -> None:
    assert hashlib.sha256((CONSOLE / "static" / name).read_bytes()).hexdigest() == digest
    assert (CONSOLE / "static" / f"{name.partition('.min')[0]}.LICENSE").exists()
