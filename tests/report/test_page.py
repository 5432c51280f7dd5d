"""The page: whole in itself, and right in a real browser."""

from __future__ import annotations

import json
import re
import threading
import urllib.error
import urllib.request

import pytest

from tests.report.chromium import attribute, needs_chromium, open_page, with_script
from tests.report.made_runs import make_run
from towerpack.report import read_run, render_page, serve_report
from towerpack.report.run_reader import NoRunError

pytestmark = pytest.mark.timeout(300)  # a browser on a busy machine


@pytest.fixture(scope="module")
def runs(tmp_path_factory):
    directory = tmp_path_factory.mktemp("runs")
    make_run(directory / "first", epochs=12)
    make_run(directory / "second", epochs=6, seed=1, error=ValueError("no more"), max_epoch=12)
    return [read_run(directory / "first"), read_run(directory / "second")]


@pytest.fixture
def page(runs, tmp_path):
    path = tmp_path / "page.html"
    path.write_text(render_page(runs[:1]))
    return path


def test_it_is_one_file_that_asks_for_nothing(runs):
    text = render_page(runs)
    assert not re.search(r"""(?:src|href|url)\s*[=(]\s*["']?(?:https?:)?//""", text)
    assert "default-src 'none'" in text
    assert "@@" not in text


def test_what_people_call_things_cannot_break_out(tmp_path):
    make_run(tmp_path / "x", epochs=1, pictures=False)
    run = read_run(tmp_path / "x")
    run["name"] = "</script><script>document.documentElement.dataset.broken = 1</script><!--"
    text = render_page([run])
    assert text.count("</script>") == 2
    block = re.search(r'id="data">(.*?)</script>', text, re.DOTALL)[1]
    assert json.loads(block)["runs"][0]["name"] == run["name"]


@needs_chromium
@pytest.mark.slow
def test_a_run_in_the_browser(page, tmp_path):
    document = open_page(page, tmp_path / "profile")
    assert attribute(document, "ready") == "yes"
    charts = re.findall(r'data-chart="([^"]*)"', document)
    assert charts == [
        "error",
        "cost",
        "gradients/largest",
        "gradients/norm",
        "learning_rate",
        "HostMemory/resident_GB",
        "QueueInput/queue_size",
    ]
    sections = re.findall(r'data-section="([^"]*)"', document)
    assert sections == [
        "Curves",
        "Time and data flow",
        "Classes",
        "Checkpoints",
        "Pictures",
        "About",
    ]
    classes = re.findall(r'data-classes="([^"]*)".*?<tbody>(.*?)</tbody>', document)
    assert [(name, rows.count("<tr>")) for name, rows in classes] == [
        ("training", 2),
        ("validation", 20),
    ]
    assert "9,900" in classes[0][1] and "&lt;19&gt;" in classes[1][1]
    assert "class_weight='balanced'" in document
    assert "the rarest 20 of 200 classes" in document
    assert document.count('class="curve"') == 9  # two charts have two curves
    assert "AugmentImageComponent" in document and "use more workers, there are 8 cores" in document
    assert "ResNet(depth=20, width=16)" in document
    assert document.count('<img src="data:image/png') == 2


