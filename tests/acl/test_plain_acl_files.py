"""Files of accounts: hot reload, broken files, changes, and the last admin."""

from __future__ import annotations

import logging
import os
from pathlib import Path

import pytest
import yaml

from rucola.access import Action, Resource
from rucola.acl.plain_acl_files import PlainAclFiles
from rucola.acl.yaml_file import parse_yaml
from rucola.errors import ConfigError
from support.access import make_home
from support.errors import raises

NOW_MS = 1_700_000_000_000


def files_in(path: Path, **more: str) -> PlainAclFiles:
    make_home(path)
    for name, text in more.items():
        write(path / "conf" / "acl" / f"{name}.yml", text)
    return PlainAclFiles(path, lambda: NOW_MS)


def write(path: Path, text: str) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.touch(mode=0o600)
    path.write_text(text)


def account(name: str, **members: str) -> str:
    lines = "".join(f"    {key}: {value}\n" for key, value in members.items())
    return f"  - accessKey: {name}\n    secretKey: secret of {name}\n{lines}"


def test_without_a_file_the_server_does_not_start(tmp_path: Path) -> None:
    with raises(ConfigError, subject=str(tmp_path / "conf" / "plain_acl.yml")):
        PlainAclFiles(tmp_path, lambda: NOW_MS)


def test_accounts_of_the_directory_and_the_default_file_count(tmp_path: Path) -> None:
    files = files_in(tmp_path, more="accounts:\n" + account("another1"))
    assert set(files.current.accounts) == {"operator", "writer1", "reader1", "another1"}


def test_a_changed_file_applies_at_the_next_look(tmp_path: Path) -> None:
    files = files_in(tmp_path)
    assert not files.refresh()
    write(tmp_path / "conf" / "acl" / "deep" / "new.yaml", "accounts:\n" + account("another1"))
    assert files.refresh()
    assert "another1" in files.current.accounts
    (tmp_path / "conf" / "acl" / "deep" / "new.yaml").unlink()
    assert files.refresh()
    assert "another1" not in files.current.accounts


@pytest.mark.parametrize(
    ("text", "why"),
    [
        ("accounts: [", "more.yml: line "),
        ("accounts:\n" + account("another1", admin="perhaps"), "admin is 'perhaps'"),
        ("accounts:\n" + account("another1", defaultTopicPerm="PUBSUB"), "permission 'PUBSUB'"),
        ("accounts:\n" + account("another1", whiteRemoteAddress="everybody"), "is no pattern of addresses"),
        ("accounts:\n" + account("short"), "more than 6 characters"),
        ("accounts:\n" + account("another1") + account("another1"), "occurs twice"),
        ("account:\n" + account("another1"), "unknown key 'account'"),
        ("a: &a [x]\nb: [*a]\n", "aliases"),
        ("- text\n", "expected the keys"),
        ("accounts: text\n", "expected a list"),
    ],
)
def test_a_broken_file_keeps_its_last_good_content(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, text: str, why: str
) -> None:
    files = files_in(tmp_path, more="accounts:\n" + account("another1"))
    path = tmp_path / "conf" / "acl" / "more.yml"
    write(path, text)
    with caplog.at_level(logging.ERROR):
        files.refresh()
        files.refresh()
    assert "another1" in files.current.accounts
    assert why in files.broken[str(path)]
    assert "secret of" not in caplog.text
    assert [record.levelname for record in caplog.records] == ["ERROR"]
    write(path, "accounts:\n" + account("changed1"))
    files.refresh()
    assert files.broken == {}
    assert "changed1" in files.current.accounts


def test_a_broken_file_at_the_start_is_an_error(tmp_path: Path) -> None:
    with pytest.raises(ConfigError):
        files_in(tmp_path, more="accounts: [")


def test_files_without_an_admin_keep_the_accounts(tmp_path: Path) -> None:
    files = files_in(tmp_path)
    write(tmp_path / "conf" / "plain_acl.yml", "accounts:\n" + account("another1"))
    files.refresh()
    assert files.current.accounts["operator"].is_admin
    assert "no admin account is left" in files.broken["conf"]
    (tmp_path / "conf" / "plain_acl.yml").unlink()
    files.refresh()
    assert files.current.accounts["operator"].is_admin


