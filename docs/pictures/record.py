"""The pictures of README and tutorials: what a reader's terminal shows, recorded from real runs.

    make pictures                     all of them
    make pictures ARGS="search"       those with these names

Each scene types the commands of its page in a terminal of 80 columns, in an empty directory, with servers on free
ports. Only what differs between machines is replaced: the free ports by the default ones, the name of the machine
by `broker-a`. Unique keys and times are those of the recording.
"""

from __future__ import annotations

import asyncio
import fcntl
import os
import pty
import re
import socket
import struct
import subprocess
import sys
import tempfile
import termios
from collections.abc import Callable
from io import BytesIO, StringIO
from pathlib import Path
from typing import TYPE_CHECKING, Final

from PIL import Image
from rich._export_format import CONSOLE_SVG_FORMAT
from rich.console import Console
from rich.terminal_theme import MONOKAI
from rich.text import Text

if TYPE_CHECKING:
    from support.browser import BrowserPage

PICTURES: Final = Path(__file__).resolve().parent
DOCS: Final = PICTURES.parent
COLUMNS: Final = 80
BIN: Final = Path(sys.executable).parent
FONTS: Final = re.compile(r"\s*@font-face \{\{.*?\}\}\n", re.DOTALL)
"""Fonts that a browser would load from another site; the pictures use the reader's monospaced font."""
READY: Final = re.compile(r"namesrv=(127\.0\.0\.1:\d+) broker=(127\.0\.0\.1:\d+)")
FILE: Final = re.compile(r"```python\n(?:# (\w+\.py)\n)?(.*?)```", re.DOTALL)


class Terminal:
    """A terminal in an empty directory. `with` ends its servers and removes the directory."""

    def __init__(self) -> None:
        self._directory = tempfile.TemporaryDirectory(prefix="rucola-pictures-")
        self.directory = Path(self._directory.name)
        self._shown: list[str] = []
        self._servers: list[subprocess.Popen[str]] = []
        self._replaced = {socket.gethostname(): "broker-a", str(self.directory): "~"}
        self._environment = {
            "HOME": str(self.directory), "PATH": f"{BIN}:{os.environ['PATH']}", "TERM": "xterm-256color", "TZ": "UTC",
            "COLUMNS": str(COLUMNS), "LANG": "C.UTF-8",
        }  # fmt: skip
        if java := os.environ.get("JAVA_HOME"):
            self._environment["JAVA_HOME"] = java

    def __enter__(self) -> Terminal:
        return self

    def __exit__(self, *_: object) -> None:
        for server in self._servers:
            server.terminate()
            server.communicate()
        self._directory.cleanup()

    def files(self, page: str, *names: str) -> None:
        """Save the programs of a page, as its text names them."""
        found = iter(names)
        for name, program in FILE.findall((DOCS.parent / page).read_text(encoding="utf-8")):
            if path := name or next(found, ""):
                (self.directory / path).write_text(program, encoding="utf-8")

    def serve(self, command: str) -> None:
        """Start servers on free ports, show what they print, and let all later commands find them."""
        server = subprocess.Popen(
            [*command.split(), "--namesrv-port", "0", "--broker-port", "0"], cwd=self.directory, text=True,
            env=self._environment, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL,
        )  # fmt: skip
        self._servers.append(server)
        assert server.stdout is not None
        line = server.stdout.readline()
        ready = READY.search(line)
        assert ready, line
        self._replaced |= {ready[1]: "127.0.0.1:9876", ready[2]: "127.0.0.1:10911"}
        self._environment["ROCKETMQ_NAMESRV"] = ready[1]
        self._show(command, line)

    def type(self, command: str, *, last: int | None = None, shown: str = "") -> str:
        """Run a command and show it, and what it prints; only the `last` lines if so many are given.

        `shown` is the command as the picture has it. Returns the output.
        """
        output = _run_in_terminal(["bash", "-ec", command], self.directory, self._environment)
        lines = output.splitlines()
        if last is not None and len(lines) > last:
            output = "\n".join(["...", *lines[-last:]]) + "\n"
        self._show(shown or command, output)
        return output

    def quietly(self, command: str) -> str:
        """Run a command that the picture does not show, and return its output."""
        return _run_in_terminal(["bash", "-ec", command], self.directory, self._environment)

    def clear(self) -> None:
        """Clear the screen."""
        self._shown.clear()

    def _show(self, command: str, output: str) -> None:
        for real, usual in self._replaced.items():
            output = output.replace(real, usual)
        self._shown += [f"\x1b[1;32m$\x1b[0m \x1b[1m{command}\x1b[0m", *output.rstrip("\n").split("\n")]

    def picture(self, title: str, name: str) -> str:
        """Return all that was shown as SVG."""
        console = Console(record=True, width=COLUMNS, file=StringIO(), force_terminal=True, color_system="truecolor")
        for line in self._shown:
            text = Text.from_ansi(line)
            for row in text.divide(range(COLUMNS, len(text), COLUMNS)):  # as a terminal breaks lines: at any character
                console.print(row, no_wrap=True)
        template = FONTS.sub("\n", CONSOLE_SVG_FORMAT).replace("Fira Code, monospace", "monospace")
        return console.export_svg(title=title, theme=MONOKAI, code_format=template, unique_id=f"rucola-{name}")


