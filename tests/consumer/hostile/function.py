"""Python functions that misbehave, served by sumzero.py: function.py MODE."""
import sys
import time

import numpy
import sumzero

mode = sys.argv[1]


def softmax(x):
    p = numpy.full(x.shape, 1 / x.shape[1], dtype=x.dtype)
    if mode == "raises":
        raise ValueError("the logits are ugly")
    if mode == "refuses":
        raise sumzero.Refused("not on Sundays")
    if mode == "wrong shape":
        return p[:, :1][:0]
    if mode == "wrong dtype":
        return p.astype(numpy.float64)
    if mode == "too many":
        return p, p, p
    if mode == "wrong name":
        return {"q": p}
    if mode == "nothing":
        return None
    if mode == "mutates":
        x[0, 0] = 1
    if mode == "prints":
        print("a print in the kernel", flush=True)
    if mode == "sleeps":
        time.sleep(60)
    return p


if __name__ == "__main__":
    sumzero.serve(softmax, operators="softmax", outputs=["p"], name="hostile", shared_memory=len(sys.argv) < 3)
