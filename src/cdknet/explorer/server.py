"""The explorer's server: the API below /api/, the page, and what keeps strangers out.

Every request needs the token that was printed with the address (as a header, or the cookie that the address
sets), a Host that this server goes by, and, where there is one, an Origin that is the page's own.
"""

from __future__ import annotations

import asyncio
import base64
import errno
import hashlib
import hmac
import ipaddress
import json
import mimetypes
import os
import re
import secrets
import socket
import sys
from collections.abc import AsyncIterator, Awaitable, Callable, MutableMapping
from contextlib import suppress
from pathlib import Path
from typing import Annotated, Any, Literal
from urllib.parse import parse_qs, urlsplit

import uvicorn
from fastapi import FastAPI, HTTPException, Query, Request, Response
from fastapi import Path as InPath
from fastapi.exceptions import RequestValidationError
from fastapi.responses import JSONResponse, StreamingResponse
from pydantic import BaseModel, ConfigDict, Field
from starlette.exceptions import HTTPException as StarletteHTTPException

import cdknet
from cdknet.explorer.refining import Refining
from cdknet.explorer.review import Done, ReviewError, Stale
from cdknet.explorer.session import FORMATS, NotThere, Session

STATIC = Path(__file__).parent / "static"
LARGEST_BODY = 4 * 2**20
HEADER = "x-cdknet-token"
CSP = (
    "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self' data: blob:; "
    "connect-src 'self'; font-src 'self'; worker-src 'self'; base-uri 'none'; form-action 'none'; "
    "frame-ancestors 'none'"
)
SAFE_HEADERS = {
    "content-security-policy": CSP,
    "x-content-type-options": "nosniff",
    "x-frame-options": "DENY",
    "referrer-policy": "no-referrer",
    "cross-origin-opener-policy": "same-origin",
    "cross-origin-resource-policy": "same-origin",
}

Scope = MutableMapping[str, Any]
Send = Callable[[MutableMapping[str, Any]], Awaitable[None]]
Receive = Callable[[], Awaitable[MutableMapping[str, Any]]]


# The doorkeeper


class Doorkeeper:
    """Wraps the app: token, Host, Origin, size of the body, and headers on every answer."""

    def __init__(self, app: Any, token: str, host: str, port: int) -> None:
        self.app, self.token, self.host, self.cookie = app, token, host, f"cdknet-token-{port}"

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            if scope["type"] == "lifespan":
                await self.app(scope, receive, send)
            return  # no websockets here
        send = _with_safe_headers(send)
        headers = {k.decode("latin-1").lower(): v.decode("latin-1") for k, v in scope["headers"]}
        refusal = self._refusal(scope, headers)
        if refusal is not None:
            await _answer(send, *refusal)
            return
        asked = parse_qs(scope["query_string"].decode("latin-1")).get("token", [""])[0]
        if scope["path"] == "/" and asked and self._same(asked):
            cookie = f"{self.cookie}={self.token}; Path=/; HttpOnly; SameSite=Strict"
            await _answer(send, 303, "", {"location": "/", "set-cookie": cookie})
            return
        if not self._same(headers.get(HEADER, "")) and not self._same(self._cookie(headers)):
            what = "Open the address that cdknet explore printed: it carries the token that is needed here."
            if scope["path"] == "/" and headers.get("sec-fetch-site") in ("cross-site", "same-site"):
                # Coming from a link elsewhere, the browser keeps a strict cookie back. Coming from here, not.
                what = f'<meta http-equiv="refresh" content="0; url=/">{what}'
            await _answer(send, 401, what, page=not scope["path"].startswith("/api/"))
            return
        if scope["method"] == "POST":
            body = await _body(receive)
            if body is None:
                await _answer(send, 413, f"A request must have at most {LARGEST_BODY} bytes. Got more.")
                return
            receive = _replay(body, receive)
        await self.app(scope, receive, send)

    def _same(self, token: str) -> bool:
        return hmac.compare_digest(token.encode(), self.token.encode())

    def _cookie(self, headers: dict[str, str]) -> str:
        for part in headers.get("cookie", "").split(";"):
            name, _, value = part.strip().partition("=")
            if name == self.cookie:
                return value
        return ""

    def _refusal(self, scope: Scope, headers: dict[str, str]) -> tuple[int, str] | None:
        host = headers.get("host", "")
        if not _host_is_ours(host, self.host):
            return 421, "Host must be the address of this server. Got another one."
        origin = headers.get("origin")
        if origin is not None and origin.lower() != f"http://{host.lower()}":
            return 403, "Origin must be this page's own. Got another one."
        if headers.get("sec-fetch-site") in ("cross-site", "same-site") and scope["path"] != "/":
            return 403, "A request must come from this server's own page. Got one from another."
        if scope["method"] not in ("GET", "HEAD", "POST"):
            return 405, "Method must be GET or POST. Got another one."
        kind = headers.get("content-type", "").partition(";")[0].strip().lower()
        if scope["method"] == "POST" and kind != "application/json":
            return 415, "Content-Type must be application/json. Got another one."
        return None


