"""Batches leave, results come back: npz through numpy, safetensors in plain Python. Usage: tensor_files_test.py SUMZERO"""
import json
import os
import struct
import subprocess
import sys
import tempfile
import unittest

import numpy as np

TOOL = sys.argv.pop(1)


def read_safetensors(path):
    raw = open(path, "rb").read()
    (length,) = struct.unpack("<Q", raw[:8])
    header = json.loads(raw[8 : 8 + length])
    metadata = header.pop("__metadata__")
    return metadata, {k: (v["dtype"], v["shape"], raw[8 + length + v["data_offsets"][0] : 8 + length + v["data_offsets"][1]]) for k, v in header.items()}


def safetensors(header, data=b""):
    text = header if isinstance(header, bytes) else json.dumps(header).encode()
    return struct.pack("<Q", len(text)) + text + data


def softmax(x):
    with np.errstate(all="ignore"):
        e = np.exp(x - x.max(-1, keepdims=True))
        return e / e.sum(-1, keepdims=True)


class TensorFiles(unittest.TestCase):
    def setUp(self):
        self.folder = tempfile.TemporaryDirectory()
        self.addCleanup(self.folder.cleanup)

    def path(self, name):
        return os.path.join(self.folder.name, name)

    def run_tool(self, *arguments, code):
        done = subprocess.run([TOOL, *arguments], capture_output=True, text=True)
        self.assertEqual(done.returncode, code, done.stdout + done.stderr)
        return done.stdout + done.stderr

    def refused(self, raw, words, name="results.safetensors"):
        open(self.path(name), "wb").write(raw)
        said = self.run_tool("check", self.path("batch.safetensors"), self.path(name), code=2)
        self.assertEqual(said.count("\n"), 1, said)
        self.assertIn(words, said)

    def softmax_npz(self, save, spoil=0.0):
        self.run_tool("generate", "softmax", "--cases", "300", "-o", self.path("batch.npz"), code=0)
        batch = np.load(self.path("batch.npz"))
        cases = json.loads(batch["sumzero.json"])["cases"]
        results = {"batch": batch["batch"]}
        for case, entry in cases.items():
            if entry["attributes"]["inf_policy"] != "nan" or entry["attributes"]["masked_policy"] != "nan":
                continue  # a kernel with one policy leaves these cases out
            p = softmax(batch[case + "/x"].astype(np.float64)).astype(np.float32)
            self.assertEqual(list(p.shape), entry["outputs"]["p"]["shape"])
            results[case + "/p"] = p + np.float32(spoil)
        save(self.path("results.npz"), **results)

    def test_npz_round_trip(self):
        for save in (np.savez, np.savez_compressed):
            self.softmax_npz(save)
            report = self.path("report.json")
            self.run_tool("check", self.path("batch.npz"), self.path("results.npz"), "--json", report, code=0)
            report = json.load(open(report))
            self.assertEqual(list(report["worst"]), ["p"])
            self.assertGreater(report["cases"], 200)

    def test_a_wrong_kernel_is_found(self):
        self.softmax_npz(np.savez, spoil=1e-4)
        self.assertIn("violation", self.run_tool("check", self.path("batch.npz"), self.path("results.npz"), code=1))
        open(self.path("contract.json"), "w").write('{"accumulator": "bf16", "summation": "pairwise"}')
        self.run_tool("check", self.path("batch.npz"), self.path("results.npz"), "--contract", self.path("contract.json"), code=1)
        open(self.path("contract.json"), "w").write('{"exp_eror": 1}')
        self.assertIn("exp_eror", self.run_tool("check", self.path("batch.npz"), self.path("results.npz"), "--contract", self.path("contract.json"), code=2))

    def test_safetensors_in_every_dtype(self):
        for dtype, stored in (("f64", "F64"), ("f32", "F32"), ("bf16", "BF16"), ("f16", "F16"), ("e4m3", "F8_E4M3"), ("e5m2", "F8_E5M2")):
            self.run_tool("generate", "softmax", "--dtype", dtype, "--cases", "24", "-o", self.path("batch.safetensors"), code=0)
            metadata, tensors = read_safetensors(self.path("batch.safetensors"))
            cases = json.loads(metadata["sumzero.json"])["cases"]
            header, data = {"__metadata__": {"batch": metadata["batch"]}}, b""
            for case, entry in cases.items():
                self.assertEqual(tensors[case + "/x"][0], stored)
                spec = entry["outputs"]["p"]
                part = bytes(int(np.prod(spec["shape"])) * len(tensors[case + "/x"][2]) // int(np.prod(tensors[case + "/x"][1])))
                header[case + "/p"] = {"dtype": spec["dtype"], "shape": spec["shape"], "data_offsets": [len(data), len(data) + len(part)]}
                data += part
            open(self.path("results.safetensors"), "wb").write(safetensors(header, data))
            # All zeros are no softmax.
            self.run_tool("check", self.path("batch.safetensors"), self.path("results.safetensors"), code=1)

    def test_hostile_files_get_one_sentence(self):
        self.run_tool("generate", "softmax", "--cases", "12", "-o", self.path("batch.safetensors"), code=0)
        metadata, tensors = read_safetensors(self.path("batch.safetensors"))
        name = {"__metadata__": {"batch": metadata["batch"]}}
        case, entry = next(iter(json.loads(metadata["sumzero.json"])["cases"].items()))
        shape = entry["outputs"]["p"]["shape"]
        count = int(np.prod(shape)) * 4

        def one(**changes):
            return {**name, case + "/p": {"dtype": "F32", "shape": shape, "data_offsets": [0, count], **changes}}

        self.refused(b"abc", "shorter than the 8 bytes")
        self.refused(struct.pack("<Q", 1 << 63) + b"{}", "announces a header")
        self.refused(safetensors(b"{"), "results.safetensors")
        self.refused(safetensors(b'{"a": 1, "a": 2}'), "twice")
        self.refused(safetensors({}), "which batch")
        self.refused(safetensors({"__metadata__": {"batch": "0"}}), "another batch")
        self.refused(safetensors(name), "no output")
        self.refused(safetensors(one()), "leave the")
        self.refused(safetensors(one(data_offsets=[count, 0]), bytes(count)), "leave the")
        self.refused(safetensors(one(shape=[1 << 40, 1 << 40]), bytes(count)), "overflows")
        self.refused(safetensors(one(shape=[*shape, 2]), bytes(count)), "another number")
        self.refused(safetensors(one(shape=[count // 4, 1, 1]), bytes(count)), "must be")
        self.refused(safetensors(one(dtype="I32"), bytes(count)), "I32")
        self.refused(safetensors(one(dtype="F16", data_offsets=[0, count // 2]), bytes(count)), "must be F32")
        self.refused(safetensors({**one(), "b": {"dtype": "U8", "shape": [count], "data_offsets": [0, count]}}, bytes(count)), "share")
        self.refused(safetensors({**name, "x/p": {"dtype": "F32", "shape": [], "data_offsets": [0, 4]}}, bytes(4)), "no <case>/<output>")
        np.savez(self.path("whole.npz"), a=np.zeros(3, np.float32))
        whole = open(self.path("whole.npz"), "rb").read()
        self.refused(whole[:-30], "end record", "results.npz")
        self.refused(whole[:20] + whole[60:], "results.npz", "results.npz")
        self.refused(whole.replace(b"(3,)", b"(x,)"), "checksum", "results.npz")
        np.savez(self.path("results.npz"), a=np.zeros(3, ">f4"))
        self.refused(open(self.path("results.npz"), "rb").read(), "dtype", "results.npz")
        np.savez(self.path("results.npz"), a=np.asfortranarray(np.zeros((3, 2), np.float32)))
        self.refused(open(self.path("results.npz"), "rb").read(), "Fortran", "results.npz")
        raw = bytearray(open(self.path("batch.safetensors"), "rb").read())
        raw[-1] ^= 1
        open(self.path("batch.safetensors"), "wb").write(raw)
        self.refused(b"", "was changed")


if __name__ == "__main__":
    unittest.main(warnings="ignore")
