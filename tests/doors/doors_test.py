#!/usr/bin/env python3
"""Foreign kernels as a user meets them: doors_test.py <path of sumzero> <C compiler> <folder of tests/> <python with NumPy> [nvcc]."""
import json
import os
import shlex
import subprocess
import sys
import tempfile
import time
import unittest
from pathlib import Path

BINARY = COMPILER = PYTHON = NVCC = ""
TESTS = Path()

PLAIN = {"schema": "sumzero-case/1", "operator": "softmax", "storage": "f32", "extents": [2, 3],
         "inputs": {"x": {"format": "f32", "shape": [2, 3], "data": [0, 0, 0, 0, 0, 0]}}}
COLLAPSE = {"schema": "sumzero-case/1", "operator": "cross_entropy", "storage": "f32", "extents": [1, 2],
            "inputs": {"label": {"format": "index", "shape": [1], "data": [0]}, "x": {"format": "f32", "shape": [1, 2], "data": [17, 0]}}}
AGREE = {"schema": "sumzero-case/1", "operator": "kl_forward", "storage": "f32", "extents": [1, 3],
         "inputs": {name: {"format": "f32", "shape": [1, 3], "data": [1, 2, 3]} for name in "st"}}
# q = 40 against keys 1 and 0: all of gq is in the tail, exp(-40).
ATTENTION = {"schema": "sumzero-case/1", "operator": "sdpa", "storage": "f32", "extents": [1] * 4 + [2, 1, 1],
             "inputs": {name: {"format": "f32", "shape": [1, 1, len(data), 1], "data": data}
                        for name, data in {"q": [40], "k": [1, 0], "v": [1, 2], "go": [1]}.items()}}
EMPTY = {**ATTENTION, "inputs": {**ATTENTION["inputs"], "mask": {"format": "bool", "shape": [1, 1, 1, 2], "data": [0, 0]}}}
# Rows padded, classes backwards, first element last.
STRIDED = {"schema": "sumzero-case/1", "operator": "softmax", "storage": "f32", "extents": [2, 2],
           "inputs": {"x": {"format": "f32", "shape": [2, 2], "strides": [3, -1], "offset": 1, "elements": 6, "data": [1, 2, 9, 4, 3, 9]}}}


def has(module):
    return subprocess.run([PYTHON, "-c", f"import {module}"], capture_output=True).returncode == 0


class Doors(unittest.TestCase):
    def setUp(self):
        directory = tempfile.TemporaryDirectory(prefix="sumzero_doors_")
        self.addCleanup(directory.cleanup)
        self.folder = Path(directory.name)

    @staticmethod
    def run_tool(*arguments):
        environment = {**os.environ, "SUMZERO_PYTHON": PYTHON}
        return subprocess.run([BINARY, *map(str, arguments)], capture_output=True, text=True, timeout=120, env=environment)

    def sumzero(self, code, *arguments):
        result = self.run_tool(*arguments)
        self.assertEqual(result.returncode, code, f"{arguments}\n{result.stdout}\n{result.stderr}")
        return result

    def write(self, name, case):
        path = self.folder / name
        path.write_text(json.dumps(case))
        return path

    def refused(self, *arguments, names):
        """Exit code 2 and one sentence that names the thing."""
        result = self.sumzero(2, *arguments)
        self.assertEqual((result.stdout, len(result.stderr.splitlines())), ("", 1), result.stderr)
        self.assertIn(names, result.stderr)

    def verdict(self, code, kernel, names, case=PLAIN, *more):
        """One sentence with the verdict."""
        result = self.sumzero(code, "replay", self.write("case.json", case), "--kernel", kernel, *more)
        lines = [line for line in result.stdout.splitlines() if names in line]
        self.assertEqual(len(lines), 1, result.stdout)
        self.assertEqual(result.stderr, "")
        return result.stdout

    def compiled(self, source, *flags):
        library = self.folder / "libplugin.so"
        subprocess.run([COMPILER, "-std=gnu99", "-Wall", "-Wextra", "-Werror", "-shared", "-fPIC", "-O2", "-I", TESTS.parent, *flags,
                        TESTS / "consumer" / source, "-o", library, "-lm"], check=True)
        return library

    def hostile(self, mode):
        return self.compiled("hostile/plugin.c", f"-DMODE_{mode}")

    @staticmethod
    def command(*words):
        return "process:" + " ".join(shlex.quote(str(word)) for word in (PYTHON, *words))

    def worker(self, mode):
        return self.command(TESTS / "consumer/hostile/worker.py", mode)

    def function(self, *modes):
        return self.command(TESTS / "consumer/hostile/function.py", *modes)


