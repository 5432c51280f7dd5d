"""Runs as one HTML page that needs no network: style, script and data are inside."""

from __future__ import annotations

import hashlib
import html
import json
import time
from collections.abc import Sequence
from importlib import resources
from typing import Any

from towerpack._version import __version__

SCRIPTS = ("scale.js", "chart.js", "bars.js", "tables.js", "main.js")  # in the order they build on
# The page may run what is in it and fetch from where it came from; no other address, ever.
POLICY = (
    "default-src 'none'; script-src 'unsafe-inline'; style-src 'unsafe-inline'; img-src data:; "
    "connect-src 'self'; base-uri 'none'; form-action 'none'"
)


def page_data(runs: Sequence[dict[str, Any]]) -> dict[str, Any]:
    """What the page's script gets; `version` changes when the runs do."""
    version = hashlib.sha256(json.dumps(runs).encode()).hexdigest()[:16]
    return {"towerpack": __version__, "made": time.time(), "version": version, "runs": list(runs)}


def render_page(runs: Sequence[dict[str, Any]], live: bool = False) -> str:
    """The page of one run, or of several laid over each other, as `read_run` gave them.

    A `live` page asks where it came from for new data; see `serve`.
    """
    title = " · ".join(run["name"] for run in runs)
    data = json.dumps(page_data(runs) | {"live": live}, allow_nan=False, separators=(",", ":"))
    parts = {
        "POLICY": POLICY,
        "TITLE": html.escape(f"{title} – towerpack"),
        "STYLE": _file("style.css"),
        # `</script>` or `<!--` in a name must not end the block; in JSON, < may be written so.
        "DATA": data.replace("<", "\\u003c"),
        "SCRIPT": "\n".join(_file(name) for name in SCRIPTS),
    }
    page = _file("page.html")
    pieces = page.split("@@")  # text, name, text, name, ..., text
    return "".join(parts[x] if i % 2 else x for i, x in enumerate(pieces))


def _file(name: str) -> str:
    return resources.files("towerpack.report").joinpath("assets", name).read_text("utf-8")
