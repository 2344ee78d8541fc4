#!/usr/bin/env python3
"""Checks of the page in a browser: does what readers do, holds what comes of it against what the page promises; a line a check.

Used by tests/pages:  checks.py CHROMIUM PIPESIM FOLDER [--screenshots FOLDER]
Exit code 1 if a check fails. Timings are printed; only absurd ones fail, machines are noisy.
"""

import base64
import json
import pathlib
import re
import statistics
import subprocess
import sys
import time
import traceback
import unicodedata

from axe_playwright_python.sync_playwright import Axe
from playwright.sync_api import sync_playwright
from pypdf import PdfReader

ROOT = pathlib.Path(__file__).resolve().parents[2]
WIDE, NARROW = {"width": 1400, "height": 900}, {"width": 500, "height": 900}
CHECKS = []


def check(function):
    """A check: takes the bench, returns what it found in a few words."""
    CHECKS.append(function)
    return function


def holds(truth, what):
    if not truth:
        raise AssertionError(what)


# When the first frame after loading was done, and how long each callback of a frame took.
WATCH = """(() => {
  const later = window.requestAnimationFrame.bind(window);
  window.drawing = [];
  window.requestAnimationFrame = act => later(now => { const begun = performance.now(); act(now); if (!act.watching) drawing.push(performance.now() - begun); });
  window.addEventListener("load", () => later(() => later(() => { window.painted = performance.now(); })));
})()"""


class Bench:
    """The browser, the pages that are opened in it, and everything that goes wrong meanwhile."""

    def __init__(self, browser, pages):
        self.browser, self.pages, self.wrong, self.requests = browser, pages, [], []
        self.contexts = []

    def open(self, name, fragment="", size=WIDE, **options):
        context = self.browser.new_context(viewport=size, **options)
        context.set_offline(True)
        context.route("**/*", self.route)
        self.contexts.append(context)
        page = context.new_page()
        page.add_init_script(WATCH)
        page.on("console", lambda message: self.wrong.append(f"console: {message.text}"))
        page.on("pageerror", lambda error: self.wrong.append(f"error: {error}"))
        page.goto(self.pages[name].as_uri() + fragment)
        page.wait_for_timeout(100)
        return page

    def route(self, route):
        url = route.request.url
        if url.startswith("file://") and route.request.is_navigation_request():
            route.continue_()
        else:
            self.requests.append(url)
            route.abort()

    def close(self):
        for context in self.contexts:
            context.close()
        self.contexts = []


FRAMES = "() => new Promise(done => requestAnimationFrame(() => requestAnimationFrame(() => setTimeout(done))))"


def settle(page, milliseconds=300):
    """Waits, and in any case until the page has drawn what it was sent before and after: on a busy machine it is late."""
    page.evaluate(FRAMES)
    page.wait_for_timeout(milliseconds)
    page.evaluate(FRAMES)


def seen(page, before=None):
    """The part of time that is seen, from the address; waits for another address than `before`, which a busy machine writes late."""
    for _ in range(50 if before else 0):
        if page.url != before:
            break
        settle(page, 100)
    settle(page)
    match = re.search(r"v=([\d.e-]+),([\d.e-]+)", page.url)
    return (float(match[1]), float(match[2])) if match else (0.0, 1.0)


def card(page):
    return page.inner_text("#card")


def canvas(page):
    return page.locator("#canvas").bounding_box()


def ops(page):
    """Rows of compute spans of every panel: [(name, start, end)], with the panel's name and the end of the axis."""
    return page.evaluate("""() => {
      const data = JSON.parse(document.getElementById("data").textContent), kinds = "FIWB";
      return data.entries.flatMap(entry => entry.panels.map(panel => ({ name: entry.name, source: panel.source, end: panel.end, iteration: panel.iteration,
        classes: data.classes, rows: panel.rows.map(([flat]) => { const out = []; let at = 0;
          for (let i = 0; i < flat.length; i += 8) { const start = at += flat[i + 3]; at += flat[i + 4];
            out.push([flat[i] < 4 ? flat[i + 1] + kinds[flat[i]] + flat[i + 2] : "step", start * panel.tick / panel.unitNs, at * panel.tick / panel.unitNs, flat[i], flat[i + 6]]); }
          return out; }) })));
    }""")


