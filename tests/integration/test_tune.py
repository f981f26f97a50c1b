# SPDX-License-Identifier: Apache-2.0
"""`rmmshim tune`: what it shows is what `replay` counts, what it chooses is best of that, and how it runs the program.
test_replay.py has how figures are those of real runs; here they are under a limit.  TOOL is the command."""
import json
import os
import re
import sys

import json_schema
import replays
import support
from recordings import Recording
from support import run

TOOL = os.environ["TOOL"]
MIB = 1 << 20
FIGURES = ["used_peak_bytes", "held_peak_bytes", "refused", "driver_calls", "waits", "waited_nanoseconds", "longer_nanoseconds"]
NOTHING = ("Each combination of memory resources that was replayed refused more requests than the recorded run did. "
           "Try a limit above 8MiB.")
# Writes what it is run with.
PROGRAM = ["sh", "-c", 'echo "$RMM_RESOURCE|$RMM_LIMIT|$1" >>"$0"; echo printed; echo said >&2']


def stops(candidate):
    return candidate["driver_calls"] + candidate["waits"]


class Tune(replays.Test):
    def setUp(self):
        super().setUp()
        self.recording = self.path("a.rec")

    def record(self, *words):
        self.real("cuda", words, RMM_RECORD=self.recording)

    def tune(self, *words, **how):
        return run([TOOL, "tune", *words], preload=[], **how)

    def tuned(self, *words, status=0):
        """The document, and its choices by wish."""
        result = self.tune(self.recording, "--json", *words)
        self.assertEqual((result.status, result.stderr), (status, ""), result)
        document = json_schema.check(result.stdout, "tune.json")
        return document, {choice["for"]: choice for choice in document["choices"]}


