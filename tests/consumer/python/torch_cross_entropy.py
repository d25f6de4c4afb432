"""PyTorch's own cross_entropy, forward and backward."""
import sumzero
import torch


def cross_entropy(x, label, dtype, weight=None, g=None, label_smoothing=0.0, ignore_index=-100, reduction="mean"):
    if dtype == "f16":
        raise sumzero.Refused("PyTorch has no f16 cross_entropy on the CPU")
    logits = sumzero.to_torch(x).detach().clone().requires_grad_()
    loss = torch.nn.functional.cross_entropy(logits, sumzero.to_torch(label), None if weight is None else sumzero.to_torch(weight),
                                             ignore_index=int(ignore_index), reduction=reduction, label_smoothing=label_smoothing)
    loss.backward(torch.ones_like(loss) if g is None else sumzero.to_torch(g).reshape(loss.shape))
    return {"loss": loss, "gx": logits.grad}


if __name__ == "__main__":
    torch.set_num_threads(1)
    sumzero.serve(cross_entropy, operators=["cross_entropy"], dtypes=["f32", "f64", "bf16"], name="torch.cross_entropy", bf16="uint16")
