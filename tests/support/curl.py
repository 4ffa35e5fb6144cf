"""`curl [-s] [-X METHOD] [-H HEADER] [--json BODY] URL` for machines without it; prints the response's body."""

from __future__ import annotations

import http.client
import sys
from urllib.parse import urlsplit

TIMEOUT_S = 60


def curl(words: list[str]) -> str:
    """Send the request; return the body of the response."""
    method, headers, body, url = "GET", {}, None, ""
    rest = iter(words)
    for word in rest:
        match word:
            case "-s":
                pass
            case "-X":
                method = next(rest)
            case "-H":
                name, _, value = next(rest).partition(": ")
                headers[name] = value
            case "--json":
                method, body = "POST", next(rest)
                headers["Content-Type"] = "application/json"
            case _:
                url = word
    parts = urlsplit(url)
    connection = http.client.HTTPConnection(parts.hostname or "", parts.port or 80, timeout=TIMEOUT_S)
    try:
        connection.request(method, f"{parts.path}?{parts.query}" if parts.query else parts.path, body, headers)
        return connection.getresponse().read().decode()
    finally:
        connection.close()


if __name__ == "__main__":
    sys.stdout.write(curl(sys.argv[1:]))
