import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel as DDP

from accumulate import TokenBudget

VOCAB = 40
LENGTHS = {0: [32, 32, 32, 32], 1: [32, 32, 32, 32], 2: [32, 32, 30, 32]}


class Bag(nn.Module):
    def __init__(self):
        super().__init__()
        self.emb = nn.Embedding(VOCAB, 16)
        self.out = nn.Linear(16, VOCAB)

    def forward(self, ids):
        return self.out(self.emb(ids).mean(1))


def documents(rank, n):
    g = torch.Generator().manual_seed(rank)
    lengths = LENGTHS[rank]
    for i in range(n):
        length = lengths[i % len(lengths)] if i >= 4 else 32
        yield torch.randint(0, VOCAB, (4, length), generator=g)


def log_losses(loss, step):
    parts = [torch.zeros(()) for _ in range(dist.get_world_size())]
    dist.all_gather(parts, loss)
    if dist.get_rank() == 0:
        print(step, [round(p.item(), 3) for p in parts], flush=True)


def main():
    dist.init_process_group("gloo")
    torch.manual_seed(0)
    net = DDP(Bag())
    opt = torch.optim.AdamW(net.parameters(), lr=1e-3)
    budget = TokenBudget(net, opt, budget=4 * 64)
    for step, ids in enumerate(documents(dist.get_rank(), 16)):
        with budget.microbatch(ids.numel()):
            logits = net(ids)
            loss = nn.functional.cross_entropy(logits, ids[:, 0])
            loss.backward()
        log_losses(loss.detach(), step)
    print("updates", budget.updates, flush=True)
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
