"""Softmax and its gradient in NumPy."""
import numpy
import sumzero


def softmax(x, g=None):
    with numpy.errstate(all="ignore"):
        e = numpy.exp(x - x.max(axis=-1, keepdims=True))
        p = e / e.sum(axis=-1, keepdims=True)
        gx = numpy.zeros_like(p) if g is None else p * (g - (p * g).sum(axis=-1, keepdims=True))
    return p, gx


if __name__ == "__main__":
    sumzero.serve(softmax, operators=["softmax"], dtypes=["f32", "f64", "bf16"], outputs=["p", "gx"], name="numpy")