def point(page, op, device, panel=0):
    """Where the middle of an op of a panel is on the screen, in a page that was not zoomed: rows are found by their picture."""
    found = ops(page)[panel]
    start, end = next((s, e) for name, s, e, *_ in found["rows"][device] if name == op)
    box = canvas(page)
    plot = box["width"] - 128 - 118
    x = box["x"] + 128 + (start + end) / 2 / found["end"] * plot
    # the first row that answers with this device
    for y in range(int(box["y"]) + 30, int(box["y"] + box["height"]), 4):
        page.mouse.move(x, y)
        text = card(page)
        if text.startswith(op + "\n") and f"device {device} of {found['name']}" in text.replace("\n", " "):
            return x, y + 4
    raise AssertionError(f"{op} is nowhere in the picture")


@check
def opens_from_disk_without_a_network(bench):
    for name in bench.pages:
        page = bench.open(name)
        holds(page.inner_text("h1"), f"{name} has no title")
        inked = page.evaluate("() => { const c = document.getElementById('canvas'), d = c.getContext('2d').getImageData(0, 0, c.width, c.height).data; const all = new Set(); for (let i = 0; i < d.length; i += 4 * 97) all.add(d[i] << 16 | d[i + 1] << 8 | d[i + 2]); return all.size; }")
        holds(inked > 10, f"{name}: the timeline has {inked} colours")
    return f"{len(bench.pages)} pages"


@check
def the_wheel_scrolls_and_zooms_where_it_says(bench):
    page = bench.open("small")
    holds("wheel scrolls the page" in card(page), "the page does not say what the wheel does")
    box = canvas(page)
    page.mouse.move(box["x"] + 600, box["y"] + 200)
    page.mouse.wheel(0, 240)
    holds(seen(page) == (0, 1) and page.evaluate("scrollY") > 100, "a plain wheel must scroll the page and leave the time axis alone")
    page.evaluate("scrollTo(0, 0)")
    page.keyboard.down("Control")
    page.mouse.wheel(0, -240)
    page.keyboard.up("Control")
    start, end = seen(page)
    holds(end - start < 0.9 and page.evaluate("scrollY") == 0, f"Ctrl + wheel must zoom, saw {start} to {end}")
    before = start
    page.keyboard.down("Shift")
    page.mouse.wheel(0, 100)
    page.keyboard.up("Shift")
    holds(seen(page)[0] > before, "Shift + wheel must move in time")
    page.click("#reset")
    zoomed = False
    for y in range(int(box["y"] + 200), int(box["y"] + 420), 12):  # the first schedule's axis is somewhere there
        page.mouse.move(box["x"] + 600, y)
        page.mouse.wheel(0, -120)
        if seen_now(page) != (0, 1):
            zoomed = True
            break
        page.evaluate("scrollTo(0, 0)")
    holds(zoomed, "the wheel over an axis must zoom")
    return "plain, Ctrl, Shift, over the axis"


def seen_now(page):
    settle(page, 190)
    match = re.search(r"v=([\d.e-]+),([\d.e-]+)", page.url)
    return (float(match[1]), float(match[2])) if match else (0, 1)


@check
def a_window_is_where_the_page_begins(bench):
    for window, expected in [("9.05..18.1", (0.25, 0.5)), ("18.1..", (0.5, 1))]:
        path = bench.made / "window.html"
        subprocess.run([bench.pipesim, "predict", *SMALL, "--window", window, "-q", "-o", str(path)], check=True, stdout=subprocess.DEVNULL)
        bench.pages["window"] = path
        page = bench.open("window")
        begun = seen(page)
        del bench.pages["window"]
        # 1f1b, the longest, ends at 36.2
        holds(all(abs(a - b) < 1e-6 for a, b in zip(begun, expected)), f"--window {window} begins with {begun}")
        page.click("#reset")
        holds(seen(page) == (0, 1), "the rest cannot be reached")
    return window


@check
def a_drag_moves_what_is_under_the_pointer_with_it(bench):
    page = bench.open("small", "#v=0.4,0.6")
    box = canvas(page)
    x, y = box["x"] + 700, box["y"] + 120
    page.mouse.move(x, y)
    page.mouse.down()
    for step in range(10):
        page.mouse.move(x - 20 * (step + 1), y)
    page.mouse.up()
    start, end = seen(page)
    expected = 0.4 + 200 / (box["width"] - 246) * 0.2
    holds(abs(start - expected) < 0.002 and abs(end - start - 0.2) < 1e-6, f"expected from {expected:.4f}, saw {start:.4f} to {end:.4f}")
    return f"200 px = {start - 0.4:.4f} of the axis"


