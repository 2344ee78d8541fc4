#!/usr/bin/env python3
"""Checks of the explorer in a browser: as a file with the program inside, and served; a line a check.

Used by tests/pages:  explorer.py CHROMIUM PIPESIM EXPLORER.html FOLDER [--only PART..] [--screenshots FOLDER]
Exit code 1 if a check fails. Timings are printed; only absurd ones fail, machines are noisy.
"""

import json
import os
import pathlib
import random
import re
import statistics
import subprocess
import sys
import time
import urllib.error
import urllib.request

from axe_playwright_python.sync_playwright import Axe
from playwright.sync_api import sync_playwright

from checks import holds, run_checks

WIDE, PHONE = {"width": 1400, "height": 900}, {"width": 390, "height": 800}
CHECKS = []


def check(function):
    CHECKS.append(function)
    return function


class Bench:
    """The browser, the explorer that is opened in it, and everything that goes wrong meanwhile."""

    def __init__(self, browser, pipesim, page, folder):
        self.browser, self.pipesim, self.page, self.folder = browser, pipesim, page, folder
        self.wrong, self.requests, self.contexts = [], [], []

    def open(self, fragment="", size=WIDE, address=None, **options):
        context = self.browser.new_context(viewport=size, accept_downloads=True, **options)
        context.set_default_timeout(240_000)  # two cores may be shared with a compiler
        if not address:
            context.set_offline(True)
        self.contexts.append(context)
        page = context.new_page()
        page.on("console", lambda message: self.wrong.append(f"console: {message.text}"))
        page.on("pageerror", lambda error: self.wrong.append(f"error: {error}"))
        page.on("request", lambda request: request.url.startswith(("file:", "blob:", "data:", "about:")) or self.requests.append(request.url))
        page.goto((address or self.page.as_uri()) + fragment)
        page.wait_for_selector("#page iframe:not(.coming)", timeout=240_000)
        return page

    def native(self, args, files=()):
        found = subprocess.run([self.pipesim, *args], cwd=self.folder, capture_output=True, env={"COLUMNS": "110", "NO_COLOR": "1"}, check=False)
        return found.returncode, found.stdout.decode(), found.stderr.decode()

    def close(self):
        for context in self.contexts:
            context.close()
        self.contexts = []


def title(page):
    return page.frame_locator("#page iframe:not(.coming)").locator("#title").inner_text()


def wait_title(page, part):
    """Waits until the timeline shows what was asked for."""
    page.wait_for_function(
        """part => { const frame = document.querySelector("#page iframe:not(.coming)"), title = frame && frame.contentDocument && frame.contentDocument.getElementById("title");
                     return title && title.textContent.includes(part); }""", arg=part, timeout=240_000)


def wait_text(page, element, part, seconds=240):
    """Waits until an element holds this text."""
    try:
        page.wait_for_function("([element, part]) => document.getElementById(element).textContent.includes(part)", arg=[element, part], timeout=1000 * seconds)
    except Exception:
        raise AssertionError(f"#{element}: expected {part!r}, found {page.text_content('#' + element)[:300]!r}, failure {page.text_content('#failure')[:300]!r}") from None


def change(page, field, value):
    page.fill(f"#{field}", str(value))


def ready(page):
    page.wait_for_timeout(100)
    page.wait_for_selector("#busy", state="hidden", timeout=240_000)


@check
def opens_from_disk_without_a_network(bench):
    begun = time.monotonic()
    page = bench.open()
    took = time.monotonic() - begun
    holds("4 devices, 8 micro-batches" in title(page), title(page))
    holds("1f1b: makespan 33" in page.text_content("#said") and "Shortest: zb-v" in page.text_content("#said"), page.text_content("#said"))
    return f"{bench.page.stat().st_size / 1e6:.1f} MB, first timeline after {took:.1f} s"


