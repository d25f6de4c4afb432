"""HTML reports as a browser shows them: python3 report_page_test.py SUMZERO CHROMIUM"""
import json
import pathlib
import re
import struct
import subprocess
import sys
import tempfile
import unittest
import zlib

BINARY, CHROMIUM = sys.argv[1:3]


def sumzero(*arguments):
    return subprocess.run([BINARY, *map(str, arguments)], capture_output=True, text=True, timeout=120)


def browser(page, *options):
    """The page after its scripts, and what they said on the console."""
    with tempfile.TemporaryDirectory() as profile:
        result = subprocess.run(
            [CHROMIUM, "--headless", "--no-sandbox", "--disable-gpu", "--hide-scrollbars", "--enable-logging=stderr", f"--user-data-dir={profile}",
             "--host-resolver-rules=MAP * ~NOTFOUND", "--virtual-time-budget=10000", *options, page.as_uri()], capture_output=True, text=True, timeout=120)
    return result.stdout, [line for line in result.stderr.splitlines() if ":CONSOLE" in line]


def colours(png):
    """Number of different pixels of an 8-bit PNG."""
    data, at, body = png.read_bytes(), 8, b""
    while at < len(data):
        length, kind = struct.unpack(">I4s", data[at:at + 8])
        if kind == b"IHDR":
            width, height, depth, colour_type = struct.unpack(">IIBB", data[at + 8:at + 18])
        if kind == b"IDAT":
            body += data[at + 8:at + 8 + length]
        at += 12 + length
    assert depth == 8
    channels = {2: 3, 6: 4}[colour_type]
    raw, stride, seen, before = zlib.decompress(body), width * channels, set(), bytearray(width * channels)
    for row in range(height):
        mode, line = raw[row * (stride + 1)], bytearray(raw[row * (stride + 1) + 1:(row + 1) * (stride + 1)])
        for i in range(stride):
            left, up = (line[i - channels] if i >= channels else 0), before[i]
            corner = before[i - channels] if i >= channels else 0
            if mode == 1:
                guess = left
            elif mode == 2:
                guess = up
            elif mode == 3:
                guess = (left + up) // 2
            elif mode == 4:
                distances = [abs(up - corner), abs(left - corner), abs(left + up - 2 * corner)]
                guess = (left, up, corner)[distances.index(min(distances))]
            else:
                guess = 0
            line[i] = (line[i] + guess) & 255
        seen.update(bytes(line[i:i + 3]) for i in range(0, stride, channels))
        before = line
    return len(seen)


