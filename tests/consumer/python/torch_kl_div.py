"""PyTorch's own kl_div as distillation uses it, forward and backward."""
import sumzero
import torch
from torch.nn import functional


def kl_forward(s, t, g=None, T=1.0, reduction="mean", scale_T2="true"):
    student = sumzero.to_torch(s).detach().clone().requires_grad_()
    teacher = sumzero.to_torch(t).detach().clone().requires_grad_()
    log_p, q = functional.log_softmax(student / T, dim=-1), functional.softmax(teacher / T, dim=-1)
    if reduction == "none":
        loss = functional.kl_div(log_p, q, reduction="none").sum(dim=-1)
    else:
        loss = functional.kl_div(log_p, q, reduction="batchmean" if reduction == "mean" else "sum")
    if scale_T2 == "true":
        loss = loss * (T * T)
    loss.backward(torch.ones_like(loss) if g is None else sumzero.to_torch(g).reshape(loss.shape))
    return {"loss": loss, "ds": student.grad, "dt": teacher.grad}


if __name__ == "__main__":
    torch.set_num_threads(1)
    sumzero.serve(kl_forward, operators=["kl_forward"], dtypes=["f32", "f64"], name="torch.kl_div")
