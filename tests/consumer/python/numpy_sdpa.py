"""Attention in NumPy, forward only: scores, softmax, product with the values. NumPy sums differently in other layouts."""
import numpy

import sumzero


def sdpa(q, k, v, mask=None, tau=1.0):
    group = q.shape[1] // k.shape[1]
    k, v = numpy.repeat(k, group, axis=1), numpy.repeat(v, group, axis=1)
    scores = numpy.float32(tau) * (q @ k.swapaxes(-1, -2))
    if mask is not None:
        scores = numpy.where(mask, scores, numpy.float32(-numpy.inf))
    with numpy.errstate(invalid="ignore", divide="ignore"):
        top = scores.max(axis=-1, keepdims=True)
        top = numpy.where(numpy.isinf(top), 0, top)
        weights = numpy.exp(scores - top)
        total = weights.sum(axis=-1, keepdims=True)
        shares = numpy.where(total > 0, weights / total, 0)
        return {"o": shares @ v, "lse": (top + numpy.log(total))[..., 0]}


if __name__ == "__main__":
    sumzero.serve(sdpa, operators=["sdpa"], dtypes=["f32"], outputs=["o", "lse"], name="numpy.sdpa", contract={"deterministic": False})