@check
def sliders_redraw_and_the_address_holds_them(bench):
    page = bench.open()
    for field, value in (("p", 6), ("m", 12)):
        page.evaluate("([field, value]) => { const range = document.querySelector(`input[data-of=${field}]`); range.value = value; range.dispatchEvent(new Event('input')); }", [field, value])
    wait_title(page, "6 devices, 12 micro-batches")
    page.check('#schedules input[value="dualpipe-v"]')
    change(page, "comm", "0.1")
    ready(page)
    page.wait_for_timeout(400)
    command = page.inner_text("#command")
    holds(command == "pipesim predict --stages 6 --micro 12 -s 1f1b,zb-v,dualpipe-v --costs comm=0.1", command)
    fragment = page.url.split("#")[1]
    again = bench.open("#" + fragment)
    ready(again)
    holds(again.inner_text("#command") == command, again.inner_text("#command"))
    holds(again.text_content("#said") == page.text_content("#said"), "the link shows other figures")
    page.fill("#m", "0")
    wait_text(page, "here", "--micro is micro-batches m")
    return command


@check
def the_view_stays_while_sliders_move(bench):
    """A report takes another one's place in the same frame, with its zoom and switches, and listens alone."""
    page = bench.open()
    frame = page.frame_locator("#page iframe:not(.coming)")
    page.evaluate("() => { document.querySelector('#page iframe').first = true; }")
    frame.locator("#in").click()
    frame.locator("#lanes label").first.click()
    page.wait_for_timeout(400)
    seen = page.evaluate("document.querySelector('#page iframe').contentDocument.documentElement.dataset.view")
    for m in (9, 10, 11):
        change(page, "m", m)
        wait_title(page, f"{m} micro-batches")
    page.wait_for_timeout(400)
    found = page.evaluate("[document.querySelector('#page iframe').first, document.querySelector('#page iframe').contentDocument.documentElement.dataset.view]")
    holds(found == [True, seen] and "v=" in seen and "off=idle" in seen, f"{found}, before {seen}")
    holds(frame.locator("#title").count() == 1 and frame.locator("#canvas").count() == 1, "two reports in one frame")
    place = "() => { const page = document.querySelector('#page iframe').contentWindow; return [Math.round(page.scrollY), page.document.querySelectorAll('details[open]').length, page.document.title]; }"
    page.evaluate("() => { const page = document.querySelector('#page iframe').contentWindow; page.document.querySelectorAll('details').forEach(one => { one.open = true; }); page.scrollTo({ top: 900, behavior: 'instant' }); }")
    page.wait_for_timeout(200)
    top, opened, _ = page.evaluate(place)
    change(page, "m", 12)
    wait_title(page, "12 micro-batches")
    after = page.evaluate(place)
    holds(top > 300 and opened > 0 and after[:2] == [top, opened] and "12 micro-batches" in after[2], f"{after}, before {[top, opened]}")
    frame.locator("#canvas").focus()
    page.keyboard.press("p")  # each report that listened would switch it
    holds(frame.locator("#path").get_attribute("aria-pressed") == "true", "the critical path is not shown")
    return seen


@check
def a_late_result_is_not_shown_in_another_view(bench):
    page = bench.open()
    change(page, "p", 32)
    change(page, "m", 128)
    page.click("#tabs [data-view=files]")
    page.wait_for_timeout(2500)
    holds(page.locator("#page iframe").count() == 0 and not page.text_content("#said") and not page.text_content("#command"), "the files show a timeline")
    page.click("#tabs [data-view=timeline]")
    wait_title(page, "32 devices, 128 micro-batches")


@check
def schedules_are_found_by_name_and_summary(bench):
    page = bench.open()
    listed = lambda: [box.get_attribute("value") for box in page.locator("#schedules input").all()]
    everything = listed()
    page.fill("#sought", "backward SPLIT")
    found = listed()
    summaries = {one["name"]: one["summary"] for one in json.loads(bench.native(["schedules", "--json"])[1])["schedules"]}
    expected = [name for name, summary in summaries.items() if all(word in summary.lower() for word in ("backward", "split")) and name not in ("1f1b", "zb-v")]
    holds(everything[:2] == ["1f1b", "zb-v"] == found[:2] and found[2:] == expected and expected, f"{found}, expected {expected}")
    return page.inner_text("#count")


