"""Kernels in Python, judged by sumzero, and assertions for pytest. Needs NumPy alone.

    import numpy, sumzero
    def softmax(x):
        e = numpy.exp(x - x.max(axis=-1, keepdims=True))
        return e / e.sum(axis=-1, keepdims=True)
    if __name__ == "__main__":
        sumzero.serve(softmax, operators=["softmax"], dtypes=["f32"], outputs=["p"])

    sumzero fuzz softmax --kernel ./softmax.py
"""
import base64
import functools
import inspect
import json
import mmap
import os
import shlex
import shutil
import struct
import subprocess
import sys
import tempfile

import numpy

__all__ = ["serve", "Refused", "assert_within_bound", "bf16_to_float", "float_to_bf16", "f8_to_float", "float_to_f8", "to_torch"]

PROTOCOL = 1
_MEMORY = 3  # file descriptor of the shared memory
_NUMPY = {"f64": numpy.float64, "f32": numpy.float32, "f16": numpy.float16, "bf16": numpy.uint16, "bool": numpy.bool_,
          "index": numpy.int64, "e4m3": numpy.uint8, "e5m2": numpy.uint8}


class Refused(Exception):
    """Raise it in a kernel for a case outside its contract: the case counts as refused, not as failed."""


def bf16_to_float(bits):
    """float32 array of the bfloat16 numbers whose bit patterns (uint16) are given; exact."""
    return (numpy.asarray(bits).astype(numpy.uint32) << 16).view(numpy.float32)


def float_to_bf16(values):
    """Bit patterns (uint16) of the nearest bfloat16 numbers, ties to even; NaN becomes the quiet NaN."""
    values = numpy.asarray(values, dtype=numpy.float32)
    bits = numpy.ascontiguousarray(values).view(numpy.uint32)
    rounded = ((bits + numpy.uint32(0x7fff) + ((bits >> numpy.uint32(16)) & numpy.uint32(1))) >> numpy.uint32(16)).astype(numpy.uint16)
    return numpy.where(numpy.isnan(values), numpy.uint16(0x7fc0), rounded).reshape(values.shape)


@functools.lru_cache(maxsize=None)
def _f8_values(dtype):
    """Values of the codes 0 to 127 of e4m3 (OCP: NaN at 127, no infinity) or e5m2 (infinity at 124, NaN above)."""
    bits, bias = {"e4m3": (3, 7), "e5m2": (2, 15)}[dtype]
    code = numpy.arange(128)
    exponent, fraction = code >> bits, (code & ((1 << bits) - 1)) / (1 << bits)
    values = numpy.where(exponent > 0, numpy.ldexp(1 + fraction, exponent - bias), numpy.ldexp(fraction, 1 - bias))
    values[127 if dtype == "e4m3" else slice(125, None)] = numpy.nan
    if dtype == "e5m2":
        values[124] = numpy.inf
    return values


def f8_to_float(codes, dtype):
    """float32 array of the 8-bit numbers (dtype "e4m3" or "e5m2") whose codes (uint8) are given; exact."""
    codes = numpy.asarray(codes)
    return numpy.copysign(_f8_values(dtype)[codes & 127], numpy.where(codes & 128, -1.0, 1.0)).astype(numpy.float32)


def float_to_f8(values, dtype):
    """Codes (uint8) of the nearest 8-bit numbers, ties to even. e4m3 saturates at 448; e5m2 overflows to infinity. NaN stays NaN."""
    values = numpy.asarray(values, dtype=numpy.float64)
    last = 126 if dtype == "e4m3" else 124  # largest number; infinity stands where the next number would
    grid = _f8_values(dtype)[:last + 1].copy()
    grid[last] = 448 if dtype == "e4m3" else 65536
    middle = (grid[1:] + grid[:-1]) / 2
    size = numpy.abs(values)
    code = numpy.searchsorted(middle, numpy.where(numpy.isnan(size), 0, size))
    code += (code % 2 == 1) & (code < last) & (size == middle[numpy.minimum(code, last - 1)])
    code = numpy.where(numpy.isnan(values), 127, code)
    return (code | numpy.where(numpy.signbit(values), 128, 0)).astype(numpy.uint8).reshape(values.shape)


