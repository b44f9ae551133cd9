import torch

from operator_ import dot


class Result:
    def __init__(self, x, iterations, reason):
        self.x, self.iterations, self.reason = x, iterations, reason


def solve(op, b, x0=None, tol=1e-8, max_iterations=60):
    x = torch.zeros_like(b) if x0 is None else x0.clone()
    r = b - op.apply(x)
    if r.abs().max() < tol:
        return Result(x, 0, "start is good")
    p = r.clone()
    rs = dot(r, r)
    for it in range(1, max_iterations + 1):
        ap = op.apply(p)
        alpha = rs / dot(p, ap)
        x += alpha * p
        r -= alpha * ap
        rs_new = dot(r, r)
        if rs_new ** 0.5 < tol:
            return Result(x, it, "converged")
        p = r + (rs_new / rs) * p
        rs = rs_new
    return Result(x, max_iterations, "limit")
