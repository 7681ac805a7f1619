"""The HTML report in a real browser: it renders without an error, says what the JSON says, and its
controls work.

chromedriver is spoken to in its own protocol (W3C WebDriver): JSON over HTTP.
"""

import dataclasses
import json
import shutil
import socket
import subprocess
import time
import urllib.request
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from xmem_slurm import api, resources, trace_file
from xmem_slurm.report import html
from xmem_slurm.report import json as json_report
from xmem_slurm.report.timeline import timeline
from xmem_slurm.site.loading import load_catalogue, load_site, option_gpus
from xmem_slurm.sizing.estimate import estimate
from xmem_slurm.sizing.placement import Placement, Verdict
from xmem_slurm.sizing.sizing import Advice, Sizing
from xmem_slurm.trace import NOWHERE, Category, Origin
from xmem_slurm.units import human

pytestmark = pytest.mark.skipif(
    not (shutil.which("chromedriver") and shutil.which("chromium")),
    reason="chromium and chromedriver are not installed",
)

GPUS = option_gpus(load_site(resources.tree("site-config") / "example.toml"), load_catalogue())
GPT2 = trace_file.read(Path(__file__).parents[2] / "data" / "gpt2-small.json.gz")
VERDICTS = [Verdict(name, gpu, True if name == "l4" else None) for name, gpu in GPUS.items()]
ONE = Sizing(estimate([GPT2], "l4", GPUS["l4"]), Placement(VERDICTS, "l4"), 8.25)
RANKS = [dataclasses.replace(GPT2, rank=rank, world_size=2) for rank in range(2)]
TWO = Sizing(estimate(RANKS, "l4", GPUS["l4"]), Placement(VERDICTS, "l4"), 8.25)


class Browser:
    """A page in headless Chromium."""

    def __init__(self, port: int) -> None:
        self.base = f"http://127.0.0.1:{port}/session"
        options = {
            "args": ["--headless=new", "--no-sandbox", "--disable-gpu", "--window-size=1280,1600"]
        }
        wanted = {"goog:chromeOptions": options, "goog:loggingPrefs": {"browser": "ALL"}}
        self.base += "/" + self.post("", {"capabilities": {"alwaysMatch": wanted}})["sessionId"]

    def post(self, path: str, body: dict[str, Any]) -> Any:
        request = urllib.request.Request(
            self.base + path, json.dumps(body).encode(), {"Content-Type": "application/json"}
        )
        with urllib.request.urlopen(request) as reply:
            return json.load(reply)["value"]

    def open(self, path: Path) -> None:
        self.post("/url", {"url": path.as_uri()})

    def run(self, script: str) -> Any:
        return self.post("/execute/sync", {"script": script, "args": []})

    def press(self, *keys: str) -> None:
        actions = [{"type": kind, "value": key} for key in keys for kind in ("keyDown", "keyUp")]
        self.post("/actions", {"actions": [{"type": "key", "id": "keyboard", "actions": actions}]})

    def hover(self, x: int, y: int) -> None:
        move = {"type": "pointerMove", "x": x, "y": y, "duration": 0}
        self.post("/actions", {"actions": [{"type": "pointer", "id": "mouse", "actions": [move]}]})

    def click(self, x: int, y: int) -> None:
        self.hover(x, y)
        actions = [{"type": kind, "button": 0} for kind in ("pointerDown", "pointerUp")]
        self.post("/actions", {"actions": [{"type": "pointer", "id": "mouse", "actions": actions}]})

    def resize(self, width: int, height: int) -> None:
        self.post("/goog/cdp/execute", {
            "cmd": "Emulation.setDeviceMetricsOverride",
            "params": {"width": width, "height": height, "deviceScaleFactor": 2, "mobile": True},
        })  # fmt: skip

    def complaints(self) -> list[str]:
        return [entry["message"] for entry in self.post("/se/log", {"type": "browser"})]

    def close(self) -> None:
        urllib.request.urlopen(urllib.request.Request(self.base, method="DELETE")).close()


@pytest.fixture(scope="module")
def chromium() -> Iterator[Browser]:
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    process = subprocess.Popen(["chromedriver", f"--port={port}"], stdout=subprocess.DEVNULL)
    for _ in range(200):
        with socket.socket() as probe:
            if probe.connect_ex(("127.0.0.1", port)) == 0:
                break
        time.sleep(0.05)
    opened = Browser(port)
    yield opened
    opened.close()
    process.terminate()
    process.wait()


