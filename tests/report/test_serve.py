"""The page that follows a run."""

from __future__ import annotations

import json
import threading
import urllib.error
import urllib.request

import pytest

from tests.report.chromium import attribute, needs_chromium, open_page
from tests.report.made_runs import make_run
from towerpack.report import serve_report
from towerpack.report.run_reader import NoRunError


@pytest.fixture
def server(tmp_path):
    monitors = make_run(tmp_path / "run", epochs=2, pictures=False, end=False, max_epoch=9)
    with serve_report([tmp_path / "run"]) as server:
        thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.05})
        thread.start()
        server.monitors = monitors
        yield server
        server.shutdown()
        thread.join()
    monitors.close()


def fetch(server, path="", **headers):
    request = urllib.request.Request(server.address + path, headers=headers)
    with urllib.request.urlopen(request, timeout=30) as answer:
        return answer.status, answer.read()


def test_it_follows_a_run(server):
    status, body = fetch(server)
    assert status == 200 and b'"live":true' in body
    _, body = fetch(server, "data")
    data = json.loads(body)
    assert data["runs"][0]["state"] == "running" and data["runs"][0]["facts"]["epoch"] <= 2
    assert fetch(server, f"data?have={data['version']}")[0] == 204
    server.monitors.at(600, 3)
    server.monitors.put_scalar("val_error", 0.001)
    server.monitors.flush()
    status, body = fetch(server, f"data?have={data['version']}")
    curve = json.loads(body)["runs"][0]["curves"]["val_error"]
    assert status == 200 and curve["value"][-1] == 0.001


def test_only_this_machine_is_answered(server):
    assert server.server_address[0] == "127.0.0.1"
    for path, headers, status in [("", {"Host": "evil.example:80"}, 403), ("run.json", {}, 404)]:
        with pytest.raises(urllib.error.HTTPError) as raised:
            fetch(server, path, **headers)
        assert raised.value.code == status
        raised.value.close()


def test_a_directory_without_a_run_is_refused_at_the_start(tmp_path):
    with pytest.raises(NoRunError):
        serve_report([tmp_path])


@needs_chromium
@pytest.mark.slow
@pytest.mark.timeout(300)
def test_the_browser_follows(server, tmp_path):
    read, looks = server.runs, []

    def run_on_and_read():
        looks.append(1)
        if len(looks) == 2:  # the page is there, and asks for the first time
            server.monitors.at(600, 3)
            server.monitors.put_scalar("val_error", 0.00123)
            server.monitors.flush()
        return read()

    server.runs = run_on_and_read
    document = open_page(server.address, tmp_path / "profile", "--virtual-time-budget=8000")
    assert attribute(document, "ready") == "yes"
    assert 'class="pill running"' in document
    assert "<b>0.00123</b>" in document
