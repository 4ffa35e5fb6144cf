"""Every command of the catalogue as a form: the list, the form, the question, and the result.

A command that changes something runs in two steps. The form leads to a page that says what will happen, and this page
runs it. The second form carries a hash of what it said: if that has changed meanwhile, the new text is shown, and
nothing runs. A table of what would change is as of that moment, and not part of the hash.
"""

from __future__ import annotations

from starlette.responses import Response

from rucola.admin.commands import CATALOGUE, Command, InvalidArguments, Result, Risk
from rucola.admin.commands.arguments import InvalidArgument, command_line, is_local, parse, remote_arguments, schema
from rucola.admin.commands.authorization import required_role
from rucola.console.visit import NotFound, Visit, page
from rucola.errors import MQError
from rucola.presentation import Table, json_text, to_json

_OWN = {"token", "seen", "edit"}
"""Fields of a form that are no arguments; a link with `edit` shows the form, filled in."""


@page("/commands", navigation="Commands")
async def commands(visit: Visit) -> Response:
    by_subject: dict[str, list[Command]] = {}
    for one in CATALOGUE.values():
        if not is_local(one):
            by_subject.setdefault(one.subject, []).append(one)
    return visit.render("commands.html", by_subject=by_subject, required_role=required_role)


@page("/run/{command}", takes_forms=True)
async def run(visit: Visit) -> Response:
    one = CATALOGUE.get(visit.request.path_params["command"])
    if one is None or is_local(one):
        raise NotFound(visit.text("there is no such command here"))
    is_sent = visit.request.method == "POST"
    # Browsers end the lines of a text with \r\n.
    given = {
        name: value.replace("\r\n", "\n")
        for name, value in (visit.form if is_sent else visit.query).items()
        if name not in _OWN
    }
    wants_result = is_sent or (one.risk is Risk.READ and (bool(given) or not schema(one)["required"]))
    if not wants_result or "edit" in visit.query:
        return _form(visit, one, given)
    try:
        arguments = parse(one, given)
        # The moment that was meant, which both steps must have.
        times = [name for name, text in given.items() if text.strip() == "now" and name in arguments]
        given |= {name: str(arguments[name]) for name in times}
        line = command_line(one, arguments)
        question, seen = await visit.console.actions.plan(visit.account, one, arguments)
        if seen and visit.form.get("seen") != seen:
            changes, unknown = None, ""
            try:
                changes = await visit.console.actions.changes(visit.account, one, arguments)
            except InvalidArguments:
                raise
            except MQError as error:
                unknown = str(error)
            return visit.render(
                "confirm.html", command=one, given=given, line=line, question=question, seen=seen,
                has_changed="seen" in visit.form, changes=changes, unknown=unknown,
            )  # fmt: skip
        results = await visit.console.actions.run(visit.account, visit.peer, one, arguments)
    except InvalidArguments as error:
        return _form(visit, one, given, error)
    notes = [note for result in results for note in result.notes]
    is_failure = any(result.is_failure for result in results)
    parts = [part for result in results for part in _parts(one, result)]
    undo = [result.undo for result in results if result.undo is not None]
    return visit.render(
        "result.html", undo=undo, command=one, given=given, line=line, parts=parts, notes=notes, is_failure=is_failure
    )


def _form(visit: Visit, one: Command, given: dict[str, str], error: InvalidArguments | None = None) -> Response:
    return visit.render(
        "form.html", status=400 if error else 200, command=one, given=given, arguments=list(remote_arguments(one)),
        error=str(error or ""), wrong=error.subject if isinstance(error, InvalidArgument) else "",
        clusters=visit.console.collector.snapshot.clusters,
    )  # fmt: skip


def _parts(one: Command, result: Result) -> list[object]:
    """The lines and tables of a result."""
    value = to_json(result.value)
    if one.columns and value is not None:
        return [Table(one.columns, value)]
    if result.text is None:
        return [] if value is None else [value if isinstance(value, str) else json_text(value)]
    lines: list[object] = []
    for part in result.text:
        # Lines that follow each other are one text.
        if isinstance(part, str) and lines and isinstance(lines[-1], str):
            lines[-1] += f"\n{part}"
        else:
            lines.append(part)
    return lines
