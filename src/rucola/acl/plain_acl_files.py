"""Files of ACL 1.0: where they are, hot reload, and changes over the network.

Under the home directory (`rocketmqHome`, or the environment variable ROCKETMQ_HOME), as in Apache RocketMQ:

    conf/plain_acl.yml        global white addresses and accounts; new accounts are added here
    conf/acl/**/*.yml         more of them; also .yaml

`refresh` reads changed files. A file that cannot be parsed keeps its last good content, and so do all if together they
would lose the last admin account; the log repeats this error, and `rucola_acl_broken_files` counts it. The first file
with an access key wins, in the order of the paths, plain_acl.yml last.

A change writes the file atomically with mode 0600, increments its `dataVersion`, and applies at once. It is refused if
it would remove the last admin account. As in Apache RocketMQ, comments in the file are lost.

Corresponds to `PlainPermissionManager` and `AclFileWatchService` of Apache RocketMQ 4.9.8.
"""

from __future__ import annotations

import logging
import os
import threading
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from rucola.acl.plain_acl import PlainAcl, PlainAclFile, parse_account, parse_file, parse_version
from rucola.acl.white_addresses import WhiteAddresses
from rucola.acl.yaml_file import read_yaml, write_yaml
from rucola.errors import ConfigError
from rucola.outages import Outages

logger = logging.getLogger(__name__)

REFRESH_INTERVAL_MS: Final = 5000
HOME_VARIABLE: Final = "ROCKETMQ_HOME"

MAX_FILES: Final = 1000


@dataclass(slots=True)
class _Known:
    stamp: tuple[int, ...]
    content: PlainAclFile
    error: str = ""


