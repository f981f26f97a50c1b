# SPDX-License-Identifier: Apache-2.0
"""`rmmshim serve`: what Prometheus is told over HTTP.

Other processes may be served on the machine meanwhile, so these look for their own.  meson sets TOOL, and HAS_HTTP to
what this build was made with."""
import concurrent.futures
import contextlib
import http.client
import os
import re
import select
import shutil
import signal
import socket
import struct
import subprocess
import time
import unittest
import urllib.request

import prometheus_text
import served
import support
from served import page, scene, tool
from support import ENOUGH_SECONDS, until

HAS_HTTP = os.environ["HAS_HTTP"] == "yes"
CONNECTIONS_MAX, IDLE_SECONDS = 16, 10  # of src/tool/cmd_serve.c
DIRECTLY = urllib.request.build_opener(urllib.request.ProxyHandler({}))
FORM = "; write an address as in 127.0.0.1:9835 or [::1]:9835, or a port alone"
TYPE = "text/plain; version=0.0.4; charset=utf-8"
ALLOCATIONS = "rmmshim_allocations_total"


class Server:
    """The command, from its line about the address on."""

    def __init__(self, test, *words, **how):
        self.process = subprocess.Popen([served.TOOL, "serve", *words], bufsize=0, stdin=subprocess.DEVNULL,
                                        stdout=subprocess.DEVNULL, stderr=subprocess.PIPE,
                                        env=support.environment(preload=[], driver=False), **how)
        test.addCleanup(self.end)
        self.line = self.process.stderr.readline().decode().rstrip("\n")
        found = re.match(r"rmmshim: metrics at (http://(\S+):(\d+)/metrics)$", self.line)
        if not found:
            raise AssertionError("it said %r" % self.line)
        self.url, self.host, self.port = found.group(1), found.group(2), int(found.group(3))

    def end(self, number=signal.SIGTERM):
        """Its exit status and the lines that it said since, but for those about processes that are left out: others'
        tests have such ones too."""
        if self.process.stderr.closed:
            return None
        self.process.send_signal(number)
        lines = self.process.communicate(timeout=ENOUGH_SECONDS)[1].decode().splitlines()
        self.left_out = [line for line in lines if line.startswith("rmmshim: left out: ")]
        return self.process.returncode, [line for line in lines if line not in self.left_out]

    def get(self):
        with DIRECTLY.open(self.url, timeout=ENOUGH_SECONDS) as answer:
            return answer.read().decode()

    def connect(self):
        return socket.create_connection((self.host, self.port), timeout=ENOUGH_SECONDS)

    def ask(self, text):
        """The first line of the answer to that text; empty where there is none."""
        with self.connect() as connection:
            connection.sendall(text)
            try:
                return connection.makefile("rb").readline().decode().strip()
            except ConnectionResetError:
                return ""


def samples_of(text, *processes):
    """Values of those processes, by metric and labels."""
    pids = {("pid", str(process.pid)) for process in processes}
    return {(name, labels): value for name, metric in (prometheus_text.read(text) if text else {}).items()
            for labels, value in metric.samples.items() if pids & set(labels)}


def allocations(text, *processes):
    """The number of allocations of each that is told of."""
    return {int(dict(labels)["pid"]): value for (name, labels), value in samples_of(text, *processes).items()
            if name == ALLOCATIONS}


