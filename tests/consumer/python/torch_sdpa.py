"""PyTorch's own attention on the CPU, forward and backward."""
import math

import numpy
import sumzero
import torch
from torch.nn import functional


def attention(q, k, v, mask, causal):
    if hasattr(functional, "scaled_dot_product_attention"):
        return functional.scaled_dot_product_attention(q, k, v, attn_mask=mask, is_causal=causal)
    return functional._scaled_dot_product_attention(q, k, v, attn_mask=mask, is_causal=causal)[0]  # 1.13


def sdpa(q, k, v, mask=None, go=None, tau=1.0, causal="none"):
    if tau != q.dtype.type(1 / math.sqrt(q.shape[-1])):
        raise sumzero.Refused("the scale is always head_size^-1/2; take tau from the default strata")
    if causal == "bottom_right" or (causal != "none" and mask is not None):
        raise sumzero.Refused("is_causal aligns at the top left corner and takes no mask")
    q, k, v = (sumzero.to_torch(x).clone().requires_grad_() for x in (q, k, v))
    group = q.shape[1] // k.shape[1]
    seen = None if mask is None else torch.from_numpy(numpy.ascontiguousarray(mask).astype(bool))
    o = attention(q, k.repeat_interleave(group, 1), v.repeat_interleave(group, 1), seen, causal != "none")
    o.backward(torch.zeros_like(o) if go is None else sumzero.to_torch(go))
    return {"o": o, "gq": q.grad, "gk": k.grad, "gv": v.grad}


if __name__ == "__main__":
    torch.set_num_threads(1)
    sumzero.serve(sdpa, operators=["sdpa"], dtypes=["f32", "f64"], outputs=["o", "gq", "gk", "gv"], name="torch.sdpa")
