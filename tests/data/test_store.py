"""Finding, downloading and checking public files, with a real server on this machine."""

from __future__ import annotations

import gzip
import hashlib
import io
import os
import tarfile
import tempfile
import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from cdknet import data
from cdknet.data import sets, store
from cdknet.data.registry import SETS, PublicArchive, PublicFile, PublicSet


class Server(ThreadingHTTPServer):
    """Serves `files` by path; can disconnect once, after `break_after` bytes; records all requests."""

    daemon_threads = True

    def __init__(self) -> None:
        super().__init__(("127.0.0.1", 0), Handler)
        self.files: dict[str, bytes] = {}
        self.break_after: int | None = None
        self.ignore_ranges = False
        self.hide_length = False
        self.asked: list[tuple[str, str | None]] = []

    def handle_error(self, *_: object) -> None:
        """Print nothing if the client disconnects, as ours does on too many bytes."""

    def url(self, path: str) -> str:
        return f"http://127.0.0.1:{self.server_address[1]}{path}"


class Handler(BaseHTTPRequestHandler):
    server: Server

    def do_GET(self) -> None:
        wanted = self.headers.get("Range")
        self.server.asked.append((self.path, wanted))
        content = self.server.files.get(self.path)
        if content is None:
            self.send_error(404)
            return
        start = 0
        if wanted and not self.server.ignore_ranges:
            start = int(wanted.removeprefix("bytes=").removesuffix("-"))
            if start >= len(content):
                self.send_response(416)
                self.send_header("Content-Length", "0")
                self.end_headers()
                return
            self.send_response(206)
            self.send_header("Content-Range", f"bytes {start}-{len(content) - 1}/{len(content)}")
        else:
            self.send_response(200)
        if not self.server.hide_length:
            self.send_header("Content-Length", str(len(content) - start))
        self.end_headers()
        end = len(content)
        if self.server.break_after is not None:
            end, self.server.break_after = start + self.server.break_after, None
        self.wfile.write(content[start:end])
        self.close_connection = True

    def log_message(self, *args: object) -> None:
        pass


@pytest.fixture
def server():
    with Server() as server:
        thread = threading.Thread(target=server.serve_forever, args=(0.01,), daemon=True)
        thread.start()
        yield server
        server.shutdown()
        thread.join()


@pytest.fixture(autouse=True)
def folders(tmp_path, monkeypatch):
    """A cache for the test, and CDKNET_DATA unset."""
    monkeypatch.setenv("CDKNET_CACHE", str(tmp_path / "cache"))
    monkeypatch.delenv("CDKNET_DATA", raising=False)
    return tmp_path


CONTENT = bytes(range(256)) * 40  # 10,240 bytes


def sha(content: bytes) -> str:
    return hashlib.sha256(content).hexdigest()


def a_set(*files: PublicFile, archive: PublicArchive | None = None) -> PublicSet:
    return PublicSet(
        name="toy",
        title="Toy",
        kind="vectors",
        n_train=1,
        n_test=1,
        sample="",
        class_names=("a", "b"),
        new_classes=(1,),
        source="the authors' page",
        authors="",
        licence="",
        caveats="",
        folder="toy",
        files=files,
        archive=archive,
    )


def a_file(server: Server, name: str = "part.dat", content: bytes = CONTENT, **wrong: str) -> PublicFile:
    packed = gzip.compress(content) if name.endswith(".gz") else content
    server.files[f"/{name}"] = packed
    return PublicFile(name, len(content), wrong.get("sha256", sha(content)), (server.url(f"/{name}"),))


@pytest.mark.parametrize("name", ["part.dat", "part.dat.gz"])
def test_a_file_is_downloaded_once_and_checked(server, name, folders):
    file = a_file(server, name)
    steps = []
    path = store.obtain(a_set(file), file, progress=lambda *step: steps.append(step))
    assert path == folders / "cache" / "toy" / name
    assert path.read_bytes() == server.files[f"/{name}"]
    assert [p.name for p in path.parent.iterdir()] == [name]  # no .part is left
    assert steps[-1] == (name, len(server.files[f"/{name}"]), len(server.files[f"/{name}"]))
    assert store.obtain(a_set(file), file) == path
    assert len(server.asked) == 1