def test_an_account_is_created_changed_and_deleted(tmp_path: Path) -> None:
    files = files_in(tmp_path)
    files.update_account({"accessKey": "another1", "secretKey": "secret of another", "topicPerms": ["T=PUB"]})
    files.update_account({"accessKey": "another1", "defaultGroupPerm": "SUB", "topicPerms": None})
    found = files.current.accounts["another1"]
    found.check(Action.PUBLISH, Resource("T"), "10.0.0.1")
    found.check(Action.RETRY, Resource("%RETRY%g", "g"), "10.0.0.1")
    document = yaml.safe_load((tmp_path / "conf" / "plain_acl.yml").read_text())
    assert document["dataVersion"] == [{"counter": 2, "timestamp": NOW_MS}]
    assert document["accounts"][0]["admin"] is True
    assert (tmp_path / "conf" / "plain_acl.yml").stat().st_mode & 0o777 == 0o600
    assert files.versions[str(files.default_file)] == {"counter": 2, "timestamp": NOW_MS}
    files.delete_account("another1")
    assert "another1" not in files.current.accounts
    assert PlainAclFiles(tmp_path, lambda: NOW_MS).current.accounts.keys() == files.current.accounts.keys()


def test_a_change_goes_to_the_file_of_the_account(tmp_path: Path) -> None:
    files = files_in(tmp_path, more="accounts:\n" + account("another1"))
    files.update_account({"accessKey": "another1", "defaultTopicPerm": "PUB"})
    assert "defaultTopicPerm: PUB" in (tmp_path / "conf" / "acl" / "more.yml").read_text()


@pytest.mark.parametrize("how", ["delete", "demote"])
def test_the_last_admin_stays(tmp_path: Path, how: str) -> None:
    files = files_in(tmp_path)
    before = (tmp_path / "conf" / "plain_acl.yml").read_text()
    demoted = {"accessKey": "operator", "admin": "false"}
    with pytest.raises(ConfigError):
        files.delete_account("operator") if how == "delete" else files.update_account(demoted)
    assert (tmp_path / "conf" / "plain_acl.yml").read_text() == before
    files.update_account({"accessKey": "deputy1", "secretKey": "secret of deputy", "admin": "true"})
    files.delete_account("operator")
    assert files.current.accounts["deputy1"].is_admin


@pytest.mark.parametrize("name", ["../../etc/passwd", "/etc/passwd", "tools.yml"])
def test_only_files_of_accounts_can_be_changed(tmp_path: Path, name: str) -> None:
    files = files_in(tmp_path)
    with pytest.raises(ConfigError):
        files.update_white_addresses(["10.0.0.1"], str(tmp_path / "conf" / name) if name == "tools.yml" else name)


def test_white_addresses_are_replaced(tmp_path: Path) -> None:
    files = files_in(tmp_path)
    files.update_white_addresses(["10.0.0.*"], None)
    assert files.current.white_addresses.admit("10.0.0.9")
    with pytest.raises(ConfigError):
        files.update_white_addresses(["everyone"], None)
    files.update_white_addresses([], None)
    assert not files.current.white_addresses.admit("10.0.0.9")


def test_an_access_key_in_two_files_counts_once(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    files_in(tmp_path, more="accounts:\n" + account("writer1", admin="true"))
    files = PlainAclFiles(tmp_path, lambda: NOW_MS)
    assert files.current.accounts["writer1"].is_admin
    assert "occurs in another file" in caplog.text


def test_a_file_that_others_can_read_is_reported(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    make_home(tmp_path)
    os.chmod(tmp_path / "conf" / "plain_acl.yml", 0o644)
    PlainAclFiles(tmp_path, lambda: NOW_MS)
    assert "readable by others: chmod 600" in caplog.text


@pytest.mark.parametrize("loader", ["CBaseLoader", "BaseLoader"])
@pytest.mark.parametrize(
    "text",
    [
        "",
        "---\n",
        "a",
        "- a\n- [b, {c: d}]\n",
        "a: {b: [], c: {}}\nd:\n",
        "a: 1\na: 2\n",
        "? a\n: |\n  b\n  c\n",
        "- 'x\n  y'\n",
    ],
)
def test_a_document_is_read_as_yaml_reads_it_with_all_scalars_as_text(
    monkeypatch: pytest.MonkeyPatch, loader: str, text: str
) -> None:
    monkeypatch.setattr(yaml, "CBaseLoader", getattr(yaml, loader))
    assert parse_yaml(text.encode(), Path("f.yml")) == yaml.load(text, yaml.BaseLoader)


@pytest.mark.parametrize("text", ["a: &x 1\nb: *x\n", "a: 1\n---\nb: 2\n", "{[a]: b}"])
def test_documents_that_no_file_of_accounts_needs_are_refused(text: str) -> None:
    with pytest.raises(ConfigError):
        parse_yaml(text.encode(), Path("f.yml"))