# Models whose parameters, FLOPs and bytes are beyond 32 bits.
ON_HARDWARE = (
    "--model llama-3-8b --hardware h100-sxm --stages 2 --tp 4 --micro 8 --seq 8192 -s 1f1b,zb-v",
    "--model llama-3-70b --hardware h100-sxm --stages 4 --tp 8 --dp 2 --micro 16 --seq 8192 --sequence-parallel --zero 1 -s 1f1b,interleaved-1f1b --recompute selective",
    "--model gpt3-175b --hardware a100-sxm-80gb --stages 8 --tp 8 --micro 16 --seq 2048 -s zb-h1 --attention plain",
    "--model gpt2-xl --hardware rtx-4090 --stack llm.c --precision fp32 --stages 2 --micro 4 --seq 1024 -s 1f1b",
    "--model llama-3-8b --hardware h100-sxm --stages 4 --micro 8 --seq 131072 -s slimpipe --memory-cap 80GiB",
    "--model qwen3-30b-a3b --hardware h100-sxm --stages 2 --tp 2 --sequence-parallel --ep 8 --dp 8 --micro 8 --seq 4096 -s 1f1b",
    "--model deepseek-v3 --hardware h800-sxm --stages 16 --ep 64 --dp 64 --micro 32 --seq 4096 -s dualpipe-v --moe-overlap --dispatcher deepep --precision fp8",
)


@check
def figures_are_the_programs_byte_for_byte(bench):
    """PIPESIM_SETTINGS random settings per schedule, one in the suite."""
    page = bench.open()
    schedules = json.loads(bench.native(["schedules", "--json"])[1])["schedules"]
    dice, lines = random.Random(32), []
    for schedule in int(os.environ.get("PIPESIM_SETTINGS", "1")) * schedules:
        p = dice.choice([2, 3, 4, 6, 8])
        cost = ",".join(f"{key}={dice.randint(1, 40) / 8}" for key in ("F", "I", "W")) + f",comm={dice.randint(0, 8) / 16},keep={dice.choice([0.5, 1])}"
        lines.append(["predict", "--stages", str(p), "--micro", str(p * dice.randint(1, 3)), "-s", schedule["name"], "--costs", cost, "-q", "--format", "json"])
    for name in ("1f1b", "zb-v", "interleaved-1f1b:v=2"):
        lines.append(["explain", "--stages", "4", "--micro", "8", "-s", name, "--costs", "comm=0.2", "--format", "json"])
        lines.append(["check", "--stages", "4", "--micro", "8", "-s", name])
    for options in ON_HARDWARE:
        lines.append(["predict", *options.split(), "-q", "--format", "json"])
    lines.append("plan --model llama-3-8b --hardware h100-sxm --gpus 8 --batch 32 --seq 4096 -q --format json".split())
    refused = 0
    for line in lines:
        code, out, err = bench.native(line)
        found = page.evaluate("async args => { const { code, out, err } = await pipesim(args); return [code, out, err]; }", line)
        holds(found[:2] == [code, out], f"{line}: code {found[0]} and {code}, {found[1][:200]!r} and {out[:200]!r}, {found[2][:200]!r}")
        holds(found[2] == err, f"{line}: {found[2][:300]!r}, natively {err[:300]!r}")
        refused += code != 0
    return f"{len(lines)} command lines, {refused} of them refused alike"


@check
def a_schedule_of_ones_own_is_checked_while_it_is_written(bench):
    page = bench.open()
    page.fill("#mine", "def device(r, p, m):\n    x = 3 +\n    return m * F + m * B\n")
    page.wait_for_function("() => document.querySelector('#lines .wrong')", timeout=120_000)
    holds(page.inner_text("#lines .wrong") == "2" and "mine.star:2" in page.inner_text("#failure"), page.inner_text("#failure"))
    page.fill("#mine", "def device(r, p, m):\n    return m * F + m * B\n")
    wait_text(page, "said", "mine: makespan")
    wait_text(page, "verdict", "runs")
    holds(not page.is_visible("#failure"), "an error is still shown")
    page.select_option("#start", "zb-v")
    page.wait_for_function("() => document.getElementById('mine').value.includes('def ')", timeout=120_000)
    ready(page)
    holds("zb-v" in page.text_content("#said") and "mine" in page.text_content("#said"), page.text_content("#said"))
    return page.text_content("#verdict")


