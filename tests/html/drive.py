#!/usr/bin/env python3
"""Opens an HTML report in headless Chromium, uses it as a reader would, and
takes screenshots of it.

    drive.py REPORT.html FOLDER

Fails with one line if the page says anything on the console, asks for anything
over the network, does not answer to a click or a key, or is wider than a
phone. Prints what it saw as JSON. Chromium is spoken to over a pipe
(--remote-debugging-pipe), with nothing but the standard library.
"""

import base64
import json
import os
import pathlib
import select
import shutil
import subprocess
import sys
import tempfile
import time

NAMES = ["chromium", "chromium-browser", "google-chrome", "google-chrome-stable", "chrome"]
PATIENCE = 60


class Failed(Exception):
    pass


class Browser:
    """Chromium, one page of it, and all it reported."""

    def __init__(self, program, profile):
        to_read, self.to = os.pipe()
        self.of, to_write = os.pipe()
        # Chromium reads commands from descriptor 3 and answers on 4.
        shell = 'exec 3<&$0 4>&$1; shift; exec "$@"'
        flags = [
            "--headless", "--no-sandbox", "--disable-gpu", "--disable-dev-shm-usage", "--no-first-run",
            "--disable-extensions", "--disable-background-networking", "--disable-component-update",
            "--remote-debugging-pipe", f"--user-data-dir={profile}", "about:blank",
        ]
        self.process = subprocess.Popen(
            ["bash", "-c", shell, str(to_read), str(to_write), program, *flags],
            pass_fds=[to_read, to_write], stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
        os.close(to_read)
        os.close(to_write)
        self.rest, self.id, self.events, self.session = b"", 0, [], None
        target = self.call("Target.createTarget", url="about:blank")["targetId"]
        self.session = self.call("Target.attachToTarget", targetId=target, flatten=True)["sessionId"]
        for domain in ["Page", "Runtime", "Log", "Network", "Accessibility"]:
            self.call(domain + ".enable")

    def receive(self, until):
        while b"\0" not in self.rest:
            if not select.select([self.of], [], [], max(0, until - time.monotonic()))[0]:
                raise Failed(f"Chromium did not answer within {PATIENCE} s")
            chunk = os.read(self.of, 1 << 16)
            if not chunk:
                raise Failed("Chromium ended")
            self.rest += chunk
        message, self.rest = self.rest.split(b"\0", 1)
        return json.loads(message)

    def call(self, method, **params):
        self.id += 1
        message = {"id": self.id, "method": method, "params": params}
        if self.session:
            message["sessionId"] = self.session
        data = json.dumps(message).encode() + b"\0"
        while data:
            data = data[os.write(self.to, data):]
        until = time.monotonic() + PATIENCE
        while True:
            answer = self.receive(until)
            if answer.get("id") == self.id:
                if "error" in answer:
                    raise Failed(f"{method}: {answer['error']['message']}")
                return answer["result"]
            self.events.append(answer)

    def wait(self, event):
        until = time.monotonic() + PATIENCE
        while not any(e.get("method") == event for e in self.events):
            self.events.append(self.receive(until))

    def value(self, script):
        answer = self.call("Runtime.evaluate", expression=script, returnByValue=True, awaitPromise=True)
        if "exceptionDetails" in answer:
            raise Failed(f"{script}: {answer['exceptionDetails']['text']}")
        return answer["result"].get("value")

    def press(self, key, code):
        for kind in ["keyDown", "keyUp"]:
            text = {"text": "\r"} if key == "Enter" and kind == "keyDown" else {}
            self.call("Input.dispatchKeyEvent", type=kind, key=key, code=key, windowsVirtualKeyCode=code, **text)

    def click(self, selector):
        box = self.value(
            "(() => { const e = document.querySelector(%s); e.scrollIntoView({block: 'center', behavior: 'instant'});"
            " const r = e.getBoundingClientRect(); return [r.x + r.width / 2, r.y + r.height / 2]; })()"
            % json.dumps(selector))
        for kind in ["mousePressed", "mouseReleased"]:
            self.call("Input.dispatchMouseEvent", type=kind, x=box[0], y=box[1], button="left", clickCount=1)

    def size(self, width, height, scheme):
        self.call("Emulation.setDeviceMetricsOverride", width=width, height=height, deviceScaleFactor=1, mobile=False)
        self.call("Emulation.setEmulatedMedia", features=[{"name": "prefers-color-scheme", "value": scheme}])

    def shot(self, path):
        image = self.call("Page.captureScreenshot", format="png", captureBeyondViewport=True)["data"]
        path.write_bytes(base64.b64decode(image))

    def close(self):
        self.process.kill()
        self.process.wait()


def check(condition, words):
    if not condition:
        raise Failed(words)


def complaints(events):
    """Everything the page said or asked for that a report must not."""
    for event in events:
        method, params = event.get("method"), event.get("params", {})
        if method == "Runtime.exceptionThrown":
            details = params["exceptionDetails"]
            yield "exception: " + details.get("exception", {}).get("description", details["text"])
        elif method == "Runtime.consoleAPICalled":
            yield "console: " + json.dumps([a.get("value") for a in params["args"]])
        elif method == "Log.entryAdded":
            yield "log: " + params["entry"]["text"]
        elif method == "Network.requestWillBeSent":
            url = params["request"]["url"]
            if not url.startswith("file://"):
                yield "request: " + url
        elif method == "Page.javascriptDialogOpening":
            yield "dialog: " + params["message"]


def use(page, report, folder):
    page.size(1280, 900, "light")
    page.call("Page.navigate", url=report.as_uri())
    page.wait("Page.loadEventFired")
    seen = page.value("""({
        badge: document.querySelector('.badge').textContent,
        headline: document.querySelector('h1').textContent,
        cells: document.querySelectorAll('#stages td[data-key]').length,
        positions: document.querySelectorAll('#positions td[data-key]').length,
        origins: document.querySelectorAll('#stages td.diverged, #stages td.poisoned').length,
        attention: document.querySelectorAll('#attention canvas').length,
        logits: document.querySelectorAll('#logits tbody tr').length,
        command: document.querySelector('#command').textContent,
        nodes: document.querySelectorAll('img, iframe, object, embed, link, form').length,
        scripts: document.scripts.length,
        empty: [...document.querySelectorAll('main section:not([hidden])')].filter(s => s.innerText.length < 40).map(s => s.innerText),
        nothing: document.body.innerText.match(/\\b(undefined|null|\\[object)\\b/g) || [],
    })""")
    check(seen["cells"] > 0, "no stage is drawn")
    check(seen["positions"] > 0, "no position is drawn")
    check(seen["nodes"] == 0 and seen["scripts"] == 2, "something stands in the page that the template has not")
    check(not seen["empty"], f"empty sections: {seen['empty']}")
    check(not seen["nothing"], f"a value is missing somewhere: {seen['nothing']}")

    # A click drills in.
    keys = page.value("[...document.querySelectorAll('#stages td[data-key]')].map(td => td.dataset.key)")
    for key in [keys[-1], keys[len(keys) // 2]]:
        page.click(f'#stages td[data-key="{key}"]')
        shown = page.value("document.querySelector('#detail h3').textContent")
        check(shown.startswith(key + " "), f"a click on {key} shows {shown}")
        check(page.value("location.hash") == "#" + key, "the address does not name the choice")
    seen["detail"] = page.value("document.querySelector('#detail').innerText.length")
    check(seen["detail"] > 100, "the details of a stage are empty")

    # The keyboard does as well: to the next cell and into it.
    before = focused = page.value("document.activeElement.dataset.key")
    for key, code in [("ArrowDown", 40), ("ArrowUp", 38), ("ArrowRight", 39), ("ArrowLeft", 37)]:
        if focused == before:
            page.press(key, code)
            focused = page.value("document.activeElement.dataset.key")
    page.press("Enter", 13)
    shown = page.value("document.querySelector('#detail h3').textContent")
    check(focused != before or len(keys) == 1, "no arrow key moves")
    check(shown.startswith(focused + " "), f"Enter on {focused} shows {shown}")
    check(page.value("document.querySelectorAll('#stages td[tabindex=\"0\"]').length") == 1, "the grid is no single tab stop")

    # Positions lead to their worst stage; the other side can be shown.
    page.click("#positions td[data-key]")
    key = page.value("document.querySelector('#positions td[data-key]').dataset.key")
    check(page.value("document.querySelector('#detail h3').textContent").startswith(key + " "), "a position leads nowhere")
    page.click("#side button:nth-child(2)")
    check(page.value("document.querySelector('#side button:nth-child(2)').ariaPressed") == "true", "the reference cannot be chosen")
    page.click("#side button:nth-child(1)")

    for control in page.value(
            "[...document.querySelectorAll('button, select, a, canvas, svg, [role=grid]')]"
            ".filter(e => !e.closest('label') && !(e.ariaLabel || e.getAttribute('aria-label') || e.textContent.trim())).map(e => e.outerHTML.slice(0, 80))"):
        raise Failed("without a name for a screen reader: " + control)

    page.shot(folder / "light.png")
    page.size(1280, 900, "dark")
    page.shot(folder / "dark.png")
    dark = page.value("getComputedStyle(document.body).backgroundColor")
    check(max(int(n) for n in dark.strip("rgb()").split(",")) < 90, f"the dark page is {dark}")
    page.size(390, 844, "light")
    page.shot(folder / "phone.png")
    width = page.value("document.documentElement.scrollWidth")
    letters = page.value(
        "Math.min(...[...document.querySelectorAll('svg')].map(s => 11 * s.getBoundingClientRect().width / s.viewBox.baseVal.width))"
    )
    check(letters >= 9, f"text of {letters} pixels on a phone")
    check(width <= 390, f"a phone of 390 pixels has to scroll sideways: {width}")
    for words in complaints(page.events):
        raise Failed(words)
    return seen


def main():
    report, folder = pathlib.Path(sys.argv[1]).resolve(), pathlib.Path(sys.argv[2])
    program = next(filter(None, map(shutil.which, NAMES)), None)
    if not program:
        raise Failed("no Chromium on the PATH: install it with scripts/setup --tests")
    folder.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as profile:
        page = Browser(program, profile)
        try:
            print(json.dumps(use(page, report, folder)))
        finally:
            page.close()


try:
    main()
except Failed as e:
    sys.exit(f"drive.py: {e}")
