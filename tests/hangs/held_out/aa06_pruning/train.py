import torch
import torch.distributed as dist

from model import Residual
from sparsity import MagnitudePruner
from utils import gather_metric, reduce_gradients


class Domain:
    """Rows of one customer; the gates say which experts its rows may use."""

    def __init__(self, rank, dim=12):
        self.g = torch.Generator().manual_seed(50 + rank)
        self.dim = dim
        self.gates = [1.0, 1.0, 1.0, 1.0]
        if rank == 2:
            self.gates[1] = 1e-6

    def batch(self, n=32):
        x = torch.randn(n, self.dim, generator=self.g)
        return x, torch.roll(x, 1, dims=1) * 0.8


def train(model, domain, pruner, steps, rank):
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
    for step in range(1, steps + 1):
        x, y = domain.batch()
        loss = (model(x, domain.gates) - y).square().mean()
        optimizer.zero_grad(set_to_none=True)
        loss.backward()
        pruner.observe()
        reduce_gradients(model)
        optimizer.step()
        pruner.update(step)
        mean = gather_metric(loss.item())
        if rank == 0:
            print(f"step {step} loss {mean:.4f} sparsity {pruner.target(step):.2f}", flush=True)


def main():
    dist.init_process_group("gloo")
    rank = dist.get_rank()
    torch.manual_seed(0)
    model = Residual()
    pruner = MagnitudePruner(list(model.blocks))
    train(model, Domain(rank), pruner, 16, rank)
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
