"""Access control of the explorer: a layer around the whole server.

Every request needs the token that was printed with the address (as a header, or as the cookie that the
address sets), a Host that names this server, and, if it has an Origin, that of the page itself.
"""

from __future__ import annotations

import base64
import hashlib
import hmac
import ipaddress
import json
import socket
from collections.abc import Awaitable, Callable, MutableMapping
from typing import Any
from urllib.parse import parse_qs, urlsplit

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


class Auth:
    """Wraps the app: checks token, Host, Origin and size of the body, and adds headers to every response."""

    def __init__(self, app: Any, token: str, host: str, port: int) -> None:
        self.app, self.token, self.host, self.cookie = app, token, host, f"cdknet-token-{port}"

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            if scope["type"] == "lifespan":
                await self.app(scope, receive, send)
            return  # no websockets
        send = _with_safe_headers(send)
        headers = {k.decode("latin-1").lower(): v.decode("latin-1") for k, v in scope["headers"]}
        refusal = self._refusal(scope, headers)
        if refusal is not None:
            await _answer(send, *refusal)
            return
        in_address = parse_qs(scope["query_string"].decode("latin-1")).get("token", [""])[0]
        if scope["path"] == "/" and in_address and self._is_token(in_address):
            cookie = f"{self.cookie}={self.token}; Path=/; HttpOnly; SameSite=Strict"
            await _answer(send, 303, "", {"location": "/", "set-cookie": cookie})
            return
        if not self._is_token(headers.get(HEADER, "")) and not self._is_token(self._cookie(headers)):
            what = "Open the address that cdknet explore printed: it contains the token that is needed here."
            if scope["path"] == "/" and headers.get("sec-fetch-site") in ("cross-site", "same-site"):
                # After a link from another site the browser withholds a strict cookie, but not on a reload.
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

    def _is_token(self, token: str) -> bool:
        return hmac.compare_digest(token.encode(), self.token.encode())

    def _cookie(self, headers: dict[str, str]) -> str:
        for part in headers.get("cookie", "").split(";"):
            name, _, value = part.strip().partition("=")
            if name == self.cookie:
                return value
        return ""

    def _refusal(self, scope: Scope, headers: dict[str, str]) -> tuple[int, str] | None:
        host = headers.get("host", "")
        if not _host_is_this_server(host, self.host):
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


def _host_is_this_server(header: str, bound: str) -> bool:
    """Whether the Host header names this machine. This defeats DNS rebinding from another site's name."""
    try:
        name = (urlsplit(f"//{header}").hostname or "").lower()
        urlsplit(f"//{header}").port  # noqa: B018  raises if it is not a number
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
    """The body, or None if it is too large. It is read to its end, so that the client gets the answer."""
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
            present = {name.lower() for name, _ in message["headers"]}
            extra = [(k.encode(), v.encode()) for k, v in SAFE_HEADERS.items() if k.encode() not in present]
            if b"cache-control" not in present:
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


def _page_without_token(error: str) -> str:
    """A page for requests without the token. It loads nothing else."""
    return (
        '<!doctype html><html lang="en"><meta charset="utf-8"><title>cdknet</title>'
        '<meta name="viewport" content="width=device-width, initial-scale=1">'
        f"<style>{BARE_STYLE}</style><main><h1>This page needs its token</h1><p>{error}</p>"
        "<p>The address is in the terminal, under \u201cThe explorer is at\u201d. A server that was "
        "started again has a new one.</p></main></html>"
    )


async def _answer(
    send: Send, status: int, error: str, headers: dict[str, str] | None = None, *, page: bool = False
) -> None:
    body = _page_without_token(error) if page else json.dumps({"error": error})
    kind = "text/html; charset=utf-8" if page else "application/json"
    fields = {"content-type": kind, "content-length": str(len(body.encode())), **(headers or {})}
    if page:
        digest = base64.b64encode(hashlib.sha256(BARE_STYLE.encode()).digest()).decode()
        fields["content-security-policy"] = CSP.replace("style-src 'self'", f"style-src 'sha256-{digest}'")
    start = {"type": "http.response.start", "status": status}
    await send({**start, "headers": [(k.encode(), v.encode()) for k, v in fields.items()]})
    await send({"type": "http.response.body", "body": body.encode()})
