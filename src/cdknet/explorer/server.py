"""The explorer's server: the API under /api/ and the page, behind `Auth`."""

from __future__ import annotations

import asyncio
import errno
import hashlib
import json
import mimetypes
import os
import re
import secrets
import socket
import sys
from collections.abc import AsyncIterator, Callable
from contextlib import suppress
from pathlib import Path
from typing import Annotated, Any, Literal

import h11
import uvicorn
from fastapi import FastAPI, HTTPException, Query, Request, Response
from fastapi import Path as InPath
from fastapi.exceptions import RequestValidationError
from fastapi.responses import JSONResponse, StreamingResponse
from starlette.exceptions import HTTPException as StarletteHTTPException
from uvicorn.protocols.http.h11_impl import H11Protocol

import cdknet
from cdknet.explorer.auth import Auth
from cdknet.explorer.journal import Done, Stale
from cdknet.explorer.refining import Refining
from cdknet.explorer.review import ReviewError
from cdknet.explorer.schema import ActionBody, Answer, Conflict, Problem, RefineBody, RevisionBody
from cdknet.explorer.session import FORMATS, NotFound, Session

STATIC = Path(__file__).parent / "static"
PATIENCE = 30.0  # seconds in which a request must arrive whole

PROBLEMS: dict[int | str, dict[str, Any]] = {
    code: {"model": Problem} for code in (400, 401, 403, 404, 405, 413, 415, 421, 422)
}
BINARY: dict[int | str, dict[str, Any]] = {200: {"content": {"application/octet-stream": {}}}}
PNG: dict[int | str, dict[str, Any]] = {
    200: {"content": {"image/png": {}}},
    304: {"description": "Not modified."},
}
WRITES: dict[int | str, dict[str, Any]] = {409: {"model": Conflict}}
ClassId = Annotated[int, InPath(ge=0, le=65535)]
Row = Annotated[int, InPath(ge=0, le=2**31 - 1)]
Offset = Annotated[int, Query(ge=0, le=2**31 - 1)]


def make_app(session: Session) -> FastAPI:
    """The routes of a session. `Auth` wraps the app."""
    app = FastAPI(
        title="cdknet explorer",
        version=cdknet.__version__,
        docs_url=None,
        redoc_url=None,
        openapi_url="/api/openapi.json",
        responses=PROBLEMS,
    )
    app.state.closing = asyncio.Event()
    stored = session.run.contents.samples is not None  # else they were passed with --data
    app.state.refining = refining = Refining(
        session.run.folder, None if stored else session.run.samples, why_not=session.cannot_refine
    )
    tag = session.run.digest[:16]
    _answer_errors_in_json(app)

    def check_writable() -> None:
        if session.read_only:
            raise HTTPException(403, "The review must be writable. It is read-only.")

    def answer(done: Done) -> dict[str, Any]:
        changed = {"samples": done.samples, "classes": done.classes}
        return {"revision": done.revision, "summary": done.summary, "changed": changed}

    def binary(content: bytes, **headers: str) -> Response:
        return Response(content, media_type="application/octet-stream", headers=headers)

    def cached_png(request: Request, name: str, draw: Callable[[], bytes]) -> Response:
        """A picture, unless the browser has it. The tag names the run, as another may use the port later."""
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

    @app.get("/api/novelty", response_class=Response, responses=BINARY)
    def novelty() -> Response:
        return binary(session.novelty_bytes())

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
        return cached_png(request, f"picture {row}", lambda: session.picture(row))

    @app.get("/api/sheet", response_class=Response, responses=PNG)
    def sheet(
        request: Request,
        samples: Annotated[str, Query(pattern=r"^[0-9]{1,9}(,[0-9]{1,9}){0,199}$")],
        size: Annotated[int, Query(ge=8, le=256)] = 48,
    ) -> Response:
        rows = [int(part) for part in samples.split(",")]
        return cached_png(request, f"sheet {size} {samples}", lambda: session.sheet(rows, size))

    @app.get("/api/texts")
    def texts(
        samples: Annotated[str, Query(pattern=r"^[0-9]{1,9}(,[0-9]{1,9}){0,199}$")],
    ) -> list[str]:
        return session.texts([int(part) for part in samples.split(",")])

    @app.get("/api/search")
    def search(q: Annotated[str, Query(max_length=200)]) -> dict[str, Any]:
        return session.search(q)

    @app.post("/api/actions", responses=WRITES, response_model=Answer)
    def actions(body: ActionBody) -> dict[str, Any]:
        check_writable()
        action = body.action.model_dump(by_alias=True, exclude_unset=True)
        return answer(session.act(body.revision, action))

    @app.post("/api/undo", responses=WRITES, response_model=Answer)
    def undo(body: RevisionBody) -> dict[str, Any]:
        check_writable()
        return answer(session.undo(body.revision))

    @app.post("/api/redo", responses=WRITES, response_model=Answer)
    def redo(body: RevisionBody) -> dict[str, Any]:
        check_writable()
        return answer(session.redo(body.revision))

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
    def refine(body: RefineBody) -> dict[str, Any]:
        check_writable()
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
    """A file of the bundle, looked up by its exact name: no path is ever built from a request."""
    files = {
        p.relative_to(STATIC).as_posix(): p for p in STATIC.rglob("*") if p.is_file() and not p.is_symlink()
    }
    if name not in files:
        if name == "index.html":
            raise HTTPException(
                404, "The page is not part of this installation. Only the API under /api/ is."
            )
        raise HTTPException(404, "There is no such file.")
    kind = mimetypes.guess_type(name)[0] or "application/octet-stream"
    if name.endswith(".js"):
        kind = "text/javascript"
    return Response(files[name].read_bytes(), media_type=kind, headers={"cache-control": "no-cache"})


