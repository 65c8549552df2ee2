"""The explorer's server in a thread, and a client, for tests."""

import http.client
import json
import threading
import time
from pathlib import Path

from cdknet.explorer.folder import open_run
from cdknet.explorer.server import Explorer
from cdknet.explorer.session import Session, read_truth

SCRIPT = "<script>alert(1)</script>"  # used as an id and as a name


class Client:
    """Requests with the token; `raw` adds nothing."""

    def __init__(self, explorer: Explorer) -> None:
        self.port, self.token = explorer.port, explorer.token

    def raw(self, method, path, body=None, headers=None):
        connection = http.client.HTTPConnection("127.0.0.1", self.port, timeout=20)
        try:
            connection.request(method, path, body, headers or {})
            response = connection.getresponse()
            content = response.read()
        finally:
            connection.close()
        return response.status, {k.lower(): v for k, v in response.getheaders()}, content

    def get(self, path, status=200, **headers):
        got = self.raw("GET", path, headers={"X-Cdknet-Token": self.token, **headers})
        assert got[0] == status, got[2][:300]
        return got[2]

    def json(self, path, status=200):
        return json.loads(self.get(path, status))

    def post(self, path, body, status=200):
        headers = {"X-Cdknet-Token": self.token, "Content-Type": "application/json"}
        got = self.raw("POST", path, json.dumps(body), headers)
        assert got[0] == status, got[2][:300]
        return json.loads(got[2])

    def act(self, status=200, **action):
        revision = self.json("/api/state")["revision"]
        return self.post("/api/actions", {"revision": revision, "action": action}, status)


class Serving:
    """An explorer that runs in a thread."""

    def __init__(self, run: Path, **options) -> None:
        opened = open_run(run)
        truth = options.pop("truth", None)
        self.session = Session(opened, truth=read_truth(opened, truth) if truth else None, **options)
        self.explorer = Explorer(self.session, host="127.0.0.1", port=0)
        self.thread = threading.Thread(target=self.explorer.serve_forever)

    def __enter__(self) -> Client:
        self.thread.start()
        deadline = time.monotonic() + 20
        while not self.explorer.started:
            assert time.monotonic() < deadline
            time.sleep(0.01)
        return Client(self.explorer)

    def __exit__(self, *error) -> None:
        self.explorer.should_exit = True
        self.thread.join(timeout=20)
        assert not self.thread.is_alive()
