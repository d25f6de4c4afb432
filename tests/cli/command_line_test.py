#!/usr/bin/env python3
"""The command line as a user meets it: command_line_test.py <path of sumzero>."""
import json
import os
import random
import resource
import re
import shutil
import signal
import subprocess
import sys
import tempfile
import time
import unittest
import xml.etree.ElementTree as xml
from pathlib import Path

BINARY = ""
KERNEL = "textbook.pytorch"

# Softmax Collapse in f32: logits 17 and 0, label 0.
COLLAPSE = {
    "schema": "sumzero-case/1", "operator": "cross_entropy", "storage": "f32", "extents": [1, 2],
    "attributes": {"reduction": "mean"},
    "inputs": {"label": {"format": "index", "shape": [1], "data": [0]},
               "x": {"format": "f32", "shape": [1, 2], "data": ["0x1.1p+4", "0x0p+0"]}}}
TEACHER = {
    "schema": "sumzero-case/1", "operator": "kl_forward", "storage": "f32", "extents": [1, 2], "attributes": {"T": 2},
    "inputs": {"s": {"format": "f32", "shape": [1, 2], "data": [1, 2]},
               "t": {"format": "f32", "shape": [1, 2], "data": [2, 1]}}}


def sumzero(*arguments, timeout=120):
    return subprocess.run([BINARY, *map(str, arguments)], capture_output=True, text=True, timeout=timeout)


def timeless(report):
    """The report without the time that it took."""
    report["seconds"] = 0
    for share in report["campaign"].get("shares", []):
        share["seconds"] = 0
    return report


def changed(case, **fields):
    copy = json.loads(json.dumps(case))
    copy.update(fields)
    return copy


class CommandLine(unittest.TestCase):
    def setUp(self):
        self.directory = tempfile.TemporaryDirectory(prefix="sumzero_cli_")
        self.addCleanup(self.directory.cleanup)
        self.folder = Path(self.directory.name)

    def write(self, name, content):
        path = self.folder / name
        path.write_text(content if isinstance(content, str) else json.dumps(content))
        return path

    def succeeds(self, code, *arguments):
        result = sumzero(*arguments)
        self.assertEqual(result.returncode, code, f"{arguments}\n{result.stdout}\n{result.stderr}")
        return result.stdout

    def refused(self, *arguments, names):
        """Exit code 2 and one line on standard error that names the thing."""
        result = sumzero(*arguments)
        self.assertEqual(result.returncode, 2, f"{arguments}\n{result.stdout}\n{result.stderr}")
        lines = result.stderr.splitlines()
        self.assertEqual(len(lines), 1, result.stderr)
        self.assertTrue(lines[0].startswith("sumzero: "), lines[0])
        for name in [names] if isinstance(names, str) else names:
            self.assertIn(name, lines[0])
        self.assertEqual(result.stdout, "")
        return lines[0]

    def fuzz(self, out, *more, op="cross_entropy", code=1, cases=200, seed=1):
        self.succeeds(code, "fuzz", op, "--kernel", KERNEL, "--cases", cases, "--seed", seed, "--out", out, *more)
        return json.loads((out / "report.json").read_text())


class Listing(CommandLine):
    def test_text_and_json_name_every_operator(self):
        text = self.succeeds(0, "list")
        document = json.loads(self.succeeds(0, "list", "--json"))
        self.assertEqual(document["schema"], "sumzero-list/1")
        names = [operator["name"] for operator in document["operators"]]
        self.assertEqual(names, sorted(names))
        for name in ["softmax", "log_softmax", "logsumexp", "softmax.state", "softmax.merge", "softmax.online", "softmax.scaled_masked",
                     "cross_entropy", "cross_entropy.soft", "kl_forward", "kl_reverse", "jsd", "sdpa", "sdpa.merge"]:
            self.assertIn(name, names)
            self.assertIn(name + "\n", text)
        for operator in document["operators"]:
            for key in ["summary", "axes", "inputs", "outputs", "attributes", "kernels", "strata"]:
                self.assertTrue(key in operator, key)
            for tensor in operator["inputs"] + operator["outputs"]:
                self.assertLessEqual(set(tensor["axes"]), set(operator["axes"]))
            self.assertTrue(any(KERNEL in [kernel["name"], *kernel["aliases"]] for kernel in operator["kernels"])
                            or operator["name"] in ("softmax.state", "softmax.merge", "softmax.online", "sdpa.merge"), operator["name"])
            # An output that no kernel computes is listed without its theorem.
            bounded = [output for output in operator["outputs"] if "theorem" in output]
            self.assertTrue(bounded, operator["name"])
            for output in bounded:
                self.assertTrue(output["theorem"] and output["file"].endswith(".json"))
        self.succeeds(0, "list", "--json", self.folder / "list.json")
        self.assertEqual(json.loads((self.folder / "list.json").read_text()), document)

    def test_help(self):
        self.assertIn("Exit codes", self.succeeds(0, "--help"))
        self.assertIn("--cases", self.succeeds(0, "fuzz", "--help"))