async def _events(app: FastAPI, session: Session) -> AsyncIterator[bytes]:
    """{"revision", "summary"} at the start and on each change; {"refine": {...}} on progress."""
    sent_revision, sent_refine, silent_for = -1, None, 0.0
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
        silent_for = 0.0 if out else silent_for + 0.25
        if silent_for >= 15:
            yield b": keep-alive\n\n"
            silent_for = 0.0
        await asyncio.sleep(0.25)


def _answer_errors_in_json(app: FastAPI) -> None:
    def respond(status: int, error: str, **more: Any) -> JSONResponse:
        return JSONResponse({"error": error, **more}, status)

    @app.exception_handler(StarletteHTTPException)
    async def http(request: Request, error: StarletteHTTPException) -> JSONResponse:
        return respond(error.status_code, str(error.detail))

    @app.exception_handler(RequestValidationError)
    async def invalid(request: Request, error: RequestValidationError) -> JSONResponse:
        first = error.errors()[0]
        where = ".".join(str(part) for part in first.get("loc", ()))[:100]
        return respond(422, f"{where}: {str(first.get('msg', 'not as described'))[:300]}")

    @app.exception_handler(Stale)
    async def stale(request: Request, error: Stale) -> JSONResponse:
        return respond(409, str(error), revision=error.revision)

    @app.exception_handler(ReviewError)
    async def impossible(request: Request, error: ReviewError) -> JSONResponse:
        return respond(422, str(error))

    @app.exception_handler(NotFound)
    async def absent(request: Request, error: NotFound) -> JSONResponse:
        return respond(404, str(error))

    @app.exception_handler(OSError)
    async def disk(request: Request, error: OSError) -> JSONResponse:
        return respond(
            503, f"The run folder must be readable and writable. Got: {error.strerror or 'an error'}."
        )

    @app.exception_handler(ImportError)
    async def missing(request: Request, error: ImportError) -> JSONResponse:
        return respond(501, str(error))

    @app.exception_handler(Exception)
    async def unexpected(request: Request, error: Exception) -> JSONResponse:
        return respond(500, "The server had an error. The terminal it runs in shows which.")


# Running


class Patient(H11Protocol):
    """HTTP with a limit to patience: a request that has not arrived whole in that time is dropped.

    Otherwise each unfinished request would hold a connection, and a file descriptor, forever.
    """

    _deadline: asyncio.TimerHandle | None = None

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        super().connection_made(transport)
        self._wait()

    def data_received(self, data: bytes) -> None:
        super().data_received(data)
        self._wait()

    def connection_lost(self, exc: Exception | None) -> None:
        self._rest()
        super().connection_lost(exc)

    def on_response_complete(self) -> None:
        super().on_response_complete()
        self._wait()  # for a request that began to arrive before

    def _wait(self) -> None:
        if self.conn.their_state not in (h11.IDLE, h11.SEND_BODY):
            self._rest()
        elif self._deadline is None:
            self._deadline = self.loop.call_later(PATIENCE, self.transport.abort)

    def _rest(self) -> None:
        if self._deadline is not None:
            self._deadline.cancel()
            self._deadline = None


class Explorer(uvicorn.Server):
    """A server for one session, on a socket that is already bound."""

    def __init__(self, session: Session, *, host: str, port: int | None) -> None:
        self.token = chosen_token()
        self.socket = bind(host, port)
        self.port = int(self.socket.getsockname()[1])
        self.inner = make_app(session)
        config = uvicorn.Config(
            Auth(self.inner, self.token, host, self.port),
            http=Patient,
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
        self.inner.state.closing.set()  # open event streams end
        await super().shutdown(sockets)


def chosen_token() -> str:
    """CDKNET_TOKEN if set, so that an open page survives a restart of the server; else a new token."""
    given = os.environ.get("CDKNET_TOKEN")
    if given is None:
        return secrets.token_urlsafe(24)
    if not re.fullmatch(r"[A-Za-z0-9_-]{16,200}", given):
        raise ValueError(
            "CDKNET_TOKEN must be 16 to 200 letters, digits, dashes or underscores. Got something else."
        )
    return given


def bind(host: str, port: int | None) -> socket.socket:
    """A socket at that port; by default at 8765 or the first free port after it."""
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    wanted = [port] if port is not None else [*range(8765, 8800), 0]
    for number in wanted:
        # With the protocol stated, or asyncio leaves Nagle's algorithm on: 40 ms per answer.
        bound = socket.socket(family, socket.SOCK_STREAM, socket.IPPROTO_TCP)
        if sys.platform != "win32":  # there it would let two servers share a port
            bound.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            bound.bind((host, number))
            bound.listen(2048)  # a burst of requests waits instead of being refused
            return bound
        except OSError as error:
            bound.close()
            last = error
            if error.errno != errno.EADDRINUSE:
                break
    raise OSError(
        f"--host and --port must be a free address of this machine. Got {host}:{port}: {last.strerror}."
    )
