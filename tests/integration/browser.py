# SPDX-License-Identifier: Apache-2.0
"""A page in a headless Chromium, spoken to by its own protocol over two pipes: nothing but the browser is needed."""
import base64
import json
import os
import select
import shutil
import subprocess
import time

import support

PROGRAMS = ("chromium", "chromium-browser", "google-chrome")


def find():
    return next((path for path in map(shutil.which, PROGRAMS) if path), None)


class Page:
    """A file as a page.  `messages` are what its console and its errors said, and what it asked of the network."""

    def __init__(self, path, folder, width=1200, height=900, scheme="light"):
        commands, self.commands = os.pipe()
        self.answers, answers = os.pipe()
        self.buffer, self.number, self.messages, self.requests = b"", 0, [], []

        def take_pipes():
            # The browser has them as descriptors 3 and 4, wherever they were.
            high = os.dup(answers), os.dup(commands)
            os.dup2(high[1], 3)
            os.dup2(high[0], 4)

        self.process = subprocess.Popen(
            [find(), "--headless=new", "--no-sandbox", "--disable-gpu", "--disable-dev-shm-usage", "--hide-scrollbars",
             "--remote-debugging-pipe", "--user-data-dir=" + os.path.join(folder, "browser"), "about:blank"],
            env=dict(os.environ, LD_PRELOAD="", HOME=folder), stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL,
            preexec_fn=take_pipes, close_fds=False)
        os.close(commands)
        os.close(answers)
        targets = self.ask("Target.getTargets", session=None)["targetInfos"]
        target = next(one["targetId"] for one in targets if one["type"] == "page")
        self.session = self.ask("Target.attachToTarget", session=None, targetId=target, flatten=True)["sessionId"]
        for name in ("Page", "Runtime", "Log", "Network"):
            self.ask(name + ".enable")
        self.ask("Emulation.setDeviceMetricsOverride", width=width, height=height, deviceScaleFactor=1, mobile=False)
        self.set_scheme(scheme)
        self.ask("Page.navigate", url="file://" + path)
        support.until(lambda: self.run("document.readyState") == "complete" and self.run("location.protocol") == "file:", "the page")

    def __enter__(self):
        return self

    def __exit__(self, *_):
        os.close(self.commands)
        os.close(self.answers)
        self.process.kill()
        # Its own processes write into the folder until they have ended too: they have its output open.
        self.process.communicate(timeout=support.ENOUGH_SECONDS)

    def read(self):
        """The next message of the browser."""
        end = time.monotonic() + support.ENOUGH_SECONDS
        while b"\0" not in self.buffer:
            ready = select.select([self.answers], [], [], max(end - time.monotonic(), 0))[0]
            part = os.read(self.answers, 1 << 16) if ready else b""
            if not part:
                raise AssertionError("the browser does not answer")
            self.buffer += part
        text, _, self.buffer = self.buffer.partition(b"\0")
        return json.loads(text)

    def note(self, message):
        method, about = message.get("method"), message.get("params", {})
        if about.get("entry", {}).get("source") == "rendering":
            return  # advice on speed: tests look at pixels again and again
        if method in ("Runtime.exceptionThrown", "Log.entryAdded", "Runtime.consoleAPICalled"):
            self.messages.append(json.dumps(about))
        elif method == "Network.requestWillBeSent":
            self.requests.append(about["request"]["url"])

    def ask(self, method, session="own", **arguments):
        self.number += 1
        words = {"id": self.number, "method": method, "params": arguments}
        if session:
            words["sessionId"] = self.session
        os.write(self.commands, json.dumps(words).encode() + b"\0")
        while True:
            message = self.read()
            if message.get("id") == self.number:
                if "error" in message:
                    raise AssertionError("%s: %s" % (method, message["error"]))
                return message["result"]
            self.note(message)

    def run(self, script):
        """The value of an expression in the page."""
        result = self.ask("Runtime.evaluate", expression=script, returnByValue=True)
        if "exceptionDetails" in result:
            raise AssertionError(json.dumps(result["exceptionDetails"]))
        return result["result"].get("value")

    def press(self, key):
        for kind in ("rawKeyDown", "keyUp"):
            self.ask("Input.dispatchKeyEvent", type=kind, key=key, windowsVirtualKeyCode=9 if key == "Tab" else 0)

    def mouse(self, kind, x, y, buttons=0):
        self.ask("Input.dispatchMouseEvent", type=kind, x=x, y=y, button="left" if kind != "mouseMoved" or buttons else "none",
                 buttons=buttons, clickCount=1)

    def set_scheme(self, scheme):
        self.ask("Emulation.setEmulatedMedia", features=[{"name": "prefers-color-scheme", "value": scheme}])

    def picture(self, path, is_whole=False):
        data = self.ask("Page.captureScreenshot", format="png", captureBeyondViewport=is_whole)["data"]
        with open(path, "wb") as file:
            file.write(base64.b64decode(data))
        return path
