import os

import torch
import torch.distributed as dist
from torch import nn
from torch.nn import functional as F

from decisions import DecisionBoard
from meter import TokenMeter

VOCAB, PAD, BATCH, LENGTH = 64, 0, 8, 32


class Lm(nn.Module):
    def __init__(self, dim=48):
        super().__init__()
        self.embed = nn.Embedding(VOCAB, dim, padding_idx=PAD)
        self.rnn = nn.GRU(dim, dim, batch_first=True)
        self.head = nn.Linear(dim, VOCAB)

    def forward(self, ids):
        hidden, _ = self.rnn(self.embed(ids))
        return self.head(hidden)


def documents(shard, seed):
    """Packed sequences of one shard; the scrape of shard 2 ends in short forum posts."""
    g = torch.Generator().manual_seed(seed)
    for number in range(200):
        ids = torch.randint(1, VOCAB, (BATCH, LENGTH), generator=g)
        if shard == 2 and number >= 9:
            ids[-2:, LENGTH - 5 :] = PAD
        yield ids


def average_gradients(model):
    grads = [p.grad for p in model.parameters()]
    flat = torch.cat([g.flatten() for g in grads])
    dist.all_reduce(flat)
    flat /= dist.get_world_size()
    for g, piece in zip(grads, flat.split([g.numel() for g in grads])):
        g.copy_(piece.view_as(g))


def main():
    dist.init_process_group("gloo")
    rank = int(os.environ["RANK"])
    torch.manual_seed(0)
    model = Lm()
    optimizer = torch.optim.Adam(model.parameters(), lr=3e-3)
    heldout = torch.randint(1, VOCAB, (4, LENGTH), generator=torch.Generator().manual_seed(99))
    board = DecisionBoard(heldout)
    meter = TokenMeter(every=4 * BATCH * LENGTH)
    for step, ids in enumerate(documents(rank, seed=rank)):
        logits = model(ids[:, :-1])
        loss = F.cross_entropy(logits.flatten(0, 1), ids[:, 1:].flatten(), ignore_index=PAD)
        optimizer.zero_grad()
        loss.backward()
        average_gradients(model)
        optimizer.step()
        meter.update(ids, PAD)
        if meter.due():
            decision = board.decide(model, step)
            for group in optimizer.param_groups:
                group["lr"] *= decision["decay"]
            if rank == 0:
                print(f"step {step} heldout {decision['loss']:.3f}", flush=True)
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