@pytest.fixture
def browser(chromium: Browser, tmp_path: Path) -> Iterator[Browser]:
    html.write(tmp_path / "report.html", ONE)
    chromium.complaints()
    chromium.open(tmp_path / "report.html")
    yield chromium
    assert chromium.complaints() == []


def test_a_fault_of_a_page_would_be_seen(chromium: Browser, tmp_path: Path) -> None:
    (tmp_path / "fault.html").write_text("<script>nothing.here()</script>")
    chromium.open(tmp_path / "fault.html")
    assert "nothing is not defined" in "".join(chromium.complaints())


def test_the_numbers_are_those_of_the_json(browser: Browser) -> None:
    found = json_report.estimate_object(ONE)
    assert (
        browser.run("return JSON.parse(document.getElementById('estimate').textContent)") == found
    )
    shown = browser.run(
        "return [...document.querySelectorAll('data[id]')].map(e => [e.id, e.value, e.textContent])"
    )
    values = {name: int(value) for name, value, _ in shown}
    assert all(text == human(int(value)) for _, value, text in shown)
    rank = found["ranks"][0]
    expected = {
        "required": found["required_bytes"],
        "least": rank["fits_in_bytes"],
        "outside": rank["outside_allocator_bytes"],
        "margin": found["margin_bytes"],
        **{f"rank-0-{category}": size for category, size in rank["breakdown"].items()},
        **{f"capacity-{option['name']}": option["capacity_bytes"] for option in found["options"]},
    }
    assert values == expected
    assert browser.run("return document.getElementById('choice').innerText") == found["choice"]
    assert (
        browser.run("return document.getElementById('confidence').innerText")
        == found["confidence"]["level"]
    )


def test_the_chart_shows_the_peak_first_and_follows_keys_and_pointer(browser: Browser) -> None:
    rank = ONE.estimate.largest
    text = "return document.querySelector('output').innerText"
    first = browser.run(text)
    assert f"{human(rank.replay.peak_allocated_bytes)} allocated" in first
    assert f"{human(rank.replay.peak_reserved_bytes)} reserved" in first
    browser.run("document.querySelector('input[type=range]').focus()")
    browser.press("\ue012", "\ue012", "\ue012")  # left arrow
    moved = browser.run(text)
    assert moved != first
    box = browser.run(
        "const b = document.querySelector('.plot').getBoundingClientRect(); return [b.x, b.y, "
        "b.width, b.height]"
    )
    browser.hover(int(box[0] + 3), int(box[1] + box[3] / 2))
    assert "forward, step 1" in browser.run(text)


def with_stacks() -> Sizing:
    """GPT-2 whose activations are asked for by two lines of one function, and the rest by the
    script itself."""
    of = {Category.ACT: 2, Category.TEMP: 3}
    sites = [
        NOWHERE,
        Origin("/x/train.py", 9, "main", ""),
        Origin("/x/model.py", 3, "forward", "h.0"),
        Origin("/x/model.py", 4, "forward", "h.0"),
    ]
    made_at = [of.get(allocation.category, 1) for allocation in GPT2.allocations]
    found = dataclasses.replace(GPT2, sites=sites, callers=[0, 0, 1, 1], made_at=made_at)
    return Sizing(estimate([found], "l4", GPUS["l4"]), Placement(VERDICTS, "l4"), 8.25)


def test_a_click_into_the_chart_shows_what_is_alive_then_and_who_asked_for_it(
    browser: Browser, tmp_path: Path
) -> None:
    html.write(tmp_path / "stacks.html", with_stacks())
    browser.open(tmp_path / "stacks.html")
    look = (
        "return [...document.querySelectorAll('.when, .sum, .largest tbody, .flame')].map(e => "
        "e.innerText)"
    )
    at_peak = browser.run(look)
    assert at_peak[0] == "at the peak"
    assert "forward (model.py:3)" in at_peak[-1]
    box = (
        "const b = document.querySelector('.plot').getBoundingClientRect(); return [b.x + "
        "b.width - 2, b.y + 20]"
    )
    browser.click(*map(int, browser.run(box)))
    moved = browser.run(look)
    event = int(moved[0].removeprefix("after event ").partition(" ")[0].replace(",", ""))
    (then,) = [column for column in timeline(GPT2, html.COLUMNS).columns if column.event == event]
    assert moved[1].startswith(human(then.allocated_bytes))
    assert "forward (model.py:3)" not in moved[-1]
    browser.run("document.querySelector('.back').focus()")
    browser.press("\ue007")
    assert browser.run(look) == at_peak


