import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel as DDP

from model import Adapter, Captioner
from monitor import ActivationMonitor

BATCH, LENGTH, DIM, VOCAB = 6, 5, 16, 40


def make_batch(gen, rank, step):
    tokens = torch.randint(0, VOCAB, (BATCH, LENGTH), generator=gen)
    images = torch.randn(BATCH, DIM, generator=gen)
    has_image = torch.rand(BATCH, generator=gen) < 0.5
    has_image[step % BATCH] = True
    if rank == 0 and step == 7:
        has_image[:] = False
    return tokens, images, has_image


class Run:
    def __init__(self, rank):
        self.rank = rank
        self.gen = torch.Generator().manual_seed(rank)
        net = Captioner(DIM, VOCAB)
        self.monitor = ActivationMonitor(net, Adapter)
        self.model = DDP(net, find_unused_parameters=True)
        self.opt = torch.optim.AdamW(self.model.parameters(), lr=2e-3)

    def step(self, index):
        tokens, images, has_image = make_batch(self.gen, self.rank, index)
        logits = self.model(tokens, images, has_image)
        loss = nn.functional.cross_entropy(logits, tokens[:, 0])
        self.opt.zero_grad()
        loss.backward()
        self.opt.step()
        return loss.item()


def main():
    dist.init_process_group("gloo")
    torch.manual_seed(0)
    torch.set_num_threads(1)
    rank = dist.get_rank()
    run = Run(rank)
    for i in range(15):
        loss = run.step(i)
        if rank == 0:
            print(f"step {i} loss {loss:.3f}", flush=True)
    run.monitor.close()
    dist.barrier()
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
