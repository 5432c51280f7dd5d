"""Runs as one HTML page that needs no network, and a local server for runs in progress."""

from __future__ import annotations

import gzip
import hashlib
import html
import json
import threading
import time
from collections.abc import Sequence
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from importlib import resources
from pathlib import Path
from typing import Any
from urllib.parse import parse_qs, urlsplit

from towerpack._version import __version__
from towerpack.report.run_reader import read_run

SCRIPTS = ("scale.js", "chart.js", "bars.js", "tables.js", "main.js")  # later ones use earlier ones
# The page may run its own scripts and fetch from its own origin, but from no other address.
POLICY = (
    "default-src 'none'; script-src 'unsafe-inline'; style-src 'unsafe-inline'; img-src data:; "
    "connect-src 'self'; base-uri 'none'; form-action 'none'"
)


def page_data(runs: Sequence[dict[str, Any]]) -> dict[str, Any]:
    """The data for the page's script; `version` changes when the runs do."""
    version = hashlib.sha256(json.dumps(runs).encode()).hexdigest()[:16]
    return {"towerpack": __version__, "made": time.time(), "version": version, "runs": list(runs)}


def render_page(runs: Sequence[dict[str, Any]], live: bool = False) -> str:
    """The page of one run, or of several in shared charts, as `read_run` returned them.

    A `live` page fetches new data from its server; see `serve_report`.
    """
    title = " · ".join(run["name"] for run in runs)
    return fill_page(title, page_data(runs) | {"live": live}, SCRIPTS)


def fill_page(title: str, data: dict[str, Any], scripts: Sequence[str]) -> str:
    """The page with a title, these scripts, and the data that they show."""
    text = json.dumps(data, allow_nan=False, separators=(",", ":"))
    parts = {
        "POLICY": POLICY,
        "TITLE": html.escape(f"{title} – towerpack"),
        "STYLE": _file("style.css"),
        # `</script>` or `<!--` in a name must not end the block; in JSON, < may be written so.
        "DATA": text.replace("<", "\\u003c"),
        "SCRIPT": "\n".join(_file(name) for name in scripts),
    }
    page = _file("page.html")
    pieces = page.split("@@")  # text, name, text, name, ..., text
    return "".join(parts[x] if i % 2 else x for i, x in enumerate(pieces))


def _file(name: str) -> str:
    return resources.files("towerpack.report").joinpath("assets", name).read_text("utf-8")


LOOPBACK = "127.0.0.1"
LOCAL_NAMES = ("127.0.0.1", "localhost")


class ReportServer(ThreadingHTTPServer):
    """Serves the page at `/` and its data at `/data`, on loopback only.

    A request reads the directories again if their files have changed.
    """

    daemon_threads = True

    def __init__(self, directories: Sequence[str | Path], port: int = 0):
        self.directories = [Path(directory) for directory in directories]
        self._lock = threading.Lock()
        self._seen: Any = None
        self._runs: list[dict[str, Any]] = []
        self.runs()  # a directory without a run is an error now, not later in the browser
        super().__init__((LOOPBACK, port), _Handler)

    @property
    def address(self) -> str:
        return f"http://{LOOPBACK}:{self.server_address[1]}/"

    def runs(self) -> list[dict[str, Any]]:
        with self._lock:
            seen = [_fingerprint(directory) for directory in self.directories]
            running = any(run["state"] == "running" for run in self._runs)
            if seen != self._seen or running:  # a process may have ended without touching a file
                self._runs = [read_run(directory) for directory in self.directories]
                self._seen = seen
            return self._runs


class _Handler(BaseHTTPRequestHandler):
    server: ReportServer

    def do_GET(self) -> None:
        # A page of another site whose name resolves to this machine must not read the runs.
        if self.headers.get("Host", "").rpartition(":")[0] not in LOCAL_NAMES:
            self.send_error(403, "this server answers to its loopback address only")
            return
        place = urlsplit(self.path)
        if place.path == "/":
            self._answer("text/html; charset=utf-8", render_page(self.server.runs(), live=True))
        elif place.path == "/data":
            data = page_data(self.server.runs())
            if parse_qs(place.query).get("have") == [data["version"]]:
                self.send_response(204)
                self.end_headers()
            else:
                self._answer("application/json", json.dumps(data, allow_nan=False))
        else:
            self.send_error(404)

    def _answer(self, kind: str, text: str) -> None:
        body = text.encode()
        self.send_response(200)
        if "gzip" in self.headers.get("Accept-Encoding", ""):
            body = gzip.compress(body, compresslevel=1)
            self.send_header("Content-Encoding", "gzip")
        self.send_header("Content-Type", kind)
        self.send_header("Content-Length", str(len(body)))
        self.send_header("Content-Security-Policy", POLICY)
        self.send_header("Cache-Control", "no-store")
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, format: str, *args: Any) -> None:
        """Logs nothing, since a page that follows a run sends a request every few seconds."""


def serve_report(directories: Sequence[str | Path], port: int = 0) -> ReportServer:
    """A server for these runs, ready for `serve_forever()`; `port` 0 selects a free port."""
    return ReportServer(directories, port)


def _fingerprint(directory: Path) -> list[tuple[str, int, int]]:
    found = []
    for path in sorted(directory.iterdir()):
        try:
            stat = path.stat()
        except FileNotFoundError:  # removed since
            continue
        found.append((path.name, stat.st_mtime_ns, stat.st_size))
    return found
