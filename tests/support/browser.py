"""A headless Chromium, driven over a pipe by the DevTools protocol, without a driver program or a package."""

from __future__ import annotations

import asyncio
import base64
import json
import os
import shutil
import signal
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

from support.waiting import until

DEADLINE_S = 60.0
FLAGS = (
    "--headless=new", "--remote-debugging-pipe", "--no-sandbox", "--disable-gpu", "--disable-dev-shm-usage",
    "--no-first-run", "--disable-background-networking", "--disable-component-update", "--disable-sync",
    "--disable-extensions", "--hide-scrollbars", "--lang=en-US",
)  # fmt: skip


class _Pipe:
    """Requests and events of the DevTools protocol, as JSON that ends with a zero byte."""

    def __init__(self, reader: asyncio.StreamReader, write: int) -> None:
        self._reader = reader
        self._write = write
        self._last = 0
        self._waiting: dict[int, asyncio.Future[dict[str, Any]]] = {}
        self.pages: dict[str, BrowserPage] = {}
        self._task = asyncio.create_task(self._read())

    async def call(self, method: str, session: str | None = None, **params: Any) -> dict[str, Any]:
        self._last += 1
        request: dict[str, Any] = {"id": self._last, "method": method, "params": params}
        if session is not None:
            request["sessionId"] = session
        waiting = self._waiting[self._last] = asyncio.get_running_loop().create_future()
        os.write(self._write, json.dumps(request).encode() + b"\0")
        return await asyncio.wait_for(waiting, DEADLINE_S)

    async def _read(self) -> None:
        while True:
            message = json.loads((await self._reader.readuntil(b"\0"))[:-1])
            if "id" in message:
                waiting = self._waiting.pop(message["id"])
                if "error" in message:
                    waiting.set_exception(RuntimeError(message["error"]["message"]))
                else:
                    waiting.set_result(message["result"])
            elif page := self.pages.get(message.get("sessionId", "")):
                page.on_event(message["method"], message["params"])

    async def close(self) -> None:
        self._task.cancel()
        await asyncio.gather(self._task, return_exceptions=True)


class BrowserPage:
    """A tab of its own profile; `problems` has errors of scripts, violations of the policy and failed loads."""

    def __init__(self, pipe: _Pipe, session: str, context: str) -> None:
        self.problems: list[str] = []
        self._pipe = pipe
        self._session = session
        self._context = context
        self._loaded = asyncio.Event()

    def on_event(self, method: str, params: dict[str, Any]) -> None:
        if method == "Page.loadEventFired":
            self._loaded.set()
        elif method == "Runtime.exceptionThrown":
            self.problems.append(json.dumps(params["exceptionDetails"]))
        elif method == "Log.entryAdded" and params["entry"]["level"] == "error":
            self.problems.append(f"{params['entry']['text']} {params['entry'].get('url', '')}")

    async def call(self, method: str, **params: Any) -> dict[str, Any]:
        return await self._pipe.call(method, self._session, **params)

    async def goto(self, url: str) -> None:
        """Load a page, and wait until it is complete."""
        self._loaded.clear()
        await self.call("Page.navigate", url=url)
        await asyncio.wait_for(self._loaded.wait(), DEADLINE_S)

    async def evaluate(self, script: str) -> Any:
        """Return the value of an expression, awaited if it is a promise."""
        found = await self.call("Runtime.evaluate", expression=script, returnByValue=True, awaitPromise=True)
        if "exceptionDetails" in found:
            raise RuntimeError(found["exceptionDetails"]["exception"].get("description", "the script failed"))
        return found["result"].get("value")

    async def until(self, script: str) -> Any:
        """Wait until an expression is true, and return its value."""
        return await self.evaluate(
            f"new Promise(done => {{ const look = () => {{ const found = {script}; "
            "found ? done(found) : setTimeout(look, 20) }; look() })"
        )

    async def text(self, selector: str = "main") -> str:
        return str(await self.evaluate(f"document.querySelector({json.dumps(selector)})?.innerText ?? ''"))

    async def fill(self, selector: str, value: str) -> None:
        """Type a value into a field, as a person does."""
        await self.evaluate(f"document.querySelector({json.dumps(selector)}).select()")
        await self.call("Input.insertText", text=value)

    async def follow(self, selector: str) -> None:
        """Click an element that loads another page, and wait for this."""
        self._loaded.clear()
        await self.evaluate(f"void document.querySelector({json.dumps(selector)}).click()")
        await asyncio.wait_for(self._loaded.wait(), DEADLINE_S)

    async def download(self, selector: str, directory: Path) -> Path:
        """Click a link to a file, which is saved in a new directory; return it when it is complete."""
        os.mkdir(directory)
        await self._pipe.call(
            "Browser.setDownloadBehavior", behavior="allow", browserContextId=self._context, downloadPath=str(directory)
        )
        await self.evaluate(f"void document.querySelector({json.dumps(selector)}).click()")
        await until(lambda: any(not name.endswith(".crdownload") for name in os.listdir(directory)))
        (saved,) = os.listdir(directory)
        return directory / saved

    async def enter(self) -> None:
        """Press Enter on what loads another page, and wait for this."""
        self._loaded.clear()
        await self.press("Enter", "Enter")
        await asyncio.wait_for(self._loaded.wait(), DEADLINE_S)

    async def press(self, key: str, code: str, *, ctrl: bool = False) -> None:
        for kind in ("keyDown", "keyUp"):
            await self.call(
                "Input.dispatchKeyEvent", type=kind, key=key, code=code, modifiers=2 if ctrl else 0,
                text="\r" if key == "Enter" and kind == "keyDown" else "",
                windowsVirtualKeyCode=ord(key.upper()) if len(key) == 1 else {"Tab": 9, "Enter": 13}[key],
            )  # fmt: skip

    async def show_as(self, width: int = 1280, height: int = 800, scheme: str = "light") -> None:
        """Set the size of the window, and light or dark."""
        await self.call(
            "Emulation.setDeviceMetricsOverride", width=width, height=height, deviceScaleFactor=1, mobile=width < 600
        )
        media = {"prefers-color-scheme": scheme, "prefers-reduced-motion": "reduce"}  # a change of colours is at once
        features = [{"name": name, "value": value} for name, value in media.items()]
        await self.call("Emulation.setEmulatedMedia", features=features)

    async def without_scripts(self) -> None:
        """Run no script of a page from now on; `evaluate` still works."""
        await self.call("Emulation.setScriptExecutionDisabled", value=True)

    async def screenshot(self) -> bytes:
        """Return the whole page as PNG."""
        found = await self.call("Page.captureScreenshot", captureBeyondViewport=True)
        return base64.b64decode(found["data"])


