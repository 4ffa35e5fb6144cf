"""YAML files of access control: plain_acl.yml and tools.yml.

PyYAML is in the extra `security`: import it with the first file. Scalars stay text: a secret key of digits such as
00123456 is no number, and `admin: true` is compared as text.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

from rucola.errors import ConfigError, missing_extra
from rucola.files import replace_file

MAX_SIZE = 4 * 1024 * 1024


def read_yaml(path: Path) -> Any:
    """Return the document of a file with all scalars as text; None if empty. ConfigError names file and line."""
    try:
        if path.stat().st_size > MAX_SIZE:
            raise ConfigError(f"{path} is larger than {MAX_SIZE} bytes")
        return parse_yaml(path.read_bytes(), path)
    except OSError as error:
        raise ConfigError(f"cannot read {path}: {error.strerror}", subject=path) from None


def parse_yaml(content: bytes, path: Path) -> Any:
    """Return the document in `content`. Errors name `path` and contain no part of the content."""
    yaml = _yaml()
    try:
        # libyaml parses 256 KB in 25 ms instead of 600.
        loader = getattr(yaml, "CBaseLoader", yaml.BaseLoader)(content)
        try:
            return _document(yaml, loader, path)
        finally:
            loader.dispose()
    except yaml.MarkedYAMLError as error:
        mark = error.problem_mark or error.context_mark
        where = f"line {mark.line + 1}: " if mark is not None else ""
        raise ConfigError(f"{path}: {where}{error.problem or 'not valid YAML'}", subject=path) from None
    except (yaml.YAMLError, UnicodeDecodeError, RecursionError):
        raise ConfigError(f"{path}: not valid YAML in UTF-8") from None


def _document(yaml: Any, loader: Any, path: Path) -> Any:
    """Build the document from events one by one: composing it in libyaml would hold the GIL throughout."""
    values: list[list[Any]] = [[]]  # of the stream, and of each collection that is open
    while loader.check_event():
        event = loader.get_event()
        if isinstance(event, yaml.ScalarEvent):
            values[-1].append(event.value)
        elif isinstance(event, yaml.CollectionStartEvent):
            values.append([])
        elif isinstance(event, yaml.CollectionEndEvent):
            members = values.pop()
            if isinstance(event, yaml.MappingEndEvent):
                try:
                    # [accessKey, RocketMQ, admin, false] -> {accessKey: RocketMQ, admin: false}
                    values[-1].append(dict(zip(members[::2], members[1::2], strict=True)))
                except TypeError:
                    line = event.end_mark.line + 1
                    raise ConfigError(f"{path}: line {line}: a key of the mapping before is no text") from None
            else:
                values[-1].append(members)
        elif isinstance(event, yaml.AliasEvent):  # a few lines of them expand to any size
            raise ConfigError(f"{path}: aliases (*name) are not supported")
        elif isinstance(event, yaml.DocumentStartEvent) and values[0]:
            raise ConfigError(f"{path}: line {event.start_mark.line + 1}: a second document")
    return values[0][0] if values[0] else None


def write_yaml(path: Path, document: Any) -> None:
    """Replace a file atomically, readable by its owner only. OSError."""
    text = _yaml().safe_dump(document, sort_keys=False, allow_unicode=True, default_flow_style=False)
    replace_file(path, text.encode("utf-8"))


def _yaml() -> Any:
    try:
        import yaml
    except ModuleNotFoundError as error:
        raise ConfigError(f"files of access control: {missing_extra(error, 'security')}") from None
    return yaml