@check
def fingers_pan_pinch_scroll_and_tap(bench):
    page = bench.open("small", "#v=0.2,0.7", NARROW, has_touch=True, is_mobile=True)
    box, client = canvas(page), page.context.new_cdp_session(page)

    def touch(kind, *points):
        client.send("Input.dispatchTouchEvent", {"type": kind, "touchPoints": [{"x": x, "y": y, "id": i} for i, (x, y) in enumerate(points)]})

    y, before = box["y"] + 100, page.url
    touch("touchStart", (300, y))
    for step in range(1, 9):
        touch("touchMove", (300 - 10 * step, y))
    touch("touchEnd")
    start, end = seen(page, before)
    before = page.url
    holds(start > 0.21 and abs(end - start - 0.5) < 1e-6, f"one finger across must move in time, saw {start} to {end}")
    touch("touchStart", (200, y))
    touch("touchStart", (200, y), (300, y))
    for step in range(1, 11):
        touch("touchMove", (200 - 5 * step, y), (300 + 5 * step, y))
    touch("touchEnd")
    pinched = seen(page, before)
    shrunk = (pinched[1] - pinched[0]) / (end - start)
    holds(0.4 < shrunk < 0.6, f"fingers twice as far apart must show half the time, showed {shrunk:.2f}")
    holds(page.evaluate("visualViewport.scale") == 1, "the pinch zoomed the page, not the timeline")
    page.tap("#reset")
    page.evaluate("scrollTo(0, 0)")
    settle(page, 100)
    y = canvas(page)["y"] + 300
    touch("touchStart", (250, y))
    for step in range(1, 20):
        touch("touchMove", (250, y - 15 * step))
        settle(page, 16)
    touch("touchEnd")
    settle(page)
    holds(page.evaluate("scrollY") > 150, "one finger down the timeline must scroll the page")
    page.evaluate("scrollTo(0, 0)")
    settle(page, 100)
    box = canvas(page)
    tapped = ""
    for dy in range(34, 60, 4):
        page.touchscreen.tap(box["x"] + 80, box["y"] + dy)
        settle(page, 60)
        tapped = card(page)
        if tapped.startswith("0F0"):
            break
    holds(tapped.startswith("0F0"), f"a tap on the first box must show its card, showed {tapped!r}")
    return f"pinch 1 : 2 shows {shrunk:.2f} of the time"


@check
def the_card_explains_and_covers_no_row(bench):
    page = bench.open("small")
    x, y = point(page, "1B3", 1)
    text = card(page)
    holds(all(word in text for word in ["1B3", "device 1 of 1f1b", "start", "end", "B full backward"]), text)
    place = page.locator("#card").bounding_box()
    holds(place["y"] > y + 30, "the card covers the row that it explains")
    page.mouse.move(x, 4)
    settle(page, 100)
    holds("1B3" not in card(page), "the card stays when the pointer has left")
    return text.split("\n")[-1][:100]


@check
def copies_and_collectives_have_lanes_and_cards(bench):
    told = []
    for name, arguments, lanes in [
        ("copies", "-p 2 -m 6 -s 1f1b-offload:ahead=1,least=2 --costs F=1,copy=0.6", {3: ("OFFLOAD", "O offload"), 4: ("RELOAD", "L reload")}),
        ("collectives", "-p 2 -m 4 -s interleaved-1f1b --costs unshard=1,reduce=1 --max-active-stages 1", {5: ("UNSHARD", "u gather"), 6: ("REDUCE_GRAD", "r reduction")}),
    ]:
        bench.pages[name] = bench.made / f"{name}.html"
        subprocess.run([bench.pipesim, "predict", *arguments.split(), "-q", "-o", str(bench.pages[name])], check=True, stdout=subprocess.DEVNULL)
        page = bench.open(name)
        del bench.pages[name]
        box = canvas(page)
        holds("step ops" not in page.inner_text("#classes"), "the legend calls them step ops")
        for lane, (kind, legend) in lanes.items():
            holds(legend in page.inner_text("#classes"), f"the legend has no {legend}")
            start, end, axis = page.evaluate(f"""(() => {{ const panel = JSON.parse(document.getElementById("data").textContent).entries[0].panels[0], first = panel.rows[0][5][{lane}];
                return [first[2] / panel.unitNs, (first[2] + first[3]) / panel.unitNs, panel.end]; }})()""")
            x = box["x"] + 128 + (start + end) / 2 / axis * (box["width"] - 246)
            for y in range(int(box["y"]) + 30, int(box["y"]) + 120, 3):
                page.mouse.move(x, y)
                if kind in card(page):
                    break
            text = card(page).replace("\n", " ")
            holds(kind in text and legend in text and "device 0 of" in text and "duration" in text, f"{name}, lane {lane}: the card says {text!r}")
            told.append(text.split(" ")[0])
    return ", ".join(told)