def _host_is_ours(header: str, bound: str) -> bool:
    """A name that cannot be another site's: rebinding a foreign name to this machine gets nowhere."""
    try:
        name = (urlsplit(f"//{header}").hostname or "").lower()
        urlsplit(f"//{header}").port  # noqa: B018  raises where it is no number
    except ValueError:
        return False
    try:
        address: Any = ipaddress.ip_address(name)
    except ValueError:
        address = None
    if name == "localhost" or (address is not None and address.is_loopback):
        return True
    if is_loopback(bound):
        return False
    return address is not None or name in (bound.lower(), socket.gethostname().lower())


def is_loopback(host: str) -> bool:
    if host == "localhost":
        return True
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False


async def _body(receive: Receive) -> bytes | None:
    """The whole body, or None where it is too large. It is read to its end, so that the answer is heard."""
    body, size, more = b"", 0, True
    while more and size <= 16 * LARGEST_BODY:
        message = await receive()
        if message["type"] != "http.request":
            break
        part = message.get("body", b"")
        size += len(part)
        body = body + part if size <= LARGEST_BODY else b""
        more = message.get("more_body", False)
    return body if size <= LARGEST_BODY else None


def _replay(body: bytes, receive: Receive) -> Receive:
    sent = False

    async def again() -> MutableMapping[str, Any]:
        nonlocal sent
        if sent:
            return await receive()
        sent = True
        return {"type": "http.request", "body": body, "more_body": False}

    return again


def _with_safe_headers(send: Send) -> Send:
    async def safe(message: MutableMapping[str, Any]) -> None:
        if message["type"] == "http.response.start":
            there = {name.lower() for name, _ in message["headers"]}
            extra = [(k.encode(), v.encode()) for k, v in SAFE_HEADERS.items() if k.encode() not in there]
            if b"cache-control" not in there:
                extra.append((b"cache-control", b"no-store"))
            message = {**message, "headers": [*message["headers"], *extra]}
        await send(message)

    return safe


BARE_STYLE = """
:root { color-scheme: light dark; font: 15px/1.5 system-ui, sans-serif }
body { margin: 0; min-height: 100dvh; display: grid; place-items: center;
  background: light-dark(#f6f5f2, #131619); color: light-dark(#1c2126, #e9ebed) }
main { box-sizing: border-box; width: min(30rem, 100% - 2rem); padding: 1.5rem 1.75rem; border-radius: 14px;
  background: light-dark(#fff, #1a1e22); border: 1px solid light-dark(#e2dfd8, #2b3137) }
h1 { margin: 0 0 .5rem; font-size: 1.25rem }
p { margin: .5rem 0 0; color: light-dark(#5a636d, #9fa9b3) }
"""