@unittest.skipUnless(HAS_HTTP, "this build has no HTTP server")
class Metrics(support.Test):
    def test_the_text_is_that_of_stats(self):
        processes = [scene(self, "hold:1000", "use:3", RMM_POOL_SIZE="64MiB", RMM_LIMIT="1GiB"),
                     scene(self, "use:4", RMM_ARENA_SIZE="64MiB", name="a\"b\\c\nd")]
        server = Server(self, "--listen", "0")
        with DIRECTLY.open(server.url, timeout=ENOUGH_SECONDS) as answer:
            text = answer.read().decode()
            self.assertEqual((answer.status, answer.headers["Content-Type"]), (200, TYPE))
        told = samples_of(text, *processes)
        self.assertEqual(told, samples_of(tool("stats", "all", "--prom").stdout, *processes))
        everything = samples_of(Server(self, "--listen", "0", "--all-metrics").get(), *processes)
        self.assertGreater(len(everything), 40)
        self.assertEqual(everything, samples_of(tool("stats", "all", "--prom", "--all-metrics").stdout, *processes))
        self.assertEqual(told, {key: value for key, value in everything.items() if key in told})
        self.assertLess(len(told), len(everything) // 2)
        promtool = shutil.which("promtool")
        if promtool:
            result = subprocess.run([promtool, "check", "metrics"], input=text, capture_output=True, text=True, check=False)
            self.assertEqual((result.returncode, result.stdout + result.stderr), (0, ""))

    def test_each_answer_is_of_its_moment(self):
        server = Server(self, "--listen", "0")
        process = scene(self, "hold:1000", "say", "wait", "use:5", "say", "wait")
        self.assertEqual(allocations(server.get(), process), {process.pid: 1})
        process.step()
        self.assertEqual(allocations(server.get(), process), {process.pid: 6})
        process.end()
        self.assertEqual(allocations(server.get(), process), {})

    def test_paths_and_methods(self):
        server = Server(self, "--listen", "0")
        for method, path, status, body in (("GET", "/metrics", 200, None), ("GET", "/metrics?name=x", 200, None),
                                           ("GET", "/", 404, "rmmshim: metrics are at /metrics\n"),
                                           ("GET", "/metrics/", 404, "rmmshim: metrics are at /metrics\n"),
                                           ("HEAD", "/metric", 404, ""),
                                           ("POST", "/metrics", 405, "rmmshim: only GET and HEAD are answered\n"),
                                           ("DELETE", "/metrics", 405, "rmmshim: only GET and HEAD are answered\n"),
                                           ("OPTIONS", "/metrics", 405, "rmmshim: only GET and HEAD are answered\n"),
                                           ("HEAD", "/metrics", 200, "")):
            with self.subTest(method=method, path=path):
                connection = http.client.HTTPConnection(server.host, server.port, timeout=ENOUGH_SECONDS)
                self.addCleanup(connection.close)
                connection.request(method, path, body="a=b" if method == "POST" else None)
                answer = connection.getresponse()
                text = answer.read().decode()
                self.assertEqual((answer.status, answer.headers["Connection"]), (status, "close"))
                self.assertIn(body, (None, text))
                self.assertEqual(answer.headers["Allow"], "GET, HEAD" if status == 405 else None)
                if method != "HEAD":
                    self.assertEqual(int(answer.headers["Content-Length"]), len(text.encode()))

    def test_head_tells_the_length(self):
        process = scene(self, "use:3")
        server = Server(self, "--listen", "0")
        connection = http.client.HTTPConnection(server.host, server.port, timeout=ENOUGH_SECONDS)
        self.addCleanup(connection.close)
        connection.request("HEAD", "/metrics")
        answer = connection.getresponse()
        self.assertEqual((answer.status, answer.headers["Content-Type"], answer.read()), (200, TYPE, b""))
        self.assertGreater(int(answer.headers["Content-Length"]), 1000)
        process.end()

    def test_many_ask_while_processes_die(self):
        """Each answer is whole, and has who lives all the time."""
        stays, others = scene(self, "use:3"), [scene(self, "use:%d" % (i + 1)) for i in range(6)]
        server = Server(self, "--listen", "0")
        with concurrent.futures.ThreadPoolExecutor(2 * CONNECTIONS_MAX) as threads:
            answers = []
            for process in others:
                answers += [threads.submit(server.get) for _ in range(20)]
                process.process.kill()
            texts = [answer.result() for answer in answers]
        for text in texts:
            self.assertEqual(allocations(text, stays), {stays.pid: 3})
        for process in others:
            process.process.wait()
        self.assertEqual(allocations(server.get(), stays, *others), {stays.pid: 3})

    def test_hundreds_of_processes(self):
        real = scene(self, "use:3")
        many = page(self, real.pid, "many:300")
        listed = subprocess.run(["pgrep", "-P", str(many.pid)], capture_output=True, text=True, check=True).stdout.split()
        self.assertEqual(len(listed), 300)
        told = prometheus_text.read(Server(self, "--listen", "0").get())[ALLOCATIONS].samples
        pids = [dict(labels)["pid"] for labels in told]
        self.assertEqual(sorted(set(listed) & set(pids)), sorted(listed))

    def test_pages_that_lie(self):
        """A line says how many are left out when that has changed.  (What is told of numbers at random, test_ls asks.)"""
        real = scene(self, "use:3")
        for change in ("version", "directory:8", "directory:18446744073709551600", "empty", "truncated", "mine"):
            with self.subTest(change):
                server, process = Server(self, "--listen", "0"), page(self, real.pid, change)
                for text in [server.get() for _ in range(20 if change == "version" else 2)]:
                    self.assertEqual(allocations(text, real, process), {real.pid: 3})
                process.end()
                self.assertEqual(server.end(), (0, []))
                for line in server.left_out:
                    self.assertRegex(line, r"^rmmshim: left out: \d+ process(es)? served by another version ")
                if change == "version":  # others' tests may change the number between any two answers, but not to 0
                    self.assertTrue(server.left_out)
                    for line, following in zip(server.left_out, server.left_out[1:]):
                        self.assertNotEqual(line, following)

    def test_hostile_names(self):
        # Short, since the columns of `top` are as wide as all programs of the machine need.
        process = scene(self, "use:1", name="\x1b\x07\u202e\"\\\n\u00e9")
        text = Server(self, "--listen", "0").get()
        self.assertNotRegex(text, "[\x1b\x07\u202e\r]")
        self.assertEqual({dict(labels)["program"] for _, labels in samples_of(text, process)},
                         {"???\\\"\\\\?\u00e9"})


@unittest.skipUnless(HAS_HTTP, "this build has no HTTP server")
class Connections(support.Test):
    @staticmethod
    def unread(server, client):
        """Bytes that the server has not read from that client; without one, connections that it has not accepted."""
        there = client.getsockname()[1] if client else 0
        with open("/proc/net/tcp", encoding="ascii") as file:
            rows = [line.split() for line in file.read().splitlines()[1:]]
        row, = (row for row in rows if (row[1][-4:], row[2][-4:]) == ("%04X" % server.port, "%04X" % there) and
                row[3] in ("01", "0A"))  # established, listening
        return int(row[4].partition(":")[2], 16)

    def is_few_at_a_time(self):
        """False where it took so long that a silent one may have lost its place.  When the server has read what came
        later than the late one's request, it has left the late one waiting."""
        begin = time.monotonic()
        server = Server(self, "--listen", "0")
        with contextlib.ExitStack() as connections:
            silent = [connections.enter_context(server.connect()) for _ in range(CONNECTIONS_MAX)]
            late = connections.enter_context(server.connect())
            late.sendall(b"GET /metrics HTTP/1.1\r\nHost: x\r\n\r\n")
            for text in (b"GET", b" /m", b"etr"):
                silent[1].sendall(text)
                try:
                    until(lambda: self.unread(server, silent[1]) == 0, "a read")
                except ValueError:  # that one is closed
                    return False
            waiting, answered = self.unread(server, None), select.select([late], [], [], 0)[0]
            if time.monotonic() - begin >= IDLE_SECONDS:
                return False
            self.assertEqual((waiting, answered), (1, []))
            silent[0].close()
            self.assertEqual(late.makefile("rb").readline(), b"HTTP/1.1 200 OK\r\n")
        server.get()
        return True

    def test_few_at_a_time(self):
        """Further ones wait for a place."""
        until(self.is_few_at_a_time, "a machine that lets it be seen")

    def test_nobody_keeps_a_place(self):
        """Neither who says nothing, nor who sends a byte now and then."""
        server = Server(self, "--listen", "0")
        kept, end = {server.connect() for _ in range(CONNECTIONS_MAX)}, time.monotonic() + ENOUGH_SECONDS
        dripping = list(kept)[1:]
        for connection in dripping:
            connection.sendall(b"GET /metrics HTTP/1.1\r\nHost: x\r\nA: ")
        while kept:
            self.assertLess(time.monotonic(), end, "%d connections are kept" % len(kept))
            for connection in select.select(kept, [], [], 1)[0]:
                with contextlib.suppress(ConnectionResetError):
                    self.assertEqual(connection.recv(100), b"")
                connection.close()
                kept.remove(connection)
            for connection in kept.intersection(dripping):
                with contextlib.suppress(BrokenPipeError, ConnectionResetError):
                    connection.sendall(b"x")
        server.get()

    def test_clients_that_leave(self):
        server = Server(self, "--listen", "0")
        for text in (b"", b"GET /metrics HTTP/1.1\r\n", b"GET /metrics HTTP/1.1\r\nHost: x\r\n\r\n"):
            for linger in (0, 1):
                with self.subTest(text=text, linger=linger):
                    connection = server.connect()
                    connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1 - linger, 0))
                    connection.sendall(text)
                    connection.close()
                    server.get()
        self.assertEqual(server.end()[0], 0)

    def test_requests_that_make_no_sense(self):
        server = Server(self, "--listen", "0")
        for text, statuses in ((b"rubbish\r\n\r\n", "400"), (b"\0\xff\x80 /metrics \x01\r\n\r\n", "400"),
                               (b"GET /metrics HTTP/1.1\r\nHost: x\r\nA: " + 40000 * b"x" + b"\r\n\r\n", "4.."),
                               (b"GET /" + 40000 * b"x" + b" HTTP/1.1\r\nHost: x\r\n\r\n", "4.."),
                               (b"GET /metrics HTTP/1.1\r\nHost: x\r\nContent-Length: 99999999\r\n\r\nabc", "200"),
                               (b"GET /metrics HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: chunked\r\n\r\n", "200"),
                               (b"POST /metrics HTTP/1.1\r\nHost: x\r\nContent-Length: 99999999\r\n\r\nabc", "405"),
                               (b"GET /metrics HTTP/1.0\r\n\r\n", "200"), (b"GET /%6detrics HTTP/1.0\r\n\r\n", "200"),
                               (b"GET /metrics%00x HTTP/1.0\r\n\r\n", "[24]..")):
            with self.subTest(text[:40]):
                line = server.ask(text)
                self.assertRegex(line, r"^(HTTP/1\.[01] %s .*)?$" % statuses)
                self.assertTrue(line or statuses[0] == "4", text[:40])
                server.get()

    def test_a_signal_ends_it(self):
        for number in (signal.SIGTERM, signal.SIGINT):
            with self.subTest(number):
                server = Server(self, "--listen", "0",  # a shell's background jobs ignore SIGINT
                                preexec_fn=lambda number=number: signal.signal(number, signal.SIG_DFL))
                with server.connect() as silent, server.connect() as half:
                    half.sendall(b"GET /metr")
                    server.get()
                    self.assertEqual(server.end(number), (0, []))
                    self.assertEqual((silent.recv(1), half.recv(1)), (b"", b""))


    def test_an_ignored_signal_does_not_end_it(self):
        """It is not waited for, so it is not blocked.  A wait for signals unblocks them; a stop ends the wait."""
        server = Server(self, "--listen", "0", preexec_fn=lambda: signal.signal(signal.SIGINT, signal.SIG_IGN))
        server.process.send_signal(signal.SIGSTOP)
        os.waitid(os.P_PID, server.process.pid, os.WSTOPPED)
        with open("/proc/%d/status" % server.process.pid, encoding="ascii") as file:
            blocked = int(re.search(r"\nSigBlk:\s*([0-9a-f]+)", file.read()).group(1), 16)
        server.process.send_signal(signal.SIGCONT)
        self.assertEqual((blocked >> signal.SIGINT - 1 & 1, blocked >> signal.SIGTERM - 1 & 1), (0, 1))
        server.process.send_signal(signal.SIGINT)
        server.get()
        self.assertEqual(server.end(), (0, []))