@pytest.mark.parametrize("broken_at", [1, 100, 5_000, 10_239])
def test_an_interrupted_download_is_resumed(server, broken_at):
    file = a_file(server)
    server.break_after = broken_at
    path = store.obtain(a_set(file), file)
    assert path.read_bytes() == CONTENT
    assert [wanted for _, wanted in server.asked] == [None, f"bytes={broken_at}-"]


def test_a_download_of_an_earlier_process_is_resumed(server, folders):
    file = a_file(server)
    part = folders / "cache" / "toy" / "part.dat.part"
    part.parent.mkdir(parents=True)
    part.write_bytes(CONTENT[:4_000])
    assert store.obtain(a_set(file), file).read_bytes() == CONTENT
    assert server.asked == [("/part.dat", "bytes=4000-")]


@pytest.mark.parametrize("left", [b"x" * 4_000, CONTENT + b"more", CONTENT[:-1] + b"x"])
def test_a_wrong_part_file_is_discarded(server, folders, left):
    file = a_file(server)
    part = folders / "cache" / "toy" / "part.dat.part"
    part.parent.mkdir(parents=True)
    part.write_bytes(left)
    assert store.obtain(a_set(file), file).read_bytes() == CONTENT


def test_a_whole_part_file_is_not_downloaded_again(server, folders):
    file = a_file(server)
    part = folders / "cache" / "toy" / "part.dat.part"
    part.parent.mkdir(parents=True)
    part.write_bytes(CONTENT)
    assert store.obtain(a_set(file), file).read_bytes() == CONTENT
    assert server.asked == [("/part.dat", "bytes=10240-")]  # answered with 416: there are no more bytes


def test_a_server_that_ignores_ranges_is_read_from_the_start(server, folders):
    file = a_file(server)
    server.ignore_ranges = True
    server.break_after = 3_000
    assert store.obtain(a_set(file), file).read_bytes() == CONTENT


def test_wrong_content_never_gets_its_name(server, folders):
    file = a_file(server, sha256="0" * 64)
    with pytest.raises(FileNotFoundError, match=r"not the official file. Got SHA-256"):
        store.obtain(a_set(file), file)
    assert list((folders / "cache" / "toy").iterdir()) == []


def test_the_next_url_is_tried(server):
    good = a_file(server)
    server.files["/bad"] = b"hijacked"
    urls = (server.url("/absent"), server.url("/bad"), *good.urls)
    file = PublicFile(good.name, good.size, good.sha256, urls)
    assert store.obtain(a_set(file), file).read_bytes() == CONTENT
    assert [path for path, _ in server.asked] == ["/absent", "/bad", "/part.dat"]


@pytest.mark.parametrize("hide_length", [False, True])
def test_more_bytes_than_expected_are_not_taken(server, hide_length, folders):
    server.files["/part.dat"] = b"\0" * (5 * 2**20)
    server.hide_length = hide_length
    file = PublicFile("part.dat", 100, sha(b""), (server.url("/part.dat"),))
    with pytest.raises(FileNotFoundError, match="sends more than" if hide_length else "would send 5,242,880"):
        store.obtain(a_set(file), file)
    held = sum(p.stat().st_size for p in (folders / "cache").rglob("*") if p.is_file())
    assert held <= (2 * 2**20 if hide_length else 0)


def test_a_server_that_does_not_say_how_much_it_sends_is_fine(server):
    file = a_file(server)
    server.hide_length = True
    assert store.obtain(a_set(file), file).read_bytes() == CONTENT


def test_offline_says_what_is_missing_where_it_looked_and_what_to_do(tmp_path, monkeypatch):
    monkeypatch.setenv("CDKNET_DATA", f"{tmp_path / 'mine'}{os.pathsep}{tmp_path / 'lab'}")
    file = PublicFile("part.dat", 5, sha(b"hello"), ("http://127.0.0.1:9/part.dat",))
    with pytest.raises(FileNotFoundError) as caught:
        store.obtain(a_set(file), file)
    said = str(caught.value)
    for part in (
        "toy: part.dat is missing",
        "mine/toy",
        "lab/toy",
        "cache/toy",
        "http://127.0.0.1:9/part.dat",
    ):
        assert part.replace("/", os.sep) in said or part in said
    assert "Put it into" in said
    assert "\n" not in said


def test_a_data_set_without_a_url_says_how_to_get_it():
    with pytest.raises(FileNotFoundError, match=r"wifi_csi_30\.npz is missing.*no URL to download it from"):
        data.fetch("wifi-csi-30")