class ReportPage(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        cls.scratch = tempfile.TemporaryDirectory()
        cls.folder = pathlib.Path(cls.scratch.name)
        for op, kernel in (("cross_entropy", "textbook.pytorch"), ("cross_entropy", "fast")):
            sumzero("fuzz", op, "--kernel", kernel, "--cases", 600, "-q", "--out", cls.folder / "runs" / kernel)

    @classmethod
    def tearDownClass(cls):
        cls.scratch.cleanup()

    def page(self, name, *arguments):
        path = self.folder / name
        result = sumzero("report", *arguments, "-o", path)
        self.assertEqual(result.returncode, 0, result.stderr)
        return path

    def drawn(self, path):
        dom, console = browser(path, "--dump-dom")
        self.assertEqual(console, [])
        self.assertIn('data-charts="drawn"', dom)
        return dom

    def test_one_kernel(self):
        dom = self.drawn(self.page("one.html", self.folder / "runs/textbook.pytorch"))
        figures = re.findall(r"<figure>.*?</figure>", dom, re.S)
        captions = [re.search(r"<figcaption>(.*?)</figcaption>", figure).group(1) for figure in figures]
        self.assertEqual(captions, ["Signed error over the input", "Largest error per binade", "How often is the error that large?", "Error over the length",
                                    "Gradient-sum index over the lead of the maximum", "Error over size and layout"])
        for figure in figures:
            # A text alternative, marks that were drawn, and the numbers.
            self.assertRegex(figure, r'aria-label="[^"]{40,}"')
            self.assertGreater(len(re.findall(r'<path aria-roledescription|<line |<path ', figure)), 8)
            self.assertRegex(figure, r"<tbody><tr>")
        # The first screen: verdict, what broke, and how to see it again.
        head = dom[dom.index("<h1>"):dom.index('id="comparison"')]
        self.assertIn('class="verdict violation"', head)
        self.assertIn("sumzero replay", head)
        self.assertIn("sumzero fuzz cross_entropy --kernel textbook.torch_cross_entropy --dtype f32 --seed 1 --cases 600", head)
        command = re.search(r"<pre>(sumzero replay [^<]*)</pre>", head).group(1).split()
        self.assertEqual(sumzero(*command[1:]).returncode, 1)

    def test_nothing_is_fetched(self):
        text = self.page("closed.html", self.folder / "runs").read_text()
        self.assertEqual(re.findall(r'(?:src|href)="(?!#)[^"]*"|@import|url\(', text.split("<script>")[0]), [])

    def test_side_by_side(self):
        baseline, speeds = self.folder / "baseline.json", self.folder / "bench.json"
        sumzero("gate", self.folder / "runs", "--baseline", baseline, "--update-baseline")
        speeds.write_text(json.dumps({"schema": "sumzero-bench/1", "figures": {f"cross_entropy/{kernel}/1024/in_cache/time_over_copy": time
                                                                              for kernel, time in (("fast", 9.5), ("textbook.torch_cross_entropy", 30))}}))
        dom = self.drawn(self.page("both.html", self.folder / "runs", "--baseline", baseline, "--speeds", speeds))
        for caption in ("Kernels side by side", "Accuracy against speed", "Before and after"):
            self.assertIn(f"<figcaption>{caption}</figcaption>", dom)
        self.assertIn('href="#report-1"', dom)

    def test_screens(self):
        path = self.page("screens.html", self.folder / "runs")
        shots = {}
        for name, options in {"light": ["--window-size=1200,2400"], "dark": ["--window-size=1200,2400", "--blink-settings=preferredColorScheme=0"], "phone": ["--window-size=400,2400"]}.items():
            shots[name] = self.folder / f"{name}.png"
            browser(path, f"--screenshot={shots[name]}", *options)
            self.assertGreater(colours(shots[name]), 50, name)
        self.assertNotEqual(shots["light"].read_bytes(), shots["dark"].read_bytes())
        # Nothing sticks out of a narrow screen.
        probe = self.folder / "probe.html"
        probe.write_text(path.read_text().replace("</body>", "<script>setTimeout(() => { document.title = `wide ${document.documentElement.scrollWidth}`; }, 2000)</script></body>"))
        dom, _ = browser(probe, "--dump-dom", "--window-size=400,2400")
        width = int(re.search(r"<title>wide (\d+)</title>", dom).group(1))
        self.assertLessEqual(width, 500)  # the narrowest window that the browser opens

    def test_names_are_text(self):
        report = json.loads((self.folder / "runs/fast/report.json").read_text())
        report["kernel"] = "</script><img src=x onerror=alert(1)>"
        hostile = self.folder / "hostile.json"
        hostile.write_text(json.dumps(report))
        dom = self.drawn(self.page("hostile.html", hostile))
        self.assertNotIn("<img", dom)

    def test_a_broken_chart_is_noticed(self):
        path = self.page("whole.html", self.folder / "runs/fast")
        broken = self.folder / "broken.html"
        broken.write_text(path.read_text().replace('"by_binade"', '"by_binaed"', 1))
        dom, console = browser(broken, "--dump-dom")
        self.assertNotIn('data-charts="drawn"', dom)
        self.assertNotEqual(console, [])

    def test_bad_requests(self):
        runs = self.folder / "runs"
        for arguments, names in ((["-o", self.folder / "x.html", "--baseline", "none.json"], "none.json"), (["-o", self.folder / "x.html", "--speeds", runs / "fast/report.json"], "schema"),
                                 (["-o", self.folder / "x.md", "--baseline", "none.json"], "HTML"), (["-o", "/proc/none/x.html"], "/proc/none")):
            result = sumzero("report", runs, *arguments)
            self.assertEqual(result.returncode, 2, arguments)
            self.assertIn(names, result.stderr)
            self.assertEqual(result.stderr.count("\n"), 1, result.stderr)


if __name__ == "__main__":
    unittest.main(argv=sys.argv[:1] + sys.argv[3:])
