"""Language-like model on a stream of packed rows with a curriculum of lengths."""
import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel as DDP
from torch.utils.data import DataLoader

from stream import Curriculum, PackedStream


class Model(nn.Module):
    def __init__(self, vocab=64, dim=16):
        super().__init__()
        self.emb = nn.Embedding(vocab, dim)
        self.rnn = nn.GRU(dim, dim, batch_first=True)
        self.out = nn.Linear(dim, vocab)

    def forward(self, ids):
        return self.out(self.rnn(self.emb(ids))[0])


def run_phase(model, opt, loader):
    total, n = 0.0, 0
    for ids in loader:
        logits = model(ids[:, :-1])
        loss = nn.functional.cross_entropy(logits.flatten(0, 1), ids[:, 1:].flatten())
        opt.zero_grad()
        loss.backward()
        opt.step()
        total, n = total + loss.item(), n + 1
    return torch.tensor([total, float(n)])


def main():
    dist.init_process_group("gloo")
    rank, world = dist.get_rank(), dist.get_world_size()
    torch.manual_seed(0)
    model = DDP(Model())
    opt = torch.optim.AdamW(model.parameters(), lr=3e-3)
    for phase, length in Curriculum([8, 12, 16]):
        data = PackedStream(rank, world, phase, length, rows=40)
        stats = run_phase(model, opt, DataLoader(data, batch_size=4, num_workers=0))
        rows = [None] * world
        dist.all_gather_object(rows, stats)
        stats = sum(rows)
        if rank == 0:
            print(f"phase {phase} length {length} loss {(stats[0] / stats[1]).item():.4f}", flush=True)
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