class PlainAclFiles:
    """The accounts under one home directory. Thread-safe; `current` is replaced as a whole. ConfigError."""

    def __init__(self, home: Path, now_ms: Callable[[], int]) -> None:
        self.default_file = (home / "conf" / "plain_acl.yml").absolute()
        self._directory = (home / "conf" / "acl").absolute()
        self._now_ms = now_ms
        self._lock = threading.Lock()
        self._outages = Outages(logger, level=logging.ERROR)
        self._known: dict[Path, _Known] = {}
        self._repeated: set[str] = set()
        self.broken: dict[str, str] = {}
        """Files that keep their last good content, with the reason."""
        paths = self._paths()
        if not paths:
            raise ConfigError(
                f"aclEnable=true: there is neither {self.default_file} nor a .yml file below {self._directory}; "
                "docs/access-control.md begins with one",
                subject=self.default_file,
            )
        for path in paths:
            self._known[path] = _Known(_stamp(path), parse_file(read_yaml(path), path))
            _warn_if_readable(path)
        self.current = self._joined(self._known)
        if not self.current.has_admin:
            logger.warning("%s: no account has admin: true, so operators need a white address", home)

    @property
    def versions(self) -> dict[str, Mapping[str, int]]:
        return {str(path): known.content.version for path, known in self._known.items()}

    def refresh(self) -> bool:
        """Read changed files; return whether anything changed. Blocks on the disk: call it in a thread."""
        with self._lock:
            return self._refresh()

    def _refresh(self) -> bool:
        known: dict[Path, _Known] = {}
        broken: dict[str, str] = {}
        for path in self._paths():
            before = self._known.get(path)
            try:
                stamp = _stamp(path)
                if before is not None and before.stamp == stamp:
                    known[path] = before
                else:
                    known[path] = _Known(stamp, parse_file(read_yaml(path), path))
                    _warn_if_readable(path)
            except (ConfigError, OSError) as error:
                # Store the stamp of the broken file: it is parsed again only after its next change.
                known[path] = _Known(_stamp_or_none(path), before.content if before else PlainAclFile(), str(error))
            if known[path].error:
                broken[str(path)] = known[path].error
        joined = self._joined(known)
        if self.current.has_admin and not joined.has_admin:
            broken["conf"] = "without this change no admin account is left, so the accounts stay as they were"
            known, joined = self._known, self.current
        self._report(broken)
        is_changed = {path: entry.stamp for path, entry in known.items()} != {
            path: entry.stamp for path, entry in self._known.items()
        }
        if is_changed:
            logger.info("access control: %d accounts in %d files", len(joined.accounts), len(known))
            self._known, self.current = known, joined
        return is_changed

    def _report(self, broken: dict[str, str]) -> None:
        for subject in self.broken.keys() - broken.keys():
            self._outages.succeeded(f"access control: {subject}")
        for subject, error in broken.items():
            self._outages.failed(f"access control: {subject}", f"{error}; the last good accounts apply")
        self.broken = broken

    # Changes over the network.

    def update_account(self, entry: Mapping[str, Any]) -> None:
        """Create or change an account; members that are None keep their value. ConfigError."""
        access_key = str(entry["accessKey"])
        with self._lock:
            path = self._file_of(access_key) or self.default_file
            document = self._document(path)
            accounts = document.setdefault("accounts", []) or []
            document["accounts"] = accounts
            account = next((one for one in accounts if str(one.get("accessKey", "")).strip() == access_key), None)
            if account is None:
                account = {}
                accounts.append(account)
            account |= {key: value for key, value in entry.items() if value is not None}
            parse_account(account, f"account {access_key}")
            self._write(path, document)

    def delete_account(self, access_key: str) -> None:
        """Delete an account. ConfigError if it does not exist, or is the last admin."""
        with self._lock:
            path = self._file_of(access_key)
            if path is None:
                raise ConfigError(f"there is no account {access_key}")
            document = self._document(path)
            document["accounts"] = [
                one for one in document.get("accounts") or [] if str(one.get("accessKey", "")).strip() != access_key
            ]
            self._write(path, document)

    def update_white_addresses(self, patterns: list[str], file: str | None) -> None:
        """Replace the global white addresses of a file, by default plain_acl.yml. ConfigError."""
        with self._lock:
            path = Path(file).absolute() if file else self.default_file
            if path != self.default_file and path not in self._known:
                raise ConfigError(f"{file} is none of this broker's files of access control", subject=file)
            WhiteAddresses(patterns)
            document = self._document(path)
            document["globalWhiteRemoteAddresses"] = patterns
            self._write(path, document)

    def _file_of(self, access_key: str) -> Path | None:
        return next((path for path, known in self._known.items() if access_key in known.content.accounts), None)

    def _document(self, path: Path) -> dict[str, Any]:
        try:
            document = read_yaml(path) if path.exists() else None
        except ConfigError as error:
            raise ConfigError(f"the file is broken, repair it first: {error}") from None
        if document is not None and not isinstance(document, dict):
            raise ConfigError(f"{path} is broken, repair it first")
        return document or {}

    def _write(self, path: Path, document: dict[str, Any]) -> None:
        version = parse_version(document)
        document["dataVersion"] = [{"counter": version["counter"] + 1, "timestamp": self._now_ms()}]
        document = _with_plain_scalars(document)
        # Parse it as the next `refresh` will: a change that it would reject is never written.
        content = parse_file(_as_texts(document), path)
        joined = self._joined(self._known | {path: _Known((), content)})
        if self.current.has_admin and not joined.has_admin:
            raise ConfigError("this would leave no admin account; give another account admin: true first")
        try:
            write_yaml(path, document)
        except OSError as error:
            raise ConfigError(f"{path} cannot be written: {error.strerror}") from None
        self._refresh()

    def _joined(self, known: Mapping[Path, _Known]) -> PlainAcl:
        accounts: dict[str, Any] = {}
        for path, entry in known.items():
            for name, account in entry.content.accounts.items():
                if name not in accounts:
                    accounts[name] = account
                elif name not in self._repeated:
                    self._repeated.add(name)
                    logger.warning("%s: access key %s occurs in another file as well, which counts", path, name)
        patterns = [pattern for entry in known.values() for pattern in entry.content.white_patterns]
        return PlainAcl(WhiteAddresses(patterns), accounts)

    def _paths(self) -> list[Path]:
        """Return the files in order. Symbolic links to files are followed, links to directories are not."""
        found: list[Path] = []
        for directory, directories, names in os.walk(self._directory):
            directories.sort()
            found += [Path(directory, name) for name in sorted(names) if name.endswith((".yml", ".yaml"))]
        if self.default_file.is_file():
            found.append(self.default_file)
        return found[:MAX_FILES]


def acl_home(configured: Path | None) -> Path:
    """Return the home directory. ConfigError if neither `rocketmqHome` nor ROCKETMQ_HOME names one."""
    home = configured or (Path(value) if (value := os.environ.get(HOME_VARIABLE)) else None)
    if home is None:
        raise ConfigError(
            f"aclEnable=true: set rocketmqHome, or the environment variable {HOME_VARIABLE}, to the directory of "
            "conf/plain_acl.yml",
            subject=HOME_VARIABLE,
        )
    return home


def _stamp(path: Path) -> tuple[int, ...]:
    status = path.stat()
    return status.st_ino, status.st_size, status.st_mtime_ns


def _stamp_or_none(path: Path) -> tuple[int, ...]:
    try:
        return _stamp(path)
    except OSError:
        return ()


def _warn_if_readable(path: Path) -> None:
    if os.name == "posix" and path.stat().st_mode & 0o077:
        logger.warning("%s has secret keys and is readable by others: chmod 600 %s", path, path)


def _with_plain_scalars(document: dict[str, Any]) -> dict[str, Any]:
    """Return the document with `admin` as a YAML boolean: all scalars were read as text."""
    for account in document.get("accounts") or ():
        if "admin" in account:
            account["admin"] = str(account["admin"]).strip().lower() == "true"
    return document


def _as_texts(value: Any) -> Any:
    if isinstance(value, dict):
        return {key: _as_texts(one) for key, one in value.items()}
    if isinstance(value, list):
        return [_as_texts(one) for one in value]
    return str(value).lower() if isinstance(value, bool) else None if value is None else str(value)