@check
def hostile_schedules_give_a_message_and_the_page_lives(bench):
    page = bench.open()
    hostile = {
        "endless": ("def device(r, p, m):\n    for i in range(1000000000):\n        pass\n    return m * F + m * B\n", "ticks"),
        "deep calls": ("def f(n):\n    return f(n + 1)\ndef device(r, p, m):\n    return f(1)\n", "mine.star"),
        "deep text": ("def device(r, p, m):\n    return m * F + m * " + "(" * 5000 + "B" + ")" * 5000 + "\n", "deep"),
        "large": ("def device(r, p, m):\n    x = [0] * 2000000\n    return m * F + m * B * len(x)\n", "error"),
        "markup": ("def device(r, p, m):\n    return '<img src=x onerror=alert(1)></script><script>alert(2)</script>'\n", "mine.star"),
    }
    page.fill("#more", "--max-ticks 1000000")  # the usual limit takes long where the program is not optimised
    for name, (text, expected) in hostile.items():
        page.fill("#mine", text)
        ready(page)
        wait_text(page, "failure", expected)
        page.fill("#mine", "")
        page.wait_for_function("() => document.getElementById('failure').textContent === ''", timeout=240_000)
    wait_title(page, "4 devices")
    return f"{len(hostile)} schedules"


@check
def dropped_files_are_read_and_odd_ones_refused(bench):
    subprocess.run([bench.pipesim, "predict", "--stages", "3", "--micro", "5", "-s", "gpipe", "-q", "-o", "gpipe.json"], cwd=bench.folder, check=True, stdout=subprocess.DEVNULL)
    subprocess.run([bench.pipesim, "export", "--stages", "4", "--micro", "8", "-s", "1f1b", "--to", "pytorch-csv", "-o", "torch.csv"], cwd=bench.folder, check=True, stdout=subprocess.DEVNULL)
    page = bench.open()
    drop = """([name, text]) => { const files = new DataTransfer(); files.items.add(new File([text], name)); window.dispatchEvent(new DragEvent("drop", { dataTransfer: files })); }"""
    page.evaluate(drop, ["torch.csv", (bench.folder / "torch.csv").read_text()])
    wait_text(page, "said", "torch: makespan")
    page.evaluate(drop, ["run.exe", "MZ"])
    wait_text(page, "refused", "run.exe: expected .star")
    page.evaluate(drop, ["../../<b>x.csv", "not,a\nschedule,at all\n"])
    page.wait_for_selector("#page.stale", timeout=240_000)  # the timeline of before does not look as if it were of this file
    wait_text(page, "failure", "x.csv")
    holds(page.locator("#schedules b").count() == 0, "a name became markup")
    page.click("#remedies button")
    page.wait_for_function("() => document.getElementById('failure').textContent === '' && !document.querySelector('#page.stale, #schedules input[value*=\"x.csv\"]')", timeout=120_000)
    page.evaluate(drop, ["gpipe.json", (bench.folder / "gpipe.json").read_text()])
    wait_title(page, "Compared timelines")
    page.evaluate(drop, ["broken.json", "{" * 100000])
    wait_text(page, "failure", "broken.json")
    return "schedule, timeline; three refused"