def _run_in_terminal(command: list[str], directory: Path, environment: dict[str, str]) -> str:
    """Run a command in a pseudo-terminal and return what it left on the screen. RuntimeError if it fails."""
    master, slave = pty.openpty()
    fcntl.ioctl(slave, termios.TIOCSWINSZ, struct.pack("HHHH", 50, COLUMNS, 0, 0))
    process = subprocess.Popen(command, cwd=directory, env=environment, stdin=slave, stdout=slave, stderr=slave)
    os.close(slave)
    output = b""
    try:
        while piece := os.read(master, 65536):
            output += piece
    except OSError:  # EIO: the program has ended
        pass
    os.close(master)
    if process.wait():
        raise RuntimeError(f"{command}: {output.decode()}")
    # Lines that a progress bar erased or overwrote are not there any more.
    text = re.sub(r"\x1b\[\?25[lh]", "", output.decode().replace("\r\n", "\n"))
    lines = [re.split(r"\r|\x1b\[2?K", line)[-1] for line in text.split("\n")]
    return "\n".join(lines)


def first_message() -> None:
    """README: a message is sent, consumed and found."""
    with Terminal() as terminal:
        terminal.files("docs/tutorials/first-message.md")
        terminal.serve("rucola standalone --store store")
        terminal.type("python send.py")
        terminal.type("python receive.py")
        terminal.type("rucola admin queryMsgByKey -t Orders -k order-1")
        terminal.type("rucola admin consumerProgress -g kitchen")
        save("first-message", terminal.picture("The first message", "first-message"))


def search() -> None:
    """docs/tutorials/search.md: what became of order 1002."""
    with Terminal() as terminal:
        terminal.files("docs/tutorials/search.md")
        terminal.serve("rucola standalone --store store")
        terminal.clear()
        terminal.quietly("python orders.py; python bill.py")
        found = terminal.type("rucola admin queryMsgByKey -t Invoices -k 1002")
        (key,) = set(re.findall(r"\b[0-9A-F]{32}\b", found))
        found = terminal.quietly(f"rucola admin queryMsgByUniqueKey -t Invoices -i {key}")
        (offset_id,) = re.findall(r"OffsetID: +([0-9A-F]{32})", found)
        terminal.type(f"rucola admin queryMsgById -i {offset_id}")
        terminal.type("rucola admin dlqList -g billing")
        save("search", terminal.picture("What became of order 1002?", "search"))


def demo() -> None:
    """The end of the demonstration, and a chart of the audit that it writes."""
    with Terminal() as terminal:
        terminal.type("rucola demo --flights 20000", last=31, shown='make demo ARGS="--flights 20000"')
        save("demo", terminal.picture("The end of the demonstration", "demo"))
        terminal.quietly("rucola pipeline audit --from demo-output/store --out audit")
        save("audit", chart((terminal.directory / "audit" / "report.html").read_text(encoding="utf-8")))


def console() -> None:
    """Every page of the console, light, dark and as wide as a phone, for docs/console-pages.md; some of them alone."""
    asyncio.run(_console())


