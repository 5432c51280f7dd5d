import functools
import hashlib
import http.server
import os
import random
import signal
import socket
import stat
import subprocess
import sys
import threading
import time

import pytest

from towerpack.core import files
from towerpack.core.files import DownloadError, atomic_directory, atomic_file, download

WRITER = """
import itertools, sys
from towerpack.core.files import atomic_file
print("ready", flush=True)
for number in itertools.count():
    with atomic_file(sys.argv[1]) as file:
        for _ in range(64):
            file.write(bytes([number % 256]) * 4096)
"""
KILLS = 8


def test_an_atomic_file_appears_whole(tmp_path):
    path = tmp_path / "deep" / "x.txt"
    with atomic_file(path, "w") as file:
        file.write("ä")
        assert not path.exists()
    assert path.read_bytes() == "ä".encode()
    assert stat.S_IMODE(path.stat().st_mode) == 0o666 & ~files._umask()
    assert os.listdir(path.parent) == ["x.txt"]


def test_an_exception_leaves_the_old_content_and_no_litter(tmp_path):
    path = tmp_path / "x"
    path.write_bytes(b"old")
    with pytest.raises(RuntimeError), atomic_file(path) as file:
        file.write(b"new")
        raise RuntimeError
    assert path.read_bytes() == b"old"
    assert os.listdir(tmp_path) == ["x"]


def test_a_kill_at_any_moment_leaves_the_old_file_or_the_new(tmp_path):
    path = tmp_path / "x"
    moments = random.Random(3)
    for _ in range(KILLS):
        writer = subprocess.Popen(
            [sys.executable, "-c", WRITER, str(path)], stdout=subprocess.PIPE, text=True
        )
        writer.stdout.readline()
        time.sleep(moments.uniform(0.0, 0.05))
        writer.send_signal(signal.SIGKILL)
        writer.wait()
        writer.stdout.close()
        if path.exists():
            content = path.read_bytes()
            assert len(content) == 64 * 4096
            assert len(set(content)) == 1, "a mixture of two contents"
    assert path.exists()
    litter = files.remove_litter(tmp_path)
    assert os.listdir(tmp_path) == ["x"], f"beside the litter {litter}"


@pytest.mark.parametrize("overwrite", [False, True])
def test_an_atomic_directory(tmp_path, overwrite):
    path = tmp_path / "run"
    with atomic_directory(path) as directory:
        (directory / "sub").mkdir()
        (directory / "sub" / "a").write_text("1")
        assert not path.exists()
    assert (path / "sub" / "a").read_text() == "1"
    if not overwrite:
        with pytest.raises(FileExistsError, match="remove it first"), atomic_directory(path):
            pass
        return
    with atomic_directory(path, overwrite=True) as directory:
        (directory / "b").write_text("2")
    assert os.listdir(path) == ["b"]
    assert os.listdir(tmp_path) == ["run"]


def test_an_exception_leaves_the_old_directory(tmp_path):
    with atomic_directory(tmp_path / "run") as directory:
        (directory / "a").write_text("1")
    with pytest.raises(RuntimeError), atomic_directory(tmp_path / "run", overwrite=True):
        raise RuntimeError
    assert os.listdir(tmp_path / "run") == ["a"]
    assert os.listdir(tmp_path) == ["run"]


class Handler(http.server.BaseHTTPRequestHandler):
    """Serves bytes by name; `limits` cuts the next answers short, as a broken line does."""

    def __init__(self, content, limits, log, ranges, *args):
        self.content, self.limits, self.log, self.ranges = content, limits, log, ranges
        super().__init__(*args)

    def do_GET(self):
        body = self.content.get(self.path)
        asked = self.headers.get("Range")
        self.log.append((self.path, asked))
        if body is None:
            self.send_error(404)
            return
        start = int(asked.removeprefix("bytes=").rstrip("-")) if asked and self.ranges else 0
        if start >= len(body) and start:
            self.send_response(416)
            self.send_header("Content-Range", f"bytes */{len(body)}")
            self.end_headers()
            return
        self.send_response(206 if start else 200)
        self.send_header("Content-Length", str(len(body) - start))
        self.end_headers()
        limit = self.limits.pop(0) if self.limits else None
        self.wfile.write(body[start:][:limit])
        if limit is not None:
            self.wfile.flush()
            self.connection.shutdown(socket.SHUT_RDWR)

    def log_message(self, *args):
        pass


