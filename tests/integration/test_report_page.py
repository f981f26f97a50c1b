# SPDX-License-Identifier: Apache-2.0
"""The page of `rmmshim report` in a browser: no error comes, and each part of it does what it says, by mouse and by
keyboard.  Skipped where no Chromium is installed.  TOOL is the command."""
import os
import sys

import browser
import support
from recordings import RANK, SAMPLE, Recording
from test_report import EVIL, MIB, SECOND, Report, training

WIDTH = 1200
CHART = "document.querySelector('#time canvas')"
SAID = "document.querySelector('#time .said').textContent"
SHOWN = "document.querySelector('#time .row .faint').textContent"


class Page(Report):
    def open(self, *recordings_made, **how):
        self.page(*recordings_made)
        page = browser.Page(self.path("out.html"), self.folder, width=WIDTH, **how)
        self.addCleanup(page.__exit__)
        return page

    def good(self, page):
        self.assertEqual(page.messages, [])
        self.assertEqual(page.requests, ["file://" + self.path("out.html")])

    def text(self, page, selector):
        return page.run("document.querySelector(%r).innerText" % selector)

    def pixels(self, page, selector):
        """How many pixels of a canvas are drawn, and a sum that changes when it is drawn in another way."""
        return page.run("""(() => { const canvas = document.querySelector(%r);
            const data = canvas.getContext('2d').getImageData(0, 0, canvas.width, canvas.height).data;
            let drawn = 0, sum = 0;
            for (let i = 0; i < data.length; i += 4) { drawn += data[i + 3] > 0; sum = (sum * 31 + data[i]) %% 1e9; }
            return [drawn, sum]; })()""" % selector)

    def test_all_of_it_is_shown(self):
        first = training()
        first.define(RANK, "3")
        page = self.open(first, training("other.py", 4712))
        self.assertEqual(page.run("document.querySelectorAll('main > section').length"), 8)
        self.assertIn("train.py [4711], rank 3 in 0.rec", self.text(page, "#overview"))
        self.assertIn("other.py [4712] in 1.rec", self.text(page, "#overview"))
        for selector in ("#time canvas", "#addresses canvas", "#compare canvas"):
            self.assertGreater(self.pixels(page, selector)[0], 1000, selector)
        self.assertIn("15.0 MiB were in use after 4 s", self.text(page, "#peak"))
        self.assertIn("forward+0x10", self.text(page, "#peak table"))
        self.assertNotIn("estimate", self.text(page, "#peak"))
        self.assertIn("6 blocks with 15.0 MiB", self.text(page, "#addresses"))
        self.assertIn("never freed", self.text(page, "#sizes"))
        self.assertIn("cache+0x20", self.text(page, "#phases"))
        self.assertIn("Requests refused as out of memory: 1", self.text(page, "#incidents"))
        self.assertIn("Peak: 15.0 MiB before, 15.0 MiB after", self.text(page, "#compare"))
        self.assertGreater(os.path.getsize(page.picture(self.path("page.png"), is_whole=True)), 20_000)
        self.good(page)

    def test_zoom_by_mouse(self):
        page = self.open(training())
        box = page.run("(() => { const box = %s.getBoundingClientRect(); return [box.left, box.top, box.width]; })()" % CHART)
        left, y, right = box[0] + 84, box[1] + 60, box[0] + box[2] - 12
        at = [left + (right - left) * part for part in (0.5, 0.75)]
        before = self.pixels(page, "#time canvas")
        page.mouse("mouseMoved", at[0], y)
        self.assertRegex(page.run(SAID), r"^(3.99\d?|4|4.00\d) s: used .* MiB, held \d+.0 MiB, limit 64.0 MiB$")
        page.mouse("mousePressed", at[0], y, 1)
        page.mouse("mouseMoved", at[1], y, 1)
        page.mouse("mouseReleased", at[1], y)
        self.assertRegex(page.run(SHOWN), r"^(3.99\d?|4(.00\d)?) s to (5.99\d?|6(.00\d)?) s$")
        self.assertNotEqual(self.pixels(page, "#time canvas"), before)
        page.run("document.querySelector('#time button[aria-label^=\"Show all\"]').click()")
        self.assertEqual(page.run(SHOWN), "0 ns to 8 s")
        self.good(page)

    def test_keys(self):
        page = self.open(training())
        page.run(CHART + ".focus()")
        for key, shown in (("+", "2 s to 6 s"), ("ArrowRight", "2.8 s to 6.8 s"), ("Home", "0 ns to 4 s"), ("End", "4 s to 8 s"),
                           ("-", "0 ns to 8 s"), ("+", "2 s to 6 s"), ("0", "0 ns to 8 s")):
            page.press(key)
            self.assertEqual(page.run(SHOWN), shown, key)
        page.run("document.querySelector('#addresses canvas').focus()")
        page.press("ArrowRight")
        self.assertIn("0x700000000000: 3.00 MiB", self.text(page, "#addresses .said"))
        page.press("ArrowRight")
        self.assertIn("0x7f0000000000: 8.00 MiB, train.py:7 in step, forward+0x10", self.text(page, "#addresses .said"))
        page.run("document.querySelector('.flame button').focus()")
        page.press("ArrowDown")
        self.assertRegex(page.run("document.activeElement.title"), r"^train.py:7 in step: 12.0 MiB, 80.0 %")
        page.press("ArrowDown")
        self.assertRegex(page.run("document.activeElement.title"), r"^forward")
        self.good(page)

    def test_everything_is_reached_by_tab(self):
        page = self.open(training(), training("other.py", 4712))
        page.run("document.activeElement.blur(); window.reached = new Set(); 0")
        wanted = "[...document.querySelectorAll('canvas, .scroll, button, select, input, a')].filter((one) => one.offsetParent && !one.disabled)"
        for _ in range(page.run(wanted + ".length") + 5):
            page.press("Tab")
            page.run("reached.add(document.activeElement); 0")
        self.assertEqual(page.run(wanted + ".filter((one) => !reached.has(one)).map((one) => one.outerHTML.slice(0, 80))"), [])
        sections = page.run("[...document.querySelectorAll('section')].filter((one) => [...reached].some((other) => one.contains(other))).map((one) => one.id)")
        self.assertEqual(sections, ["overview", "time", "peak", "addresses", "sizes", "phases", "incidents", "compare"])
        self.good(page)

    def test_a_call_site(self):
        page = self.open(training())
        page.run("document.querySelector('#peak tbody tr td:last-child button').click()")
        self.assertEqual(page.run("[...document.querySelectorAll('#site li')].map((one) => one.textContent)"),
                         ["forward+0x10 (model.so+0x510)", "train.py:7 in step"])
        page.run("[...document.querySelectorAll('.flame button')].find((one) => one.textContent.startsWith('forward')).click()")
        self.assertEqual(page.run("[...document.querySelectorAll('.flame button')].map((one) => one.textContent)"),
                         ["all", "train.py:7 in step", "forward (model.so)"])
        page.run("[...document.querySelectorAll('#peak button')].find((one) => one.textContent === 'Show all').click()")
        self.assertIn("cache", page.run("document.querySelector('.flame').textContent"))
        page.run("""(() => { const find = document.querySelector('#peak input'); find.value = 'CACHE';
            find.dispatchEvent(new Event('input')); })()""")
        self.assertEqual(page.run("document.querySelectorAll('.flame .found').length"), 1)
        self.good(page)

    def test_a_column_sorts(self):
        page = self.open(training())
        first = "document.querySelector('#peak tbody tr td:last-child').textContent"
        header = "[...document.querySelectorAll('#peak th button')].find((one) => one.textContent === %r).click()"
        self.assertTrue(page.run(first).startswith("train.py:7 in step, forward"))
        page.run(header % "Live at the end")
        self.assertTrue(page.run(first).startswith("train.py:7 in step, cache"))
        page.run(header % "Live at the end")
        self.assertTrue(page.run(first).startswith("train.py:7 in step, forward"))
        self.assertEqual(page.run("document.querySelectorAll('#peak [aria-sort=ascending]').length"), 1)
        self.good(page)

    def test_dark_and_light(self):
        page = self.open(training(), scheme="dark")
        back = "getComputedStyle(document.body).backgroundColor"
        dark, dark_pixels = page.run(back), self.pixels(page, "#time canvas")
        page.set_scheme("light")
        support.until(lambda: self.pixels(page, "#time canvas") != dark_pixels, "the canvas in the other theme")
        light = page.run(back)
        self.assertNotEqual(dark, light)
        seen = []
        for _ in range(3):
            page.run("document.getElementById('theme').click()")
            seen.append(page.run(back))
        self.assertEqual(seen, [light, dark, light])
        self.good(page)

    def test_another_memory_and_another_comparison(self):
        page = self.open(training(), training("other.py", 4712, leak=2 * MIB))
        choose = "(() => { const one = document.querySelector(%r); one.value = %d; one.dispatchEvent(new Event('change')); })()"
        self.assertIn("19.0 MiB were in use", self.text(page, "#peak"))
        page.run(choose % ("#series", 0))
        self.assertIn("15.0 MiB were in use", self.text(page, "#peak"))
        self.assertIn("15.0 MiB before, 19.0 MiB after: +4.00 MiB", self.text(page, "#compare"))
        self.assertRegex(self.text(page, "#compare tbody tr"), r"\+4.00 MiB\s+4.00 MiB\s+8.00 MiB\s+4\s+4\s+train.py:7 in step, cache")
        page.run(choose % ("#compare select", 1))
        self.assertIn("19.0 MiB before, 19.0 MiB after: 0 B", self.text(page, "#compare"))
        self.good(page)

    def test_names_run_nothing(self):
        recording = training(EVIL)
        recording.begin(6 * SECOND, EVIL)
        recording.allocate(6 * SECOND + 1, 0x1000, 99 * MIB, definition=recording.site(EVIL, EVIL + "2"))
        recording.end(6 * SECOND + 2, EVIL)
        page = self.open(recording)
        self.assertIn("owned'</script>", self.text(page, "#peak"))
        self.assertNotEqual(page.run("document.title"), "owned")
        self.assertEqual(page.run("document.images.length + document.querySelectorAll('script').length"), 2)
        self.good(page)

    def test_a_sample_of_call_sites(self):
        recording = training()
        recording.define(SAMPLE, "", 12 * MIB)
        page = self.open(recording)
        self.assertIn("One block in each 12.0 MiB allocated has a call site", self.text(page, "#peak"))
        self.good(page)

    def test_a_recording_without_events(self):
        self.good(self.open(Recording("idle")))


if __name__ == "__main__":
    if not browser.find():
        print("no Chromium is installed")
        sys.exit(77)
    support.main()