@check
def gaps_name_their_causes(bench):
    """As the table of `explain` does, which is computed by itself."""
    page = bench.open("small")
    causes = page.evaluate("() => JSON.parse(document.getElementById('data').textContent).causes")
    explained = json.loads(subprocess.run([bench.pipesim, "explain", *SMALL, "-q", "--format", "json"], capture_output=True, check=True, text=True).stdout)
    idle = explained["explanations"][0]["idle"]["idle"]
    first = ops(page)[0]
    box = canvas(page)
    plot = box["width"] - 246
    x0, y = point(page, "0B0", 0)
    told = 0
    for gap in [gap for gap in idle if gap["device"] == 0]:
        x = box["x"] + 128 + (gap["start"] + gap["end"]) / 2 / first["end"] * plot
        page.mouse.move(x, y)
        text = card(page)
        cause = next(c for c in causes if c["name"].endswith("own peak" if gap["cause"] == "memory" else gap["cause"]))
        holds(text.startswith("idle ") and f"of {cause['name']} ({cause['text']})" in text, f"{gap}: the card says {text!r}")
        if gap.get("op"):
            holds(gap["op"] in text, f"{gap}: the card does not name {gap['op']}: {text!r}")
        told += 1
    before = page.locator("#canvas").screenshot()
    page.get_by_text("why idle").click()
    settle(page)
    holds(page.locator("#canvas").screenshot() != before, "the switch changes nothing")
    holds("before the device's first op" in page.inner_text("#causes"), "the legend does not define causes")
    holds("why" in page.url, "the address forgets the switch")
    return f"{told} gaps of device 0"


@check
def a_click_pins_and_escape_lets_go(bench):
    page = bench.open("small")
    x, y = point(page, "2F5", 2)
    page.mouse.click(x, y)
    page.mouse.move(x, 4)
    settle(page)
    holds(card(page).startswith("2F5") and "op=0.2F5" in page.url, f"pinned card: {card(page)!r}, {page.url}")
    page.keyboard.press("Escape")
    settle(page)
    holds("2F5" not in card(page) and "op=" not in page.url, "Escape leaves the pin")
    return "2F5"


@check
def the_keyboard_alone_walks_everything(bench):
    page = bench.open("small")
    names, reached = ops(page)[0]["rows"], set()
    for _ in range(60):
        page.keyboard.press("Tab")
        reached.add(page.evaluate("document.activeElement.id || document.activeElement.textContent"))
        if page.evaluate("document.activeElement.id") == "canvas":
            break
    wanted = {"path", "find", "in", "out", "reset", "extent", "save-svg", "save-png", "print", "theme", "help", "canvas"}
    holds(wanted <= reached, f"Tab does not reach {wanted - reached}")
    said = lambda: page.inner_text("#said")
    page.keyboard.press("ArrowRight")
    walked = [said()]
    for name, *_ in names[0][1:]:
        page.keyboard.press("ArrowRight")
        walked.append(said())
        holds(walked[-1].startswith(name + ","), f"expected to walk to {name}, heard {walked[-1]!r}")
    holds(all(word in walked[3] for word in ["device 0 of 1f1b", "start ", "end "]), walked[3])
    page.keyboard.press("Home")
    down = []
    for device in range(1, 4):
        page.keyboard.press("ArrowDown")
        down.append(said().split(",")[0])
        holds(f"device {device} of 1f1b" in said(), said())
    page.keyboard.press("ArrowDown")
    holds("device 0 of zb-v" in said(), f"after the last row comes the next schedule, heard {said()!r}")
    page.keyboard.press("Enter")
    settle(page)
    holds(said().startswith("Pinned: ") and "op=1." in page.url, page.url)
    page.keyboard.press("Escape")
    settle(page)
    holds("op=" not in page.url, "Escape leaves the pin")
    page.keyboard.press("p")
    holds(page.get_attribute("#path", "aria-pressed") == "true", "P does not press the critical path")
    page.keyboard.press("w")
    holds(seen(page) != (0, 1), "W does not zoom")
    page.keyboard.press("r")
    holds(seen(page) == (0, 1), "R does not show everything")
    page.keyboard.press("?")
    holds(page.is_visible("#keys"), "? shows no keys")
    page.keyboard.press("Escape")
    holds(not page.is_visible("#keys"), "Escape leaves the keys open")
    return f"{len(walked)} ops of device 0, then " + ", ".join(down)