def library_inside() -> Sizing:
    """GPT-2 whose activations a library asks for, on behalf of a line of the script; the rest by
    another."""
    library = "/opt/lib/python3.11/site-packages/nn/layers.py"
    of = {Category.ACT: 3, Category.TEMP: 3}
    sites = [
        NOWHERE,
        Origin("/x/train.py", 9, "main", ""),
        Origin("/x/train.py", 12, "main", ""),
        Origin(library, 3, "forward", "h.0"),
    ]
    made_at = [of.get(allocation.category, 1) for allocation in GPT2.allocations]
    found = dataclasses.replace(GPT2, sites=sites, callers=[0, 0, 0, 2], made_at=made_at)
    return Sizing(estimate([found], "l4", GPUS["l4"]), Placement(VERDICTS, "l4"), 8.25)


ROWS = (
    "return [...document.querySelectorAll('.largest tbody tr')].filter(e => "
    "e.checkVisibility()).map(e => e.innerText)"
)


def test_rows_stand_below_the_users_own_lines_at_the_peak_and_later(
    browser: Browser, tmp_path: Path
) -> None:
    html.write(tmp_path / "library.html", library_inside())
    browser.open(tmp_path / "library.html")
    own = "return [...document.querySelectorAll('.own')].map(e => e.innerText)"
    at_peak = browser.run(own)
    assert [line.partition(":")[0] for line in at_peak] == ["main (train.py", "main (train.py"]
    assert [line.split(" ")[1] for line in at_peak] == ["(train.py:12):", "(train.py:9):"]
    assert sum(float(line.split()[-2]) for line in at_peak) == pytest.approx(100, abs=0.2)
    browser.run("document.querySelector('input[type=range]').focus()")
    browser.press("\ue012", "\ue012", "\ue012")  # left arrow
    later = browser.run(own)
    assert later != at_peak
    assert sum(float(line.split()[-2]) for line in later) == pytest.approx(100, abs=0.2)


def test_lines_are_found_and_those_of_libraries_hidden(browser: Browser, tmp_path: Path) -> None:
    html.write(tmp_path / "library.html", library_inside())
    browser.open(tmp_path / "library.html")
    frames = "return [...document.querySelectorAll('.flame button')].map(e => e.textContent)"
    before = browser.run(ROWS)
    assert "forward (layers.py:3)" in browser.run(frames)
    browser.run("document.querySelector('input[type=checkbox]').focus()")
    browser.press(" ")
    assert "forward (layers.py:3)" not in browser.run(frames)
    assert "main (train.py:12)" in browser.run(frames)
    assert not any("layers.py" in row for row in browser.run(ROWS))
    browser.press(" ")
    assert browser.run(ROWS) == before
    browser.run("document.querySelector('input[type=search]').focus()")
    browser.press(*"optimizer ST")
    rows = browser.run(ROWS)
    assert 1 < len(rows) < len(before)
    assert all("optimizer state" in row for row in rows[1:])
    said = browser.run("return document.querySelector('.find output').textContent")
    state = json_report.estimate_object(ONE)["ranks"][0]["breakdown"]["OPT"]
    assert f"holds {human(state)}, " in said
    assert browser.run("return document.querySelectorAll('.flame .hit').length") > 0
    browser.press(*["\ue003"] * 12)  # backspace
    assert browser.run(ROWS) == before


