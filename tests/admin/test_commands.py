"""The catalogue of commands: what it says about each, and running one without the command line."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest

from rucola.admin import AdminClient
from rucola.admin.commands import CATALOGUE, InvalidArguments, Risk
from rucola.errors import ConfigError
from support.cluster import cluster

NOWHERE = "127.0.0.1:1"


def test_every_command_says_what_it_takes_and_risks() -> None:
    changing = re.compile("add|clean|clone|create|delete|demote|promote|reset|resume|send|skip|switch|update|wipe")
    for one in CATALOGUE.values():
        assert f"rucola admin {one.name}" in one.help
        arguments = list(one.arguments())
        flags = [flag for argument in arguments for flag in argument.option.flags.split()]
        assert len(set(flags)) == len(flags)
        assert all(argument.option.help for argument in arguments)
        assert (one.risk is Risk.DANGEROUS) == bool(one.confirm)
        assert one.risk is not Risk.READ or not changing.match(one.name), one.name


async def results(admin: AdminClient, command: str, **arguments: Any) -> list[Any]:
    return [one.value async for one in CATALOGUE[command].run(admin, **arguments)]


async def test_a_command_runs_without_the_command_line(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    key = {"namespace": "n", "key": "k"}
    deletion = CATALOGUE["deleteKvConfig"]
    async with cluster(tmp_path) as running, AdminClient(running.namesrv) as admin:
        assert await results(admin, "topicList") == [await admin.topics.names()]
        with pytest.raises(ConfigError):
            await deletion.question(admin, **key)
        assert await results(admin, "updateKvConfig", **key, value="v") == [key | {"value": "v"}]
        assert "k" in await deletion.question(admin, **key)
        assert await admin.name_servers.get_kv("n", "k") == "v", "a question changes nothing"
        assert await results(admin, "deleteKvConfig", **key) == [key]
        assert await admin.name_servers.get_kv("n", "k") is None
        assert await CATALOGUE["deleteExpiredCommitLog"].question(admin), "defaults need not be given"
    assert capsys.readouterr() == ("", "")


@pytest.mark.parametrize(
    ("command", "arguments"),
    [
        ("updateOrderConf", {"topic": "T", "method": "get", "conf": "a:1"}),
        ("sendMessage", {"topic": "T", "body": "x", "queue_id": 1}),
        ("consumeMessage", {"topic": "T", "begin_ms": 2, "end_ms": 1}),
        ("printMsg", {"topic": "T", "charset": "none"}),
    ],
)
async def test_arguments_that_do_not_belong_together_are_refused_before_any_request(
    command: str, arguments: dict[str, Any]
) -> None:
    async with AdminClient(NOWHERE) as admin:
        with pytest.raises(InvalidArguments):
            await results(admin, command, **arguments)
