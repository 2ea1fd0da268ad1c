"""Headless Chromium, spoken to over a pipe (--remote-debugging-pipe), with
nothing but the standard library."""

import base64
import json
import os
import select
import subprocess
import time

PATIENCE = 60


class Failed(Exception):
    pass


class Browser:
    """Chromium, one page of it at a time, and all that the page reported."""

    def __init__(self, program, profile):
        to_read, self.to = os.pipe()
        self.of, to_write = os.pipe()
        # Chromium reads commands from descriptor 3 and answers on 4.
        shell = 'exec 3<&$0 4>&$1; shift; exec "$@"'
        flags = [
            "--headless", "--no-sandbox", "--disable-gpu", "--disable-dev-shm-usage", "--no-first-run",
            "--hide-scrollbars", "--disable-extensions", "--disable-background-networking", "--disable-component-update",
            "--remote-debugging-pipe", f"--user-data-dir={profile}", "about:blank",
        ]
        self.process = subprocess.Popen(
            ["bash", "-c", shell, str(to_read), str(to_write), program, *flags],
            pass_fds=[to_read, to_write], stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
        os.close(to_read)
        os.close(to_write)
        self.rest, self.id, self.events, self.session = b"", 0, [], None
        self.tab()

    def tab(self):
        """Goes on with a new page, which knows nothing of the ones before."""
        self.session = None
        target = self.call("Target.createTarget", url="about:blank")["targetId"]
        self.session = self.call("Target.attachToTarget", targetId=target, flatten=True)["sessionId"]
        for domain in ["Page", "Runtime", "Log", "Network", "Accessibility"]:
            self.call(domain + ".enable")
        self.call("Emulation.setFocusEmulationEnabled", enabled=True)

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
        # Without motion a scroll ends at once.
        self.call("Emulation.setEmulatedMedia", features=[
            {"name": "prefers-color-scheme", "value": scheme}, {"name": "prefers-reduced-motion", "value": "reduce"}])

    def touch(self, enabled):
        self.call("Emulation.setTouchEmulationEnabled", enabled=enabled)
        check(self.value("matchMedia('(pointer: coarse)').matches") == enabled, "Chromium does not emulate a finger")

    def open(self, url):
        self.events.clear()
        self.call("Page.navigate", url="about:blank")
        self.wait("Page.loadEventFired")
        self.events.clear()
        self.call("Page.navigate", url=url)
        self.wait("Page.loadEventFired")

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
