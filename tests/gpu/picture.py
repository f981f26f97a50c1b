# SPDX-License-Identifier: Apache-2.0
"""Draws the README's picture: what a program uses over time, without a limit and with one.

    picture.py BUILD [FILE]     FILE: tests/gpu/picture.svg where it is not given

Runs tests/samples/demo_work.c of a build twice, on the GPU of this machine or, with the device in host memory in
LD_LIBRARY_PATH, on that, and asks `rmmshim ls` meanwhile what it uses."""
import html
import json
import os
import shutil
import subprocess
import sys
import time

HERE = os.path.dirname(os.path.abspath(__file__))
GIB = 1 << 30
LIMIT_GIB = 2
WIDTH, HEIGHT, LEFT, RIGHT, TOP, BOTTOM = 760, 330, 62, 20, 58, 62
STYLE = """
  text { font: 13px system-ui, sans-serif; fill: #1f2328 }
  .small { font-size: 11px; fill: #59636e }
  .axis { stroke: #d1d9e0 }
  .free { fill: none; stroke: #818b98; stroke-width: 2; stroke-dasharray: 2 3 }
  .limited { fill: #0969da22; stroke: #0969da; stroke-width: 2 }
  .limit { stroke: #cf222e; stroke-width: 1.5; stroke-dasharray: 7 4 }
  .limit-text { fill: #cf222e }
  @media (prefers-color-scheme: dark) {
    text { fill: #f0f6fc }
    .small { fill: #9198a1 }
    .axis { stroke: #3d444d }
    .free { stroke: #9198a1 }
    .limited { fill: #4493f822; stroke: #4493f8 }
    .limit { stroke: #f85149 }
    .limit-text { fill: #f85149 }
  }
"""


def samples_of(build, *options):
    """(seconds, bytes used) of each look, from the first that finds the process on."""
    tool = os.path.join(build, "src", "tool", "rmmshim")
    process = subprocess.Popen([tool, "run", "--exec", "--on-oom", "none", *options, "--",
                                os.path.join(build, "tests", "samples", "demo_work"), "grow", "120"],
                               stdout=subprocess.DEVNULL)
    samples = []
    while process.poll() is None:
        now = time.monotonic()
        listed = subprocess.run([tool, "ls", "--json"], stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, check=True)
        samples += [(now, row["used"]) for row in json.loads(listed.stdout) if row["pid"] == process.pid]
    if process.returncode != 0 or len(samples) < 20:
        sys.exit("picture: the program ended with status %s, %d samples" % (process.returncode, len(samples)))
    return [(now - samples[0][0], used) for now, used in samples]


def device_name():
    if shutil.which("nvidia-smi") and "hostcuda" not in os.environ.get("LD_LIBRARY_PATH", ""):
        names = subprocess.run(["nvidia-smi", "--query-gpu=name", "--format=csv,noheader"], stdout=subprocess.PIPE, check=True)
        return names.stdout.decode().splitlines()[0]
    return "the CUDA device in host memory that comes with the tests"


def steps(samples, x_of, y_of):
    """The line of a path: what was used stays so until the next look."""
    points, last = [], None
    for seconds, used in samples:
        if last is not None and used != last:
            points.append("%.1f,%.1f" % (x_of(seconds), y_of(last)))
        if used != last:
            points.append("%.1f,%.1f" % (x_of(seconds), y_of(used)))
        last = used
    return " ".join(points + ["%.1f,%.1f" % (x_of(samples[-1][0]), y_of(last))])


def drawing(free, limited):
    seconds = max(free[-1][0], limited[-1][0])
    gib = int(max(used for _, used in free + limited) / GIB) + 1
    x_of = lambda at: LEFT + at / seconds * (WIDTH - LEFT - RIGHT)
    y_of = lambda used: HEIGHT - BOTTOM - used / GIB / gib * (HEIGHT - TOP - BOTTOM)
    bottom = y_of(0)
    refused = limited[max(range(len(limited)), key=lambda i: limited[i][1])]
    out = ['<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 %d %d" role="img">' % (WIDTH, HEIGHT),
           "<title>GPU memory of a program over time, without a limit and with one</title>", "<style>%s</style>" % STYLE]
    say = lambda x, y, text, *more: out.append('<text x="%.1f" y="%.1f"%s>%s</text>' % (
        x, y, "".join(" " + word for word in more), html.escape(text, quote=False)))
    say(LEFT, 22, "GPU memory that a program uses: a batch that doubles as long as it fits")
    say(LEFT, 40, "rmmshim run --limit %dGiB demo_work grow; dotted: without the limit" % LIMIT_GIB, 'class="small"')
    for i in range(gib + 1):
        out.append('<path class="axis" d="M%d %.1fH%d"/>' % (LEFT, y_of(i * GIB), WIDTH - RIGHT))
        say(LEFT - 8, y_of(i * GIB) + 4, "%d GiB" % i, 'text-anchor="end"', 'class="small"')
    for i in range(int(seconds) + 1):
        say(x_of(i), bottom + 16, "%d s" % i, 'text-anchor="middle"', 'class="small"')
    out.append('<polyline class="free" points="%s"/>' % steps(free, x_of, y_of))
    line = steps(limited, x_of, y_of)
    out.append('<polygon class="limited" points="%.1f,%.1f %s %.1f,%.1f"/>' % (
        x_of(0), bottom, line, x_of(limited[-1][0]), bottom))
    out.append('<path class="limit" d="M%d %.1fH%d"/>' % (LEFT, y_of(LIMIT_GIB * GIB), WIDTH - RIGHT))
    say(WIDTH - RIGHT, y_of(LIMIT_GIB * GIB) - 6, "the limit: %d GiB" % LIMIT_GIB, 'text-anchor="end"', 'class="limit-text"')
    say(x_of(refused[0]) - 6, y_of(LIMIT_GIB * GIB) - 6, "out of memory: it goes on with half", 'text-anchor="end"',
        'class="limit-text"')
    say(LEFT, HEIGHT - 14, "Made by tests/gpu/picture.py of a run on %s" % device_name(), 'class="small"')
    return "\n".join(out + ["</svg>"]) + "\n"


def main():
    if len(sys.argv) not in (2, 3):
        print(__doc__)
        return 2
    free = samples_of(sys.argv[1], "--resource", "cuda")
    limited = samples_of(sys.argv[1], "--limit", "%dGiB" % LIMIT_GIB)
    path = sys.argv[2] if len(sys.argv) == 3 else os.path.join(HERE, "picture.svg")
    with open(path, "w", encoding="utf-8") as file:
        file.write(drawing(free, limited))
    return 0


if __name__ == "__main__":
    sys.exit(main())