async def _console() -> None:
    sys.path.insert(0, str(DOCS.parent / "tests"))  # the console of the tests in Chromium
    from support.browser import browser
    from support.console_pages import access_console, busy_console

    with tempfile.TemporaryDirectory(prefix="rucola-pictures-") as path:
        async with browser(Path(path) / "profile") as chromium:
            page = await chromium.page()
            async with busy_console(Path(path) / "shop", WARM_UP_S) as (visited, paths):
                for name, address in paths.items():
                    if name != "access":
                        await _show(page, name, visited.url(address))
            async with access_console(Path(path) / "access") as visited:
                await _show(page, "access", visited.url(paths["access"]))


async def _show(page: BrowserPage, name: str, url: str) -> None:
    """Take a page in each look; the first look has what is shown measured."""
    from support.console_pages import QUESTION

    await page.goto(url)
    looks = {}
    for look, (width, scheme) in LOOKS.items():
        await page.show_as(width, 800, scheme)
        await page.goto(url)
        if name == "question":
            await page.follow(QUESTION)
        elif name == "scan":
            await page.until("!document.querySelector('main').hasAttribute('hx-trigger')")
        elif name == "tail":
            await page.until("document.querySelector('[data-tail]').dataset.state == 'live'")
        looks[look] = Image.open(BytesIO(await page.screenshot())).convert("RGB")
        if (name, look) in KEPT:
            _save(looks[look], PICTURES / f"console-{KEPT[name, look]}.png")
    height = min(MOST_HEIGHT, max(800, looks["light"].height))
    width = sum(one.width for one in looks.values()) + GAP * (len(looks) - 1)
    together = Image.new("RGB", (width, height), "#808080")
    left = 0
    for one in looks.values():
        together.paste(one, (left, 0))
        left += one.width + GAP
    _save(together, PICTURES / "console" / f"{name}.png")


def _save(picture: Image.Image, to: Path) -> None:
    """Write a picture with 128 colours, which is half of its size; those of a few pixels are kept."""
    to.parent.mkdir(exist_ok=True)
    picture.quantize(128, Image.Quantize.MAXCOVERAGE, dither=Image.Dither.NONE).save(to, optimize=True)
    print(to)


def chart(page: str) -> str:
    """Return the first chart of an audit's page as a picture of its own, on white."""
    (style,) = re.findall(r"<style>(.*?)</style>", page, re.DOTALL)
    found = re.search(r'<svg viewBox="0 0 (\d+) (\d+)" role="img">(.*?)</svg>', page, re.DOTALL)
    assert found
    width, height, marks = found.groups()
    light = re.sub(r"@media[^{]*\{(?:[^{}]*\{[^{}]*\})*[^{}]*\}", "", style)
    return (
        f'<svg viewBox="0 0 {width} {height}" role="img" xmlns="http://www.w3.org/2000/svg">'
        f'<style>{light} svg {{ font-family: sans-serif }}</style><rect width="100%" height="100%" fill="white"/>'
        f"{marks}</svg>\n"
    )


def save(name: str, picture: str) -> None:
    """Write a picture beside this file."""
    path = PICTURES / f"{name}.svg"
    path.write_text("\n".join(line.rstrip() for line in picture.splitlines()) + "\n", encoding="utf-8")
    print(path)


LOOKS: Final = {"light": (1280, "light"), "dark": (1280, "dark"), "phone": (390, "light")}
"""Width and colours of the pictures of the console."""
GAP: Final = 20
MOST_HEIGHT: Final = 1200
"""Of the pictures of a page; what is further down is left out, and on the phone what is further down than in light."""
WARM_UP_S: Final = 75
"""Brokers have the rates of the last minute."""
KEPT: Final = {
    ("cluster", "light"): "cluster",
    ("group", "dark"): "group",
    ("dead-letters-of-a-group", "light"): "dead-letters",
    ("topics", "phone"): "topics",
}
"""Those that stand alone in the docs."""

SCENES: Final[dict[str, Callable[[], None]]] = {
    "first-message": first_message,
    "search": search,
    "demo": demo,
    "console": console,
}


def main(names: list[str]) -> None:
    if unknown := set(names) - set(SCENES):
        sys.exit(f"no scene {', '.join(sorted(unknown))}; there are {', '.join(SCENES)}")
    for name in names or SCENES:
        SCENES[name]()


if __name__ == "__main__":
    main(sys.argv[1:])
