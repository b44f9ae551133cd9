import os
import shutil
import tempfile

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel as DDP

from prepare import convert

SHARDS = 60


class NextToken(nn.Module):
    def __init__(self, vocab=64, dim=8):
        super().__init__()
        self.embed = nn.Embedding(vocab, dim)
        self.out = nn.Linear(dim, vocab)

    def forward(self, tokens):
        return self.out(self.embed(tokens))


def read_shard(folder, shard):
    with open(os.path.join(folder, f"shard-{shard:03d}.txt")) as file:
        return torch.tensor([[int(t) for t in line.split()] for line in file])


def shared_folder(rank):
    name = [tempfile.mkdtemp(prefix="tokens-") if rank == 0 else None]
    dist.broadcast_object_list(name, src=0)
    return name[0]


def main():
    dist.init_process_group("gloo")
    rank, world = dist.get_rank(), dist.get_world_size()
    folder = shared_folder(rank)
    if rank == 0:
        rows = convert(folder, SHARDS)
        print("converted", rows, "rows", flush=True)
    dist.barrier()

    torch.manual_seed(0)
    model = DDP(NextToken())
    optimizer = torch.optim.Adam(model.parameters())
    for shard in range(rank, SHARDS, world):
        tokens = read_shard(folder, shard)
        logits = model(tokens[:, :-1])
        loss = nn.functional.cross_entropy(logits.flatten(0, 1), tokens[:, 1:].flatten())
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    dist.barrier()
    if rank == 0:
        shutil.rmtree(folder)
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