def _bare_page(error: str) -> str:
    """A page for whoever may not have the page: nothing in it but its own words."""
    return (
        '<!doctype html><html lang="en"><meta charset="utf-8"><title>cdknet</title>'
        '<meta name="viewport" content="width=device-width, initial-scale=1">'
        f"<style>{BARE_STYLE}</style><main><h1>This page needs its key</h1><p>{error}</p>"
        "<p>It stands in the terminal, under \u201cThe explorer is at\u201d. A server that was started again "
        "has a new one.</p></main></html>"
    )


async def _answer(
    send: Send, status: int, error: str, headers: dict[str, str] | None = None, *, page: bool = False
) -> None:
    body = _bare_page(error) if page else json.dumps({"error": error})
    kind = "text/html; charset=utf-8" if page else "application/json"
    fields = {"content-type": kind, "content-length": str(len(body.encode())), **(headers or {})}
    if page:
        digest = base64.b64encode(hashlib.sha256(BARE_STYLE.encode()).digest()).decode()
        fields["content-security-policy"] = CSP.replace("style-src 'self'", f"style-src 'sha256-{digest}'")
    start = {"type": "http.response.start", "status": status}
    await send({**start, "headers": [(k.encode(), v.encode()) for k, v in fields.items()]})
    await send({"type": "http.response.body", "body": body.encode()})


# What may be asked. The review itself says what an action must be like; here is its outer form.


class Asked(BaseModel):
    model_config = ConfigDict(extra="forbid", strict=True)


Number = Annotated[int, Field(ge=0, le=2**31 - 1)]


class Rename(Asked):
    kind: Literal["rename"]
    class_: Number = Field(alias="class")
    name: str


class Merge(Asked):
    kind: Literal["merge"]
    classes: list[Number]
    into: Number


class Split(Asked):
    kind: Literal["split"]
    class_: Number = Field(alias="class")
    k: Number


class Move(Asked):
    kind: Literal["move"]
    samples: list[Number]
    to: Number | None
    name: str | None = None


class MarkOld(Asked):
    kind: Literal["mark_old"]
    class_: Number = Field(alias="class")
    old: Number


class Reject(Asked):
    kind: Literal["reject"]
    samples: list[Number] | None = None
    class_: Number | None = Field(default=None, alias="class")


class Note(Asked):
    kind: Literal["note"]
    class_: Number = Field(alias="class")
    text: str


class Dismiss(Asked):
    kind: Literal["dismiss"]
    class_: Number = Field(alias="class")
    hint: Literal["split", "merge"]
    with_: Number | None = Field(default=None, alias="with")


Action = Annotated[
    Rename | Merge | Split | Move | MarkOld | Reject | Note | Dismiss, Field(discriminator="kind")
]


class ActionAsked(Asked):
    revision: Number
    action: Action


class TurnAsked(Asked):
    revision: Number


class RefineAsked(Asked):
    out: str


class Changed(BaseModel):
    samples: int
    classes: list[int]


class Answer(BaseModel):
    """What an action, an undo or a redo did."""

    revision: int
    summary: str
    changed: Changed


class Problem(BaseModel):
    error: str


class Conflict(Problem):
    revision: int


PROBLEMS: dict[int | str, dict[str, Any]] = {
    code: {"model": Problem} for code in (400, 401, 403, 404, 405, 413, 415, 421, 422)
}
BINARY: dict[int | str, dict[str, Any]] = {200: {"content": {"application/octet-stream": {}}}}
PNG: dict[int | str, dict[str, Any]] = {
    200: {"content": {"image/png": {}}},
    304: {"description": "As before."},
}
WRITES: dict[int | str, dict[str, Any]] = {409: {"model": Conflict}}
ClassId = Annotated[int, InPath(ge=0, le=65535)]
Row = Annotated[int, InPath(ge=0, le=2**31 - 1)]
Offset = Annotated[int, Query(ge=0, le=2**31 - 1)]


