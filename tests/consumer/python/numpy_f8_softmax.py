"""Softmax of 8-bit numbers in NumPy: codes in, codes out, arithmetic in float32."""
import numpy
import sumzero


def softmax(x, operator, dtype, mask=None):
    x = sumzero.f8_to_float(x, dtype)
    if mask is not None:
        x = numpy.where(mask, x, numpy.float32(-numpy.inf))
    with numpy.errstate(all="ignore"):
        e = numpy.exp(x - x.max(axis=-1, keepdims=True))
        return sumzero.float_to_f8(e / e.sum(axis=-1, keepdims=True), dtype)


if __name__ == "__main__":
    sumzero.serve(softmax, operators=["softmax", "softmax.scaled_masked"], dtypes=["e4m3", "e5m2"], outputs=["p"], name="numpy.f8")