class Probing(CommandLine):
    def test_a_draft_contract_is_taken_everywhere(self):
        draft, findings = self.folder / "draft.json", self.folder / "findings.json"
        text = self.succeeds(0, "probe", "softmax", "--kernel", "textbook.torch_cpu", "-o", draft, "--json", findings)
        self.assertRegex(text, r"reduction order +lanes 8 ")
        found = {finding["property"]: finding["value"] for finding in json.loads(findings.read_text())["findings"]}
        self.assertEqual((found["reduction order"], found["accumulator"], found["division"]), ("lanes 8", "f32", "multiplies by a rounded reciprocal"))
        self.assertIsNone(found["log error"])
        contract = json.loads(draft.read_text())
        self.assertEqual((contract["operator"], contract["dtype"], contract["kind"]), ("softmax", "f32", "declared"))
        out = self.folder / "out"
        self.succeeds(1, "fuzz", "softmax", "--kernel", "textbook.torch_cpu", "--contract", draft, "--cases", 200, "--out", out, "-q")
        report = json.loads((out / "report.json").read_text())
        self.assertEqual((report["contract"]["summation"], report["contract"]["kind"], report["bound"]["p"]["kind"]), ("lanes of 8", "declared", "declared"))
        self.assertLessEqual(report["worst"]["p"]["bound_ratio"], 1)
        # A promise that is not kept is seen, by every command.
        strict = self.write("strict.json", {"operator": "softmax", "exp_error": 0, "reciprocal": False, "compensated_shift": True, "summation": "compensated"})
        self.succeeds(1, "fuzz", "softmax", "--kernel", "textbook.torch_cpu", "--contract", strict, "--cases", 200, "--out", self.folder / "strict", "-q")
        broken = json.loads((self.folder / "strict/report.json").read_text())
        self.assertGreater(broken["worst"]["p"]["bound_ratio"], 1)
        witness = self.folder / "strict/witness" / (broken["worst"]["p"]["bound_witness"] + ".json")
        for command in (["replay"], ["minimise", "--property", "bound"]):
            self.succeeds(1, *command, witness, "--kernel", "textbook.torch_cpu", "--contract", strict)
        self.assertIn("significant bits are right", self.succeeds(0, "explain", witness, "--kernel", "textbook.torch_cpu", "--contract", strict))
        self.succeeds(0, "compare", "softmax", "--kernel", "textbook.torch_cpu", "--with", "fast", "--contract", draft, "--cases", 20)

    def test_bad_requests(self):
        probe = ["probe", "softmax", "--kernel"]
        self.refused(*probe, "nobody", names="nobody")
        self.refused(*probe, "fast", "--dtype", "f99", names="f99")
        self.refused("probe", "softmux", "--kernel", "fast", names="softmux")
        self.refused("probe", "sdpa", "--kernel", "fast", names="rows of logits")
        self.refused(*probe, "textbook.ggml", "--dtype", "f64", names="f64")
        fuzz = ["fuzz", "softmax", "--cases", 1, "--contract"]
        for text, names in [("{", "c.json"), ({"operator": "log_softmax"}, "log_softmax"), ({"dtype": "bf16"}, "bf16"), ({"kind": "proved"}, "declared"),
                            ({"accumulator": "f7"}, "unknown format"), ({"exp_eror": 1}, "exp_eror"), ({"summation": "odd"}, "summation")]:
            self.refused(*fuzz, self.write("c.json", text), names=names)
        self.refused(*fuzz, self.folder / "none.json", names="none.json")


