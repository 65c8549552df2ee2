"""Hostile requests to the explorer's server: a grammar of methods, paths, headers and bodies."""

from __future__ import annotations

import http.client
import json
import random
import shutil
import threading
import time
from pathlib import Path
from typing import Any

from benchmarks.reliability import RUNS, Figures, tries

SECRET = b"the content of a file outside the run"
METHODS = ["GET"] * 8 + ["POST"] * 8 + ["HEAD", "PUT", "DELETE", "PATCH", "OPTIONS", "TRACE", "get", "G\tT"]
ROUTES = [
    *("/", "/static/app.js", "/static/", "/api/run", "/api/map", "/api/assignment", "/api/confidence"),
    *("/api/novelty", "/api/given", "/api/truth", "/api/state", "/api/journal", "/api/export", "/api/search"),
    *("/api/refine", "/api/sheet", "/api/actions", "/api/undo", "/api/redo", "/api/openapi.json", "/nowhere"),
    *(
        "/api/classes/{}",
        "/api/classes/{}/samples",
        "/api/samples/{}",
        "/api/samples/{}/picture",
        "/static/{}",
    ),
]
PIECES = [
    *(
        "0",
        "4",
        "-1",
        "65535",
        "65536",
        "2147483648",
        "9" * 40,
        "1e3",
        "NaN",
        "x",
        "",
        "%00",
        "%0a",
        "%ff",
        "é",
    ),
    *("..", "../secret.txt", "..%2fsecret.txt", "%2e%2e/secret.txt", "..%5csecret.txt", "/etc/passwd"),
    *("....//secret.txt", "%252e%252e%252fsecret.txt", "../../../../../../etc/passwd", "a" * 3000, "*", "'"),
]
NAMES = ["offset", "limit", "order", "format", "samples", "size", "q", "token", "class", "x" * 200]
VALUES: list[Any] = [
    *(
        None,
        True,
        0,
        1,
        4,
        -1,
        2**31,
        10**30,
        0.5,
        "",
        "x",
        "../x",
        "\x00",
        "\u202e",
        "=1",
        "a" * 5000,
        "\ud800",
    ),
    *([], [0], [0, 1, 2], [[]], {}, {"kind": "note"}, "rename", "note", "split", "central", "csv"),
]
KINDS = ["rename", "merge", "split", "move", "mark_old", "old", "reject", "note", "dismiss", "none", 7]
FIELDS: dict[Any, list[str]] = {
    "rename": ["class", "name"],
    "merge": ["classes", "into"],
    "split": ["class", "k"],
    "move": ["samples", "to", "name"],
    "mark_old": ["class", "old"],
    "old": ["samples"],
    "reject": ["samples"],
    "note": ["class", "text"],
    "dismiss": ["class", "hint"],
}
ALL_FIELDS = sorted({field for fields in FIELDS.values() for field in fields} | {"with", "more"})
USUAL: dict[str, list[Any]] = {
    "class": [0, 4, 5, 6, 7, 8],
    "into": [4, 5, 6, 7],
    "to": [0, 4, 5, None],
    "old": [0, 1],
    "classes": [[5], [6, 7], [4, 5]],
    "samples": [[0], [1, 2], [30, 40]],
    "k": [2, 3],
    "hint": ["split"],
}


def requests(count: int, seed: int, folder: Path) -> Figures:
    """No request gets a 500, and none an answer with what is outside the run."""
    from cdknet.explorer.folder import open_run
    from cdknet.explorer.server import Explorer
    from cdknet.explorer.session import Session

    (folder / "secret.txt").write_bytes(SECRET)
    run = shutil.copytree(RUNS / "plus", folder / "run")
    (run / "secret.txt").write_bytes(SECRET)
    before = sorted(path.name for path in folder.iterdir())
    explorer = Explorer(Session(open_run(run)), host="127.0.0.1", port=0)
    server = threading.Thread(target=explorer.serve_forever)
    server.start()
    while not explorer.started:
        time.sleep(0.01)
    draw, answers, broken = random.Random(seed), dict[int, int](), list[str]()
    accepted = 0
    try:
        for number in tries(count):
            method, path, headers, body = _request(draw, explorer.token, accepted)
            status, content = _ask(explorer.port, method, path, headers, body)
            answers[status] = answers.get(status, 0) + 1
            if method == "POST" and status == 200:
                accepted = json.loads(content)["revision"]
            if status in (500, 501) or status >= 504 or SECRET in content or b"root:" in content:
                broken.append(f"request {number}: {status} for {method} {path[:80]} {body[:200]!r}")
    finally:
        explorer.should_exit = True
        server.join()
    made = sorted(path.name for path in folder.iterdir())
    if made != before:
        broken.append(f"new beside the run: {set(made) - set(before)}")
    Session(open_run(run))  # the journal of all that was accepted can be read
    return {
        "requests": number + 1,
        "actions_accepted": accepted,
        "answers": {str(k) if k else "dropped": n for k, n in sorted(answers.items())},
        "broken": len(broken),
        "examples": broken[:5],
    }