class Libraries(Doors):
    def test_a_good_library_passes_fuzz_gate_replay_explain_compare(self):
        library, out = self.compiled("plugin/softmax.c"), self.folder / "out"
        self.sumzero(0, "fuzz", "softmax", "--kernel", library, "--cases", 1000, "--threads", 2, "--out", out)
        report = json.loads((out / "report.json").read_text())
        self.assertEqual((report["kernel"], report["verdict"]), ("plugin.softmax", "pass"))
        self.assertEqual(report["contract"]["summation"], "sequential")
        self.assertEqual(list((out / "running").iterdir()), [])
        baseline = self.folder / "baseline.json"
        self.sumzero(0, "gate", out, "--baseline", baseline, "--update-baseline")
        self.assertIn("ratchet held", self.sumzero(0, "gate", out, "--baseline", baseline, "--kernel", library).stdout)
        case = self.write("strided.json", STRIDED)
        self.assertIn("pass", self.sumzero(0, "replay", case, "--kernel", library).stdout)
        self.assertIn("plugin.softmax", self.sumzero(0, "explain", case, "--kernel", library).stdout)
        self.sumzero(0, "compare", "softmax", "--kernel", library, "--with", "fast", "--cases", 20)

    def test_cuda(self):
        if not NVCC:
            self.skipTest("nvcc was not found")
        library = self.folder / "libcuda_softmax.so"
        subprocess.run([NVCC, "-std=c++17", "-Werror", "all-warnings", "-shared", "-Xcompiler", "-fPIC", "-I", TESTS.parent,
                        TESTS / "consumer/plugin/softmax_cuda.cu", "-o", library], check=True)
        if not os.path.exists("/dev/nvidia0"):
            self.assertIn("CUDA", self.verdict(3, library, "the kernel reported an error"))
            self.skipTest("compiled and loaded; no GPU to run it on")
        self.sumzero(0, "fuzz", "softmax", "--kernel", library, "--cases", 500)

    def test_libraries_that_cannot_be_opened(self):
        fuzz = ["fuzz", "softmax", "--cases", 1, "--kernel"]
        self.refused(*fuzz, self.hostile("SYMBOL"), names="does not export sumzero_plugin_table")
        self.refused(*fuzz, self.hostile("VERSION"), names="ABI version 99")
        (self.folder / "text.so").write_text("not a library")
        self.refused(*fuzz, self.folder / "text.so", names="cannot be loaded")
        self.refused(*fuzz, self.folder / "none.so", names="no such file")
        self.refused(*fuzz, self.compiled("plugin/softmax.c"), "--dtype", "f64", names="f64")
        self.refused("fuzz", "cross_entropy", "--kernel", self.compiled("plugin/softmax.c"), names="unknown kernel")

    def test_libraries_that_misbehave(self):
        for mode, code, names in [("CRASH", 3, "crashed: the worker was killed by SIGSEGV"), ("HANG", 3, "timed_out: the worker did not answer within 0.5 s"),
                                  ("EXIT", 3, "crashed: the worker exited with code 5"), ("ERROR", 3, "the device is on strike"),
                                  ("REFUSE", 77, "refused: the device is on strike"), ("MUTATE", 1, "input_mutated: input 'x' changed"),
                                  ("UNWRITTEN", 1, "not_fully_written: p[1, 2] was not written"), ("OVERRUN", 1, "out_of_bounds: p: wrote outside")]:
            with self.subTest(mode=mode):
                self.verdict(code, self.hostile(mode), names, PLAIN, *(["--timeout", "0.5s"] if mode == "HANG" else []))
        self.verdict(3, self.hostile("MEMORY"), "killed by SIGABRT (Aborted): out of memory", PLAIN, "--memory-limit", "1G")
        self.verdict(0, self.hostile("PRINT"), "pass")

    def test_a_crash_costs_one_case_and_is_kept(self):
        library, out = self.compiled("hostile/plugin.c", "-DMODE_CRASH"), self.folder / "out"
        result = self.sumzero(3, "fuzz", "softmax", "--kernel", library, "--cases", 500, "--out", out)
        self.assertIn("killed by SIGSEGV", result.stdout)
        report = json.loads((out / "report.json").read_text())
        self.assertEqual(report["verdict"], "crashed")
        # The campaign goes on after a crash, and ends after 20.
        self.assertEqual(report["violation_counts"]["crashed"], 20)
        violation = report["violations"][0]
        self.sumzero(3, "replay", out / "witness" / f"{violation['witness']}.json", "--kernel", library)
        self.assertEqual(list((out / "running").iterdir()), [])

    def test_the_running_case_survives_the_tool(self):
        library, out = self.hostile("HANG"), self.folder / "out"
        process = subprocess.Popen([BINARY, "fuzz", "softmax", "--kernel", library, "--cases", "5", "--out", out], stderr=subprocess.DEVNULL)
        for _ in range(100):
            time.sleep(0.1)
            cases = list((out / "running").glob("*.json")) if (out / "running").exists() else []
            if cases and cases[0].stat().st_size:
                break
        process.kill()
        process.wait()
        self.sumzero(0, "replay", cases[0], "--kernel", "fast")
        # Its worker, which hangs in the kernel, went with the tool.
        def alive():
            for folder in Path("/proc").glob("[0-9]*"):
                try:
                    if str(library) in (folder / "cmdline").read_text():
                        return True
                except OSError:
                    pass
            return False
        deadline = time.monotonic() + 20
        while alive() and time.monotonic() < deadline:
            time.sleep(0.05)
        self.assertFalse(alive())


