"""Schemas of a Confluent-compatible registry, and bodies that begin with the id of theirs.

A body is a byte 0, the schema's id in four bytes, for Protobuf the indices of the message, and the value. Two requests
are sent, each once for a schema:

    GET /schemas/ids/<id>                            a schema, and references to others
    GET /subjects/<subject>/versions/<version>       the id of a reference

User and password come from the environment (SCHEMA_REGISTRY_BASIC_AUTH_USER_INFO, as `user:password`), as for other
programs.
"""

from __future__ import annotations

import base64
import json
import os
from collections.abc import Callable, Iterator
from http.client import HTTPException
from typing import Any, Final, NamedTuple
from urllib.error import HTTPError, URLError
from urllib.parse import quote, urlsplit
from urllib.request import HTTPRedirectHandler, Request, build_opener

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from rucola.errors import ConfigError, RemotingConnectError
from rucola.spark.bodies.decoded import Decoded, Decoder, reason

_TIMEOUT_S: Final = 10
_MAX_SIZE: Final = 16 << 20
_MAX_REFERENCES: Final = 1000
_CREDENTIALS: Final = "SCHEMA_REGISTRY_BASIC_AUTH_USER_INFO"


class UnknownSchema(Exception):
    """A schema that the registry does not have, or that cannot be used: a reason for which a body is not decoded."""


class RegisteredSchema(NamedTuple):
    """A schema as its text, and before it those that it refers to, by name."""

    text: str
    kind: str
    references: dict[str, str]


class Registry:
    """Client of a registry at a URL."""

    def __init__(self, url: str) -> None:
        parts = urlsplit(url)
        if not parts.hostname or parts.username is not None:
            raise ConfigError(
                f"the URL of a schema registry is http(s)://host[:port]; user and password come from {_CREDENTIALS}",
                subject="--decode",
            )
        self._url = url.rstrip("/")
        self._opener = build_opener(_NoRedirects)
        self._headers = {"Accept": "application/vnd.schemaregistry.v1+json, application/json"}
        if _CREDENTIALS in os.environ:
            encoded = base64.b64encode(os.environ[_CREDENTIALS].encode()).decode()
            self._headers["Authorization"] = f"Basic {encoded}"

    def schema(self, number: int, query: str = "") -> RegisteredSchema:
        """Return the schema with an id. Raises UnknownSchema, or RemotingConnectError if there is no answer."""
        answer = self._get(f"/schemas/ids/{number}{query}")
        references: dict[str, str] = {}
        self._collect(answer, query, references)
        return RegisteredSchema(str(answer["schema"]), str(answer.get("schemaType") or "AVRO"), references)

    def _collect(self, answer: dict[str, Any], query: str, found: dict[str, str]) -> None:
        """Add the references of a schema, after their own."""
        for each in answer.get("references") or ():
            name = str(each["name"])
            if name in found:
                continue
            if len(found) >= _MAX_REFERENCES:
                raise UnknownSchema(f"the schema has more than {_MAX_REFERENCES} references")
            found[name] = ""  # also for references in a circle
            version = self._get(f"/subjects/{quote(str(each['subject']), safe='')}/versions/{int(each['version'])}")
            inner = self._get(f"/schemas/ids/{int(version['id'])}{query}")
            self._collect(inner, query, found)
            del found[name]
            found[name] = str(inner["schema"])

    def _get(self, path: str) -> dict[str, Any]:
        request = Request(self._url + path, headers=self._headers)  # noqa: S310 - http or https, as parsed
        try:
            with self._opener.open(request, timeout=_TIMEOUT_S) as response:
                answer = json.loads(response.read(_MAX_SIZE))
        except HTTPError as error:
            if error.code == 404:
                raise UnknownSchema(f"the registry does not have {path}") from error
            raise self._no_answer(f"HTTP status {error.code} for {path}") from error
        except (URLError, OSError, HTTPException, ValueError) as error:
            raise self._no_answer(reason(error)) from error
        if not isinstance(answer, dict) or not ("schema" in answer or "id" in answer):
            raise self._no_answer(f"no schema in the answer to {path}")
        return answer

    def _no_answer(self, why: str) -> RemotingConnectError:
        return RemotingConnectError(f"the schema registry {self._url} does not answer as expected: {why}", self._url)


class _NoRedirects(HTTPRedirectHandler):
    def redirect_request(self, *_: Any) -> None:
        """Refuse to send the credentials to another server."""