def make_app(session: Session) -> FastAPI:
    """The routes, over a session. `Doorkeeper` goes around it."""
    app = FastAPI(
        title="cdknet explorer",
        version=cdknet.__version__,
        docs_url=None,
        redoc_url=None,
        openapi_url="/api/openapi.json",
        responses=PROBLEMS,
    )
    app.state.closing = asyncio.Event()
    held = (session.run.folder / "samples.npy").exists()  # else they were named again with --data
    app.state.refining = refining = Refining(
        session.run.folder, None if held else session.run.samples, why_not=session.cannot_refine
    )
    tag = session.run.digest[:16]
    _say_errors_in_json(app)

    def writable() -> None:
        if session.read_only:
            raise HTTPException(403, "The review must be writable to be changed. It is read-only.")

    def done(answer: Done) -> dict[str, Any]:
        changed = {"samples": answer.samples, "classes": answer.classes}
        return {"revision": answer.revision, "summary": answer.summary, "changed": changed}

    def binary(content: bytes, **headers: str) -> Response:
        return Response(content, media_type="application/octet-stream", headers=headers)

    def unchanging(request: Request, name: str, draw: Callable[[], bytes]) -> Response:
        """A picture, unless the browser has it: samples never change, but another run may take this port."""
        etag = f'"{hashlib.sha256(f"{tag} {name}".encode()).hexdigest()[:24]}"'
        headers = {"etag": etag, "cache-control": "private, no-cache"}
        if request.headers.get("if-none-match") == etag:
            return Response(status_code=304, headers=headers)
        return Response(draw(), media_type="image/png", headers=headers)

    @app.get("/api/run")
    def run() -> dict[str, Any]:
        return session.about()

    @app.get("/api/map", response_class=Response, responses=BINARY)
    def map() -> Response:
        return binary(session.map_bytes())

    @app.get("/api/assignment", response_class=Response, responses=BINARY)
    def assignment() -> Response:
        content, revision = session.assignment_bytes()
        return binary(content, **{"X-Revision": str(revision)})

    @app.get("/api/confidence", response_class=Response, responses=BINARY)
    def confidence() -> Response:
        return binary(session.confidence_bytes())

    @app.get("/api/given", response_class=Response, responses=BINARY)
    def given() -> Response:
        return binary(session.given_bytes())

    @app.get("/api/truth", response_class=Response, responses=BINARY)
    def truth() -> Response:
        return binary(session.truth_bytes())

    @app.get("/api/state")
    def state() -> dict[str, Any]:
        return session.state()

    @app.get("/api/classes/{class_id}")
    def class_card(class_id: ClassId) -> dict[str, Any]:
        return session.class_card(class_id)

    @app.get("/api/classes/{class_id}/samples")
    def class_samples(
        class_id: ClassId,
        offset: Offset = 0,
        limit: Annotated[int, Query(ge=0, le=10_000)] = 200,
        order: Literal["central", "unsure", "name"] = "central",
    ) -> dict[str, Any]:
        return session.class_samples(class_id, offset, limit, order)

    @app.get("/api/samples/{row}")
    def sample(row: Row) -> dict[str, Any]:
        return session.sample(row)

    @app.get("/api/samples/{row}/picture", response_class=Response, responses=PNG)
    def picture(request: Request, row: Row) -> Response:
        return unchanging(request, f"picture {row}", lambda: session.picture(row))

    @app.get("/api/sheet", response_class=Response, responses=PNG)
    def sheet(
        request: Request,
        samples: Annotated[str, Query(pattern=r"^[0-9]{1,9}(,[0-9]{1,9}){0,199}$")],
        size: Annotated[int, Query(ge=8, le=256)] = 48,
    ) -> Response:
        rows = [int(part) for part in samples.split(",")]
        return unchanging(request, f"sheet {size} {samples}", lambda: session.sheet(rows, size))

    @app.get("/api/search")
    def search(q: Annotated[str, Query(max_length=200)]) -> dict[str, Any]:
        return session.search(q)

    @app.post("/api/actions", responses=WRITES, response_model=Answer)
    def actions(body: ActionAsked) -> dict[str, Any]:
        writable()
        asked = body.action.model_dump(by_alias=True, exclude_unset=True)
        return done(session.act(body.revision, asked))

    @app.post("/api/undo", responses=WRITES, response_model=Answer)
    def undo(body: TurnAsked) -> dict[str, Any]:
        writable()
        return done(session.undo(body.revision))

    @app.post("/api/redo", responses=WRITES, response_model=Answer)
    def redo(body: TurnAsked) -> dict[str, Any]:
        writable()
        return done(session.redo(body.revision))

    @app.get("/api/journal")
    def journal(offset: Offset = 0, limit: Annotated[int, Query(ge=0, le=1000)] = 100) -> dict[str, Any]:
        return session.past(offset, limit)

    @app.get(
        "/api/events",
        response_class=StreamingResponse,
        responses={200: {"content": {"text/event-stream": {}}}},
    )
    async def events() -> StreamingResponse:
        return StreamingResponse(_events(app, session), media_type="text/event-stream")

    @app.get(
        "/api/export",
        response_class=Response,
        responses={200: {"content": {k: {} for k in FORMATS.values()}}},
    )
    def export(format: Literal["csv", "parquet", "json"] = "csv") -> Response:
        content = session.export(format)
        disposition = f'attachment; filename="reviewed.{format}"'
        return Response(content, media_type=FORMATS[format], headers={"content-disposition": disposition})

    @app.post("/api/refine", status_code=202)
    def refine(body: RefineAsked) -> dict[str, Any]:
        writable()
        refining.start(body.out)
        return refining.status()

    @app.get("/api/refine")
    def refine_status() -> dict[str, Any]:
        return refining.status()

    @app.get("/", include_in_schema=False)
    def page() -> Response:
        return _static("index.html")

    @app.get("/static/{name:path}", include_in_schema=False)
    def static(name: str) -> Response:
        return _static(name)

    return app


