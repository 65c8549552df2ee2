"""The explorer's server against malicious requests."""

import contextlib
import json
import re
import urllib.parse

import pytest
from servermaker import Serving

from cdknet.explorer.auth import CSP, LARGEST_BODY
from cdknet.explorer.session import Session

from runmaker import make_run


def test_nothing_is_answered_without_the_token(client):
    wrong = ["", "x", client.token[:-1], client.token + "x", "\u00e9"]
    for path in ("/", "/api/run", "/api/map", "/static/app.js", "/api/openapi.json", "/nowhere"):
        for token in wrong:
            status, _, content = client.raw("GET", path, headers={"X-Cdknet-Token": token})
            assert status == 401
            assert client.token.encode() not in content
            status, _, _ = client.raw("GET", f"{path}?token={urllib.parse.quote(token)}")
            assert status == 401
    assert client.raw("GET", f"/api/run?token={client.token}")[0] == 401, "only in the address of the page"


def test_the_page_without_the_token_explains_itself_and_loads_nothing(client):
    status, headers, content = client.raw("GET", "/", headers={})
    assert status == 401
    text = content.decode()
    assert "<style>" in text
    assert "cdknet explore printed" in text
    assert client.token not in text
    policy = headers["content-security-policy"]
    assert "style-src 'sha256-" in policy
    assert "unsafe" not in policy


def test_the_address_sets_a_cookie_that_scripts_cannot_read(client):
    status, headers, _ = client.raw("GET", f"/?token={client.token}")
    assert (status, headers["location"]) == (303, "/")
    cookie = headers["set-cookie"]
    assert "HttpOnly" in cookie
    assert "SameSite=Strict" in cookie
    pair = cookie.split(";")[0]
    assert client.raw("GET", "/api/run", headers={"Cookie": f"a=b; {pair}"})[0] == 200
    assert client.raw("GET", "/api/run", headers={"Cookie": pair.replace("=", "=x")})[0] == 401


def test_a_link_from_elsewhere_still_leads_to_the_page(client):
    """The browser withholds a strict cookie after such a link; a reload by our own page gets it."""
    _, _, content = client.raw("GET", "/", headers={"Sec-Fetch-Site": "cross-site"})
    assert b'http-equiv="refresh"' in content
    _, _, content = client.raw("GET", "/", headers={"Sec-Fetch-Site": "same-origin"})
    assert b"refresh" not in content, "it does not reload forever"


def test_a_token_can_be_set_unless_it_is_weak(monkeypatch):
    from cdknet.explorer.server import chosen_token

    assert len(chosen_token()) >= 32
    assert chosen_token() != chosen_token()
    monkeypatch.setenv("CDKNET_TOKEN", "a-token-of-my-own-1234")
    assert chosen_token() == "a-token-of-my-own-1234"
    for weak in ("", "short", "sixteen letters and spaces", "x" * 300):
        monkeypatch.setenv("CDKNET_TOKEN", weak)
        with pytest.raises(ValueError, match="CDKNET_TOKEN must be 16"):
            chosen_token()


@pytest.mark.parametrize(
    ("headers", "status"),
    [
        ({"Host": "evil.example"}, 421),
        ({"Host": "127.0.0.1.evil.example:80"}, 421),
        ({"Host": "localhost.evil.example"}, 421),
        ({"Host": "user@127.0.0.1:x"}, 421),
        ({"Host": "192.168.1.5"}, 421),
        ({"Host": ""}, 421),
        ({"Host": "localhost"}, 200),
        ({"Host": "[::1]:99"}, 200),
        ({"Origin": "http://evil.example"}, 403),
        ({"Origin": "null"}, 403),
        ({"Origin": "http://["}, 403),
        ({"Host": "["}, 421),
        ({"Origin": "http://localhost:7", "Host": "localhost:7"}, 200),
        ({"Origin": "http://127.0.0.1:1"}, 403),
        ({"Sec-Fetch-Site": "cross-site"}, 403),
        ({"Sec-Fetch-Site": "same-origin"}, 200),
    ],
)
def test_other_hosts_and_origins_are_refused(client, headers, status):
    got = client.raw("GET", "/api/run", headers={"X-Cdknet-Token": client.token, **headers})
    assert got[0] == status