def _request(draw: random.Random, token: str, revision: int) -> tuple[str, str, dict[str, str], bytes]:
    method = draw.choice(METHODS)
    path = draw.choice(ROUTES)
    if method == "POST" and draw.random() < 0.7:
        path = draw.choice(("/api/actions", "/api/undo", "/api/redo"))
    while "{}" in path:
        path = path.replace("{}", draw.choice(PIECES), 1)
    if draw.random() < 0.4:
        pairs = (f"{draw.choice(NAMES)}={draw.choice(PIECES)}" for _ in range(draw.randrange(1, 4)))
        path += "?" + "&".join(pairs)
    headers = {"X-Cdknet-Token": token, "Content-Type": "application/json"}
    if draw.random() < 0.15:
        headers[
            draw.choice(("Host", "Origin", "Cookie", "Content-Type", "X-Cdknet-Token", "If-None-Match"))
        ] = draw.choice(
            ("", "x", "localhost", "127.0.0.1", "http://evil.example", "[", "\xff", "a" * 9000, "null")
        )
    if draw.random() < 0.05:
        headers["Content-Length"] = draw.choice(("0", "3", "-1", "x", "9" * 30))
    body = b""
    if method == "POST":
        kind = draw.choice(KINDS)
        fields = FIELDS[kind] if kind in FIELDS and draw.random() < 0.8 else draw.sample(ALL_FIELDS, 3)
        action = {field: _value(field, draw) for field in fields} | {"kind": kind}
        asked: Any = {"action": action} if path == "/api/actions" else {}
        asked["revision"] = revision if draw.random() < 0.8 else draw.choice(VALUES)
        if path.startswith("/api/refine"):  # the name of a folder that must not be made
            asked = {"out": draw.choice(("../x", "a/b", "", ".", "x\x00", "-x", "é", 7, None))}
        body = json.dumps(asked).encode()
        if draw.random() < 0.2:
            at = draw.randrange(len(body))
            body = body[:at] + draw.choice((b"", b"\xff", b"[" * 2000, b"{", b"\0")) + body[at + 1 :]
    return method, path, headers, body


def _value(field: str, draw: random.Random) -> Any:
    """Mostly a value that may be right, so that actions are carried out; names and notes are any text."""
    if field in ("name", "text") and draw.random() < 0.7:
        return "".join(chr(draw.choice((draw.randrange(0xD800), draw.randrange(128)))) for _ in range(5))
    return draw.choice(USUAL.get(field, VALUES) if draw.random() < 0.7 else VALUES)


def _ask(port: int, method: str, path: str, headers: dict[str, str], body: bytes) -> tuple[int, bytes]:
    """Status and content; 0 if the request could not be sent as it is, or the server hung up."""
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=30)
    connection._validate_method = lambda method: None  # type: ignore[method-assign]
    connection._validate_path = lambda path: None  # type: ignore[method-assign]
    try:
        connection.putrequest(method, path.encode("utf-8").decode("latin-1"), skip_host="Host" in headers)
        for name, value in headers.items():
            connection.putheader(name, value.encode("latin-1"))
        if body and "Content-Length" not in headers:
            connection.putheader("Content-Length", str(len(body)))
        connection.endheaders(body or None)
        stated = headers.get("Content-Length", "0")
        if stated.isdigit() and int(stated) > len(body):
            return 0, b""  # the server waits for more, until its patience ends
        answer = connection.getresponse()
        return answer.status, answer.read()
    except (OSError, http.client.HTTPException, ValueError):
        return 0, b""
    finally:
        connection.close()