def _static(name: str) -> Response:
    """A file of the bundle, by its exact name in the list of them: no path is ever built from a request."""
    files = {
        p.relative_to(STATIC).as_posix(): p for p in STATIC.rglob("*") if p.is_file() and not p.is_symlink()
    }
    if name not in files:
        if name == "index.html":
            raise HTTPException(404, "The page is not in this installation. The API below /api/ is.")
        raise HTTPException(404, "There is no such file.")
    kind = mimetypes.guess_type(name)[0] or "application/octet-stream"
    if name.endswith(".js"):
        kind = "text/javascript"
    return Response(files[name].read_bytes(), media_type=kind, headers={"cache-control": "no-cache"})


async def _events(app: FastAPI, session: Session) -> AsyncIterator[bytes]:
    """{"revision", "summary"} at once and on each change, by whomever; {"refine": {...}} on progress."""
    sent_revision, sent_refine, quiet = -1, None, 0.0
    while not app.state.closing.is_set():
        out: list[dict[str, Any]] = []
        revision, summary = await asyncio.to_thread(session.latest)
        if revision != sent_revision:
            out.append({"revision": revision, "summary": summary})
            sent_revision = revision
        progress = app.state.refining.status()
        if progress != sent_refine and (sent_refine is not None or progress["state"] != "idle"):
            out.append({"refine": progress})
        sent_refine = progress
        for event in out:
            yield f"data: {json.dumps(event)}\n\n".encode()
        quiet = 0.0 if out else quiet + 0.25
        if quiet >= 15:
            yield b": still here\n\n"
            quiet = 0.0
        await asyncio.sleep(0.25)