@unittest.skipUnless(HAS_HTTP, "this build has no HTTP server")
class Addresses(support.Test):
    def test_a_port_alone_is_of_the_loopback(self):
        for words in (("--listen", "0"), ("--listen=0",), ("--listen", "127.0.0.1:0"), ("--listen", "127.0.0.3:0")):
            with self.subTest(words):
                server = Server(self, *words)
                self.assertEqual(server.host, "127.0.0.3" if words[-1].startswith("127.0.0.3") else "127.0.0.1")
                server.get()
                self.assertEqual(server.end(), (0, []))

    def test_ipv6(self):
        try:
            with socket.socket(socket.AF_INET6) as probe:
                probe.bind(("::1", 0))
        except OSError:
            self.skipTest("no IPv6")
        server = Server(self, "--listen", "[::1]:0")
        self.assertEqual(server.host, "[::1]")
        server.get()
        self.assertEqual(server.end(), (0, []))

    def test_what_is_no_loopback_is_warned_of(self):
        server = Server(self, "--listen", "0.0.0.0:0")
        server.get()
        self.assertEqual(server.end(), (0, ["rmmshim: 0.0.0.0:%d is not a loopback address: whoever can reach it can see "
                                            "which programs run under rmmshim, and how much GPU memory they have" % server.port]))

    def test_the_default(self):
        """It listens there, or somebody else does."""
        process = subprocess.Popen([served.TOOL, "serve"], stderr=subprocess.PIPE, text=True,
                                   env=support.environment(preload=[], driver=False))
        self.addCleanup(process.communicate)
        self.addCleanup(process.terminate)
        self.assertIn(process.stderr.readline(), ["rmmshim: metrics at http://127.0.0.1:9835/metrics\n",
                                                  "rmmshim: --listen 127.0.0.1:9835: Address already in use\n"])

    def test_addresses_that_cannot_be_had(self):
        server = Server(self, "--listen", "0")
        for address, error in (("127.0.0.1:%d" % server.port, "Address already in use"),
                               ("192.0.2.1:9835", "Cannot assign requested address")):  # of nobody (RFC 5737)
            with self.subTest(address):
                result = tool("serve", "--listen", address)
                self.assertEqual((result.status, result.stdout, result.stderr),
                                 (1, "", "rmmshim: --listen %s: %s\n" % (address, error)))


