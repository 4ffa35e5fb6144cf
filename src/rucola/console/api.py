"""`/api/v1`: the catalogue of commands as JSON, and its OpenAPI document.

    GET  /api/v1/openapi.json          the document
    GET  /api/v1/topicStatus?topic=T   a command that only reads
    POST /api/v1/updateTopic           any command; its arguments are a JSON object

Integers beyond 2^53, which JavaScript rounds, are strings. A result with `findings` of a command that failed has the
status 200 and `"failed": true`. A page of another site can send no POST, since a body of application/json takes a
permission that the console never gives.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping
from typing import Any, Final, TypeAlias

import msgspec
from starlette.requests import Request
from starlette.responses import Response

import rucola
from rucola.admin.commands import CATALOGUE, Command, InvalidArguments, Risk
from rucola.admin.commands.arguments import is_local, parse, schema
from rucola.admin.commands.authorization import Account, required_role
from rucola.console.console import Console
from rucola.console.json_results import answer_of, safe_json
from rucola.console.visit import prefix_of, read_body, visitor_of
from rucola.presentation import to_json

Call: TypeAlias = Callable[[Console, Request, Account], Awaitable[Response]]

MAX_BODY_BYTES: Final = 5 << 20


def response(value: Any, status: int = 200) -> Response:
    return Response(msgspec.json.encode(safe_json(to_json(value)), enc_hook=str), status, media_type="application/json")


def failure(status: int, text: str, subject: str = "") -> Response:
    return response({"error": text, "subject": subject}, status)


async def run(console: Console, request: Request, account: Account) -> Response:
    name = request.path_params["command"]
    one = CATALOGUE.get(name)
    if one is None or is_local(one):
        return failure(404, f"there is no command {name}; /api/v1/openapi.json lists them", name)
    given: Mapping[str, object] = request.query_params
    if request.method == "POST":
        if request.headers.get("content-type", "").partition(";")[0].strip() != "application/json":
            return failure(415, "expected application/json", "content-type")
        given = await _json_object(request)
    arguments = parse(one, given)
    if request.method == "GET" and one.risk_of(arguments) is not Risk.READ:
        return failure(405, f"{name} changes the cluster: use POST", name)
    results = await console.actions.run(account, visitor_of(request, console.config), one, arguments)
    return response(answer_of(one, results))


async def _json_object(request: Request) -> dict[str, object]:
    body = await read_body(request, MAX_BODY_BYTES)
    try:
        return msgspec.json.decode(body or b"{}", type=dict[str, object])
    except msgspec.DecodeError as error:
        raise InvalidArguments(f"the body is no JSON object: {error}", subject="body") from None


async def openapi(console: Console, request: Request, account: Account) -> Response:
    return response(document(prefix_of(request, console.config)))


def document(prefix: str = "") -> dict[str, Any]:
    """Return the OpenAPI document of all commands."""
    return {
        "openapi": "3.1.0",
        "info": {"title": "Rucola console", "version": rucola.__version__},
        "servers": [{"url": f"{prefix}/api/v1"}],
        "components": {"securitySchemes": {"account": {"type": "http", "scheme": "basic"}}},
        "security": [{"account": []}, {}],  # a session's cookie, or a console without accounts
        "paths": {f"/{name}": _operations(one) for name, one in CATALOGUE.items() if not is_local(one)},
    }


def _operations(one: Command) -> dict[str, Any]:
    described = {
        "operationId": one.name,
        "summary": one.help.partition("\n")[0],
        "description": one.help.replace("\b\n", ""),
        "tags": [one.subject],
        "x-risk": one.risk.value,
        "x-role": required_role(one).name.lower(),
        "responses": {"200": {"description": "The result.", "content": {"application/json": {}}}},
    }
    wanted = schema(one)
    operations = {}
    if one.risk is not Risk.READ or one.effects:
        operations["post"] = described | {"requestBody": {"content": {"application/json": {"schema": wanted}}}}
    if one.risk is not Risk.READ:
        return operations
    parameters = [
        {"name": name, "in": "query", "required": name in wanted["required"], "schema": kind}
        for name, kind in wanted["properties"].items()
        if name not in one.effects
    ]
    return {"get": described | {"parameters": parameters}} | operations


ROUTES: Final[list[tuple[str, Call, list[str]]]] = [
    ("/api/v1/openapi.json", openapi, ["GET"]),
    ("/api/v1/{command}", run, ["GET", "POST"]),
]
