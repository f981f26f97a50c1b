# SPDX-License-Identifier: Apache-2.0
"""`rmmshim report`: its numbers, of recordings that are made up here; what it does with files that are no good; and that
names in a recording stay text.  test_report_page.py looks at the page in a browser.  TOOL is the command."""
import json
import os
import re
import stat
import struct
import sys
import unicodedata

import recordings
import support
from recordings import MARK, NAME, RANK, REFUSED, SAMPLE, SLOW, STACK_GONE, Recording
from support import run

TOOL = os.environ["TOOL"]
MIB = 1 << 20
SECOND = 10**9


def document_of(path):
    """The JSON in a page."""
    with open(path, encoding="utf-8") as file:
        text = file.read()
    return json.loads(re.search(r'<script type="application/json" id="document">(.*?)</script>', text, re.DOTALL)[1])


def training(program="train.py", process=4711, leak=MIB):
    """Five steps, each of which leaves a block of `leak` bytes; the peak is in the fourth one."""
    recording = Recording(program, process)
    layer = recording.site("forward+0x10 (model.so+0x510)", "train.py:7 in step")
    leaky = recording.site("cache+0x20 (model.so+0x620)", "train.py:7 in step")
    recording.held(1, 16 * MIB, 64 * MIB)
    recording.allocate(SECOND // 2, 0x7000_0000_0000, 3 * MIB)
    for step in range(5):
        start, at = (step + 1) * SECOND, 0x7f00_0000_0000
        recording.begin(start, "step")
        size = (8 if step == 3 else 4) * MIB
        recording.allocate(start + 1000, at, size, definition=layer)
        recording.allocate(start + 2000, at + 16 * MIB + step * 2 * MIB, leak, definition=leaky)
        if step == 3:
            recording.held(start + 2500, 32 * MIB, 64 * MIB)
        recording.free(start + 5000, at, size)
        recording.end(start + 9000, "step")
    recording.add(SLOW, 6 * SECOND, 3_000_000, MIB, layer)
    recording.add(REFUSED, 7 * SECOND, 0, 80 * MIB, layer)
    recording.add(MARK, 8 * SECOND, definition=recording.define(NAME, "saved"))
    return recording


class Report(support.Test):
    def report(self, *words, **how):
        return run([TOOL, "report", *words], preload=[], **how)

    def made(self, recording, name="a.rec"):
        return recording.write(self.path(name))

    def page(self, *recordings_made):
        files = [self.made(one, "%d.rec" % i) for i, one in enumerate(recordings_made)]
        result = self.report(*files, "-o", self.path("out.html"))
        self.assertEqual((result.status, result.stdout, result.stderr), (0, "", ""))
        return document_of(self.path("out.html"))

    def refused(self, *words, status=1, says):
        result = self.report(*words)
        self.assertEqual(result.status, status, result)
        self.assertRegex(result.stderr, r"^rmmshim: [^\n]*%s[^\n]*\n$" % says)
        return result


class Numbers(Report):
    def test_the_page(self):
        run_, = self.page(training())["runs"]
        series, = run_["series"]
        self.assertEqual((run_["program"], run_["process"], run_["end_ns"]), ("train.py", 4711, 8 * SECOND))
        # 3 MiB from before, 3 blocks that earlier steps left, and the fourth step's own.
        self.assertEqual((series["peak_used"], series["peak_ns"]), ((3 + 3 + 8 + 1) * MIB, 4 * SECOND + 2000))
        self.assertEqual((series["peak_held"], series["limit"], series["end_held"]), (32 * MIB, 64 * MIB, 32 * MIB))
        self.assertEqual((series["end_used"], series["end_blocks"]), (8 * MIB, 6))
        self.assertEqual((series["allocations"], series["frees"], series["allocated_bytes"]), (11, 5, (3 + 4 * 4 + 8 + 5) * MIB))
        self.assertEqual((run_["refusals"]["count"], run_["refusals"]["bytes"]), (1, 80 * MIB))
        self.assertEqual((run_["waits"]["count"], run_["waits"]["duration_ns"]), (1, 3_000_000))
        self.assertEqual(run_["marks"], [[8 * SECOND, "saved", 8 * MIB]])

    def test_call_sites(self):
        document = self.page(training())
        series, = document["runs"][0]["series"]
        sums = {tuple(document["frames"][frame] for frame in document["sites"][site]): rest for site, *rest in series["sites"]}
        self.assertEqual(sums, {
            ("forward+0x10 (model.so+0x510)", "train.py:7 in step"): [8 * MIB, 1, 24 * MIB, 5, 0, 0, 5 * 4000],
            ("cache+0x20 (model.so+0x620)", "train.py:7 in step"): [4 * MIB, 4, 5 * MIB, 5, 5 * MIB, 5, 0],
            (): [3 * MIB, 1, 3 * MIB, 1, 3 * MIB, 1, 0]})
        self.assertEqual([span[:3] for span in series["spans"]][:2],
                         [[0x7000_0000_0000, 3 * MIB, 3 * MIB], [0x7f00_0000_0000, 8 * MIB, 8 * MIB]])
        self.assertEqual(len(series["spans"]), series["peak_blocks"])

    def test_a_sample_of_call_sites_stands_for_all_blocks(self):
        recording = Recording()
        recording.define(SAMPLE, "", 10_000)
        small, large = recording.site("small+0x1 (a.so+0x1)"), recording.site("large+0x1 (a.so+0x2)")
        for i in range(1000):  # each tenth one reaches the next 10,000 bytes
            recording.allocate(i, 0x100000 + i * 1024, 1000, definition=small if i % 10 == 9 else 0)
        recording.allocate(2000, 0x900000, 64_000, definition=large)
        for i in range(500):
            recording.free(3000 + i, 0x100000 + i * 1024, 1000)
        document = self.page(recording)
        series, = document["runs"][0]["series"]
        sums = {document["frames"][document["sites"][site][0]][:5]: rest for site, *rest in series["sites"]}
        self.assertEqual({name: rest[:6] for name, rest in sums.items()},
                         {"small": [1000_000, 1000, 1000_000, 1000, 500_000, 500], "large": [64_000, 1, 64_000, 1, 64_000, 1]})
        self.assertEqual(sums["small"][6], sum(10 * (3000 + i - i) for i in range(9, 500, 10)))
        self.assertIn("  figures by call site are estimated from one block in each 9.77 KiB allocated\n",
                      self.report(self.path("0.rec")).stdout)

    def test_a_sample_that_stands_for_too_much(self):
        recording = Recording()
        recording.define(SAMPLE, "", 10_000)
        recording.allocate(1, 0x1000, 1000, definition=recording.site("small+0x1 (a.so+0x1)"))
        recording.allocate(2, 0x2000, 500)
        series, = self.page(recording)["runs"][0]["series"]
        self.assertEqual([rest for _, *rest in series["sites"]], [[10_000, 10, 10_000, 10, 10_000, 10, 0]])

    def test_growth_between_phases(self):
        document = self.page(training())
        phase, = document["runs"][0]["phases"]
        self.assertEqual((phase["name"], phase["count"], phase["growth"]), ("step", 5, MIB))
        (site, *left), = phase["survivors"]  # of the steps but the first and the last one
        self.assertEqual(left, [3 * MIB, 3, 3])
        self.assertTrue(document["frames"][document["sites"][site][0]].startswith("cache"))
        self.assertEqual(phase["occurrences"][3], [4 * SECOND, 4 * SECOND + 9000, 6 * MIB, 7 * MIB, 15 * MIB])
        sampled = training()
        sampled.define(SAMPLE, "", 4 * MIB)
        phase, = self.page(sampled)["runs"][0]["phases"]
        self.assertEqual([left for _, *left in phase["survivors"]], [[12 * MIB, 12, 3]])

    def test_lines_of_python_take_the_place_of_the_interpreter(self):
        recording = Recording()
        site = recording.site("_ZN5torch5emptyEv+0x1c (libtorch.so+0x52)", "method (m.so+0x7)",
                              "_PyEval_EvalFrameDefault+0x9 (python3+0x8)", "Py_RunMain+0x3 (python3+0x5)",
                              lines=("/lib/model.py:7 in forward", "train.py:3 in <module>"))
        # The summary has the innermost lines, by the names of their files, and of other sites the innermost frames.
        native = recording.site("_Zounds+0x1 (lib.so+0x1)", "main+0x5 (app+0x9)")
        recording.allocate(1, 0x1000, MIB, definition=site)
        recording.allocate(2, 0x2000000, MIB, definition=native)
        recording.write(self.path("one.rec"))
        self.assertEqual(run([TOOL, "report", self.path("one.rec"), "-o", self.path("page.html")], preload=[]).status, 0)
        document = document_of(self.path("page.html"))
        self.assertEqual([[document["frames"][frame] for frame in stack] for stack in document["sites"] if stack],
                         [["torch::empty()+0x1c (libtorch.so+0x52)", "method (m.so+0x7)", "/lib/model.py:7 in forward",
                           "train.py:3 in <module>"], ["_Zounds+0x1 (lib.so+0x1)", "main+0x5 (app+0x9)"]])
        summary = self.report(self.path("one.rec")).stdout
        self.assertIn("  model.py:7 in forward < train.py:3 in", summary)
        self.assertIn("  _Zounds+0x1 (lib.so+0x1) < main+0x5", summary)

    def test_a_program_that_frees_all_leaves_nothing_behind(self):
        recording = Recording()
        for step in range(5):
            recording.begin(step * 100, "step")
            recording.allocate(step * 100 + 1, 0x1000, MIB)
            recording.free(step * 100 + 2, 0x1000, MIB)
            recording.end(step * 100 + 3, "step")
        phase, = self.page(recording)["runs"][0]["phases"]
        self.assertEqual((phase["growth"], phase["survivors"]), (0, []))

    def test_sizes_and_lifetimes(self):
        series, = self.page(training())["runs"][0]["series"]
        cells = {(size, life): (blocks, sum_bytes) for size, life, blocks, sum_bytes in series["sizes"]}
        self.assertEqual(cells, {(22, 11): (4, 16 * MIB), (23, 11): (1, 8 * MIB), (20, 63): (5, 5 * MIB), (21, 63): (1, 3 * MIB)})

    def test_kinds_and_devices_are_told_apart(self):
        recording = Recording()
        for number, (device, memory) in enumerate([(0, 0), (0, 1), (1, 0), (1, 2)], 1):
            recording.allocate(number, number << 32, number * MIB, device=device, memory=memory)
        run_, = self.page(recording)["runs"]
        self.assertEqual([(one["device"], one["kind"], one["peak_used"]) for one in run_["series"]],
                         [(0, "device", MIB), (0, "pinned", 2 * MIB), (1, "device", 3 * MIB), (1, "managed", 4 * MIB)])

    def test_the_end_of_a_context_ends_its_blocks(self):
        recording = Recording()
        for number in range(3):
            recording.allocate(number, 0x10000 + number * 512, 512)
        recording.allocate(3, 0x20000, 100, device=1)
        recording.allocate(4, 0x30000, 200, stack=1)  # of another context of the device
        recording.add(STACK_GONE, 5)
        first, second = self.page(recording)["runs"][0]["series"]
        self.assertEqual((first["end_used"], first["end_blocks"], second["end_used"]), (200, 1, 100))

    def test_blocks_from_before_the_recording(self):
        recording = Recording(lost=10)
        recording.allocate(100, 0x1000, 50)
        recording.free(200, 0x2000, 70)
        run_, = self.page(recording)["runs"]
        self.assertEqual((run_["series"][0]["peak_used"], run_["series"][0]["end_used"], run_["lost_events"]), (120, 50, 10))

    def test_an_address_that_is_given_again_was_freed(self):
        recording = Recording()
        recording.allocate(1, 0x1000, 50)
        recording.allocate(2, 0x1000, 60)
        series, = self.page(recording)["runs"][0]["series"]
        self.assertEqual((series["peak_used"], series["end_used"], series["end_blocks"]), (60, 60, 1))

    def test_a_short_peak_among_very_many_events_is_kept(self):
        recording = Recording()
        recording.allocate(0, 0x9000, 1000)
        for i in range(1, 50_000):
            recording.allocate(i * 10_000, 0x100000, 512)
            if i == 31_234:
                recording.allocate(i * 10_000 + 1, 0x200000, 77 * MIB)
                recording.free(i * 10_000 + 2, 0x200000, 77 * MIB)
            recording.free(i * 10_000 + 5_000, 0x100000, 512)
        series, = self.page(recording)["runs"][0]["series"]
        peak = 77 * MIB + 1512
        self.assertLessEqual(len(series["timeline"]), 8192)
        self.assertEqual((series["peak_used"], series["peak_ns"]), (peak, 31_234 * 10_000 + 1))
        (index, least), = [(row[0], row[1]) for row in series["timeline"] if row[2] == peak]
        self.assertEqual(index, 31_234 * 10_000 // series["bucket_ns"])
        self.assertEqual(least, 1000)
        self.assertEqual(series["timeline"][-1][3], 1000)

    def test_ranks_side_by_side(self):
        made = [training("rank.py", 100 + rank, leak=(rank + 1) * MIB) for rank in range(4)]
        for rank, recording in enumerate(made):
            recording.define(RANK, str(rank))
        document = self.page(*made)
        self.assertEqual([one["rank"] for one in document["runs"]], ["0", "1", "2", "3"])
        self.assertEqual([one["process"] for one in document["runs"]], [100, 101, 102, 103])
        self.assertEqual([one["series"][0]["peak_used"] for one in document["runs"]], [(11 + 4 * (rank + 1)) * MIB for rank in range(4)])
        self.assertEqual(len(document["sites"]), 3)  # call sites have the same numbers in all of them


class Summary(Report):
    def test_it_tells_the_numbers(self):
        result = self.report(self.made(training()))
        self.assertEqual((result.status, result.stderr), (0, ""))
        self.assertEqual(result.stdout, """\
train.py [4711]: 8.00 s, 31 events
  device 0
    peak: 15.0 MiB used, after 4.00 s; held at most: 32.0 MiB; limit: 64.0 MiB
    11 allocations, 32.0 MiB in all; in use at the end: 8.00 MiB in 6 blocks
    in use at the peak, by call site:
      8.00 MiB  53.3 %         1 block   train.py:7 in step
      4.00 MiB  26.7 %         4 blocks  train.py:7 in step
      3.00 MiB  20.0 %         1 block   (no call site was recorded)
  phase step: entered 5 times, used up to 15.0 MiB
    memory in use grows by 1.00 MiB each time
      3.00 MiB in 3 blocks not freed, from 3 of the 5 times  train.py:7 in step
  refused: 1 request, 80.0 MiB in all
  waited for the GPU: 1 time, 3.00 ms in all
""")

    def test_a_rank_is_named(self):
        recording = training()
        recording.define(RANK, "12")
        self.assertRegex(self.report(self.made(recording), "--svg", self.path("a.svg")).stdout, r"^$")
        with open(self.path("a.svg"), encoding="utf-8") as file:
            self.assertIn(">train.py [4711], rank 12, device 0: peak 15.0 MiB used</text>", file.read())
        self.assertRegex(self.report(self.path("a.rec")).stdout, r"^train\.py \[4711\], rank 12: 8\.00 s, 31 events\n")

    def test_no_line_is_wider_than_80_columns(self):
        recording = Recording("\u7a0b\u5e8f" * 60)
        recording.allocate(1, 0x1000, MIB, definition=recording.site("very::long<" + "name," * 80 + ">"))
        recording.begin(2, "\u6bb5" * 100)
        recording.end(3, "\u6bb5" * 100)
        lines = self.report(self.made(recording), settings={"LC_ALL": "C.UTF-8"}).stdout.splitlines()
        widths = [sum(1 + (unicodedata.east_asian_width(character) in "WF") for character in line) for line in lines]
        self.assertGreater(max(widths), 78)
        self.assertLessEqual(max(widths), 80)

    def test_a_recording_without_events(self):
        result = self.report(self.made(Recording("idle")))
        self.assertEqual((result.status, result.stdout), (0, "idle [4711]: 0 ns, 0 events\n"))

    def test_a_full_terminal(self):
        result = run(["sh", "-c", "'%s' report '%s' > /dev/full" % (TOOL, self.made(training()))], preload=[])
        self.assertEqual((result.status, result.stderr), (1, "rmmshim: standard output: No space left on device\n"))


EVIL = "</script><script>document.title = 'owned'</script><img src=x onerror=alert(1)>&\"'\u2028\x1b[31m\x07"


class Plot(Report):
    def axes(self, recording):
        """The texts below a plot and beside it, with their places."""
        self.assertEqual(self.report(self.made(recording), "--svg", self.path("a.svg")).status, 0)
        with open(self.path("a.svg"), encoding="utf-8") as file:
            found = re.findall(r'<text x="([\d.]+)" y="([\d.]+)" text-anchor="(\w+)">([^<]*)</text>', file.read())
        below = [(text, float(x)) for x, y, anchor, text in found if y == "194"]
        return below, [(text, float(y)) for x, y, anchor, text in found if x == "84"]

    def test_the_axes_have_round_values(self):
        below, beside = self.axes(training())
        self.assertEqual(below, [("0 ns", 90.0), ("2.00 s", 302.5), ("4.00 s", 515.0), ("6.00 s", 727.5), ("8.00 s", 940.0)])
        self.assertEqual([text for text, _ in beside], ["0 B", "8.00 MiB", "16.0 MiB", "24.0 MiB", "32.0 MiB"])
        distances = {round(first[1] - second[1], 0) for first, second in zip(beside, beside[1:])}
        self.assertEqual(distances, {36.0})  # of 150 for 1.05 times 32 MiB

    def test_any_length_of_time(self):
        for end_ns, texts in ((0, ["0 ns", "1 ns"]), (700, ["0 ns", "200 ns", "400 ns", "600 ns"]),
                              (29 * SECOND, ["0 ns", "5.00 s", "10.0 s", "15.0 s", "20.0 s", "25.0 s"]),
                              (100 * SECOND, ["0 ns", "30.0 s", "1.00 min", "1.50 min"]),
                              (7000 * SECOND, ["0 ns", "30.0 min", "1.00 h", "1.50 h"]),
                              (3600 * 100 * SECOND, ["0 ns", "20.0 h", "40.0 h", "60.0 h", "80.0 h", "100 h"])):
            recording = Recording()
            recording.allocate(end_ns, 0x1000, 100)
            self.assertEqual([text for text, _ in self.axes(recording)[0]], texts, end_ns)


class Names(Report):
    def evil(self):
        recording = Recording(EVIL)
        recording.begin(0, EVIL)
        recording.allocate(1, 0x1000, MIB, definition=recording.site(EVIL, b"\xff\xfe\x80 no UTF-8"))
        recording.add(MARK, 2, definition=recording.define(NAME, EVIL))
        recording.end(3, EVIL)
        return recording

    def test_they_are_no_html(self):
        document = self.page(self.evil())
        with open(self.path("out.html"), encoding="utf-8") as file:
            text = file.read()
        self.assertNotIn("owned'</script>", text)
        self.assertNotIn("<img", text)
        self.assertEqual(len(re.findall("(?i)</script", text)), 2)  # of the page itself
        plain = EVIL.replace("\x1b", "?").replace("\x07", "?").replace("\u2028", "?")
        run_, = document["runs"]
        self.assertEqual({run_["program"], run_["phases"][0]["name"], run_["marks"][0][1]}, {plain})
        self.assertEqual(document["frames"], [plain, "??? no UTF-8"])

    def test_they_are_no_control_characters(self):
        result = self.report(self.made(self.evil()), settings={"LC_ALL": "C.UTF-8"})
        self.assertRegex(result.stdout, r"\A[^\x00-\x09\x0b-\x1f\x7f-\x9f\u2028]*\Z")

    def test_they_are_no_svg(self):
        self.assertEqual(self.report(self.made(self.evil()), "--svg", self.path("a.svg")).status, 0)
        with open(self.path("a.svg"), encoding="utf-8") as file:
            text = file.read()
        self.assertNotIn("<script", text)
        self.assertRegex(text, r"\A<svg [^\x00-\x09\x0b-\x1f]*</svg>\n\Z")

    def test_a_file_name_is_no_html(self):
        self.assertEqual(self.report(self.made(training(), "<b>&\x1b[31m.rec"), "-o", self.path("o.html")).status, 0)
        self.assertTrue(document_of(self.path("o.html"))["runs"][0]["file"].endswith("<b>&?[31m.rec"))


class Output(Report):
    def test_the_page_needs_nothing_else(self):
        self.page(training())
        with open(self.path("out.html"), encoding="utf-8") as file:
            text = file.read()
        self.assertEqual(set(re.findall(r"\bhttps?://[^\s\"']+", text)) - {"http://www.w3.org/2000/svg"}, set())
        self.assertNotRegex(text, r"<link|src=|@import|url\(|/\* (page|plots)\.")
        self.assertIn("default-src 'none'", text)

    def test_a_page_of_very_much_has_less_than_20_MB(self):
        recording = Recording()
        for i in range(3000):
            site = recording.site(*["%d %d %s" % (i, frame, "name" * 90) for frame in range(20)])
            for block in range(50):
                recording.allocate(i * 100 + block, 0x1_0000_0000 + (i * 50 + block) * 4096, 512, definition=site)
        document = self.page(recording)
        self.assertLess(os.path.getsize(self.path("out.html")), 20_000_000)
        series, = document["runs"][0]["series"]
        self.assertEqual((series["peak_blocks"], series["site_count"]), (150_000, 3000))
        self.assertEqual(sum(span[2] for span in series["spans"]), 150_000 * 512)

    def test_both_at_once(self):
        result = self.report(self.made(training()), "-o", self.path("a.html"), "--svg=" + self.path("a.svg"))
        self.assertEqual((result.status, result.stdout, result.stderr), (0, "", ""))
        self.assertEqual(sorted(os.listdir(self.folder)), ["a.html", "a.rec", "a.svg"])

    def test_it_replaces_a_file_and_keeps_a_link(self):
        for name in ("real", "link"):
            if name == "link":
                os.symlink("real", self.path("link"))
            self.assertEqual(self.report(self.made(training()), "-o", self.path(name)).status, 0)
            self.assertTrue(document_of(self.path("real")))
        self.assertTrue(os.path.islink(self.path("link")))
        self.assertEqual(stat.S_IMODE(os.stat(self.path("real")).st_mode) & 0o600, 0o600)

    def test_a_link_leads_to_a_file_that_is_not_there_yet(self):
        os.symlink("real", self.path("link"))
        self.assertEqual(self.report(self.made(training()), "-o", self.path("link")).status, 0)
        self.assertTrue(document_of(self.path("real")))
        self.assertTrue(os.path.islink(self.path("link")))
        os.symlink("round", self.path("round"))
        self.refused(self.made(training()), "-o", self.path("round"), says="round: Too many levels of symbolic links")
        self.assertTrue(os.path.islink(self.path("round")))

    def test_standard_output(self):
        words = "'%s' report '%s' -o /dev/stdout > '%s'" % (TOOL, self.made(training()), self.path("out.html"))
        self.assertEqual(run(["sh", "-c", words], preload=[]).status, 0)
        self.assertEqual(document_of(self.path("out.html"))["schema"], 1)

    def test_a_pipe_by_its_descriptor(self):
        words = "'%s' report '%s' -o /dev/fd/1 | cat > '%s'" % (TOOL, self.made(training()), self.path("out.html"))
        self.assertEqual(run(["sh", "-c", words], preload=[]).stderr, "")
        self.assertEqual(document_of(self.path("out.html"))["schema"], 1)

    def test_a_full_disk(self):
        self.refused(self.made(training()), "-o", "/dev/full", says="/dev/full: No space left on device")

    def test_a_limit_on_file_sizes_leaves_nothing_behind(self):
        words = "ulimit -f 8; '%s' report '%s' -o '%s'" % (TOOL, self.made(training()), self.path("o.html"))
        result = run(["sh", "-c", words], preload=[])
        self.assertEqual((result.status, os.listdir(self.folder)), (1, ["a.rec"]), result)
        self.assertRegex(result.stderr, "^rmmshim: [^\n]*: File too large\n$")

    def test_a_folder_that_is_not_there(self):
        self.refused(self.made(training()), "-o", self.path("none/o.html"), says="none/o.html: No such file or directory")

    def test_a_recording_is_not_written_over(self):
        path = self.made(training())
        before = os.stat(path).st_size
        os.link(path, self.path("same"))
        for words in (("-o", path), ("-o", self.path("same")), ("--svg", path)):
            self.refused(path, *words, status=2, says="is one of the recordings to read")
        self.refused(path, "-o", self.path("x"), "--svg", self.path("x"), status=2, says="the same file")
        self.assertEqual(os.stat(path).st_size, before)

    def test_usage(self):
        self.refused(status=2, says="needs the FILE")
        self.refused("a", "--svgs", "b", status=2, says="unknown option")
        self.refused("a", "-o", status=2, says="-o needs a value")


LOG = """\
Thread,Time,Action,Pointer,Size,Stream
21,23:59:59.500000,allocate,0x7f0000000000,1000,0x0
22,23:59:59.750000,allocate,0x7f0000001000,500,0x55d0deadbeef
21,00:00:00.500000,free,0x7f0000000000,1000,0x0
21,00:00:01.500000,allocate failure,(nil),5000,0
"""


class Input(Report):
    def test_a_log_in_the_format_of_rmm(self):
        with open(self.path("log.csv"), "w", encoding="ascii") as file:
            file.write(LOG)
        self.assertEqual(self.report(self.path("log.csv"), "-o", self.path("o.html")).outcome, (0, ""))
        run_, = document_of(self.path("o.html"))["runs"]
        series, = run_["series"]
        self.assertEqual((run_["program"], run_["end_ns"], run_["refusals"]["count"]), ("log.csv", 2 * SECOND, 1))
        self.assertEqual((series["peak_used"], series["end_used"], series["allocations"], series["frees"]), (1500, 500, 2, 1))
        summary = self.report(self.path("log.csv"))
        self.assertEqual(summary.stdout.splitlines()[0], "log.csv: 2.00 s, 4 events")
        with open(self.path("log.csv"), "a", encoding="ascii") as file:
            file.write("21,00:00:02")
        damaged = self.refused(self.path("log.csv"), says="1 part of the recording is damaged; the rest is used")
        self.assertEqual(damaged.stdout, summary.stdout)

    def test_no_recording(self):
        os.mkdir(self.path("folder"))
        os.mkfifo(self.path("fifo"))
        with open(self.path("empty"), "wb"), open(self.path("foreign"), "wb") as file:
            file.write(b"PK\3\4" * 5000)
        for name in ("folder", "fifo", "empty", "foreign", "missing"):
            result = self.refused(self.path(name), "-o", self.path("o.html"), says=re.escape(self.path(name)))
            self.assertEqual(result.stdout, "")
            self.assertFalse(os.path.exists(self.path("o.html")))

    def test_one_of_several(self):
        result = self.refused(self.path("missing"), self.made(training()), says="missing: No such file")
        self.assertIn("train.py [4711]", result.stdout)

    def test_a_file_that_is_cut(self):
        whole = training().bytes()
        for length in range(0, len(whole), 1777):
            with open(self.path("cut"), "wb") as file:
                file.write(whole[:length])
            result = self.report(self.path("cut"))
            self.assertIn(result.status, (0, 1), result)
            self.assertTrue(result.stdout or result.stderr, length)
            self.assertLessEqual(result.stderr.count("\n"), 1, result)

    def test_what_is_whole_of_a_damaged_file_is_used(self):
        data = bytearray(training().bytes())
        at = recordings.HEADER_BYTES + recordings.CHUNK_BYTES + 32 + 3 * recordings.EVENT_BYTES
        data[at + 9] ^= 1  # of the fourth event: the first step's first block
        with open(self.path("damaged"), "wb") as file:
            file.write(data)
        result = self.refused(self.path("damaged"), "-o", self.path("o.html"), says="1 part of the recording is damaged; the rest is used")
        run_, = document_of(self.path("o.html"))["runs"]
        self.assertEqual(run_["damage"], "1 part of the recording is damaged", result)
        self.assertEqual((run_["series"][0]["allocations"], run_["series"][0]["peak_used"]), (10, 15 * MIB))

    def test_any_byte_may_be_wrong(self):
        whole = training().bytes()
        places = [*range(0, 136), *range(4096, 4096 + 300, 7), *range(20480, 20480 + 32 + 40 * 30, 11)]
        for place in places[::support.FEWER]:
            with open(self.path("wrong"), "wb") as file:
                file.write(whole[:place] + bytes([whole[place] ^ 0x55]) + whole[place + 1:])
            result = self.report(self.path("wrong"), "-o", self.path("o.html"))
            self.assertIn(result.status, (0, 1), (place, result))
            self.assertLessEqual(result.stderr.count("\n"), 2, (place, result))

    def test_newer_versions(self):
        recording = training()
        header = bytearray(recording.header())
        for major, minor, status in ((1, 9, 0), (2, 0, 1)):
            header[12:16] = struct.pack("<HH", major, minor)
            header[64:72] = struct.pack("<Q", recordings.sum_of(bytes(header[:64]), 0))
            with open(self.path("newer"), "wb") as file:
                file.write(bytes(header) + recording.bytes()[recordings.HEADER_BYTES:])
            self.assertEqual(self.report(self.path("newer")).status, status)

    def test_events_of_a_newer_version_are_said(self):
        recording = training()
        recording.add(200, 9 * SECOND)
        result = self.report(self.made(recording))
        self.assertEqual(result.status, 0)
        self.assertRegex(result.stderr, "^rmmshim: .*: skipped 1 event that only a newer version of rmmshim knows\n$")


# Two call sites: one that leaks one of five blocks, and one that makes the peak.
PROGRAM = """\
import ctypes
cuda = ctypes.CDLL("libcuda.so.1")

def small():
    return allocate(1 << 20)

def large():
    return allocate(7 << 20)

def allocate(size):
    block = ctypes.c_uint64()
    assert cuda.cuMemAlloc_v2(ctypes.byref(block), ctypes.c_size_t(size)) == 0
    return block

context = ctypes.c_void_p()
assert cuda.cuInit(0) == cuda.cuDevicePrimaryCtxRetain(ctypes.byref(context), 0) == cuda.cuCtxSetCurrent(context) == 0
blocks = [small() for i in range(5)]
for block in blocks[1:]:
    cuda.cuMemFree_v2(block)
cuda.cuMemFree_v2(large())
assert cuda.cuMemAlloc_v2(ctypes.byref(block), ctypes.c_size_t(1 << 40)) == 2
"""


class Recorded(Report):
    """A program under the library, and what its recording says."""

    def test_a_known_program(self):
        with open(self.path("known.py"), "w", encoding="utf-8") as file:
            file.write(PROGRAM)
        path = self.path("known.rec")
        settings = {"RMM_POOL_SIZE": "64MiB", "RMM_RECORD": path, "RMM_RECORD_SITES": "all", "RMM_LIMIT": "1GiB"}
        result = run([sys.executable, self.path("known.py")], settings)
        self.assertEqual(result.status, 0, result)
        self.assertEqual(self.report(path, "-o", self.path("o.html")).outcome, (0, ""))
        document = document_of(self.path("o.html"))
        run_, = document["runs"]
        series, = run_["series"]
        self.assertEqual((series["peak_used"], series["end_used"], series["end_blocks"]), (8 * MIB, MIB, 1))
        self.assertEqual((series["allocations"], series["frees"], series["allocated_bytes"]), (6, 5, 12 * MIB))
        self.assertEqual((series["peak_held"], series["limit"], run_["refusals"]["count"]), (64 * MIB, 1 << 30, 1))
        sums = {}
        for site, peak, _, total, count, end, *_ in series["sites"]:
            frames = " ".join(document["frames"][frame] for frame in document["sites"][site])
            sums[re.search("in (small|large)", frames)[1]] = (peak, total, count, end)
        self.assertEqual(sums, {"small": (MIB, 5 * MIB, 5, MIB), "large": (7 * MIB, 7 * MIB, 1, 0)})
        self.assertIn("8.00 MiB used", self.report(path).stdout)
        # Of an interpreter the script is named, as `run` names it.
        self.assertRegex(self.report(path).stdout, r"^known\.py \[\d+\]: ")
        self.assertEqual(run_["program"], "known.py")


class Progress(Report):
    def test_nothing_is_shown_where_stderr_is_no_terminal(self):
        recording = Recording()
        for i in range(100_000):
            recording.allocate(i, 0x1000 + i * 512, 512)
        self.assertEqual(self.report(self.made(recording), "-o", self.path("o.html")).stderr, "")


if __name__ == "__main__":
    support.main()