class Candidates(Tune):
    def test_what_is_shown_is_what_a_replay_counts(self):
        self.record("5", "1000")
        document, _ = self.tuned("--lag", "0.002")
        candidates = document["candidates"]
        words = [word for one in candidates for word in ("--resource", one["resource"])]
        result = run([TOOL, "replay", self.recording, "--lag", "0.002", "--json", *words], preload=[])
        self.assertEqual([[one[name] for name in FIGURES] for one in candidates],
                         [[one[name] for name in FIGURES] for one in json.loads(result.stdout)["replays"]])
        resources = [one["resource"] for one in candidates]
        self.assertGreaterEqual(len(resources), 6)
        self.assertEqual(len(set(resources)), len(resources))
        # None has a maximum: another run of the program may need more than the recorded one.
        self.assertEqual([one for one in resources if "arena" in one or "maximum" in one.replace("maximum_size=4MiB", "")], [])
        self.assertEqual([one["held_peak_bytes"] for one in candidates], sorted(one["held_peak_bytes"] for one in candidates))

    def test_the_front_and_the_choices(self):
        for seed in ("6", "7", "8"):
            self.record(seed, "1000")
            document, choices = self.tuned()
            os.unlink(self.recording)
            serving = [one for one in document["candidates"] if not one["refused"]]
            front = [one for one in document["candidates"] if one["on_front"]]
            self.assertGreaterEqual(len(front), 2)
            points = [(one["held_peak_bytes"], stops(one)) for one in serving]
            for at, (held, stop) in enumerate(points):  # of two that are alike, the first is on the front
                better = [other for number, other in enumerate(points) if other[0] <= held and other[1] <= stop
                          and (other != (held, stop) or number < at)]
                self.assertEqual(serving[at]["on_front"], not better, (serving[at], better))
            self.assertEqual(choices["footprint"]["variables"], {"RMM_RESOURCE": min(front, key=lambda one: one["held_peak_bytes"])["resource"]})
            self.assertEqual(choices["speed"]["variables"], {"RMM_RESOURCE": min(front, key=stops)["resource"]})

    def test_under_a_limit_figures_are_those_of_real_runs(self):
        """Also where it has idle memory given back, waits, and refuses."""
        self.record("3", "1500")
        used = self.tuned()[0]["recorded"]["used_peak_bytes"] // MIB
        for percent in (106, 119):
            limit = "%dMiB" % (used * percent // 100)
            document, choices = self.tuned("--for", "limit=" + limit, "--lag", "0", status=int(percent == 106))
            for one in document["candidates"]:
                with self.subTest(one["resource"], percent=percent):
                    self.assertLessEqual(one["held_peak_bytes"], used * percent // 100 * MIB)
                    self.assert_like_real_run(one, ["3", "1500"], RMM_LIMIT=limit)
            serving = {one["resource"]: stops(one) for one in document["candidates"] if not one["refused"]}
            self.assertEqual(choices["limit"]["found"], bool(serving))
            self.assertLess(len(serving), len(document["candidates"]))
        self.assertEqual(choices["limit"]["variables"]["RMM_LIMIT"], limit)
        self.assertEqual(serving[choices["limit"]["variables"]["RMM_RESOURCE"]], min(serving.values()))
        # One that refuses some requests may have fewer calls, and is not meant.
        self.assertLess(min(stops(one) for one in document["candidates"]), min(serving.values()))
        self.assertTrue(choices["limit"]["reason"].startswith(
            "Of the replayed combinations of memory resources that refused no more requests than the recorded run did, this one has "
            "the fewest driver calls and GPU waits: "), choices["limit"]["reason"])

    def test_a_limit_that_nothing_keeps(self):
        self.record("9", "300")
        document, choices = self.tuned("--for=limit=8MiB", status=1)
        self.assertEqual(choices["limit"], {"for": "limit", "found": False,
                                            "reason": NOTHING})
        self.assertEqual([one for one in document["candidates"] if one["on_front"]], [])
        result = self.tune(self.recording, "--for=limit=8MiB")
        self.assertEqual((result.status, result.stdout.splitlines()[-2:]),
                         (1, ["for limit: no combination of memory resources can be recommended", "  " + NOTHING]))

    def test_what_the_program_was_refused_is_asked_of_none(self):
        self.real("limiting(pool(cuda), limit=48MiB)", ["1", "1000"], RMM_RECORD=self.recording)
        document, choices = self.tuned()
        self.assertGreater(document["recorded"]["refused"], 0)
        self.assertTrue(choices["footprint"]["found"] and choices["speed"]["found"])

    def test_the_text(self):
        self.record("5", "1000")
        document, choices = self.tuned()
        result = self.tune(self.recording)
        self.assertEqual((result.status, result.stderr), (0, ""), result)
        lines = result.stdout.splitlines()
        front = [one["resource"] for one in document["candidates"] if one["on_front"]]
        self.assertEqual([line.rpartition("  ")[2] for line in lines[:len(front) + 2]], ["RESOURCE", *front, "(as recorded)"])
        for wish, choice in choices.items():
            at = lines.index("for %s: RMM_RESOURCE='%s'" % (wish, choice["variables"]["RMM_RESOURCE"]))
            self.assertEqual(lines[at + 1], "  %s" % choice["reason"])
            held, calls = r"up to [\d.]+ MiB when the program uses up to [\d.]+ MiB\.", r"\d+ driver calls? and \d+ waits? for the GPU\."
            self.assertRegex(choice["reason"], r"^Of \d+ combinations of memory resources that were replayed, this one (holds the least "
                             r"memory: %s It makes %s|has the fewest driver calls and GPU waits: %s It holds %s)$" % (held, calls, calls, held))
            checked = run([TOOL, "check", "RMM_RESOURCE=" + choice["variables"]["RMM_RESOURCE"]], preload=[])
            self.assertEqual(checked.status, 0, checked)


class Runs(Tune):
    def test_finalists_are_run_in_turn(self):
        self.record("5", "1000")
        document, choices = self.tuned("--for", "limit=300MiB", "--run", "6", "--", *PROGRAM, self.path("ran"), "a word")
        finalists = [one["resource"] for one in document["runs"]]
        front = [one["resource"] for one in document["candidates"] if one["on_front"]]
        self.assertEqual(len(finalists), min(len(front), 4))
        self.assertLessEqual(set(finalists), set(front))
        with open(self.path("ran"), encoding="utf-8") as file:
            ran = file.read().splitlines()
        count = len(finalists)
        self.assertEqual(ran, ["%s|300MiB|a word" % finalists[(at // count + at) % count] for at in range(6 * count)])
        for one in document["runs"]:
            self.assertTrue(0 < one["low_nanoseconds"] <= one["median_nanoseconds"] <= one["high_nanoseconds"], one)
        # The fastest, or one whose time cannot be told apart and that holds less.
        chosen, = [one for one in document["runs"] if one["resource"] == choices["limit"]["variables"]["RMM_RESOURCE"]]
        self.assertFalse(chosen["slower"])
        held = {one["resource"]: one["held_peak_bytes"] for one in document["candidates"]}
        alike = [one["resource"] for one in document["runs"] if not one["slower"]]
        self.assertEqual(held[chosen["resource"]], min(held[name] for name in alike))
        fastest = min(document["runs"], key=lambda one: one["median_nanoseconds"])
        self.assertFalse(fastest["slower"])
        others = [name for name in alike if name != chosen["resource"]]
        self.assertRegex(choices["limit"]["reason"], r"^Of the combinations that were run, this one is %s: the median time of 6 runs is [\d.]+ s\. %s"
                         r"up to [\d.]+ MiB when the program uses up to [\d.]+ MiB\.$" %
                         ("the fastest" if chosen == fastest else "about as fast as the fastest",
                          "The runs show no clear difference in time between it and %s\\. Of these, it holds the least memory: " %
                          re.escape(" or ".join("'%s'" % name for name in others)) if others else "It holds "))

    def test_without_a_limit_the_first_are_those_that_are_chosen(self):
        self.record("5", "1000")
        replayed = self.tuned()[1]
        document, _ = self.tuned("--run", "6", *PROGRAM, self.path("ran"))
        first = [replayed[wish]["variables"]["RMM_RESOURCE"] for wish in ("footprint", "speed")]
        if first[0] == first[1]:  # as the recording's times have it
            del first[1]
        self.assertEqual([one["resource"] for one in document["runs"]][:len(first)], first)

    def test_the_program_is_served(self):
        self.record("5", "500")
        result = self.tune(self.recording, "--run", "6", sys.executable, replays.SCENE, "5", "500", more=replays.DEVICE)
        self.assertEqual((result.status, result.stderr), (0, ""), result)
        self.assertIn("95 % INTERVAL", result.stdout)

    def test_a_program_that_fails(self):
        self.record("5", "300")
        for program, how in ((["sh", "-c", "exit 3"], "ended with exit code 3"), (["sh", "-c", "kill -9 $$"], "was ended by signal 9"),
                             ([self.path("absent")], "ended with exit code 127")):
            result = self.tune(self.recording, "--run", "6", *program)
            self.assertEqual((result.status, result.stdout), (1, ""), result)
            self.assertRegex(result.stderr, r"^rmmshim: with RMM_RESOURCE='\S.*' the program %s, so tune shows no results; [^\n]*\n$" % how)


class BadInput(Tune):
    def test_words(self):
        recording = Recording()
        recording.allocate(1, 0x7000_0000_0000, MIB)
        good = recording.write(self.recording)
        for words, says in (([], "needs the FILE"), ([good, "x"], "unexpected argument 'x'"), ([good, "--for", "sped"], "unknown --for 'sped'"),
                            ([good, "--for", "limit"], "--for limit needs a size"), ([good, "--for", "limit="], "--for limit=: a size is missing"),
                            ([good, "--for", "limit=80%"], "--for limit=80%: expected a size in bytes, above 0"),
                            ([good, "--for", "limit=0"], "--for limit=0: expected a size in bytes, above 0"), ([good, "--for", "limit=8QiB"], "--for limit=8QiB: "),
                            ([good, "--lag", "x"], "--lag x: expected a number of seconds"), ([good, "--device", "-1"], "not the number of a device"),
                            ([good, "--run", "5", "true"], "--run needs a number of runs from 6 to 1000"), ([good, "--run"], "--run needs a number"),
                            ([good, "--run", "6"], "--run needs a program"), ([good, "--run", "x", "true"], "--run needs a number"),
                            ([good, "--run=6", "true"], "unknown option '--run=6'"), (["--run", "6", "true"], "needs the FILE")):
            with self.subTest(words=words):
                result = self.tune(*words)
                self.assertEqual((result.status, result.stdout), (2, ""), result)
                self.assertRegex(result.stderr, r"^rmmshim: [^\n]*%s[^\n]*\n$" % says)
        result = self.tune(self.path("absent"))
        self.assertEqual((result.status, result.stdout, result.stderr),
                         (1, "", "rmmshim: %s: No such file or directory\n" % self.path("absent")))


if __name__ == "__main__":
    support.main()