@check
def every_view_shows_something(bench):
    page = bench.open()
    found = {}
    for view, expected in {"explain": "Why devices idle", "check": "one-sided", "map": "best of its p and m", "command": "Why devices idle"}.items():
        page.click(f"#tabs [data-view={view}]")
        wait_text(page, "text", expected)
        found[view] = page.inner_text("#took")
    page.fill("#commandline", "run --stages 2 --micro 4")
    page.press("#commandline", "Enter")
    wait_text(page, "failure", "pipesim program")
    page.click("#tabs [data-view=gallery]")
    page.wait_for_function("() => document.querySelectorAll('#picture figure img').length > 25", timeout=240_000)
    page.click("#tabs [data-view=tour]")
    page.wait_for_function("() => (f => f && f.contentDocument && f.contentDocument.body && f.contentDocument.body.textContent.includes('8 of 8'))(document.querySelector('#page iframe:not(.coming)'))", timeout=120_000)
    page.click("#tabs [data-view=timeline]")
    wait_title(page, "4 devices")
    page.click("#tabs [data-view=plan]")
    page.select_option("#model", "gpt2-xl")
    for field, value in {"gpus": "4", "batch": "16", "seq": "1024"}.items():
        page.fill(f"#{field}", value)
    page.wait_for_function("() => document.getElementById('text').textContent.startsWith('gpt2-xl on 4 h100-sxm: 16 sequences of 1,024')", timeout=240_000)
    command = page.inner_text("#command").split()[1:]
    holds(page.text_content("#text") == bench.native(command)[1], f"the plan of the program: {page.text_content('#text')}")
    found["plan"] = page.inner_text("#took")
    return ", ".join(f"{view} {took}" for view, took in found.items())


@check
def files_are_saved_as_the_program_writes_them(bench):
    page = bench.open()
    for ending in ("svg", "csv", "json", "trace.json", "png"):
        with page.expect_download() as download:
            page.select_option("#save", ending)
        saved = pathlib.Path(download.value.path()).read_bytes()
        name = bench.folder / f"native.{ending}"
        subprocess.run([bench.pipesim, "predict", "--stages", "4", "--micro", "8", "-s", "1f1b,zb-v", "-q", "-o", str(name)], check=True, stdout=subprocess.DEVNULL)
        native = name.read_bytes()
        if ending in ("csv", "svg"):
            holds(saved == native, f"{ending}: {len(saved)} and {len(native)} bytes")
        else:  # the command line is in it
            holds(len(saved) > 1000 and saved[:20] == native[:20], f"{ending}: {saved[:200]} and {native[:200]}")
    return "svg and csv equal; json, trace.json, png"


@check
def keyboard_readers_and_phones(bench):
    axe = Axe()
    for options in ({"size": WIDE}, {"size": PHONE, "has_touch": True, "is_mobile": True}, {"size": WIDE, "color_scheme": "dark"}):
        page = bench.open(**options)
        ready(page)
        wide = page.evaluate("document.documentElement.scrollWidth - document.documentElement.clientWidth")
        holds(wide <= 1, f"{options}: the page is {wide} px too wide")
        found = axe.run(page, options={"iframes": False}).response["violations"]
        grave = [(one["id"], one["nodes"][0]["html"][:150]) for one in found if one["impact"] in ("serious", "critical")]
        holds(not grave, f"{options}: {grave}")
    page = bench.open()
    page.focus("#tabs [data-view=timeline]")
    page.keyboard.press("ArrowRight")
    page.wait_for_function("() => document.getElementById('command').textContent.startsWith('pipesim explain')", timeout=120_000)
    page.focus("#m")
    page.keyboard.type("0")
    wait_text(page, "command", "--micro 80")
    return "no grave finding of axe, light, dark, phone"


REDRAW = """async n => {
  const field = document.getElementById("m"), begun = performance.now();
  field.value = n;
  field.dispatchEvent(new Event("input"));
  await new Promise(done => { const look = () => { const frame = document.querySelector("#page iframe:not(.coming)"), title = frame.contentDocument && frame.contentDocument.getElementById("title");
    if (title && title.textContent.includes(n + " micro")) requestAnimationFrame(done); else requestAnimationFrame(look); }; look(); });
  return [performance.now() - begun, parseFloat(document.getElementById("took").textContent)];
}"""