@check
def find_goes_to_what_is_there_and_says_what_is_not(bench):
    page = bench.open("large")
    page.fill("#find", "63B511")
    holds("device 63 of 1f1b" in page.inner_text("#answer") and "1 of" in page.inner_text("#answer"), page.inner_text("#answer"))
    start, end = seen(page)
    holds(end - start < 0.1 and card(page).startswith("63B511"), f"{start} to {end}; {card(page)!r}")
    # the last device starts at 63, then runs F and B in turn, 3 units a micro-batch; the axis ends with the step, at 3 (512 + 63)
    holds(start * 1725 <= 1597 and 1599 <= end * 1725, f"what was found is out of sight: {start} to {end}")
    page.fill("#find", "999F0")
    holds("not found" in page.inner_text("#answer") and "0 to" in page.inner_text("#answer"), page.inner_text("#answer"))
    holds("63B511" not in card(page), "a stale card stays")
    page.fill("#find", "F9")
    holds("no op’s name" in page.inner_text("#answer"), page.inner_text("#answer"))
    page.fill("#find", "3F4")
    page.press("#find", "Enter")
    holds("2 of 3" in page.inner_text("#answer") and "zb-h1" in page.inner_text("#answer"), page.inner_text("#answer"))
    return page.inner_text("#answer")


@check
def pictures_hold_everything_with_legend_at_twice_the_size(bench):
    page = bench.open("small", "#v=0.4,0.5")
    saved = {}
    for kind in ["svg", "png"]:
        with page.expect_download() as download:
            page.click(f"#save-{kind}")
        saved[kind] = bench.made / f"saved.{kind}"
        download.value.save_as(saved[kind])
    text = saved["svg"].read_text()
    texts = re.findall(r"<text[^>]*>([^<]*)</text>", text)
    wanted = [name for name, _ in SCHEDULES] + ["F forward", "B full backward", "idle", "activations held", "0"]
    holds(all(name in texts for name in wanted), f"the SVG lacks {[name for name in wanted if name not in texts]}")
    holds(any(one.startswith("Predicted: 4 devices, 8 micro-batches: ") for one in texts), "the SVG lacks its headline")
    holds("pipesim predict" in text, "the SVG does not say what made it")
    last = bench.browser.new_page()
    last.set_content("<img id=a><img id=b>")
    sizes = []
    for kind, mime in [("svg", "image/svg+xml"), ("png", "image/png")]:
        url = f"data:{mime};base64," + base64.b64encode(saved[kind].read_bytes()).decode()
        sizes.append(last.evaluate("async url => { const i = new Image(); i.src = url; await i.decode(); return [i.naturalWidth, i.naturalHeight]; }", url))
    blue = page.evaluate("JSON.parse(document.getElementById('data').textContent).classes[0].shades[0][0]")
    rows = last.evaluate("""async ([url, blues]) => { const i = new Image(); i.src = url; await i.decode(); const c = document.createElement('canvas'); c.width = i.naturalWidth; c.height = i.naturalHeight;
        const x = c.getContext('2d'); x.drawImage(i, 0, 0); const want = parseInt(blues.slice(1), 16); let blue = 0, lowest = 0; const d = x.getImageData(0, 0, c.width, c.height).data;
        for (let p = 0; p < d.length; p += 4) if ((d[p] << 16 | d[p + 1] << 8 | d[p + 2]) === want) { blue++; lowest = Math.floor(p / 4 / c.width); } return [blue, lowest / c.height]; }""", [url, blue])
    last.close()
    holds(sizes[1] == [2 * sizes[0][0], 2 * sizes[0][1]], f"SVG {sizes[0]}, PNG {sizes[1]}")
    holds(rows[0] > 10000 and rows[1] > 0.75, f"the PNG lacks the last schedule's rows: {rows}")
    holds(seen(page) == (0.4, 0.5), "saving moved the view")
    page.select_option("#extent", "view")
    with page.expect_download() as download:
        page.click("#save-svg")
    view = pathlib.Path(download.value.path()).read_text()
    holds("F forward" in view and "B7" not in re.findall(r"<text[^>]*>([^<]*)</text>", view), "the view's picture shows more than the view")
    return f"SVG {sizes[0][0]} x {sizes[0][1]}, PNG {sizes[1][0]} x {sizes[1][1]}"