class Workers(Doors):
    def test_workers_that_cannot_be_opened(self):
        for mode, names in [("dies at start", "exited with code 1: no licence found"), ("prints at start", "it wrote 'loading the kernel"),
                            ("never describes", "did not answer within 1.2 s"), ("describes nonsense", "is not a JSON object"),
                            ("protocol 2", "protocol 1"), ("no name", "plain name"), ("unknown operator", "softmux"), ("unknown dtype", "f99"),
                            ("unknown field", "dtype"), ("bad contract", "exp_error"), ("tool's name", "which is a kernel of this tool"),
                            ("no output", "offers no output of softmax")]:
            with self.subTest(mode=mode):
                limit = ["--timeout", "0.2s"] if mode == "never describes" else []
                self.refused("fuzz", "softmax", "--cases", 1, *limit, "--kernel", self.worker(mode), names=names)
        for kernel, names in [("process:", "names no command"), ("process:/nowhere/kernel", "not found"), ("./none.py", "no such file"),
                              (self.write("data.txt", {}), "neither")]:
            self.refused("fuzz", "softmax", "--kernel", kernel, names=names)
        self.refused("fuzz", "softmax", "--kernel", self.worker("dies"), "--timeout", "soon", names="--timeout")
        self.refused("fuzz", "softmax", "--kernel", self.worker("dies"), "--memory-limit", "much", names="--memory-limit")

    def test_workers_that_misbehave(self):
        for mode, names in [("dies", "crashed: the worker exited with code 7"), ("prints", "it wrote 'debug: softmax called"),
                            ("closes", "closed its end"), ("hangs", "timed_out: the worker did not answer within 0.5 s"),
                            ("bad length", "announced a head of 1099511627776 bytes"), ("bad json", "is not a JSON object"),
                            ("bad count", "'bytes' is not a count"), ("short", "answered 4 raw bytes where"), ("huge", "announced 1125899906842624 raw bytes"),
                            ("says nothing", "instead of done, refused or error"), ("error is a number", "'error' of its answer is no text"),
                            ("answers twice", "crashed: the worker broke the protocol: it wrote")]:
            with self.subTest(mode=mode):
                self.verdict(3, self.worker(mode), names, PLAIN, *(["--timeout", "0.5s"] if mode == "hangs" else []))


