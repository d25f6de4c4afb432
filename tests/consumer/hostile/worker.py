"""Workers that misbehave: worker.py MODE. Standard library only; speaks the protocol of oracle/kernel/README.md by hand."""
import json
import os
import struct
import sys
import time

mode = sys.argv[1]
if mode == "dies at start":
    sys.exit("no licence found")
if mode == "prints at start":
    print("loading the kernel ...", flush=True)
    time.sleep(60)
if mode == "never describes":
    time.sleep(60)


def send(answer, raw=b""):
    text = answer if isinstance(answer, bytes) else json.dumps(answer).encode()
    os.write(1, struct.pack("<Q", len(text)) + text + raw)


def receive():
    def read(count):
        data = b""
        while len(data) < count:
            piece = os.read(0, count - len(data))
            if not piece:
                sys.exit(0)
            data += piece
        return data
    head = json.loads(read(struct.unpack("<Q", read(8))[0]))
    return head, read(head.get("bytes", 0))


description = {"protocol": 1, "name": "hostile", "operators": ["softmax"], "dtypes": ["f32"], "outputs": ["p"]}
receive()
changes = {"protocol 2": {"protocol": 2}, "no name": {"name": ""}, "unknown operator": {"operators": ["softmux"]},
           "unknown dtype": {"dtypes": ["f99"]}, "unknown field": {"dtype": "f32"}, "bad contract": {"contract": {"exp_error": -1}},
           "tool's name": {"name": "fast"}, "no output": {"outputs": ["q"]}}
if mode == "describes nonsense":
    send(b"[1, 2")
send({**description, **changes.get(mode, {})})
while True:
    head, raw = receive()
    if mode == "dies":
        os._exit(7)
    elif mode == "prints":
        os.write(1, b"debug: softmax called\n")
    elif mode == "closes":
        os.close(0), os.close(1)
        time.sleep(60)
    elif mode == "hangs":
        time.sleep(60)
    elif mode == "bad length":
        os.write(1, struct.pack("<Q", 2**40))
    elif mode == "bad json":
        send(b"{'done'}")
    elif mode == "bad count":
        send({"done": True, "bytes": -1})
    elif mode == "short":
        send({"done": True, "bytes": 4}, b"1234")
    elif mode == "huge":
        send({"done": True, "bytes": 2**50})
    elif mode == "says nothing":
        send({"dome": True})
    elif mode == "error is a number":
        send({"error": 3})
    elif mode == "answers twice":
        block = bytearray(raw)
        for spec in head["outputs"]:
            rows, classes = spec["shape"]
            for i in range(rows):
                for j in range(classes):
                    struct.pack_into("<f", block, spec["first"] + 4 * (i * spec["strides"][0] + j * spec["strides"][1]), 1 / classes)
        send({"done": True, "bytes": len(block)}, bytes(block))
        os.write(1, b"and done\n")
    else:
        sys.exit("unknown mode " + mode)