class Usage(support.Test):
    def test_wrong_usage(self):
        for words, line in (
                (["--listen"], "--listen needs a value"),
                (["--listen="], "--listen needs a value"),
                (["--listen", "localhost:9835"], "--listen=^localhost:9835: this is not an IPv4 address, and host "
                                                 "names are not looked up" + FORM),
                (["--listen", ":9835"], "--listen=^:9835: this is not an IPv4 address, and host names are not looked up" + FORM),
                (["--listen", "127.1:1"], "--listen=^127.1:1: this is not an IPv4 address, and host names are not "
                                          "looked up" + FORM),
                (["--listen", "127.0.0.1"], "--listen=127.0.0.1^: ':' and a port are missing after the address" + FORM),
                (["--listen", "127.0.0.1:"], "--listen=127.0.0.1:^: no port" + FORM),
                (["--listen", "127.0.0.1:98x"], "--listen=127.0.0.1:98^x: a port is a number" + FORM),
                (["--listen", "-1"], "--listen=^-1: this is not an IPv4 address, and host names are not looked up" + FORM),
                (["--listen", "65536"], "--listen=^65536: a port is at most 65535" + FORM),
                (["--listen", 30 * "9"], "--listen=^%s: a port is at most 65535" % (30 * "9") + FORM),
                (["--listen", "::1:9835"], "--listen=^::1:9835: an IPv6 address needs brackets around it" + FORM),
                (["--listen", "[::1"], "--listen=[::1^: ']' is missing after the IPv6 address" + FORM),
                (["--listen", "[::1]9835"], "--listen=[::1]^9835: ':' and a port are missing after the address" + FORM),
                (["--listen", "[::g]:1"], "--listen=[^::g]:1: this is not an IPv6 address" + FORM),
                (["--listen", "[%s]:1" % (99 * ":")], "--listen=[^%s...: this is not an IPv6 address" %
                 (40 * ":") + FORM),
                (["--listen", "\x1b[2J:1"], "--listen=^?[2J:1: this is not an IPv4 address, and host names are not "
                                            "looked up" + FORM),
                (["--listne", "1"], "unknown option '--listne'; did you mean '--listen'?"),
                (["9835"], "unexpected argument '9835'")):
            with self.subTest(words):
                result = tool("serve", *words)
                self.assertEqual((result.status, result.stdout, result.stderr), (2, "", "rmmshim: %s\n" % line))

    def test_the_command_is_there(self):
        self.assertIn("  rmmshim serve [--listen ADDRESS] [--all-metrics]\n", tool("--help").stdout)
        self.assertIn("default 127.0.0.1:9835", tool("serve", "--help").stdout)

    @unittest.skipIf(HAS_HTTP, "this build has an HTTP server")
    def test_without_the_library(self):
        result = tool("serve", "--listen", "0")
        self.assertEqual((result.status, result.stdout, result.stderr),
                         (1, "", "rmmshim: this build has no HTTP server (libmicrohttpd); `rmmshim stats all --prom` prints the metrics\n"))

    @unittest.skipUnless(HAS_HTTP, "this build has no HTTP server")
    def test_a_library_that_cannot_be_loaded(self):
        with open(self.path("libmicrohttpd.so.12"), "w", encoding="utf-8") as file:
            file.write("no library")
        result = tool("serve", "--listen", "0",
                      env=support.environment(preload=[], driver=False, more={"LD_LIBRARY_PATH": self.folder}))
        self.assertEqual((result.status, result.stdout), (1, ""))
        self.assertRegex(result.stderr, r"^rmmshim: the HTTP server's library cannot be loaded: .*libmicrohttpd\.so\.12: .*\n$")


if __name__ == "__main__":
    support.main()
