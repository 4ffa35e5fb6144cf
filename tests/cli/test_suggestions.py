"""Help by subject, suggestions, and requests to the wrong kind of server."""

from __future__ import annotations

import pytest
from click.testing import CliRunner

from rucola.cli.admin import admin
from rucola.cli.main import main
from rucola.namesrv.config import NamesrvConfig
from rucola.namesrv.kv import KVConfig
from rucola.namesrv.remoting import ConfigurationAdapter, KVAdapter, RouteAdapter
from rucola.namesrv.routes import RouteTable
from rucola.namesrv.services import ConfigurationService, RouteService
from rucola.protocol.codes import NAME_SERVER_REQUESTS
from support.golden_cluster import GoldenCluster


@pytest.mark.parametrize(
    ("arguments", "near"),
    [
        (["admin", "topiclist"], "topicList"),
        (["admin", "updateTopics"], "updateTopic"),
        (["admin", "queryMsgByUniqKey"], "queryMsgByUniqueKey"),
        (["standalon"], "standalone"),
        (["store", "chek"], "check"),
        (["pipeline", "achive"], "archive"),
        (["reliable", "resned"], "resend"),
        (["store", "grep", ".", "--regexp", "x"], "--regex"),
    ],
)
def test_a_misspelled_command_or_option_names_the_nearest(arguments: list[str], near: str) -> None:
    result = CliRunner().invoke(main, arguments)
    assert result.exit_code == 2
    assert "did you mean" in result.stderr.lower()
    assert near in result.stderr


def test_a_command_like_no_other_has_no_suggestion() -> None:
    result = CliRunner().invoke(main, ["admin", "xyzzy"])
    assert result.exit_code == 2
    assert "did you mean" not in result.stderr.lower()


def test_the_help_of_admin_lists_every_command_under_a_subject_in_a_whole_sentence() -> None:
    listed = [name for names in admin.subjects.values() for name in names]
    assert sorted(listed) == sorted(admin.commands)
    text = CliRunner().invoke(main, ["admin", "--help"]).stdout
    assert "..." not in text.partition("Access control:")[2]
    for subject in admin.subjects:
        assert f"\n{subject}:\n" in text


def test_a_request_to_the_wrong_kind_of_server_says_so(cluster: GoldenCluster) -> None:
    result = CliRunner().invoke(main, ["admin", "topicList", "-n", cluster.broker])
    assert result.exit_code == 1
    assert f"{cluster.broker} is a broker" in result.stderr
    result = cluster.admin(f"brokerStatus -b {cluster.namesrv}")
    assert result.exit_code == 1
    assert f"{cluster.namesrv} is one of a version without it, or a name server" in result.stderr


def test_the_requests_of_name_servers_are_those_that_they_answer() -> None:
    configuration, table = ConfigurationService(NamesrvConfig()), KVConfig()
    adapters = (
        RouteAdapter(RouteService(RouteTable(), table, configuration, lambda: 0)),
        KVAdapter(table),
        ConfigurationAdapter(configuration),
    )
    answered = {endpoint.code for adapter in adapters for endpoint in adapter.endpoints()}
    assert answered == NAME_SERVER_REQUESTS