class RegisteredBodies:
    """Bodies of schemas in a registry."""

    def __init__(self, registry: Registry, decoder_of: Callable[[Registry, int], Callable[[bytes], Any]]) -> None:
        self._registry = registry
        self._decoder_of = decoder_of
        self._made: dict[int, Callable[[bytes], Any] | UnknownSchema] = {}

    def decode(self, bodies: pa.BinaryArray, known: pa.StructType | None) -> Decoded:
        """Decode a batch without nulls. Raises RemotingConnectError if the registry does not answer."""
        result = Decoded()
        for head, rows in _by_value(pc.binary_slice(bodies, 0, 5)):
            if len(head) < 5 or head[0] != 0:
                result.errors.update(dict.fromkeys(rows.tolist(), "the body does not begin with a schema's id"))
                continue
            part = pa.array([body[5:] for body in bodies.take(pa.array(rows)).to_pylist()], pa.binary())
            try:
                decoder_of = self._schema(int.from_bytes(head[1:], "big"))
            except UnknownSchema as error:
                result.errors.update(dict.fromkeys(rows.tolist(), reason(error)))
                continue
            self._decode(part, rows, decoder_of, known, result)
        return result

    def _schema(self, number: int) -> Callable[[bytes], Any]:
        if number not in self._made:
            try:
                self._made[number] = self._decoder_of(self._registry, number)
            except UnknownSchema:
                raise  # and ask again in the next batch: it may be registered by then
            except ConfigError as error:
                self._made[number] = UnknownSchema(f"schema {number}: {reason(error)}")
        found = self._made[number]
        if isinstance(found, UnknownSchema):
            raise found
        return found

    def _decode(
        self,
        part: pa.BinaryArray,
        rows: Any,
        decoder_of: Callable[[bytes], Any],
        known: pa.StructType | None,
        result: Decoded,
    ) -> None:
        """Decode bodies of one schema, by the decoder and the start of the value that each names."""
        if isinstance(decoder_of, _One):
            result.add(rows, decoder_of.decoder.decode(part, known))
            return
        groups: dict[int, tuple[Decoder, list[int], list[bytes]]] = {}
        for row, body in zip(rows.tolist(), part.to_pylist(), strict=True):
            try:
                decoder, begin = decoder_of(body)
            except Exception as error:
                result.errors[row] = f"the body does not name a message of its schema: {reason(error)}"
                continue
            group = groups.setdefault(id(decoder), (decoder, [], []))
            group[1].append(row)
            group[2].append(body[begin:])
        for decoder, own, values in groups.values():
            result.add(np.array(own), decoder.decode(pa.array(values, pa.binary()), known))


class _One:
    """The decoder of all bodies of a schema."""

    def __init__(self, decoder: Decoder) -> None:
        self.decoder = decoder

    def __call__(self, body: bytes) -> tuple[Decoder, int]:
        return self.decoder, 0


def _by_value(values: pa.BinaryArray) -> Iterator[tuple[bytes, Any]]:
    encoded = values.dictionary_encode()
    indices = encoded.indices.to_numpy(zero_copy_only=False)
    for number, value in enumerate(encoded.dictionary.to_pylist()):
        yield value, np.flatnonzero(indices == number)


def registered_avro(registry: Registry, number: int) -> Callable[[bytes], Any]:
    """Return the decoder of an Avro schema."""
    from rucola.spark.bodies.avro_bodies import AvroBodies

    found = _of_kind(registry.schema(number), "AVRO", number)
    named = {name: _json(text) for name, text in found.references.items()}
    return _One(AvroBodies(_json(found.text), named))


def registered_json(registry: Registry, number: int) -> Callable[[bytes], Any]:
    """Return the decoder of a JSON Schema."""
    from rucola.spark.bodies.json_bodies import JsonBodies
    from rucola.spark.bodies.json_schemas import struct_type

    return _One(JsonBodies(struct_type(_json(_of_kind(registry.schema(number), "JSON", number).text))))


def registered_protobuf(registry: Registry, number: int) -> Callable[[bytes], Any]:
    """Return what finds the decoder of a body of a Protobuf schema."""
    from google.protobuf.descriptor_pb2 import FileDescriptorProto
    from google.protobuf.message import DecodeError

    from rucola.spark.bodies import protobuf_bodies

    found = _of_kind(registry.schema(number, "?format=serialized"), "PROTOBUF", number)
    files = []
    try:
        for name, text in (*found.references.items(), ("", found.text)):
            file = FileDescriptorProto.FromString(base64.b64decode(text, validate=True))
            file.name = name or file.name or f"{number}.proto"
            files.append(file)
        return protobuf_bodies.registered(files)
    except (DecodeError, ValueError, TypeError, KeyError) as error:
        raise ConfigError(f"its descriptor is invalid: {reason(error)}", subject="schema") from error


def _of_kind(found: RegisteredSchema, kind: str, number: int) -> RegisteredSchema:
    if found.kind != kind:
        raise ConfigError(f"it is {found.kind}, not {kind}", subject=str(number))
    return found


def _json(text: str) -> Any:
    try:
        return json.loads(text)
    except ValueError as error:
        raise ConfigError(f"the schema is not JSON: {reason(error)}", subject="schema") from error