class Browser:
    def __init__(self, pipe: _Pipe) -> None:
        self._pipe = pipe

    async def page(self) -> BrowserPage:
        """Open a tab that shares no cookie with others."""
        context = await self._pipe.call("Target.createBrowserContext")
        target = await self._pipe.call(
            "Target.createTarget", url="about:blank", browserContextId=context["browserContextId"]
        )
        attached = await self._pipe.call("Target.attachToTarget", targetId=target["targetId"], flatten=True)
        page = BrowserPage(self._pipe, attached["sessionId"], context["browserContextId"])
        self._pipe.pages[attached["sessionId"]] = page
        for domain in ("Page", "Runtime", "Log"):
            await page.call(f"{domain}.enable")
        await page.show_as()
        return page


@asynccontextmanager
async def browser(profile: Path) -> AsyncIterator[Browser]:
    """A Chromium with its profile in a new directory; it ends with the block."""
    program = shutil.which("chromium") or shutil.which("chromium-browser") or shutil.which("google-chrome")
    assert program, "the tests need Chromium: .ci/setup browser"
    to_browser, ours = os.pipe()
    from_browser, theirs = os.pipe()
    # It reads requests from descriptor 3 and writes to 4.
    process = await asyncio.create_subprocess_exec(
        "bash", "-c", f'exec "$@" 3<&{to_browser} 4>&{theirs} {to_browser}<&- {theirs}>&-', "bash", program, *FLAGS,
        f"--user-data-dir={profile}", "about:blank", stderr=asyncio.subprocess.DEVNULL,
        stdout=asyncio.subprocess.DEVNULL, pass_fds=(to_browser, theirs), start_new_session=True,
    )  # fmt: skip
    os.close(to_browser)
    os.close(theirs)
    reader = asyncio.StreamReader(limit=64 << 20)
    transport, _ = await asyncio.get_running_loop().connect_read_pipe(
        lambda: asyncio.StreamReaderProtocol(reader), os.fdopen(from_browser, "rb")
    )
    pipe = _Pipe(reader, ours)
    try:
        yield Browser(pipe)
    finally:
        await pipe.close()
        transport.close()
        os.close(ours)
        os.killpg(process.pid, signal.SIGKILL)  # its renderers as well
        await process.wait()
