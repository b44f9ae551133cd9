import torch
import torch.distributed as dist
import torch.nn as nn
import torch.nn.functional as F

from data import Documents
from moe import ExpertLayer


class MoEModel(nn.Module):
    def __init__(self, group, vocab=40, dim=16):
        super().__init__()
        self.embed = nn.Embedding(vocab, dim)
        self.layers = nn.ModuleList(ExpertLayer(dim, group) for _ in range(2))
        self.out = nn.Linear(dim, vocab)

    def forward(self, tokens):
        x = self.embed(tokens)
        for layer in self.layers:
            x = layer(x, tokens)
        return self.out(x)


def average_shared(model):
    """Experts differ between ranks; everything else is replicated."""
    for p in model.parameters():
        if not getattr(p, "expert", False):
            dist.all_reduce(p.grad)
            p.grad /= dist.get_world_size()


def main():
    dist.init_process_group("gloo")
    rank = dist.get_rank()
    group = dist.new_group(list(range(dist.get_world_size())))
    torch.manual_seed(0)
    model = MoEModel(group)
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-3)
    documents = Documents(rank)
    for step in range(12):
        tokens = documents.batch(step)
        logits = model(tokens)
        loss = F.cross_entropy(logits[:, :-1].flatten(0, 1), tokens[:, 1:].flatten())
        optimizer.zero_grad()
        loss.backward()
        average_shared(model)
        optimizer.step()
        if rank == 0:
            print(step, round(loss.item(), 3), flush=True)
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