def _say_errors_in_json(app: FastAPI) -> None:
    def say(status: int, error: str, **more: Any) -> JSONResponse:
        return JSONResponse({"error": error, **more}, status)

    @app.exception_handler(StarletteHTTPException)
    async def http(request: Request, error: StarletteHTTPException) -> JSONResponse:
        return say(error.status_code, str(error.detail))

    @app.exception_handler(RequestValidationError)
    async def invalid(request: Request, error: RequestValidationError) -> JSONResponse:
        first = error.errors()[0]
        where = ".".join(str(part) for part in first.get("loc", ()))[:100]
        return say(422, f"{where}: {str(first.get('msg', 'not as described'))[:300]}")

    @app.exception_handler(Stale)
    async def stale(request: Request, error: Stale) -> JSONResponse:
        return say(409, str(error), revision=error.revision)

    @app.exception_handler(ReviewError)
    async def refused(request: Request, error: ReviewError) -> JSONResponse:
        return say(422, str(error))

    @app.exception_handler(NotThere)
    async def absent(request: Request, error: NotThere) -> JSONResponse:
        return say(404, str(error))

    @app.exception_handler(OSError)
    async def disk(request: Request, error: OSError) -> JSONResponse:
        return say(503, f"The run folder must be readable and writable. Got: {error.strerror or 'an error'}.")

    @app.exception_handler(ImportError)
    async def missing(request: Request, error: ImportError) -> JSONResponse:
        return say(501, str(error))

    @app.exception_handler(Exception)
    async def unforeseen(request: Request, error: Exception) -> JSONResponse:
        return say(500, "Something went wrong in the server. The terminal it runs in says what.")


# Running it


class Explorer(uvicorn.Server):
    """A server for one session, on a socket that is bound already."""

    def __init__(self, session: Session, *, host: str, port: int | None) -> None:
        self.token = chosen_token()
        self.socket = bind(host, port)
        self.port = int(self.socket.getsockname()[1])
        self.inner = make_app(session)
        config = uvicorn.Config(
            Doorkeeper(self.inner, self.token, host, self.port),
            log_level="warning",
            access_log=False,  # its lines would show the token
            server_header=False,
            date_header=False,
            timeout_graceful_shutdown=1,
            proxy_headers=False,
        )
        super().__init__(config)
        shown = "127.0.0.1" if host in ("0.0.0.0", "::") else f"[{host}]" if ":" in host else host
        self.address = f"http://{shown}:{self.port}/?token={self.token}"

    def serve_forever(self) -> None:
        """Until Ctrl-C."""
        try:
            with suppress(KeyboardInterrupt):
                self.run(sockets=[self.socket])
        finally:
            self.inner.state.refining.stop()
            self.socket.close()

    async def shutdown(self, sockets: list[socket.socket] | None = None) -> None:
        self.inner.state.closing.set()  # open event streams end by themselves
        await super().shutdown(sockets)


def chosen_token() -> str:
    """A new one, or that of CDKNET_TOKEN: with it an open page finds a server that was started again."""
    given = os.environ.get("CDKNET_TOKEN")
    if given is None:
        return secrets.token_urlsafe(24)
    if not re.fullmatch(r"[A-Za-z0-9_-]{16,200}", given):
        raise ValueError(
            "CDKNET_TOKEN must be 16 to 200 letters, digits, dashes or underscores. Got something else."
        )
    return given


def bind(host: str, port: int | None) -> socket.socket:
    """A socket at that port; without one, at 8765 or the first free one after it."""
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    wanted = [port] if port is not None else [*range(8765, 8800), 0]
    for number in wanted:
        # Said in full, or asyncio leaves Nagle's delay on: 40 ms an answer.
        bound = socket.socket(family, socket.SOCK_STREAM, socket.IPPROTO_TCP)
        if sys.platform != "win32":  # where it would let two servers share a port
            bound.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            bound.bind((host, number))
            bound.listen(2048)  # whoever is quicker than the server waits instead of being turned away
            return bound
        except OSError as error:
            bound.close()
            last = error
            if error.errno != errno.EADDRINUSE:
                break
    raise OSError(
        f"--host and --port must be an address that is free here. Got {host}:{port}: {last.strerror}."
    )