def to_torch(array):
    """PyTorch tensor of an array that a kernel got; uint16 arrays (dtype bf16 with bf16="uint16") become bfloat16. Codes of 8-bit
    numbers stay uint8: which format they are of is the kernel's `dtype`. PyTorch has no negative strides: arrays with such are copied."""
    import torch
    if any(stride < 0 for stride in array.strides):
        array = array.copy(order="C")
    if array.dtype == numpy.uint16:
        return torch.from_numpy(array.view(numpy.int16)).view(torch.bfloat16)
    return torch.from_numpy(array)


def _as_numpy(value):
    """A NumPy array of anything that holds numbers: NumPy, PyTorch, CuPy, JAX, DLPack, lists, scalars."""
    if isinstance(value, (numpy.ndarray, numpy.generic)):
        return numpy.asarray(value)
    if hasattr(value, "detach"):  # PyTorch
        value = value.detach().cpu()
        if str(value.dtype) == "torch.bfloat16":
            import torch
            return value.contiguous().view(torch.int16).numpy().view(numpy.uint16)
        return value.numpy()
    if hasattr(value, "get") and hasattr(value, "__cuda_array_interface__"):  # CuPy
        return numpy.asarray(value.get())
    if not hasattr(value, "__array__") and hasattr(value, "__dlpack__"):
        return numpy.from_dlpack(value)
    value = numpy.asarray(value)
    # JAX hands out the bfloat16 of ml_dtypes.
    return value.view(numpy.uint16) if value.dtype.name == "bfloat16" else value


def _is_bf16_bits(array):
    return array.dtype == numpy.uint16


class _Server:
    def __init__(self, function, description, bf16):
        self.function, self.description, self.bf16 = function, description, bf16
        self.outputs = description["outputs"]
        parameters = inspect.signature(function).parameters.values()
        self.takes_all = any(p.kind is p.VAR_KEYWORD for p in parameters)
        self.parameters = {p.name for p in parameters if p.kind in (p.POSITIONAL_OR_KEYWORD, p.KEYWORD_ONLY)}
        self.required = {p.name for p in parameters if p.name in self.parameters and p.default is p.empty}
        self.mapped = None

    def takes(self, name):
        return self.takes_all or name in self.parameters

    def tensor(self, spec, memory):
        """The view of a tensor in the block of memory, with the case's own strides."""
        dtype = numpy.dtype(_NUMPY[spec["format"]])
        return numpy.ndarray(spec["shape"], dtype, memory, spec["first"], [stride * dtype.itemsize for stride in spec["strides"]])

    def run(self, head, memory):
        arguments = {}
        for spec in head["inputs"]:
            if not self.takes(spec["name"]):
                raise Refused(f"the function has no parameter '{spec['name']}', an input of this case")
            array = self.tensor(spec, memory)
            arguments[spec["name"]] = bf16_to_float(array) if spec["format"] == "bf16" and self.bf16 == "float32" else array
        for name, value in head["attributes"].items():
            if self.takes(name):
                arguments[name] = value
            elif name in head["changed"]:
                raise Refused(f"the function has no parameter '{name}', which this case sets to {value}")
        for name, value in (("operator", head["run"]), ("dtype", head["dtype"])):
            if name in self.parameters:
                arguments[name] = value
        missing = self.required - arguments.keys()
        if missing:
            raise Refused(f"the case has no '{sorted(missing)[0]}', a required parameter of the function")
        self.store(self.function(**arguments), head["outputs"], memory)

    def store(self, result, specs, memory):
        names = [spec["name"] for spec in specs]
        if not isinstance(result, dict):
            values = list(result) if isinstance(result, (tuple, list)) else [result]
            order = [name for name in self.outputs if name in names] or names
            if len(values) != len(order):
                raise ValueError(f"the function returned {len(values)} outputs instead of {len(order)} ({', '.join(order)})")
            result = dict(zip(order, values))
        for spec in specs:
            name = spec["name"]
            if name not in result:
                raise ValueError(f"the function returned no output '{name}'; it returned {', '.join(map(str, result)) or 'nothing'}")
            value = _as_numpy(result[name])
            if list(value.shape) != spec["shape"]:
                raise ValueError(f"output '{name}' has shape {list(value.shape)} instead of {spec['shape']}")
            target = self.tensor(spec, memory)
            if spec["format"] == "bf16":
                if not _is_bf16_bits(value):
                    if value.dtype != numpy.float32:
                        raise ValueError(f"output '{name}' has dtype {value.dtype}; bf16 takes float32 (rounded here) or uint16 bit patterns")
                    value = float_to_bf16(value)
            elif value.dtype != target.dtype and not (spec["format"] == "bool" and value.dtype == numpy.uint8):
                raise ValueError(f"output '{name}' has dtype {value.dtype} instead of {target.dtype}")
            target[...] = value

    def memory(self, size):
        if self.mapped is None or len(self.mapped) < size:
            self.mapped = mmap.mmap(_MEMORY, size)  # the old mapping goes with the last array that refers to it
        return self.mapped

    def answer(self, head, raw):
        if "describe" in head:
            return self.description, None
        memory = raw if raw is not None else self.memory(head["memory"])
        try:
            self.run(head, memory)
            return {"done": True}, raw
        except Refused as refusal:
            return {"refused": str(refusal)}, None
        except Exception as error:  # whatever the kernel raises is a finding about the kernel
            return {"error": f"{type(error).__name__}: {error}"}, None