class Server:
    def __init__(self, ranges=True):
        self.content, self.limits, self.log = {}, [], []
        handler = functools.partial(Handler, self.content, self.limits, self.log, ranges)
        self.http = http.server.ThreadingHTTPServer(("127.0.0.1", 0), handler)
        self.thread = threading.Thread(target=self.http.serve_forever)
        self.thread.start()

    def url(self, name):
        return f"http://127.0.0.1:{self.http.server_port}{name}"

    def close(self):
        self.http.shutdown()
        self.http.server_close()
        self.thread.join()


@pytest.fixture
def server():
    made = Server()
    made.content["/data"] = BODY
    yield made
    made.close()


BODY = random.Random(1).randbytes(700_000)
SUM = hashlib.sha256(BODY).hexdigest()


def test_a_download(server, tmp_path):
    path = download(server.url("/data"), tmp_path / "deep" / "data", sha256=SUM)
    assert path.read_bytes() == BODY
    assert os.listdir(path.parent) == ["data"]


def test_a_broken_download_goes_on_where_it_stopped(server, tmp_path):
    server.limits += [300_000]
    with pytest.raises(DownloadError, match=r"received \d+ of 700000 bytes; try again"):
        download(server.url("/data"), tmp_path / "data", sha256=SUM)
    have = (tmp_path / "data.part").stat().st_size
    assert 0 < have <= 300_000
    assert not (tmp_path / "data").exists()
    assert download(server.url("/data"), tmp_path / "data", sha256=SUM).read_bytes() == BODY
    assert server.log[-1] == ("/data", f"bytes={have}-")


def test_a_server_without_ranges_starts_over(tmp_path):
    server = Server(ranges=False)
    server.content["/data"] = BODY
    try:
        (tmp_path / "data.part").write_bytes(BODY[:1000])
        assert download(server.url("/data"), tmp_path / "data", sha256=SUM).read_bytes() == BODY
    finally:
        server.close()


def test_a_complete_part_is_only_renamed(server, tmp_path):
    (tmp_path / "data.part").write_bytes(BODY)
    assert download(server.url("/data"), tmp_path / "data").read_bytes() == BODY
    assert len(server.log) == 1


@pytest.mark.parametrize("size", [1000, 700_001, 900_000])
def test_a_part_of_another_file_is_fetched_anew(server, tmp_path, size):
    (tmp_path / "data.part").write_bytes(b"x" * size)
    assert download(server.url("/data"), tmp_path / "data", sha256=SUM).read_bytes() == BODY


def test_a_part_longer_than_the_file_is_fetched_anew_also_without_a_sum(server, tmp_path):
    (tmp_path / "data.part").write_bytes(b"x" * 900_000)
    assert download(server.url("/data"), tmp_path / "data").read_bytes() == BODY


def test_a_wrong_sum_is_an_error_and_leaves_nothing(server, tmp_path):
    with pytest.raises(DownloadError, match=f"sha256 {SUM} instead of 00"):
        download(server.url("/data"), tmp_path / "data", sha256="00")
    assert os.listdir(tmp_path) == []


def test_the_next_address_is_tried_and_all_are_named(server, tmp_path):
    missing = server.url("/missing")
    assert download([missing, server.url("/data")], tmp_path / "a", SUM).read_bytes() == BODY
    refused = "http://127.0.0.1:9/x"
    with pytest.raises(DownloadError) as caught:
        download([missing, refused], tmp_path / "b")
    assert "b could not be downloaded" in str(caught.value)
    assert "404" in str(caught.value)
    assert refused in str(caught.value)