@check
def paper_has_all_schedules_and_all_columns(bench):
    page = bench.open("small", "#v=0.4,0.5", color_scheme="dark")
    path = bench.made / "printed.pdf"
    page.pdf(path=path, prefer_css_page_size=True)
    reader = PdfReader(path)
    text = " ".join(" ".join(unicodedata.normalize("NFKC", sheet.extract_text()) for sheet in reader.pages).split())
    columns = page.eval_on_selector_all("thead th", "all => all.map(cell => cell.textContent)")
    wanted = [name for name, _ in SCHEDULES] + columns + ["device 3", "peak activations", "Provenance", "F forward"]
    holds(all(name in text for name in wanted), f"the paper lacks {[name for name in wanted if name not in text]}")
    holds(text.count("micro-batches") >= 1 + len(SCHEDULES), "a schedule's picture is missing")
    settle(page)
    holds(seen(page) == (0.4, 0.5) and page.inner_html("#printed") == "", "printing changed the page")
    return f"{len(reader.pages)} pages, {len(columns)} columns"


@check
def the_critical_path_is_drawn_for_every_schedule(bench):
    page = bench.open("small")
    page.click("#path")
    holds(page.get_attribute("#path", "aria-pressed") == "true", "the button is not pressed")
    path = page.evaluate("getComputedStyle(document.documentElement).getPropertyValue('--path').trim()")
    page.evaluate("window.dispatchEvent(new Event('beforeprint'))")
    drawn = page.eval_on_selector_all("#printed .schedule svg", f"all => all.map(svg => svg.querySelectorAll('rect[stroke=\"{path}\"]').length)")
    page.evaluate("window.dispatchEvent(new Event('afterprint'))")
    holds(len(drawn) == 1 + len(SCHEDULES) and all(count > 4 for count in drawn[1:]), f"frames of the path by picture: {drawn}")
    page.click("#path")
    holds(page.get_attribute("#path", "aria-pressed") == "false", "the button stays pressed")
    return f"{drawn[1:]} frames"


@check
def tables_have_captions_and_provenance_stands_once(bench):
    for name in ["small", "measured"]:
        page = bench.open(name)
        tables = page.eval_on_selector_all("table", "all => all.map(t => [t.caption && t.caption.textContent, t.querySelectorAll('thead th:not([scope=col])').length, t.querySelectorAll('tbody tr > :first-child:not(th[scope=row])').length])")
        holds(tables and all(caption and not loose and not bare for caption, loose, bare in tables), f"{name}: {tables}")
        # texts of dl.definitions after the last heading
        facts = page.evaluate("() => { const list = [...document.querySelectorAll('dl.definitions')].pop(); return [...list.children].map(e => e.textContent); }")
        pairs = list(zip(facts[::2], facts[1::2]))
        holds(len(set(pairs)) == len(pairs), f"{name}: provenance is repeated")
        commands = [value for key, value in pairs if key == "command"]
        holds(len(commands) == 1 and commands[0].startswith("pipesim "), f"{name}: {commands}")
        version = subprocess.run([bench.pipesim, "--version"], capture_output=True, check=True, text=True).stdout
        known = "unknown" not in version  # builds for development do not know theirs
        commits = [value for key, value in pairs if key == "commit"]
        # what was measured before says which commit measured it
        told = name == "measured" or (len(commits) == known and all(commit in version for commit in commits))
        holds(told, f"{name}: commits {commits} of {version}")
    return commands[0][:100]


@check
def hidden_columns_and_switches_that_are_off_say_so(bench):
    for name in ["small", "measured"]:
        for size in [NARROW, WIDE]:
            page = bench.open(name, "", size)
            settle(page)
            for wide, box, told in page.evaluate("[...document.querySelectorAll('.wide')].map(e => [e.scrollWidth, e.clientWidth, e.previousElementSibling.hidden ? '' : e.previousElementSibling.textContent])"):
                holds((wide > box + 1) == told.startswith("scroll → for"), f"{name}, {size['width']} wide: a table of {wide} px in {box} says '{told}'")
            if size == WIDE:
                cut = page.evaluate("(e => e.scrollWidth - e.clientWidth)(document.querySelector('.wide'))")
                holds(cut <= 0, f"{name}: {cut} px of the main table are cut")
    page = bench.open("small")
    marks = page.evaluate("[...document.querySelectorAll('.toggle')].map(e => [e.querySelector('input').checked, getComputedStyle(e).textDecorationLine, getComputedStyle(e, '::before').content])")
    holds({line for _, line, _ in marks} == {"none"}, f"struck through: {marks}")
    on, off = ({content for checked, _, content in marks if checked == wanted} for wanted in [True, False])
    holds(len(on) == len(off) == 1 and on != off, f"marks of switches: {marks}")
    return f"{len(marks)} switches"


