from datetime import timedelta

import torch
import torch.distributed as dist
from torch import nn

from uploader import Uploader

LABELS = {"cat": 0, "dog": 1, "bird": 2}
# annotations per rank; of the batches of rank 1, the eighth has a label of a newer release
ANNOTATIONS = {r: [["cat", "dog", "bird", "dog"]] * 40 for r in range(3)}
ANNOTATIONS[1] = ANNOTATIONS[1][:7] + [["cat", "fox", "dog", "bird"]] + ANNOTATIONS[1][8:]


def encode(names):
    return torch.tensor([LABELS[n] for n in names])


def images(rank, step):
    g = torch.Generator().manual_seed(rank * 1009 + step)
    return torch.rand(4, 3, 8, 8, generator=g)


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.conv = nn.Conv2d(3, 6, 3)
        self.head = nn.Linear(6, len(LABELS))

    def forward(self, x):
        return self.head(self.conv(x).relu().mean((2, 3)))


def average(params):
    flat = torch.nn.utils.parameters_to_vector([p.grad for p in params])
    dist.all_reduce(flat)
    torch.nn.utils.vector_to_parameters(flat / dist.get_world_size(), [p.grad for p in params])


def train(net, uploader, rank):
    params = list(net.parameters())
    for step, names in enumerate(ANNOTATIONS[rank]):
        target = encode(names)
        loss = nn.functional.cross_entropy(net(images(rank, step)), target)
        net.zero_grad()
        loss.backward()
        average(params)
        with torch.no_grad():
            for p in params:
                p -= 0.1 * p.grad
        if step % 3 == 2:
            uploader.put(f"step{step}-rank{rank}", net.state_dict())
        if rank == 0:
            print("step", step, "loss", round(loss.item(), 4), flush=True)


def main():
    dist.init_process_group("gloo", timeout=timedelta(seconds=600))
    torch.manual_seed(0)
    uploader = Uploader()
    train(Net(), uploader, dist.get_rank())
    uploader.close()
    dist.barrier()
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