class Python(Doors):
    def setUp(self):
        super().setUp()
        if not has("numpy"):
            self.skipTest(f"{PYTHON} has no NumPy")

    def test_functions_that_misbehave(self):
        for transport in [[], ["through the pipe"]]:
            for mode, code, names in [("raises", 3, "ValueError: the logits are ugly"), ("refuses", 77, "refused: not on Sundays"),
                                      ("wrong shape", 3, "has shape [0, 1] instead of [2, 3]"), ("wrong dtype", 3, "has dtype float64 instead of float32"),
                                      ("too many", 3, "returned 3 outputs instead of 1"), ("wrong name", 3, "returned no output 'p'"),
                                      ("nothing", 3, "output 'p'"), ("mutates", 1, "input_mutated"), ("prints", 0, "pass"),
                                      ("sleeps", 3, "timed_out"), ("fine", 0, "pass")]:
                with self.subTest(mode=mode, transport=transport):
                    self.verdict(code, self.function(mode, *transport), names, PLAIN, *(["--timeout", "1s"] if mode == "sleeps" else []))

    def test_numpy_softmax(self):
        kernel, out = TESTS / "consumer/python/numpy_softmax.py", self.folder / "out"
        self.sumzero(0, "replay", self.write("strided.json", STRIDED), "--kernel", kernel)
        # Its gradient is the textbook's.
        self.sumzero(1, "fuzz", "softmax", "--kernel", kernel, "--dtype", "all", "--cases", 200, "--out", out)
        report = json.loads((out / "f32/report.json").read_text())
        self.assertEqual(report["worst"]["p"]["bound_ratio"] <= 1, True)
        self.assertGreater(report["violation_counts"]["gradient sum"], 0)
        self.assertTrue((out / "bf16/report.json").exists())

    def test_numpy_attention(self):
        kernel, out = TESTS / "consumer/python/numpy_sdpa.py", self.folder / "out"
        self.sumzero(0, "replay", self.write("attention.json", ATTENTION), "--kernel", kernel)
        self.sumzero(0, "replay", self.write("empty.json", EMPTY), "--kernel", kernel)
        # It takes no causal order, window, softcap or sink: refused, and so inconclusive or a finding, never a pass.
        self.assertIn(self.run_tool("fuzz", "sdpa", "--kernel", kernel, "--cases", 100, "--out", out).returncode, (1, 4))
        report = json.loads((out / "report.json").read_text())
        self.assertGreater(report["refused"], 0)
        self.assertLess(report["refused"], 100)

    def test_conversions_of_bf16(self):
        # 0x1.01p0 is halfway between 1 and 1 + 2^-7: to even, 1. 0x1.03p0 goes up to 1 + 2^-6.
        subprocess.run([PYTHON, "-c", """
import numpy, sumzero
values = numpy.array([1, float.fromhex('0x1.01p0'), float.fromhex('0x1.03p0'), numpy.inf, numpy.nan, 3.4e38], dtype=numpy.float32)
assert sumzero.float_to_bf16(values).tolist() == [0x3f80, 0x3f80, 0x3f82, 0x7f80, 0x7fc0, 0x7f80], sumzero.float_to_bf16(values)
every = numpy.arange(65536, dtype=numpy.uint16)
numbers = sumzero.bf16_to_float(every)
back = sumzero.float_to_bf16(numbers)
assert (back == every)[~numpy.isnan(numbers)].all()
"""], check=True, env=self.python_path())

    def test_conversions_of_8_bits(self):
        subprocess.run([PYTHON, "-c", """
import numpy, sumzero
every = numpy.arange(256, dtype=numpy.uint8)
for dtype, largest, codes in (("e4m3", 448, {0x38: 1, 0x7e: 448, 0x01: 2.0**-9}), ("e5m2", 57344, {0x3c: 1, 0x7b: 57344, 0x01: 2.0**-16})):
    values = sumzero.f8_to_float(every, dtype)
    for code, value in codes.items():
        assert values[code] == value and values[code | 128] == -value, (dtype, code)
    fine = ~numpy.isnan(values)
    assert (sumzero.float_to_f8(values, dtype) == every)[fine].all(), dtype
    assert numpy.isnan(sumzero.f8_to_float(sumzero.float_to_f8(values[~fine], dtype), dtype)).all()
    # Between two neighbours: below the middle down, above it up, the middle to the even code.
    low = numpy.sort(values[fine & ~numpy.signbit(values) & (values < largest)])
    code = sumzero.float_to_f8(low, dtype)
    middle = (low.astype(float) + sumzero.f8_to_float(code + 1, dtype)) / 2
    assert (sumzero.float_to_f8(numpy.nextafter(middle, 0), dtype) == code).all()
    assert (sumzero.float_to_f8(numpy.nextafter(middle, numpy.inf), dtype) == code + 1).all()
    assert (sumzero.float_to_f8(middle, dtype) == code + code % 2).all()
    assert sumzero.float_to_f8([1e9, -1e9], dtype).tolist() == ([0x7e, 0xfe] if dtype == "e4m3" else [0x7c, 0xfc])
"""], check=True, env=self.python_path())

    def test_kernels_in_8_bits(self):
        kernel = TESTS / "consumer/python/numpy_f8_softmax.py"
        for dtype in ("e4m3", "e5m2"):
            out = self.folder / dtype
            self.run_tool("fuzz", "softmax", "--kernel", kernel, "--dtype", dtype, "--cases", 200, "--out", out)
            report = json.loads((out / "report.json").read_text())
            self.assertLessEqual(report["worst"]["p"]["bound_ratio"], 1)
            self.assertLess(report["worst"]["p"]["ulp"], 0.51)
            self.assertNotIn("crashed", report["violation_counts"])
        # Masks are flags, whatever the logits are.
        masked = {"schema": "sumzero-case/1", "operator": "softmax.scaled_masked", "storage": "e4m3", "extents": [1, 2],
                  "inputs": {"x": {"format": "e4m3", "shape": [1, 2], "data": [1, 2]}, "mask": {"format": "bool", "shape": [1, 2], "data": [1, 0]}}}
        self.sumzero(0, "replay", self.write("masked.json", masked), "--kernel", TESTS / "consumer/python/numpy_f8_softmax.py")

    @staticmethod
    def python_path():
        return {**os.environ, "PYTHONPATH": str(Path(BINARY).parent.parent / "share/sumzero/python"), "SUMZERO": BINARY}

    def test_the_assertion(self):
        subprocess.run([PYTHON, "-c", """
import numpy, sumzero
x = numpy.array([[17, 0], [1, 2]], dtype=numpy.float32)
d = x.astype(numpy.float64)
p = numpy.exp(d - d.max(axis=1, keepdims=True))
p /= p.sum(axis=1, keepdims=True)
sumzero.assert_within_bound('softmax', {'x': x}, {'p': p.astype(numpy.float32)})
def fails(kind, *arguments, **more):
    try:
        sumzero.assert_within_bound(*arguments, **more)
    except kind as error:
        return str(error)
    raise SystemExit('accepted')
bad = p.astype(numpy.float32)
bad[1, 0] += numpy.float32(1e-4)
assert 'p[1, 0]' in fails(AssertionError, 'softmax', {'x': x}, {'p': bad}), 'place'
assert 'softmux' in fails(ValueError, 'softmux', {'x': x}, {'p': bad})
assert 'q' in fails(ValueError, 'softmax', {'x': x}, {'q': bad})
assert 'temperature' in fails(ValueError, 'softmax', {'x': x}, {'p': bad}, temperature=2)
collapsed = numpy.array([[0, numpy.exp(-17.0)]], dtype=numpy.float32)
text = fails(AssertionError, 'cross_entropy', {'x': x[:1], 'label': numpy.array([0])}, {'gx': collapsed}, reduction='sum')
assert 'collapse' in text, text
q, k, v = (numpy.array(x, dtype=numpy.float32).reshape(1, 1, -1, 1) for x in ([40], [1, 0], [1, 2]))
sumzero.assert_within_bound('sdpa', {'q': q, 'k': k, 'v': v}, {'o': v[:, :, :1]})
sumzero.assert_within_bound('sdpa', {'q': q, 'k': k, 'v': v, 'go': q / q}, {'gq': numpy.float32(-numpy.exp(-40.0)).reshape(q.shape)})
assert 'gq' in fails(AssertionError, 'sdpa', {'q': q, 'k': k, 'v': v, 'go': q / q}, {'gq': 0 * q}, contract={'pivoted': True})
codes = sumzero.float_to_f8(d, 'e5m2')
p8 = sumzero.float_to_f8(p, 'e5m2')
sumzero.assert_within_bound('softmax', {'x': codes}, {'p': p8}, dtype='e5m2')
assert 'p[' in fails(AssertionError, 'softmax', {'x': codes}, {'p': p8 ^ 4}, dtype='e5m2')
assert 'kv_heads' in fails(ValueError, 'sdpa', {'q': q, 'k': k[0], 'v': v}, {'o': q})
"""], check=True, env=self.python_path())