@check
def looks_are_accessible_in_both_themes_and_widths(bench):
    found = []
    for scheme in ["light", "dark"]:
        for size in [NARROW, WIDE]:
            for name, fragment in [("small", "#why&path&op=0.1B3"), ("measured", "")]:
                page = bench.open(name, fragment, size, color_scheme=scheme)
                page.fill("#find", "nothing")
                overflow = page.evaluate("document.documentElement.scrollWidth - innerWidth")
                holds(overflow <= 0, f"{name}, {size['width']} wide: {overflow} px are beyond the right edge")
                page.evaluate("document.querySelectorAll('details').forEach(d => { d.open = true; })")
                results = Axe().run(page).response
                found += [f"{name} {scheme} {size['width']}: {v['id']} ({v['impact']}): {v['nodes'][0]['html'][:120]} {v['nodes'][0]['failureSummary'][:200]}" for v in results["violations"] if v["impact"] in ("serious", "critical")]
                checked = len(results["passes"])
    holds(not found, "\n".join(found))
    return f"axe-core {results['testEngine']['version']}, {checked} rules passed, none failed that is serious"


@check
def colours_below_a_pixel_are_mixed_by_area(bench):
    """The mean colour of each row against the shares of time that the data say, ± 2 % of the range."""
    page = bench.open("large")
    with page.expect_download() as download:
        page.click("#save-svg")
    svg = pathlib.Path(download.value.path()).read_text()
    strips = re.findall(r'<image x="[\d.]+" y="([\d.]+)" width="([\d.]+)" height="([\d.]+)"[^>]*href="([^"]+)"', svg)
    tall = [url for _, _, height, url in strips if float(height) > 8]
    means = page.evaluate("""async urls => { const out = []; for (const url of urls) { const i = new Image(); i.src = url; await i.decode(); const c = document.createElement('canvas'); c.width = i.naturalWidth; c.height = 1;
        const x = c.getContext('2d', { willReadFrequently: true }); x.drawImage(i, 0, 0); const d = x.getImageData(0, 0, c.width, 1).data, sum = [0, 0, 0, 0];
        for (let k = 0; k < c.width; k++) { const a = d[4 * k + 3] / 255; for (let j = 0; j < 3; j++) sum[j] += d[4 * k + j] * a / c.width; sum[3] += a / c.width; } out.push(sum); } return out; }""", tall)
    # by row: the share of the axis of each kind and shade, as [kind, shade, share]; F I W B are the first classes of the legend
    classes, rows = page.evaluate("""() => { const data = JSON.parse(document.getElementById("data").textContent); return [data.classes, data.entries.flatMap(entry => entry.panels.flatMap(panel => panel.rows.map(([flat]) => {
        const shares = {}; for (let i = 0; i < flat.length; i += 8) { const key = flat[i] + "," + flat[i + 6]; shares[key] = (shares[key] || 0) + flat[i + 4] * panel.tick / panel.unitNs / panel.end; }
        return Object.entries(shares).map(([key, share]) => [...key.split(",").map(Number), share]); })))]; }""")
    holds(len(tall) == len(rows), f"{len(tall)} strips for {len(rows)} rows")
    rgb = lambda text: [int(text[1 + 2 * k:3 + 2 * k], 16) for k in range(3)]
    idle = [255 + 0.22 * (c - 255) for c in rgb(page.evaluate("getComputedStyle(document.documentElement).getPropertyValue('--hatch').trim()"))]
    worst = 0
    for row, mean in zip(rows, means):
        rest = 1 - sum(share for *_, share in row)
        wanted = [rest * c for c in idle]
        for kind, shade, share in row:
            wanted = [w + share * c for w, c in zip(wanted, rgb(classes[kind]["shades"][min(shade, len(classes[kind]["shades"]) - 1)][0]))]
        # columns without any box are transparent: idle lies under them
        mean = [m + (1 - mean[3]) * c for m, c in zip(mean, idle)]
        worst = max(worst, *(abs(a - b) / 255 for a, b in zip(wanted, mean)))
    holds(worst < 0.02, f"a row's colour is {worst:.1%} off its shares of time")
    return f"{len(rows)} rows, worst {worst:.2%}"


RECORD = """() => { window.intervals = []; window.drawing.length = 0; let last = performance.now(); window.recording = true;
  const next = now => { intervals.push(now - last); last = now; if (window.recording) requestAnimationFrame(next); };
  next.watching = true;
  requestAnimationFrame(next); }"""


