"""Results of commands as JSON that JavaScript can read: integers beyond 2^53 are strings."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final

from rucola.admin.commands import Command, Result
from rucola.presentation import to_json

MAX_SAFE: Final = (1 << 53) - 1


def safe_json(value: Any) -> Any:
    """Return JSON's types with integers beyond 2^53 as strings."""
    match value:
        case bool():
            return value
        case int() if abs(value) > MAX_SAFE:
            return str(value)
        case dict():
            return {key if isinstance(key, str) else str(key): safe_json(one) for key, one in value.items()}
        case list():
            return [safe_json(one) for one in value]
        case bytes():
            return value.decode("utf-8", "replace")
    return value


def answer_of(one: Command, results: Sequence[Result]) -> dict[str, Any]:
    """Return what a command answered: its result, or a list of them for a stream, notes, and the way back."""
    found = [result.value for result in results if result.value is not None]
    return {
        "result": safe_json(to_json(found if one.is_stream else found[0] if found else None)),
        "notes": [note for result in results for note in result.notes],
        "undo": [
            {"command": result.undo[0], "arguments": safe_json(to_json(result.undo[1]))}
            for result in results
            if result.undo is not None
        ],
        "failed": any(result.is_failure for result in results),
    }