@pytest.mark.parametrize("width", [390, 800])
def test_no_table_is_cut_on_a_narrow_screen(browser: Browser, tmp_path: Path, width: int) -> None:
    html.write(tmp_path / "library.html", library_inside())
    browser.open(tmp_path / "library.html")
    browser.resize(width, 800)
    browser.run("document.querySelectorAll('details').forEach(e => { e.open = true; })")
    cut = "[...document.querySelectorAll('.scroll')].filter(e => e.scrollWidth > e.clientWidth)"
    assert browser.run(f"return {cut}.map(e => e.ariaLabel)") == []
    assert browser.run("return document.documentElement.scrollWidth") <= width
    assert (
        browser.run("return document.querySelector('.largest').innerText").count("layers.py:3") > 0
    )
    browser.post("/goog/cdp/execute", {"cmd": "Emulation.clearDeviceMetricsOverride", "params": {}})


def too_large() -> Sizing:
    """GPT-2 on a GPU that is too small from the first step on, and what was found of changes to
    it."""
    small = GPUS["l4"].model_copy(update={"total_bytes": 12 << 30})
    found = ONE.estimate
    advice = [Advice("small", "gradient_checkpointing_enable() of every layer", found, fits=True)]
    return Sizing(found, Placement([Verdict("small", small, False)], None), 8.25, advice)


def test_where_a_small_gpu_is_full_is_said_within_the_chart_at_any_width(
    browser: Browser, tmp_path: Path
) -> None:
    html.write(tmp_path / "large.html", too_large())
    browser.open(tmp_path / "large.html")
    inside = (
        "const [a, b] = ['.fails', '.plot'].map(e => "
        "document.querySelector(e).getBoundingClientRect()); "
    )
    for width in (390, 1200):
        browser.resize(width, 800)
        assert browser.run(f"{inside} return a.left >= b.left && a.right <= b.right")
        assert browser.run("return document.documentElement.scrollWidth") <= width
    browser.post("/goog/cdp/execute", {"cmd": "Emulation.clearDeviceMetricsOverride", "params": {}})


def test_the_headline_is_marked_in_the_chart_and_how_sure_it_is_stands_before_it(
    browser: Browser,
) -> None:
    mark = browser.run("return document.querySelector('.capacity.needed').innerText")
    largest = ONE.estimate.largest
    assert mark.startswith(
        f"{human(largest.required_bytes)} needed: {human(largest.fits_in_bytes)} here + "
    )
    top = "return document.querySelector('{}').getBoundingClientRect().top"
    line, reserved = (browser.run(top.format(path)) for path in ("path.needed", "path.reserved"))
    assert abs(line - reserved) < 2
    assert browser.run(top.format("#sure")) < browser.run(top.format("figure.chart"))


def test_the_flame_graph_is_walked_by_keys(browser: Browser, tmp_path: Path) -> None:
    html.write(tmp_path / "stacks.html", with_stacks())
    browser.open(tmp_path / "stacks.html")
    said = "return document.querySelector('.frame-said').innerText"
    browser.run("document.querySelector('.flame button[tabindex=\"0\"]').focus()")
    assert browser.run(said).startswith(
        f"all: {human(ONE.estimate.largest.replay.peak_allocated_bytes)}, 100.0 %"
    )
    names = []
    for key in ("\ue015", "\ue015", "\ue014", "\ue012", "\ue013"):  # down, down, right, left, up
        browser.press(key)
        names.append(browser.run(said).partition(":")[0])
    assert names[0] == names[-1] == "main (train.py"
    width = (
        "return Math.round(100 * parseFloat(document.querySelectorAll('.flame "
        "button')[0].style.width))"
    )
    browser.press("\ue015", "\ue007")  # down, enter
    assert browser.run("return document.querySelector('.flame button').textContent") != "all"
    assert browser.run(width) == 10_000
    browser.press("\ue00c")  # escape
    assert browser.run("return document.querySelector('.flame button').textContent") == "all"


def test_zoom_by_key_shows_fewer_columns_and_the_whole_again(browser: Browser) -> None:
    view = "return [...document.querySelectorAll('svg.view')].map(v => v.viewBox.baseVal.width)"
    whole = browser.run(view)
    browser.run("document.querySelector('[data-zoom=in]').focus()")
    browser.press("\ue007")  # enter
    assert browser.run(view) == [width / 2 for width in whole]
    browser.run("document.querySelector('[data-zoom=all]').focus()")
    browser.press("\ue007")
    assert browser.run(view) == whole