@check
def timings_of_the_large_page(bench):
    first = []
    for _ in range(3):
        page = bench.open("large")
        for _ in range(100):  # the browser tells of the paint after it, on a busy machine after the page is open
            if page.evaluate("window.painted") is not None:
                break
            settle(page, 50)
        first.append(page.evaluate("window.painted"))
    lines = [f"first paint {statistics.median(first):.0f} ms"]
    box = canvas(page)
    for name, fragment in [("everything", ""), ("a quarter", "#v=0.3,0.55"), ("a fortieth", "#v=0.3,0.325")]:
        page = bench.open("large", fragment if fragment else "#v=0,0.98")
        page.mouse.move(box["x"] + 900, box["y"] + 200)
        page.mouse.down()
        settle(page, 200)
        page.evaluate(RECORD)
        for step in range(60):
            page.mouse.move(box["x"] + 900 - 8 * step, box["y"] + 200)
        frames = page.evaluate("() => { window.recording = false; return intervals.slice(2); }")
        page.mouse.up()
        drawing = page.evaluate("window.drawing")
        frames.sort()
        lines.append(f"panning over {name}: {statistics.median(frames):.0f} ms a frame, 95 % within {frames[int(len(frames) * 0.95)]:.0f} ms, of which drawing {statistics.median(drawing):.1f} ms")
        holds(statistics.median(frames) < 150, lines[-1])
    holds(statistics.median(first) < 5000, lines[0])
    return "; ".join(lines)


def screenshots(bench, folder):
    folder.mkdir(parents=True, exist_ok=True)
    shots = [
        ("why", "small", "#why&path&op=0.1B3", {"width": 1200, "height": 560}, "light"),
        ("dark-narrow", "small", "#why", NARROW, "dark"),
        ("large", "large", "", {"width": 1200, "height": 560}, "light"),
        ("found", "large", "", {"width": 1200, "height": 560}, "dark"),
    ]
    for name, page_name, fragment, size, scheme in shots:
        page = bench.open(page_name, fragment, size, color_scheme=scheme)
        if name == "found":
            page.fill("#find", "17B300")
        settle(page)
        page.screenshot(path=folder / f"{name}.png")


SCHEDULES = [("1f1b", 4), ("zb-v", 4), ("interleaved-1f1b:v=2", 4)]
SMALL = ["-p", "4", "-m", "8", "-s", ",".join(name for name, _ in SCHEDULES), "--costs", "F=1,I=1.2,W=0.8,comm=0.2"]


def make(pipesim, folder):
    """The pages that are looked at."""
    folder.mkdir(parents=True, exist_ok=True)
    reports = ROOT / "reports/cpu-2-devices"
    measured = [str(reports / f"{name}-{source}.json") for name in ["1f1b", "zb-v"] for source in ["predicted", "measured"]]
    commands = {
        "small": ["predict", *SMALL],
        "large": ["predict", "-p", "64", "-m", "512", "-s", "1f1b,zb-h1,interleaved-1f1b:v=2"],
        "measured": ["compare", *measured],
    }
    pages = {}
    for name, command in commands.items():
        pages[name] = folder / f"{name}.html"
        pages[name].unlink(missing_ok=True)
        subprocess.run([pipesim, *command, "-q", "-o", str(pages[name])], check=True, stdout=subprocess.DEVNULL)
    return pages


def run_checks(checks, bench, wanted):
    """Runs the checks, all or those whose names have one of the wanted parts; returns how many fail."""
    failed = 0
    for one in checks:
        name = one.__name__.replace("_", " ")
        if wanted and not any(part in one.__name__ for part in wanted):
            continue
        begun = time.monotonic()
        try:
            found = one(bench)
            holds(not bench.wrong, f"the page complains: {bench.wrong[:3]}")
            holds(not bench.requests, f"the page asks for {bench.requests[:3]}")
            print(f"ok      {name} ({time.monotonic() - begun:.1f} s): {found}", flush=True)
        except Exception as error:  # a check that breaks is one that fails; the others still run
            failed += 1
            print(f"FAILED  {name}: {error}", flush=True)
            if not isinstance(error, AssertionError):
                traceback.print_exc()
            bench.wrong, bench.requests = [], []
        bench.close()
    return failed


def main():
    chromium, pipesim, made, *rest = sys.argv[1:]
    made = pathlib.Path(made)
    with sync_playwright() as driver:
        # root has no sandbox
        browser = driver.chromium.launch(executable_path=chromium, args=["--no-sandbox"])
        bench = Bench(browser, make(pipesim, made))
        bench.made, bench.pipesim = made, pipesim
        print(f"Chromium {browser.version}", flush=True)
        wanted = rest[1:] if rest[:1] == ["--only"] else None
        if rest[:1] == ["--screenshots"]:
            screenshots(bench, pathlib.Path(rest[1]))
            return 0
        failed = run_checks(CHECKS, bench, wanted)
        browser.close()
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