def _read(stream, count):
    data = bytearray()
    while len(data) < count:
        piece = stream.read(count - len(data))
        if not piece:
            return None
        data += piece
    return data


def serve(function, operators, dtypes=("f32",), outputs=(), name=None, contract=None, bf16="float32", shared_memory=True):
    """Serves a kernel to the tool until it hangs up. Call it at the end of the file that --kernel names.

    function    takes the operator's inputs and attributes by name (`sumzero list`), as NumPy arrays with the strides of the case
                and as numbers or names of choices; only those that it has parameters for. A case with an optional input or a
                non-default attribute that it has no parameter for is refused, as is one without an input that it requires.
                Parameters called `operator` and `dtype` get their names. Returns the outputs, as a dict by name or in the order
                of `outputs`, in the dtype of the case; arrays of PyTorch, JAX, CuPy and others are converted.
    operators   names of operators
    dtypes      f64, f32, f16, bf16, e4m3, e5m2 (8-bit formats come and go as bit patterns in uint8)
    outputs     names of the outputs that the function returns; empty: all of the operator's
    name        of the kernel in reports; default: the function's
    contract    what the kernel promises, a dict with fields of `Contract` (reference/operator.hpp); missing ones are unknown
    bf16        "float32": bfloat16 inputs come as float32 and float32 outputs are rounded to nearest, ties to even;
                "uint16": inputs come as bit patterns. bfloat16 outputs of PyTorch or JAX and bit patterns are taken in both.
    shared_memory   False sends tensors through the pipe, for a worker on another machine
    """
    if bf16 not in ("float32", "uint16"):
        raise ValueError(f"bf16 is {bf16!r}; it must be 'float32' or 'uint16'")
    # Whatever the kernel prints goes to standard error; standard output belongs to the protocol.
    reader, writer = os.fdopen(os.dup(0), "rb"), os.fdopen(os.dup(1), "wb")
    os.dup2(2, 1)
    description = {"protocol": PROTOCOL, "name": name or function.__name__, "operators": [operators] if isinstance(operators, str) else list(operators),
                   "dtypes": [dtypes] if isinstance(dtypes, str) else list(dtypes), "outputs": list(outputs),
                   "contract": dict(contract or {}), "shared_memory": bool(shared_memory)}
    server = _Server(function, description, bf16)
    while True:
        length = _read(reader, 8)
        if length is None:
            return
        head = json.loads(_read(reader, struct.unpack("<Q", length)[0]))
        raw = _read(reader, head["bytes"]) if "bytes" in head else None
        answer, raw = server.answer(head, raw)
        if raw is not None:
            answer["bytes"] = len(raw)
        text = json.dumps(answer).encode()
        writer.write(struct.pack("<Q", len(text)) + text + (raw or b""))
        writer.flush()


# ---------------------------------------------------------------------------------------------------------
# Assertions


def _binary():
    here = os.path.dirname(os.path.abspath(__file__))
    beside = os.path.join(here, "..", "..", "..", "bin", "sumzero")
    found = os.environ.get("SUMZERO") or (beside if os.access(beside, os.X_OK) else shutil.which("sumzero"))
    if not found:
        raise RuntimeError("the program sumzero was not found; put it into PATH or set SUMZERO to its path")
    return found


@functools.lru_cache(maxsize=None)
def _operators():
    listed = subprocess.run([_binary(), "list", "--json"], capture_output=True, text=True, check=True).stdout
    return {entry["name"]: entry for entry in json.loads(listed)["operators"]}