def test_every_control_is_reached_by_the_tab_key_and_has_a_name(browser: Browser) -> None:
    reached = []
    for _ in range(14):
        browser.press("\ue004")  # tab
        reached.append(
            browser.run(
                "const e = document.activeElement; return e.innerText || e.ariaLabel || e.type"
            )
        )
    wanted = {"range", "Zoom in", "Zoom out", "Whole run", "The chart as a table"}
    assert wanted <= set(reached)
    assert "event" in browser.run("return document.querySelector('svg[role=img]').ariaLabel")


def test_text_has_the_contrast_that_wcag_asks_for(browser: Browser) -> None:
    """4.5 to 1 for text (WCAG 2.2, 1.4.3)."""
    low = browser.run("""
        const light = (c) => c.map(v => v / 255).map(v => v <= 0.04045 ? v / 12.92 : ((v + 0.055) / 1.055) ** 2.4)
          .reduce((sum, v, i) => sum + v * [0.2126, 0.7152, 0.0722][i], 0);
        const rgb = (text) => text.match(/[\\d.]+/g).map(Number);
        const behind = (e) => {
          for (; e; e = e.parentElement) {
            const c = rgb(getComputedStyle(e).backgroundColor);
            if (c[3] !== 0) return c;
          }
          return [255, 255, 255];
        };
        return [...document.querySelectorAll('p, h1, h2, h3, th, td, dt, dd, span, button, summary, output')]
          .filter(e => e.innerText && e.innerText.trim())
          .map(e => {
            const [a, b] = [rgb(getComputedStyle(e).color).slice(0, 3), behind(e).slice(0, 3)].map(light);
            return [e.innerText.slice(0, 30), (Math.max(a, b) + 0.05) / (Math.min(a, b) + 0.05)];
          }).filter(([, ratio]) => ratio < 4.5)""")
    assert low == []


def test_on_a_phone_nothing_is_cut_off_and_text_stays_readable(browser: Browser) -> None:
    browser.resize(360, 740)
    assert browser.run("return document.documentElement.scrollWidth") <= 360
    assert browser.run("return document.querySelector('.plot').getBoundingClientRect().width") > 240
    sizes = (
        "return [...document.querySelectorAll('span, td, p')].map(e => "
        "parseFloat(getComputedStyle(e).fontSize))"
    )
    assert min(browser.run(sizes)) >= 10
    browser.post("/goog/cdp/execute", {"cmd": "Emulation.clearDeviceMetricsOverride", "params": {}})


def test_without_a_script_the_page_still_has_everything(browser: Browser, tmp_path: Path) -> None:
    page = html.render(ONE)
    (tmp_path / "plain.html").write_text(page[: page.rindex("<script>")] + "</body></html>")
    browser.open(tmp_path / "plain.html")
    assert browser.run("return document.querySelectorAll('svg.view path.ACT').length") == 1
    assert not browser.run("return document.querySelector('.controls').checkVisibility()")


@pytest.mark.parametrize("width", [500, 1200])
def test_in_a_notebook_the_frame_is_as_high_as_its_chart(
    browser: Browser, tmp_path: Path, width: int
) -> None:
    found = api._estimate((), json_report.estimate_object(ONE), ONE)
    (tmp_path / "cell.html").write_text(
        f"<!DOCTYPE html><body>{found._repr_html_()}</body>", encoding="utf-8"
    )
    browser.resize(width, 900)
    browser.open(tmp_path / "cell.html")
    frame = "const f = document.querySelector('iframe'); return [f.clientHeight, f.contentDocument"
    height, bottom = browser.run(
        f"{frame}.querySelector('figure.chart').getBoundingClientRect().bottom]"
    )
    assert 0 < height - bottom < 40
    browser.post("/goog/cdp/execute", {"cmd": "Emulation.clearDeviceMetricsOverride", "params": {}})


def test_two_ranks_have_a_chart_each_and_a_table(browser: Browser, tmp_path: Path) -> None:
    html.write(tmp_path / "two.html", TWO)
    browser.open(tmp_path / "two.html")
    assert browser.run("return document.querySelectorAll('figure.chart').length") == 2
    required = browser.run(
        "return ['0', '1'].map(r => Number(document.getElementById(`rank-${r}-required`).value))"
    )
    assert required == [
        rank["required_bytes"] for rank in json_report.estimate_object(TWO)["ranks"]
    ]
