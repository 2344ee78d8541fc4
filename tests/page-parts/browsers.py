#!/usr/bin/env python3
"""Checks the explorer in Firefox and in WebKitGTK, which the suite does not install; a line a check.

    apt-get install firefox-esr webkit2gtk-driver xvfb && pip install websocket-client
    browsers.py PIPESIM EXPLORER.html [firefox|webkit]

Firefox is driven by WebDriver BiDi, WebKitGTK's MiniBrowser by WebDriver.
"""

import glob
import json
import os
import pathlib
import random
import subprocess
import sys
import tempfile
import time
import urllib.request


def retried(action, seconds=30):
    """Does what fails until a browser has started."""
    end = time.monotonic() + seconds
    while True:
        try:
            return action()
        except OSError:
            if time.monotonic() > end:
                raise
            time.sleep(0.2)


class Firefox:
    def __init__(self):
        import websocket

        args = ["--headless", "--no-remote", "--profile", tempfile.mkdtemp(), "--remote-debugging-port", "9333", "about:blank"]
        self.process = subprocess.Popen(["firefox-esr", *args], stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
        self.socket = retried(lambda: websocket.create_connection("ws://127.0.0.1:9333/session", timeout=120, suppress_origin=True))
        self.count = 0
        self.version = "Firefox " + self.call("session.new", capabilities={})["capabilities"]["browserVersion"]
        self.context = self.call("browsingContext.getTree")["contexts"][0]["context"]

    def call(self, method, **params):
        self.count += 1
        self.socket.send(json.dumps({"id": self.count, "method": method, "params": params}))
        while True:
            answer = json.loads(self.socket.recv())
            if answer.get("id") == self.count:
                if answer["type"] == "error":
                    raise RuntimeError(answer)
                return answer["result"]

    def open(self, url):
        self.call("browsingContext.setViewport", context=self.context, viewport={"width": 1400, "height": 900})
        self.call("browsingContext.navigate", context=self.context, url=url, wait="complete")

    def run(self, body):
        """Runs the body of an async function; what it returns."""
        text = "(async () => JSON.stringify((await (async () => {" + body + "})()) ?? null))()"
        answer = self.call("script.evaluate", expression=text, target={"context": self.context}, awaitPromise=True)
        if answer["type"] == "exception":
            raise AssertionError(answer["exceptionDetails"]["text"])
        return json.loads(answer["result"]["value"])

    def close(self):
        self.process.terminate()


class WebKit:
    def __init__(self):
        self.screen = subprocess.Popen(["Xvfb", ":77", "-screen", "0", "1500x1000x24"], stderr=subprocess.DEVNULL)
        time.sleep(1)
        self.process = subprocess.Popen(["WebKitWebDriver", "-p", "9444"], env={**os.environ, "DISPLAY": ":77"}, stderr=subprocess.DEVNULL)
        options = {"binary": sorted(glob.glob("/usr/lib/*/webkit2gtk-*/MiniBrowser"))[-1], "args": ["--automation"]}
        self.session = ""
        found = retried(lambda: self.call("/session", capabilities={"alwaysMatch": {"webkitgtk:browserOptions": options}}))
        self.session = "/session/" + found["sessionId"]
        self.version = "WebKitGTK " + found["capabilities"]["browserVersion"]
        self.call("/timeouts", script=120_000)
        self.call("/window/rect", width=1400, height=900)

    def call(self, path, **body):
        headers = {"Content-Type": "application/json"}
        request = urllib.request.Request("http://127.0.0.1:9444" + self.session + path, json.dumps(body).encode(), headers)
        with urllib.request.urlopen(request, timeout=180) as answer:
            return json.load(answer)["value"]

    def open(self, url):
        self.call("/url", url=url)

    def run(self, body):
        text = "const done = arguments[0]; (async () => {" + body + "})().then(value => done({ value: value ?? null }), error => done({ error: String(error) }))"
        answer = self.call("/execute/async", script=text, args=[])
        if "error" in answer:
            raise AssertionError(answer["error"])
        return answer["value"]

    def close(self):
        self.process.terminate()
        self.screen.terminate()


TOOLS = """
const byId = id => document.getElementById(id), told = id => byId(id).textContent;
const titled = part => document.querySelector("#page iframe:not(.coming)").contentDocument.getElementById("title").textContent.includes(part);
const enter = (id, value) => { byId(id).value = value; byId(id).dispatchEvent(new Event("input")); };
const view = name => document.querySelector(`#tabs [data-view=${name}]`).click();
const until = async (holds, what) => {
  for (const end = performance.now() + 60000; performance.now() < end; await new Promise(requestAnimationFrame)) try { if (holds()) return; } catch { /* not yet */ }
  throw new Error(`waited for ${what}; ${told("failure")}`);
};
"""
CHECKS = {
    "the first timeline": """await until(() => titled("4 devices") && told("said"), "a timeline"); return told("said");""",
    "a slider": """const range = document.querySelector("input[data-of=m]"); range.value = 16; range.dispatchEvent(new Event("input"));
        await until(() => titled("16 micro"), "m = 16"); return told("command");""",
    "redraws of four schedules at p = 16, m = 64": """
        for (const box of document.querySelectorAll("#schedules input")) if (["dualpipe-v", "zb-h1"].includes(box.value)) box.click();
        enter("p", 16); enter("m", 64);
        await until(() => titled("16 devices, 64") && told("said").includes("zb-h1"), "four schedules");
        const times = [];
        for (let m = 66; m <= 80; m += 2) { const begun = performance.now(); enter("m", m); await until(() => titled(m + " micro"), m); times.push(Math.round(performance.now() - begun)); }
        return times.sort((a, b) => a - b)[4] + " ms";""",
    "views": """for (const [name, part] of [["explain", "Why devices idle"], ["check", "one-sided"], ["map", "best of its p and m"]]) { view(name); await until(() => told("text").includes(part), name); }
        view("gallery"); await until(() => document.querySelectorAll("#picture figure img").length > 25, "gallery"); view("timeline");""",
    "a schedule of one's own, and its errors": """enter("mine", "def f(n):\\n    return f(n + 1)\\ndef device(r, p, m):\\n    return f(1)\\n");
        await until(() => told("failure").includes("mine.star"), "an error");
        enter("mine", "def device(r, p, m):\\n    return m * F + m * B\\n");
        await until(() => told("said").includes("mine: makespan") && !told("failure"), "a timeline");""",
}


def same_bytes(browser, pipesim):
    """Predictions of all schedules with random costs, next to the program's."""
    dice = random.Random(5)
    names = [one["name"] for one in json.loads(subprocess.check_output([pipesim, "schedules", "--json"]))["schedules"]]
    for name in names:
        p = dice.choice([2, 4, 8])
        cost = f"F=1,I={dice.randint(1, 40) / 8},comm={dice.randint(0, 8) / 16}"
        args = ["predict", "--stages", str(p), "--micro", str(2 * p), "-s", name, "--costs", cost, "-q", "--format", "json"]
        own = subprocess.run([pipesim, *args], capture_output=True, text=True, env={"COLUMNS": "110", "NO_COLOR": "1"}, check=False)
        found = browser.run(f"const found = await pipesim({json.dumps(args)}); return [found.code, found.out, found.err];")
        assert found == [own.returncode, own.stdout, own.stderr], f"{args}: {found}"
    return f"{len(names)} predictions"


def main():
    pipesim, page, *rest = sys.argv[1:]
    for kind in (Firefox, WebKit):
        if rest and kind.__name__.lower() not in rest:
            continue
        browser = kind()
        try:
            begun = time.monotonic()
            browser.open(pathlib.Path(page).resolve().as_uri())
            for name, body in CHECKS.items():
                print(f"{browser.version}: {name}: {browser.run(TOOLS + body) or 'ok'} ({time.monotonic() - begun:.1f} s)", flush=True)
            print(f"{browser.version}: the program's bytes: {same_bytes(browser, pipesim)}")
        finally:
            browser.close()


if __name__ == "__main__":
    main()