def test_folders_of_the_user_come_before_the_cache(tmp_path, monkeypatch):
    file = PublicFile("part.dat.gz", 5, sha(b"hello"))
    places = [tmp_path / name / "toy" for name in ("mine", "lab", "cache")]
    for place in places:
        place.mkdir(parents=True)
        (place / "part.dat.gz").write_bytes(gzip.compress(b"hello"))
    monkeypatch.setenv("CDKNET_DATA", f"{tmp_path / 'mine'}{os.pathsep}{tmp_path / 'lab'}")
    for place in places:
        assert store.find(a_set(file), file) == place / "part.dat.gz"
        (place / "part.dat.gz").unlink()
    (places[1] / "part.dat").write_bytes(b"hello")  # unpacked by hand
    assert store.obtain(a_set(file), file) == places[1] / "part.dat"


@pytest.mark.parametrize(
    ("content", "match"),
    [
        (b"hellx", "Got SHA-256"),
        (b"hell", "Got 4 bytes of content instead of 5"),
        (b"hello!", "Got more than 5 bytes of content instead of 5"),
    ],
)
def test_a_found_file_with_other_content_is_refused(content, match, tmp_path, monkeypatch):
    file = PublicFile("part.dat.gz", 5, sha(b"hello"))
    path = tmp_path / "mine" / "toy" / "part.dat.gz"
    path.parent.mkdir(parents=True)
    path.write_bytes(gzip.compress(content))
    monkeypatch.setenv("CDKNET_DATA", str(tmp_path / "mine"))
    with pytest.raises(ValueError, match=r"part\.dat\.gz: must be the official file") as caught:
        store.obtain(a_set(file), file)
    assert match in str(caught.value)
    assert [row.ok for row in store.verify(a_set(file))] == [False]
    path.write_bytes(gzip.compress(b"hello")[:-6])
    with pytest.raises(ValueError, match="not a valid gzip file"):
        store.obtain(a_set(file), file)


def test_two_downloads_at_once_do_not_mix(server, folders):
    pytest.importorskip("fcntl", reason="this system has no file locks of this kind")
    file = a_file(server)
    part = folders / "cache" / "toy" / "part.dat.part"
    part.parent.mkdir(parents=True)
    with (
        store._sole_writer(part),
        pytest.raises(FileNotFoundError, match="being written by another download"),
    ):
        store.obtain(a_set(file), file)


def test_only_http_urls_are_followed(tmp_path):
    secret = tmp_path / "secret"
    secret.write_bytes(CONTENT)
    file = PublicFile("part.dat", len(CONTENT), sha(CONTENT), (secret.as_uri(),))
    with pytest.raises(FileNotFoundError, match="must start with https"):
        store.obtain(a_set(file), file)


def tar_gz(*members: tuple[tarfile.TarInfo | str, bytes]) -> bytes:
    out = io.BytesIO()
    with tarfile.open(fileobj=out, mode="w:gz") as tar:
        for name, content in members:
            info = name if isinstance(name, tarfile.TarInfo) else tarfile.TarInfo(name)
            if info.isfile():
                info.size = len(content)
            tar.addfile(info, io.BytesIO(content))
    return out.getvalue()


def archived(server: Server, content: bytes) -> tuple[PublicSet, PublicFile]:
    server.files["/toy.tar.gz"] = content
    archive = PublicArchive(len(content), sha(content), (server.url("/toy.tar.gz"),))
    file = PublicFile("part.dat", len(CONTENT), sha(CONTENT))
    return a_set(file, archive=archive), file


def test_files_are_taken_out_of_an_archive_and_it_is_removed(server, folders):
    public, file = archived(server, tar_gz(("toy/readme.txt", b"hi"), ("toy/part.dat", CONTENT)))
    assert store.obtain(public, file).read_bytes() == CONTENT
    assert [p.name for p in (folders / "cache").rglob("*")] == ["toy", "part.dat"]


def link(name: str, target: str, kind: bytes = tarfile.SYMTYPE) -> tarfile.TarInfo:
    info = tarfile.TarInfo(name)
    info.type, info.linkname = kind, target
    return info