def _storage(arrays, given):
    if given:
        return given
    names = {"float64": "f64", "float32": "f32", "float16": "f16", "uint16": "bf16"}
    for array in arrays:
        if array.dtype.name in names:
            return names[array.dtype.name]
    raise ValueError("no input has a floating dtype; give dtype='f32' or another")


def _extents(operator, inputs):
    """Extents of the operator's axes, in order, from the shapes of its inputs; 1 where no input has the axis."""
    extents = {}
    for spec in operator["inputs"]:
        shape = inputs[spec["name"]].shape if spec["name"] in inputs else None
        if shape is not None and len(shape) != len(spec["axes"]):
            raise ValueError(f"input '{spec['name']}' has shape {list(shape)}; it must have the axes [{', '.join(spec['axes'])}]")
        if shape is not None:
            for axis, extent in zip(spec["axes"], shape):
                extents.setdefault(axis, extent)
    return [extents.get(axis, 1) for axis in operator["axes"]]


def assert_within_bound(op, inputs, outputs, dtype=None, contract=None, **attributes):
    """Raises AssertionError unless every output is within the bound that follows from the contract and every exact property holds.

    op          operator, see `sumzero list`
    inputs, outputs   dicts by name of arrays (NumPy, PyTorch, JAX, CuPy; bf16 as bit patterns in uint16, e4m3 and e5m2 as codes
                in uint8, flags as bool)
    dtype       of the operator; default: that of the inputs. Must be given for e4m3 and e5m2, whose codes look alike.
    contract    as for serve()
    attributes  numbers, or names of choices
    """
    inputs = {name: _as_numpy(value) for name, value in inputs.items()}
    outputs = {name: _as_numpy(value) for name, value in outputs.items()}
    if op not in _operators():
        raise ValueError(f"unknown operator {op!r}; known: {', '.join(_operators())}")
    storage = _storage(inputs.values(), dtype)
    extents = _extents(_operators()[op], inputs)
    formats = {"float64": "f64", "float32": "f32", "float16": "f16", "uint16": "bf16", "int64": "index", "bool": "bool",
               "uint8": storage if storage in ("e4m3", "e5m2") else "bool"}
    case = {"schema": "sumzero-case/1", "operator": op, "storage": storage, "extents": extents, "attributes": attributes, "inputs": {}}
    for name, value in inputs.items():
        if value.dtype.name not in formats:
            raise ValueError(f"input '{name}' has dtype {value.dtype}; it must be one of {', '.join(formats)}")
        case["inputs"][name] = {"format": formats[value.dtype.name], "shape": list(value.shape),
                                "base64": base64.b64encode(numpy.ascontiguousarray(value).tobytes()).decode()}
    with tempfile.TemporaryDirectory(prefix="sumzero_") as folder:
        path, stored = os.path.join(folder, "case.json"), os.path.join(folder, "outputs.npz")
        with open(path, "w", encoding="utf-8") as file:
            json.dump(case, file)
        with open(os.path.join(folder, "claims.json"), "w", encoding="utf-8") as file:
            json.dump({"operator": op, "dtype": storage, "contract": contract or {}}, file)
        numpy.savez(stored, **outputs)
        worker = " ".join(shlex.quote(word) for word in (sys.executable, os.path.abspath(__file__), folder))
        result = subprocess.run([_binary(), "replay", path, "--kernel", "process:" + worker], capture_output=True, text=True)
    if result.returncode == 0:
        return
    if result.returncode in (1, 4):
        raise AssertionError(f"{op} in {storage}:\n{result.stdout.rstrip()}")
    raise ValueError((result.stderr or result.stdout).strip())


def _serve_finished(folder):
    """Worker of assert_within_bound: answers the first case with finished outputs and refuses the rest."""
    with open(os.path.join(folder, "claims.json"), encoding="utf-8") as file:
        claims = json.load(file)
    with numpy.load(os.path.join(folder, "outputs.npz")) as stored:
        outputs = {name: stored[name] for name in stored.files}
    left = [outputs]

    def finished(**_):
        if not left:
            raise Refused("finished outputs cannot be computed again")
        return left.pop()
    serve(finished, [claims["operator"]], [claims["dtype"]], list(outputs), "finished", {"policies": True, **claims["contract"]})


if __name__ == "__main__":
    _serve_finished(sys.argv[1])