@check
def redraws_quickly(bench):
    told = []
    for slower in (1, 4):
        page = bench.open("#p=16&m=64&s=1f1b,zb-v,dualpipe-v,zb-h1")
        page.context.new_cdp_session(page).send("Emulation.setCPUThrottlingRate", {"rate": slower})
        times = [page.evaluate(REDRAW, 64 + 2 * k) for k in range(1, 8)]
        whole, engine = (statistics.median(column) for column in zip(*times))
        told.append(f"{whole:.0f} ms ({engine:.0f} in the engine){', processor 4 times slower' if slower > 1 else ''}")
        holds(whole < 60_000, told)  # the figure is for readers: on a busy machine everything is slow
    page = bench.open("#p=64&m=512&s=zb-v")
    ready(page)
    memory = page.evaluate("performance.memory ? performance.memory.usedJSHeapSize / 1e6 : 0")
    return "four schedules at p = 16, m = 64: " + "; ".join(told) + f"; p = 64, m = 512: {page.inner_text('#took')} of the engine, {memory:.0f} MB of the page"


@check
def served_by_the_program_it_shows_the_same_and_is_closed_to_others(bench):
    server = subprocess.Popen([bench.pipesim, "explore"], stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True)
    try:
        address = server.stdout.readline().strip()
        host, token = re.fullmatch(r"http://(127\.0\.0\.1:\d+)/\?token=([0-9a-f]{32})", address).groups()
        page = bench.open(address=address)
        holds("4 devices, 8 micro-batches" in title(page), title(page))
        change(page, "m", 16)
        wait_title(page, "16 micro-batches")
        page.click("input[value=hardware]")
        wait_text(page, "command", "--model llama-3-70b --hardware h100-sxm")
        ready(page)
        holds(not page.is_visible("#failure"), page.text_content("#failure"))
        foreign = [url for url in bench.requests if not url.startswith(f"http://{host}/")]
        holds(not foreign, f"asked for {foreign}")
        bench.requests.clear()

        def ask(path="/run", body=b"{}", **headers):
            request = urllib.request.Request(f"http://{host}{path}", data=body, headers=headers)
            try:
                with urllib.request.urlopen(request, timeout=30) as answer:
                    return answer.status, answer.read().decode()
            except urllib.error.HTTPError as error:
                return error.code, error.read().decode()

        own = {"X-Pipesim-Token": token}

        def run(args, files=None):
            code, text = ask(body=json.dumps({"args": args, "files": files or {}, "columns": 100}).encode(), **own)
            return json.loads(text) if code == 200 else (code, text)

        holds(ask(path="/", body=None)[0] == 403, "the page is given without the token")
        holds(ask()[0] == 403 and ask(**{"X-Pipesim-Token": "0" * 32})[0] == 403, "a run without the token")
        holds(ask(Host="evil.example", **own)[0] == 403, "another host")
        holds(ask(Origin="http://evil.example", **own)[0] == 403, "another origin")
        holds(ask(body=b"{", **own)[0] == 400, "no JSON")
        holds(ask(path="/../etc/passwd", body=None)[0] in (403, 404), "another path")
        for line in (["run", "--stages", "2", "--micro", "2"], ["predict", "-o", "/tmp/x.svg"], ["compare", "../x.json"], ["completions", "bash"], ["explore"]):
            found = run(line)
            holds(found["code"] == 2 and found["err"].startswith("error: "), f"{line}: {found}")
        holds(run(["schedules"], {"../x": "y"})["code"] == 2, "a file outside of the folder")
        fine = run(["predict", "--stages", "2", "--micro", "4", "-s", "own.star", "-q", "--format", "json"], {"own.star": "def device(r, p, m):\n    return m * F + m * B\n"})
        holds(fine["code"] == 0 and json.loads(fine["out"])["predictions"][0]["schedule"] == "own", fine)
        holds(server.poll() is None, "the server has ended")
        return "the same page; 12 attacks refused"
    finally:
        server.terminate()
        server.wait()


def main():
    chromium, pipesim, page, folder, *rest = sys.argv[1:]
    pipesim = str(pathlib.Path(pipesim).resolve())
    folder = pathlib.Path(folder)
    folder.mkdir(parents=True, exist_ok=True)
    with sync_playwright() as driver:
        # root has no sandbox
        browser = driver.chromium.launch(executable_path=chromium, args=["--no-sandbox"])
        bench = Bench(browser, pipesim, pathlib.Path(page).resolve(), folder)
        wanted = rest[1:] if rest[:1] == ["--only"] else None
        failed = run_checks(CHECKS, bench, wanted)
        browser.close()
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
