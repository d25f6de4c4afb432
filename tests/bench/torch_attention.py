"""fast.plain of sdpa against PyTorch's attention on the CPU: f32, one head of size 64, one thread, medians measured in turns.

    python3 torch_attention.py ATTENTION_TIMER [ROUNDS]

Exit code 1: fast.plain is the slower one at n = 1024. 77: PyTorch is not there.
"""
import statistics
import subprocess
import sys
import time

try:
    import torch
except ImportError:
    print("skipped: PyTorch is not installed for this Python")
    sys.exit(77)

torch.set_num_threads(1)
functional = torch.nn.functional


def attention(q, k, v):
    if hasattr(functional, "scaled_dot_product_attention"):
        return functional.scaled_dot_product_attention(q, k, v)
    if hasattr(functional, "_scaled_dot_product_attention"):  # 1.13
        return functional._scaled_dot_product_attention(q, k, v)[0]
    print(f"skipped: PyTorch {torch.__version__} has no scaled_dot_product_attention")
    sys.exit(77)


def torch_seconds(n, backward):
    q, k, v, go = (torch.rand(1, 1, n, 64) * 2 - 1 for _ in range(4))
    for tensor in (q, k, v):
        tensor.requires_grad_(backward)

    def call():
        o = attention(q, k, v)
        if backward:
            torch.autograd.grad(o, (q, k, v), go)

    call()  # warm
    start = time.perf_counter()
    call()
    return time.perf_counter() - start


def own_seconds(timer, n, backward):
    timer.stdin.write(f"fast.plain {n} {int(backward)}\n")
    timer.stdin.flush()
    return float(timer.stdout.readline())


def main():
    rounds = int(sys.argv[2]) if len(sys.argv) > 2 else 15
    slower = False
    with subprocess.Popen([sys.argv[1]], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as timer:
        print(f"PyTorch {torch.__version__} over fast.plain, one thread")
        for backward in (False, True):
            for n in (256, 512, 1024, 2048):
                pairs = [(torch_seconds(n, backward), own_seconds(timer, n, backward)) for _ in range(rounds)]
                peer, own = (statistics.median(times) for times in zip(*pairs))
                slower |= n == 1024 and own > peer
                print(f"  {'forward and backward' if backward else 'forward':<21} n {n:>5}  {peer * 1e3:8.3f} ms / {own * 1e3:8.3f} ms = {peer / own:.2f}x")
        timer.stdin.close()
    return 1 if slower else 0


if __name__ == "__main__":
    sys.exit(main())
