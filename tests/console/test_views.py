"""Saved views, which all accounts share."""

from __future__ import annotations

from pathlib import Path

from rucola.console.accounts import hash_password
from support.cluster import cluster
from support.console import Visitor, field, visitor


async def log_in(console: Visitor, name: str) -> None:
    await console.post("/login", {"name": name, "password": "p", "then": "/"})


async def test_a_view_is_saved_with_its_query_for_all(tmp_path: Path) -> None:
    grants = {"ann": "viewer", "bob": "viewer", "eve": "viewer Topic:Orders", "root": "admin"}
    hashed = hash_password("p")
    (tmp_path / "accounts").write_text("".join(f"{name}={hashed} {grant}\n" for name, grant in grants.items()))
    config = {"accounts": tmp_path / "accounts", "directory": tmp_path / "console", "prefix": "/rucola"}
    name = "<b>Slow</b> topics"
    async with cluster(tmp_path / "cluster") as running:
        async with visitor(running.namesrv, **config) as console:
            await log_in(console, "ann")
            page = await console.get("/topics?q=Ord&sort=queues")
            assert 'href="/rucola/views?path=%2Ftopics%3Fq%3DOrd%26sort%3Dqueues"' in page.text
            saving = "/views?path=%2Ftopics%3Fq%3DOrd%26sort%3Dqueues"
            fields = {"path": field(await console.get(saving), "path"), "name": name}
            assert fields["path"] == "/topics?q=Ord&sort=queues"
            await console.post("/views", fields, form=saving)
            for path in (
                "//evil.example/",
                "https://evil.example/",
                "/\\evil.example",
                "/\t/evil.example",
                "/" + "x" * 3000,
            ):
                refused = await console.post("/views", {"path": path, "name": "evil"}, form=saving)
                assert refused.status_code == 400, path
            for wrong in (" ", "x" * 101):
                assert (await console.post("/views", {"path": "/", "name": wrong}, form=saving)).status_code == 400
        async with visitor(running.namesrv, **config) as console:
            await log_in(console, "bob")
            found = await console.get("/views")
            assert 'href="/rucola/topics?q=Ord&amp;sort=queues">&lt;b&gt;Slow' in found.text
            assert 'name="delete"' not in found.text, "it is another's"
            refused = await console.post("/views", {"path": "/", "name": name}, form=saving)
            assert refused.status_code == 400
            await console.post("/views", {"delete": "1"}, form="/")
            await log_in(console, "eve")
            assert "Slow" not in await console.text("/views"), "the address has a topic that eve may not know"
            await log_in(console, "root")
            assert "Slow" in await console.text("/views")
            await console.post("/views", {"delete": "1"}, form="/views")
            assert "Slow" not in await console.text("/views")