@pytest.mark.parametrize(
    ("member", "match"),
    [
        (("../evil.dat", b"x"), "must stay inside"),
        (("toy/../../evil.dat", b"x"), "must stay inside"),
        (("/tmp/evil.dat", b"x"), "must stay inside"),
        (("C:\\evil.dat", b"x"), "must stay inside"),
        ((link("toy/evil.dat", "/etc/passwd"), b""), "a link or a device"),
        ((link("toy/evil.dat", "toy/part.dat", tarfile.LNKTYPE), b""), "a link or a device"),
        ((link("toy/evil.dat", "", tarfile.CHRTYPE), b""), "a link or a device"),
        ((link("toy/evil.dat", "", tarfile.FIFOTYPE), b""), "a link or a device"),
    ],
)
@pytest.mark.parametrize("first", [True, False])
def test_archives_that_reach_outside_are_refused_whole(member, match, first, server, folders):
    good = ("toy/part.dat", CONTENT)
    public, file = archived(server, tar_gz(*((member, good) if first else (good, member))))
    with pytest.raises(ValueError, match=match):
        store.obtain(public, file)
    left = [p.name for p in folders.rglob("*")]
    assert "evil.dat" not in left
    assert "part.dat" not in left
    assert not any(name.startswith(".unpacking") for name in left)


@pytest.mark.parametrize(
    ("content", "match"),
    [
        (tar_gz(("toy/other.dat", CONTENT)), "must hold toy/part.dat"),
        (tar_gz(("toy/part.dat", CONTENT[:-1])), "must be 10,240 bytes. Got 10,239"),
        (tar_gz(("toy/part.dat", CONTENT[:-1] + b"x")), "must be the official file"),
        (tar_gz(("toy/part.dat", CONTENT))[:-30], "not a valid tar.gz"),
        (b"no archive at all", "not a valid tar.gz"),
    ],
)
def test_archives_without_the_right_file_are_refused(content, match, server):
    public, file = archived(server, content)
    with pytest.raises(ValueError, match=match):
        store.obtain(public, file)


@given(
    changes=st.lists(st.tuples(st.integers(0, 1535), st.integers(0, 255)), max_size=6),
    length=st.none() | st.integers(0, 12_000),
)
def test_any_archive_is_refused_or_gives_the_official_file_and_nothing_else(changes, length):
    """Members are damaged *before* compression, so that the damage reaches the tar reader."""
    tar = bytearray(gzip.decompress(tar_gz(("toy/a.txt", b"hi"), ("toy/part.dat", CONTENT))))
    for at, value in changes:
        tar[at] = value
    with tempfile.TemporaryDirectory() as root:
        archive, folder = Path(root) / "toy.tar.gz", Path(root) / "toy"
        archive.write_bytes(gzip.compress(bytes(tar[:length])))
        refused = None
        try:
            store.extract(
                archive, folder, {"toy/part.dat": PublicFile("part.dat", len(CONTENT), sha(CONTENT))}
            )
        except ValueError as error:
            refused = str(error)
        found = {p.relative_to(root).as_posix() for p in Path(root).rglob("*")}
        assert refused is None or "toy.tar.gz" in refused
        assert found == {"toy.tar.gz", "toy"} | (set() if refused else {"toy/part.dat"})


def test_the_cache_is_in_the_system_folder_for_caches(monkeypatch):
    monkeypatch.delenv("CDKNET_CACHE")
    monkeypatch.setenv("XDG_CACHE_HOME", "/somewhere")
    monkeypatch.setattr("sys.platform", "linux")
    assert store.cache_dir() == Path("/somewhere/cdknet")
    monkeypatch.delenv("XDG_CACHE_HOME")
    assert store.cache_dir() == Path.home() / ".cache" / "cdknet"
    monkeypatch.setattr("sys.platform", "win32")
    monkeypatch.setenv("LOCALAPPDATA", "/local")
    assert store.cache_dir() == Path("/local/cdknet")


def test_a_cache_that_cannot_be_written_is_reported(server, folders):
    (folders / "cache").write_text("a file where the folder should be")
    file = a_file(server)
    with pytest.raises(FileNotFoundError, match="The cache cannot be written"):
        store.obtain(a_set(file), file)


def test_every_url_and_checksum_of_the_registry_is_well_formed():
    for public in SETS.values():
        for file in public.files:
            assert len(file.sha256) == 64
            assert int(file.sha256, 16) > 0
            assert file.urls or public.archive or public.by_hand
            assert all(url.endswith(file.name) for url in file.urls)
        if not isinstance(public.new_classes, int):
            assert set(public.new_classes) < set(range(len(public.class_names)))
        assert len(set(public.class_names)) == len(public.class_names)
    assert sets.names() == tuple(SETS)