class Torch(Doors):
    def setUp(self):
        super().setUp()
        if not has("torch"):
            self.skipTest(f"{PYTHON} has no PyTorch")

    def test_cross_entropy_collapses(self):
        kernel, out = TESTS / "consumer/python/torch_cross_entropy.py", self.folder / "out"
        self.verdict(1, kernel, "gradient sum (collapse)", COLLAPSE)
        self.sumzero(1, "fuzz", "cross_entropy", "--kernel", kernel, "--cases", 300, "--out", out)
        report = json.loads((out / "report.json").read_text())
        collapses = [v for v in report["violations"] if v["kind"] == "collapse"]
        self.assertTrue(collapses)
        witness = json.loads((out / "witness" / f"{collapses[0]['witness']}.json").read_text())
        self.assertEqual(witness["extents"], [1, 2])

    def test_probe(self):
        result = self.folder / "probe.json"
        self.sumzero(0, "probe", "softmax", "--kernel", TESTS / "consumer/python/torch_softmax.py", "--json", result)
        found = {finding["property"]: finding["value"] for finding in json.loads(result.read_text())["findings"]}
        # ATen's CPU kernel: one pass over vectors of 8 floats (AVX2) or 16 (AVX-512), the maximum among the terms, float arithmetic.
        self.assertIn(found["reduction order"], ("lanes 8", "lanes 16"))
        self.assertEqual((found["accumulator"], found["maximum in the sum"], found["x - max"]), ("f32", "included", "rounded"))
        self.assertEqual((found["row of -inf"], found["repeated runs"]), ("masked_policy nan", "equal bits"))

    def test_kl_div_cancels(self):
        kernel, out = TESTS / "consumer/python/torch_kl_div.py", self.folder / "out"
        self.verdict(1, kernel, "exact zero (cancellation): ds", AGREE)
        self.sumzero(1, "fuzz", "kl_forward", "--kernel", kernel, "--cases", 200, "--out", out)
        report = json.loads((out / "report.json").read_text())
        broken = [v for v in report["violations"] if v["property"] == "exact zero"]
        self.assertTrue(broken)
        self.sumzero(1, "replay", out / "witness" / f"{broken[0]['witness']}.json", "--kernel", kernel)

    def test_attention_collapses(self):
        kernel = TESTS / "consumer/python/torch_sdpa.py"
        self.verdict(1, kernel, "gradient sum (collapse): gk", ATTENTION)
        ordinary = json.loads(json.dumps(ATTENTION))
        ordinary["inputs"]["q"]["data"] = [0.5]
        self.verdict(0, kernel, "pass", ordinary)


if __name__ == "__main__":
    if len(sys.argv) < 5:
        sys.exit(__doc__)
    BINARY, COMPILER, TESTS, PYTHON = os.path.abspath(sys.argv[1]), sys.argv[2], Path(sys.argv[3]).resolve(), sys.argv[4]
    NVCC = sys.argv[5] if len(sys.argv) > 5 and sys.argv[5].startswith("/") else ""
    unittest.main(argv=sys.argv[:1] + [a for a in sys.argv[5:] if not a.startswith("/")], verbosity=2)