class Fuzzing(CommandLine):
    def test_the_report_is_complete(self):
        out, paths = self.folder / "run", {kind: self.folder / f"r.{kind}" for kind in ["json", "xml", "md", "sarif"]}
        report = self.fuzz(out, "--json", paths["json"], "--junit", paths["xml"], "--markdown", paths["md"], "--sarif", paths["sarif"])
        self.assertEqual(json.loads(paths["json"].read_text()), report)
        self.assertEqual(report["schema"], "sumzero-report/1")
        self.assertEqual((report["operator"], report["dtype"], report["cases"], report["verdict"]), ("cross_entropy", "f32", 200, "violation"))
        for key in ["kernel", "elements", "rows", "seconds", "seed", "undecided", "environment", "contract", "gradient_sum_index", "bias"]:
            self.assertIn(key, report)
        self.assertGreater(report["elements"], 200)
        self.assertTrue(report["environment"])
        self.assertEqual(set(report["worst"]), {"loss", "gx"})
        for worst in report["worst"].values():
            for key in ["ulp", "grid", "bound_ratio", "kind", "witness"]:
                self.assertIn(key, worst)
        for bound in report["bound"].values():
            self.assertIn(bound["kind"], ["proved", "derived", "declared"])
            self.assertTrue(bound["theorem"])
        for key in ["reached", "required"]:
            self.assertTrue(report["classes"][key], key)
        # 1/(4u) in f32
        self.assertGreaterEqual(report["gradient_sum_index"]["max"], 2**22)
        self.assertTrue(report["violations"])
        collapse = report["violations"][0]
        self.assertEqual((collapse["property"], collapse["kind"], collapse["severity"]), ("gradient sum", "collapse", "error"))
        for violation in report["violations"]:
            self.assertTrue((out / "witness" / f"{violation['witness']}.json").exists())
        self.assertRegex(json.dumps(report), r'"-?0x[0-9a-f.]+p[+-]?\d+"')
        root = xml.parse(paths["xml"]).getroot()
        self.assertTrue(list(root.iter("testcase")))
        self.assertTrue(list(root.iter("failure")))
        self.assertLess(paths["md"].stat().st_size, 200_000)
        self.assertIn("cross_entropy", paths["md"].read_text())
        sarif = json.loads(paths["sarif"].read_text())
        self.assertEqual(sarif["version"], "2.1.0")
        self.assertTrue(sarif["runs"][0]["results"])

    def test_the_same_seed_repeats(self):
        def run(name, threads):
            return timeless(self.fuzz(self.folder / name, "-q", "--threads", threads, cases=60))
        self.assertEqual(run("a", 1), run("b", 2))

    def test_quiet_is_quiet(self):
        result = sumzero("fuzz", "softmax", "--kernel", KERNEL, "--cases", 5, "-q")
        self.assertEqual((result.stdout, result.stderr), ("", ""))

    def test_all_dtypes(self):
        out = self.folder / "all"
        self.succeeds(1, "fuzz", "cross_entropy", "--kernel", KERNEL, "--dtype", "all", "--cases", 60, "--out", out, "-q",
                      "--json", self.folder / "all.json")
        reports = json.loads((self.folder / "all.json").read_text())
        self.assertEqual([report["dtype"] for report in reports], ["f64", "f32", "bf16", "f16", "e4m3", "e5m2"])
        for report in reports:
            self.assertTrue((out / report["dtype"] / "report.json").exists())

    def test_resume_goes_on(self):
        part = self.folder / "part"
        self.fuzz(part, "-q", cases=50)
        resumed = self.fuzz(part, "-q", "--resume", cases=100)
        straight = self.fuzz(self.folder / "whole", "-q", cases=100)
        self.assertEqual(timeless(resumed), timeless(straight))
        self.refused("fuzz", "cross_entropy", "--kernel", KERNEL, "--cases", 100, "--out", part, "--resume", "--seed", 2, names="seed")

    def test_a_killed_campaign_goes_on(self):
        straight = self.fuzz(self.folder / "whole", "-q", cases=1500)
        out, dice = self.folder / "killed", random.Random(7)
        command = [BINARY, "fuzz", "cross_entropy", "--kernel", KERNEL, "--cases", "1500", "--out", str(out), "-q", "--resume"]
        for _ in range(6):
            process = subprocess.Popen(command)
            time.sleep(dice.uniform(0.01, 0.6))
            process.kill()
            process.wait()
        # What a kill left half written goes with the next run.
        (out / ".report.json.1.0.tmp").write_text("{")
        self.succeeds(1, *command[1:])
        self.assertEqual(timeless(json.loads((out / "report.json").read_text())), timeless(straight))
        self.assertEqual([path.name for path in out.rglob("*.tmp")], [])

    def test_two_campaigns_in_one_folder(self):
        out = self.folder / "shared"
        process = subprocess.Popen([BINARY, "fuzz", "softmax", "--time", "60s", "--out", str(out), "-q"])
        self.addCleanup(process.wait)
        self.addCleanup(process.kill)
        time.sleep(1)
        self.refused("fuzz", "softmax", "--cases", 1, "--out", out, names="another run writes here")
        self.refused("merge", out, "-o", out, names="another run writes here")

    def test_a_full_disk_costs_nothing_that_was_kept(self):
        out = self.folder / "full"
        before = self.fuzz(out, "-q", cases=100)
        result = subprocess.run([BINARY, "fuzz", "cross_entropy", "--kernel", KERNEL, "--cases", "200", "--out", str(out), "-q", "--resume"],
                                capture_output=True, text=True, preexec_fn=lambda: resource.setrlimit(resource.RLIMIT_FSIZE, (500, 500)))
        self.assertEqual((result.returncode, result.stdout, len(result.stderr.splitlines())), (2, "", 1), result.stderr)
        self.assertIn("make room", result.stderr)
        self.assertEqual(json.loads((out / "report.json").read_text()), before)
        self.assertEqual(timeless(self.fuzz(out, "-q", "--resume", cases=200)), timeless(self.fuzz(self.folder / "whole", "-q", cases=200)))

    def test_merged_shards_are_one_run(self):
        straight, shards, out = self.fuzz(self.folder / "whole", "-q", cases=150), self.folder / "shards", self.folder / "merged"
        systems = [("JOB_COMPLETION_INDEX", {"JOB_COMPLETION_INDEX": "0"}, "auto/3"), ("GNU parallel", {"PARALLEL_SEQ": "2"}, "auto/3"),
                   ("Slurm", {"SLURM_ARRAY_TASK_ID": "9", "SLURM_ARRAY_TASK_MIN": "5", "SLURM_ARRAY_TASK_STEP": "2", "SLURM_ARRAY_TASK_COUNT": "3"}, "auto")]
        for name, variables, shard in systems:
            with self.subTest(system=name):
                result = subprocess.run([BINARY, "fuzz", "cross_entropy", "--kernel", KERNEL, "--cases", "50", "--shard", shard, "--out", str(shards), "-q"],
                                        capture_output=True, text=True, env={**os.environ, **variables})
                self.assertEqual((result.returncode, result.stderr), (1, ""))
        self.assertEqual(sorted(path.name for path in shards.iterdir()), ["0-of-3", "1-of-3", "2-of-3"])
        # Killed at any moment, a merge can be run again.
        dice = random.Random(3)
        for _ in range(8):
            process = subprocess.Popen([BINARY, "merge", str(shards), "-o", str(out), "-q"])
            time.sleep(dice.uniform(0, 0.03))
            process.kill()
            process.wait()
        self.succeeds(1, "merge", shards, "-o", out)
        merged = json.loads((out / "report.json").read_text())
        for report in (merged, straight):
            report["campaign"].pop("shares")
        for output, bias in merged.pop("bias").items():
            self.assertAlmostEqual(bias["mean_ulp"], straight["bias"][output]["mean_ulp"], delta=1e-12 * straight["worst"][output]["ulp"])
        straight.pop("bias")
        self.assertEqual(timeless(merged), timeless(straight))
        # Every witness came along, and merging again changes no byte.
        named = {violation["witness"] for violation in merged["violations"]} | {worst["witness"] for worst in merged["worst"].values()}
        self.assertLessEqual(named, {path.stem for path in (out / "witness").iterdir()})
        before = (out / "report.json").read_bytes()
        self.succeeds(1, "merge", shards / "1-of-3", "-o", out)
        self.assertEqual((out / "report.json").read_bytes(), before)
        # Faults.
        witness = next((shards / "0-of-3/witness").iterdir())
        other = next(path for path in (shards / "1-of-3/witness").iterdir() if path.name != witness.name)
        for path in shards.rglob("witness/*.json"):
            path.write_bytes(other.read_bytes())
        self.refused("merge", shards, "-o", self.folder / "again", names="does not hold the case")
        (shards / "1-of-3/report.json").unlink()
        self.refused("merge", shards, "-o", self.folder / "again", names=["1-of-3", "was not finished", "--resume"])
        self.refused("merge", self.folder / "none", "-o", out, names="no such file")
        self.assertEqual((out / "report.json").read_bytes(), before)
        for variables, shard in [({}, "auto/3"), ({"PARALLEL_SEQ": "5"}, "auto/3"), ({"SLURM_ARRAY_TASK_ID": "x"}, "auto"), ({"JOB_COMPLETION_INDEX": "0"}, "auto")]:
            result = subprocess.run([BINARY, "fuzz", "softmax", "--cases", "1", "--shard", shard], capture_output=True, text=True, env={**os.environ, **variables})
            self.assertEqual((result.returncode, len(result.stderr.splitlines())), (2, 1), result.stderr)

    @unittest.skipUnless(shutil.which("parallel"), "GNU parallel was not found")
    def test_gnu_parallel(self):
        shards, out = self.folder / "shards", self.folder / "merged"
        command = [BINARY, "fuzz", "cross_entropy", "--kernel", KERNEL, "--cases", "30", "--shard", "auto/4", "--out", str(shards), "-q"]
        result = subprocess.run(["parallel", "--will-cite", "-j2", "-N0", *command, ":::", "a", "b", "c", "d"], stdin=subprocess.DEVNULL,
                                capture_output=True, text=True, timeout=120)
        self.assertEqual(result.returncode, 4, result.stderr)  # the number of jobs that found a violation
        self.succeeds(1, "merge", shards, "-o", out)
        merged, straight = json.loads((out / "report.json").read_text()), self.fuzz(self.folder / "whole", "-q", cases=120)
        self.assertEqual([share["shard"] for share in merged["campaign"]["shares"]], [0, 1, 2, 3])
        for key in ("cases", "violation_counts", "violations", "classes", "gradient_sum_index"):
            self.assertEqual(merged[key], straight[key], key)

    def test_time_limit_and_shards(self):
        start = time.monotonic()
        self.assertEqual(sumzero("fuzz", "softmax", "--kernel", KERNEL, "--time", "1s", "--shard", "1/2", "-q").returncode in (0, 1, 4), True)
        self.assertLess(time.monotonic() - start, 60)

    def test_an_interrupt_keeps_results(self):
        out = self.folder / "long"
        process = subprocess.Popen([BINARY, "fuzz", "softmax", "--kernel", KERNEL, "--time", "100s", "--out", out],
                                   stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
        time.sleep(2)
        process.send_signal(signal.SIGINT)
        _, errors = process.communicate(timeout=60)
        self.assertIn(process.returncode, (0, 1, 4), errors)
        report = json.loads((out / "report.json").read_text())
        self.assertGreater(report["cases"], 0)
        self.assertTrue((out / "state.json").exists())


class Exhausting(CommandLine):
    def test_every_row_through_kills(self):
        straight, out, dice = self.folder / "straight.json", self.folder / "killed", random.Random(11)
        command = ["exhaust", "softmax", "--kernel", "fast.plain", "--dtype", "e4m3", "--length", "2", "-q"]
        text = self.succeeds(0, *command[:-1], "--json", straight)
        self.assertIn("rows      65536", text)
        self.assertIn("exhaustive", text)
        for _ in range(4):
            process = subprocess.Popen([BINARY, *command, "--out", str(out), "--resume"])
            time.sleep(dice.uniform(0.01, 0.15))
            process.kill()
            process.wait()
        for _ in range(3):  # or left early, with what there is
            self.assertIn(sumzero(*command, "--out", out, "--resume", "--time", "0.02s").returncode, (0, 4))
        self.succeeds(0, *command, "--out", out, "--resume")
        self.assertEqual(timeless(json.loads((out / "report.json").read_text())), timeless(json.loads(straight.read_text())))
        self.refused("fuzz", "softmax", "--kernel", "fast.plain", "--dtype", "e4m3", "--cases", 1, "--out", out, "--resume", names="another length")

    def test_shards_are_whole_together(self):
        shards = self.folder / "shards"
        for i in range(2):
            self.succeeds(4, "exhaust", "log_softmax", "--dtype", "e5m2", "--length", 2, "--shard", f"{i}/2", "--out", shards, "-q")
        self.assertIn("exhaustive", self.succeeds(0, "merge", shards, "-o", self.folder / "merged"))

    def test_a_collapse_is_counted(self):
        # torch's order of cross-entropy loses the target's gradient in bf16 whatever the loss of the rest: every such row counts.
        report = self.folder / "report.json"
        self.succeeds(1, "exhaust", "cross_entropy", "--kernel", "textbook.pytorch", "--dtype", "e5m2", "--length", 2, "-q", "--json", report)
        report = json.loads(report.read_text())
        self.assertGreater(report["violation_counts"]["gradient sum"], 1)
        self.assertTrue(all(worst["kind"] == "exhaustive" for worst in report["worst"].values()))
        self.assertTrue(all(violation["case"]["extents"][0] == 1 for violation in report["violations"]))

    def test_bad_requests(self):
        self.refused("exhaust", "softmax", names="--dtype")
        self.refused("exhaust", "softmax", "--dtype", "all", names="--dtype")
        self.refused("exhaust", "softmax", "--dtype", "f8", names="f8")
        self.refused("exhaust", "softmax", "--dtype", "bf16", "--length", 3, names=["2^32", "from 1 to 2"])
        self.refused("exhaust", "softmax", "--dtype", "bf16", "--length", 0, names="--length")
        self.refused("exhaust", "softmax", "--dtype", "bf16", "--length", 10**30, names="--length")
        self.refused("exhaust", "softmax", "--dtype", "f64", names="2^32")
        self.refused("exhaust", "sdpa", "--dtype", "e4m3", names="use fuzz")
        self.refused("exhaust", "softmax.merge", "--dtype", "e4m3", names="use fuzz")
        self.refused("exhaust", "softmax", "--dtype", "bf16", "--seed", 1, names="--seed")
        self.refused("exhaust", "softmax", "--dtype", "bf16", "--resume", names="--out")


class MutationTesting(CommandLine):
    def test_mutants_are_killed(self):
        path = self.folder / "selftest.json"
        text = self.succeeds(0, "selftest", "softmax", "--dtype", "bf16", "--json", path)
        self.assertIn("kill rate 100.0 %", text)
        outcome = json.loads(path.read_text())
        self.assertEqual(outcome["false_alarms"], 0)
        self.assertTrue({"stale buffer", "cached plan", "NaN swallowed", "guarded exp"} <= {mutant["mutation"] for mutant in outcome["mutants"]})

    def test_too_few_cases_let_mutants_survive(self):
        text = self.succeeds(1, "selftest", "softmax", "--dtype", "f32", "--cases", 1)
        self.assertIn("survived     NaN swallowed", text)

    def test_a_wrong_kernel_is_no_ground(self):
        text = self.succeeds(1, "selftest", "cross_entropy", "--kernel", "textbook.pytorch", "--dtype", "f32")
        self.assertIn("false alarm", text)

    def test_bad_requests(self):
        self.refused("selftest", "softmox", names="softmox")
        self.refused("selftest", "softmax", "--kernel", "none", names="none")
        self.refused("selftest", "--kernel", "none", names="none")
        self.refused("selftest", "--dtype", "f31", names="f31")


class Witnesses(CommandLine):
    def test_replay(self):
        path = self.write("collapse.json", COLLAPSE)
        text = self.succeeds(1, "replay", path, "--kernel", KERNEL)
        self.assertIn("gradient sum (collapse)", text)
        # 2^23 = 1/(2u): the lost entry is half of sum |g|; six digits are printed
        index = float(re.search(r"gradient-sum index ([\d.e+]+)", text).group(1))
        self.assertAlmostEqual(index / 2**23, 1, delta=1e-4)

    def test_minimise(self):
        wide = json.loads(json.dumps(COLLAPSE))
        wide["extents"] = [1, 5]
        wide["inputs"]["x"] = {"format": "f32", "shape": [1, 5], "data": [20.5, 0, -1.25, 0.5, 0]}
        path = self.write("wide.json", wide)
        text = self.succeeds(1, "minimise", path, "--kernel", KERNEL, "--property", "gradient sum")
        small = json.loads(text)
        self.assertLessEqual(small["extents"][1], 3)
        where = self.succeeds(1, "minimise", path, "--kernel", KERNEL, "--property", "gradient sum", "--out", self.folder / "small").strip()
        self.assertEqual(json.loads(Path(where).read_text()), small)
        self.succeeds(1, "replay", where, "--kernel", KERNEL)
        self.assertIn("nothing to minimise", self.succeeds(0, "minimise", path, "--kernel", KERNEL, "--property", "ties"))

    def test_explain(self):
        text = self.succeeds(0, "explain", self.write("collapse.json", COLLAPSE), "--kernel", KERNEL)
        self.assertIn("-4.13993754739433", text)

    def test_compare(self):
        text = self.succeeds(0, "compare", "softmax", "--kernel", KERNEL, "--with", "textbook.sequential", "--cases", 30)
        self.assertIn("textbook.torch_cpu", text)  # what the alias stands for
        self.assertIn("textbook.sequential", text)


class Gate(CommandLine):
    def test_without_and_with_baseline(self):
        run, baseline = self.folder / "run", self.folder / "baseline.json"
        self.fuzz(run, "-q", cases=60)
        self.assertIn("FAIL", self.succeeds(1, "gate", run))
        self.succeeds(1, "gate", run, "--baseline", baseline, "--update-baseline")
        stored = json.loads(baseline.read_text())
        held = self.succeeds(1, "gate", run, "--baseline", baseline)
        self.assertIn("ratchet held", held)
        # Tampered: a baseline that claims the kernel once was nearly exact.
        def tamper(node):
            if isinstance(node, dict):
                return {key: (1e-6 if key == "ulp" else tamper(value)) for key, value in node.items()}
            return [tamper(value) for value in node] if isinstance(node, list) else node
        baseline.write_text(json.dumps(tamper(stored)))
        self.assertIn("ratchet worse", self.succeeds(1, "gate", run, "--baseline", baseline))

    def test_files_of_the_gate(self):
        run = self.folder / "run"
        self.fuzz(run, "-q", cases=30)
        self.succeeds(1, "gate", run / "report.json", "--junit", self.folder / "gate.xml", "-q")
        xml.parse(self.folder / "gate.xml")
        self.succeeds(0, "report", run, "-o", self.folder / "summary.md")
        self.assertIn("cross_entropy", (self.folder / "summary.md").read_text())

    def test_bad_baselines(self):
        run, baseline = self.folder / "run", self.folder / "baseline.json"
        self.fuzz(run, "-q", cases=30)
        before = (run / "report.json").read_bytes()
        for text in ["", "{", "[]", '{"schema": "sumzero-baseline/9"}', '{"schema": "sumzero-baseline/1", "entries": 3}']:
            baseline.write_text(text)
            self.refused("gate", run, "--baseline", baseline, names="baseline.json")
            self.refused("gate", run, "--baseline", baseline, "--update-baseline", names="baseline.json")
            self.assertEqual(baseline.read_text(), text)
        self.refused("gate", run, "--baseline", self.folder / "none.json", names="none.json")
        self.refused("gate", run, "--update-baseline", names="--baseline")
        self.refused("gate", self.folder / "nowhere", names="nowhere")
        self.refused("report", self.folder / "nowhere", names="nowhere")
        (self.folder / "empty").mkdir()
        self.refused("gate", self.folder / "empty", names="report.json")
        (self.folder / "empty" / "report.json").write_text("{\"schema\": ")
        self.refused("gate", self.folder / "empty", names="report.json")
        self.assertEqual((run / "report.json").read_bytes(), before)


class BadInput(CommandLine):
    def test_options(self):
        fuzz = ["fuzz", "softmax", "--kernel", KERNEL]
        self.refused("fuzz", "softmux", "--kernel", KERNEL, names=["softmux", "softmax"])
        self.refused("fuzz", "softmax", "--kernel", "nobody", "--cases", 1, names=["nobody", KERNEL])
        self.refused(*fuzz, "--dtype", "f8", names=["f8", "e4m3"])
        self.refused(*fuzz, "--dtype", "bool", names="bool")
        self.refused(*fuzz, "--frobnicate", names="--frobnicate")
        self.refused(*fuzz, "--cases", 0, names="--cases")
        self.refused(*fuzz, "--cases", "many", names="--cases")
        self.refused(*fuzz, "--cases", -3, names="--cases")
        self.refused(*fuzz, "--time", -1, names="--time")
        self.refused(*fuzz, "--time=5 parsecs", names="--time")
        self.refused(*fuzz, "--time", "nan", names="--time")
        self.refused(*fuzz, "--threads", 0, names="--threads")
        self.refused(*fuzz, "--seed", "x", names="--seed")
        for shard in ["3/2", "2/2", "1", "a/b", "1/0", "-1/2", "0/2x"]:
            self.refused(*fuzz, f"--shard={shard}", names="--shard")
        self.refused(*fuzz, "--resume", "--cases", 1, names="--out")
        self.refused(names="subcommand")
        self.refused("dance", names="dance")
        self.refused("fuzz", names="operator")
        self.refused("compare", "softmax", "--kernel", KERNEL, "--with", "nobody", names="nobody")

    def test_unusable_folder(self):
        blocker = self.write("file", "not a folder")
        self.refused("fuzz", "softmax", "--kernel", KERNEL, "--cases", 1, "-q", "--out", blocker / "below", names="file")
        self.assertEqual(blocker.read_text(), "not a folder")

    def test_witnesses(self):
        x = COLLAPSE["inputs"]["x"]
        whole = json.dumps(COLLAPSE)
        label = {"format": "index", "shape": [1], "data": [2]}
        bad = {
            "truncated": (whole[: len(whole) // 2], "truncated.json"),
            "empty": ("", "empty.json"),
            "not_json": ("logits: 17, 0", "not_json.json"),
            "list": ("[1, 2]", "list.json"),
            "schema": (changed(COLLAPSE, schema="sumzero-case/9"), "schema"),
            "operator": (changed(COLLAPSE, operator="softmux"), "softmux"),
            "storage": (changed(COLLAPSE, storage="f8"), "storage"),
            "no_classes": (changed(COLLAPSE, extents=[1, 0]), "extent"),
            "negative": (changed(COLLAPSE, extents=[-1, 2]), "extent"),
            "huge": (changed(COLLAPSE, extents=[2**62, 2**62]), "extent"),
            "huge_product": (changed(COLLAPSE, extents=[2**33, 2**33]), ""),
            "fraction": (changed(COLLAPSE, extents=[1, 2.5]), "extents"),
            "label": (changed(COLLAPSE, inputs={"x": x, "label": label}), "label"),
            "missing": (changed(COLLAPSE, inputs={"x": x}), "label"),
            "unknown_input": (changed(COLLAPSE, inputs={**COLLAPSE["inputs"], "y": x}), "y"),
            "short_data": (changed(COLLAPSE, inputs={**COLLAPSE["inputs"], "x": {**x, "data": [1]}}), "x"),
            "inexact": (changed(COLLAPSE, inputs={**COLLAPSE["inputs"], "x": {**x, "data": [0.1, 0]}}), "x"),
            "strides": (changed(COLLAPSE, inputs={**COLLAPSE["inputs"], "x": {**x, "strides": [2, 2**40]}}), "x"),
            "attribute": (changed(COLLAPSE, attributes={"smoothing": 1}), "smoothing"),
            "choice": (changed(COLLAPSE, attributes={"reduction": "median"}), "reduction"),
            "temperature": (changed(TEACHER, attributes={"T": 0}), "T"),
            "cold": (changed(TEACHER, attributes={"T": -1}), "T"),
        }
        for name, (content, names) in bad.items():
            path = self.write(name + ".json", content)
            before = path.read_bytes()
            for command in ["replay", "explain", "minimise"]:
                with self.subTest(name=name, command=command):
                    self.refused(command, path, "--kernel", KERNEL, names=names)
            self.assertEqual(path.read_bytes(), before)
        self.refused("replay", self.folder / "absent.json", "--kernel", KERNEL, names="absent.json")
        self.refused("replay", self.folder, "--kernel", KERNEL, names=self.folder.name)
        # The twins are fine: what was refused was the planted mistake.
        self.succeeds(1, "replay", self.write("good.json", COLLAPSE), "--kernel", KERNEL)
        self.assertIn(sumzero("replay", self.write("teacher.json", TEACHER), "--kernel", KERNEL).returncode, (0, 1))

    def test_a_damaged_state_does_not_touch_results(self):
        out = self.folder / "run"
        self.fuzz(out, "-q", cases=30)
        before = (out / "report.json").read_bytes()
        for text in ["{", "[]", '{"seed": 1}', '{"seed": 1, "shard": 0, "shards": 1, "next": -5}']:
            (out / "state.json").write_text(text)
            self.refused("fuzz", "cross_entropy", "--kernel", KERNEL, "--cases", 60, "--out", out, "--resume", names="state.json")
            self.assertEqual((out / "report.json").read_bytes(), before)


if __name__ == "__main__":
    if len(sys.argv) < 2:
        sys.exit("usage: command_line_test.py <path of sumzero>")
    BINARY = os.path.abspath(sys.argv.pop(1))
    unittest.main(verbosity=1)