def test_posts_are_json_of_a_bounded_size_from_the_page(client):
    good = {"X-Cdknet-Token": client.token, "Content-Type": "application/json"}
    for kind in ("text/plain", "application/x-www-form-urlencoded", "multipart/form-data", ""):
        status, _, _ = client.raw("POST", "/api/undo", '{"revision":0}', {**good, "Content-Type": kind})
        assert status == 415
    large = b'{"revision": 0, "action": "' + b"x" * LARGEST_BODY + b'"}'
    assert client.raw("POST", "/api/actions", large, good)[0] == 413
    chunks = iter([large[:100], large[100:]])  # without a stated length
    assert client.raw("POST", "/api/actions", chunks, good)[0] == 413
    for body in (b"", b"[", b"[]", b'{"revision": 0}', b"\xff", b"[" * 90_000, b'{"revision": 1e400}'):
        status, _, content = client.raw("POST", "/api/actions", body, good)
        assert status in (400, 422)
        assert "error" in json.loads(content)
    for method in ("PUT", "DELETE", "PATCH", "OPTIONS", "TRACE"):
        assert client.raw(method, "/api/state", headers=good)[0] == 405


def test_no_path_leads_out_of_the_bundle(client, tmp_path):
    tries = [
        "../server.py",
        "..%2fserver.py",
        "%2e%2e/server.py",
        "%2e%2e%2fserver.py",
        "..%5cserver.py",
        "....//server.py",
        "%252e%252e/server.py",
        "/etc/passwd",
        "%2fetc%2fpasswd",
        "index.html%00.js",
        "./../static/../server.py",
        "..",
        "",
    ]
    for path in tries:
        status, _, content = client.raw("GET", f"/static/{path}", headers={"X-Cdknet-Token": client.token})
        assert status in (404, 400), path
        assert b"import" not in content
        assert b"root:" not in content


@pytest.mark.parametrize(
    "out", ["../x", "a/b", "/tmp/x", "..", ".", "", "x\0", "a b", "run", "-x", "x.", "é"]
)
def test_refining_writes_only_to_a_new_plain_folder_beside_the_run(client, run, out):
    before = sorted(p.name for p in run.parent.iterdir())
    assert client.post("/api/refine", {"out": out}, 422)["error"]
    assert sorted(p.name for p in run.parent.iterdir()) == before
    assert client.json("/api/refine")["state"] == "idle"


def test_every_answer_carries_the_safe_headers(client):
    for path in ("/", "/api/run", "/api/nowhere", "/api/samples/1/picture", "/api/samples/x"):
        for token in (client.token, ""):
            _, headers, _ = client.raw("GET", path, headers={"X-Cdknet-Token": token})
            policy = headers["content-security-policy"]
            bare = path == "/" and not token  # its inline style is allowed by its hash
            assert (re.sub("'sha256-[^']+'", "'self'", policy, count=1) if bare else policy) == CSP
            assert headers["x-content-type-options"] == "nosniff"
            assert headers["x-frame-options"] == "DENY"
            assert "server" not in headers
    assert "unsafe" not in CSP


def test_internal_errors_are_not_shown(fresh, monkeypatch):
    def broken(self):
        raise RuntimeError("internal secret")

    monkeypatch.setattr(Session, "state", broken)
    status, headers, content = fresh.raw("GET", "/api/state", headers={"X-Cdknet-Token": fresh.token})
    assert status == 500
    assert headers["content-type"] == "application/json"
    assert b"secret" not in content
    assert b"Traceback" not in content


@pytest.mark.slow
def test_no_request_that_the_description_allows_or_forbids_breaks_the_server(tmp_path):
    schemathesis = pytest.importorskip("schemathesis", reason="pip install schemathesis")
    from hypothesis import HealthCheck, given, settings
    from hypothesis.errors import Unsatisfiable

    with Serving(make_run(tmp_path / "run", n=60)) as client:
        schema = schemathesis.openapi.from_dict(client.json("/api/openapi.json"))
        checked = 0
        for mode in (schemathesis.GenerationMode.POSITIVE, schemathesis.GenerationMode.NEGATIVE):
            for found in schema.get_all_operations():
                operation = found.ok()
                if operation.path in ("/api/events", "/api/refine"):  # one never ends, one starts training
                    continue

                @given(case=operation.as_strategy(generation_mode=mode))
                @settings(
                    max_examples=40, deadline=None, suppress_health_check=list(HealthCheck), database=None
                )
                def ask(case):
                    nonlocal checked
                    headers = {"X-Cdknet-Token": client.token}
                    response = case.call(base_url=f"http://127.0.0.1:{client.port}", headers=headers)
                    assert response.status_code < 500, (case.as_curl_command(), response.text)
                    checked += 1

                with contextlib.suppress(Unsatisfiable):  # nothing can be wrong without parameters
                    ask()
        assert checked > 300
        assert client.json("/api/state")["classes"]
