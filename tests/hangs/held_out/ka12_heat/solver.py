import torch
import torch.distributed as dist


def dot(a, b):
    value = torch.dot(a, b).reshape(1)
    dist.all_reduce(value)
    return value.item()


class ConjugateGradient:
    def __init__(self, operator, tolerance=1e-9, max_iterations=60):
        self.operator = operator
        self.tolerance = tolerance
        self.max_iterations = max_iterations

    def solve(self, b):
        x = torch.zeros_like(b)
        r = b.clone()
        p = r.clone()
        rr = dot(r, r)
        iterations = 0
        for iterations in range(1, self.max_iterations + 1):
            ap = self.operator(p)
            alpha = rr / max(dot(p, ap), 1e-300)
            x += alpha * p
            r -= alpha * ap
            if r.norm().item() < self.tolerance:
                break
            rr, previous = dot(r, r), rr
            p = r + (rr / previous) * p
        return x, iterations