@needs_chromium
@pytest.mark.slow
def test_hover_smoothing_axis_log_filter_and_theme(page, tmp_path):
    script = """
    const out = document.documentElement.dataset;
    const canvas = document.querySelector('[data-chart="error"] svg');
    const box = canvas.getBoundingClientRect();
    canvas.dispatchEvent(new PointerEvent("pointermove", { clientX: box.left + box.width / 2 }));
    out.tip = document.querySelector('[data-chart="error"] .tip').innerText.replace(/\\s+/g, " ");
    out.crosses = document.querySelectorAll(".cross").length;
    canvas.dispatchEvent(new PointerEvent("pointerleave"));
    out.left = document.querySelectorAll(".cross").length;
    const set = (id, value, event) => {
      const node = document.getElementById(id);
      if (typeof value === "boolean") node.checked = value; else node.value = value;
      node.dispatchEvent(new Event(event));
    };
    const all = (selector) => [...document.querySelectorAll(selector)];
    const curve = (name) => all(`[data-chart="${name}"] .curve`)[0].getAttribute("d");
    set("smoothing", 0, "input");
    const exact = curve("cost"), rate = curve("learning_rate");
    set("smoothing", 0.88, "input");
    out.smoothed = curve("cost") !== exact;
    out.schedule = curve("learning_rate") === rate;
    out.raw = document.querySelectorAll('[data-chart="cost"] .raw').length;
    set("axis", "epoch", "change");
    out.axis = all('[data-chart="cost"] text').some((x) => x.textContent === "10");
    set("smoothing", 0, "input");
    set("axis", "step", "change");
    set("log", true, "change");
    out.log = curve("cost") !== exact;
    const search = document.querySelector('input[type="search"]');
    search.value = "val_err";
    search.dispatchEvent(new Event("input"));
    out.filtered = all("[data-chart]").filter((x) => !x.hidden).map((x) => x.dataset.chart).join();
    document.querySelector("header button").click();
    out.back = getComputedStyle(document.body).backgroundColor;
    """
    document = open_page(with_script(page, script), tmp_path / "profile")
    tip = attribute(document, "tip")
    assert re.fullmatch(r"step [\d,]+ · epoch \d+ train_error 0\.\d+ val_error 0\.\d+", tip), tip
    assert attribute(document, "crosses") == "7" and attribute(document, "left") == "0"
    for name in ("smoothed", "schedule", "axis", "log"):
        assert attribute(document, name) == "true", name
    assert attribute(document, "raw") == "1"  # the curve of few points needs none
    assert attribute(document, "filtered") == "error"
    assert attribute(document, "back") == "rgb(14, 18, 24)"


@needs_chromium
@pytest.mark.slow
def test_several_runs_lie_over_each_other_and_can_be_hidden(runs, tmp_path):
    path = tmp_path / "several.html"
    settings = [{"seed": 0, "units": [64]}, {"seed": 0, "units": [64, 32]}]
    path.write_text(
        render_page([run | {"settings": x} for run, x in zip(runs, settings, strict=True)])
    )
    script = """
    const out = document.documentElement.dataset;
    const count = () => document.querySelectorAll('[data-chart="cost"] .curve').length;
    out.before = count();
    document.querySelector(".chip").click();
    out.after = count();
    """
    document = open_page(with_script(path, script), tmp_path / "profile")
    assert (attribute(document, "before"), attribute(document, "after")) == ("2", "1")
    assert "ValueError: no more" in document
    assert "<th>units</th>" in document and "<td>[64,32]</td>" in document
    assert "<th>seed</th>" not in document
    assert len(re.findall(r'data-bars="', document)) == 2


@needs_chromium
@pytest.mark.slow
def test_the_ranks_of_a_run_and_the_one_that_is_slow(tmp_path):
    make_run(tmp_path / "ranks", epochs=4, ranks=4, pictures=False)
    path = tmp_path / "page.html"
    path.write_text(render_page([read_run(tmp_path / "ranks")]))
    document = open_page(path, tmp_path / "profile")
    card = re.search(r'data-ranks="4".*?</table>', document, re.DOTALL)[0]
    assert re.findall(r">(\d)(?:, the chief)?<", card) == ["0", "1", "2", "3"]
    assert re.search(r"<tr><td><span[^>]*>3<span[^>]*>slow</span>", card)
    assert card.count(">slow<") == 1
    assert "with other ranks" in document and "rank 3 on host node2 is slow" in document


@needs_chromium
@pytest.mark.slow
@pytest.mark.parametrize("width", [360, 1360])
def test_it_fits_a_phone_and_a_screen(page, tmp_path, width):
    # Chromium has no window under 500 pixels; a frame has.
    frame = tmp_path / "frame.html"
    frame.write_text(
        f'<iframe src="{page.name}" style="width:{width}px;height:800px"></iframe>'
        "<script>onload = () => { const page = frames[0].document.documentElement;"
        "document.documentElement.dataset.width = page.scrollWidth; }</script>"
    )
    document = open_page(frame, tmp_path / "profile", "--allow-file-access-from-files")
    assert int(attribute(document, "width")) <= width + 1


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
