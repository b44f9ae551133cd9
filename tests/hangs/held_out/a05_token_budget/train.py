import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel as DDP

from batching import Documents, TokenBudget


class BigramLM(nn.Module):
    def __init__(self, vocab=50, dim=16):
        super().__init__()
        self.embed = nn.Embedding(vocab, dim)
        self.mix = nn.Linear(dim, dim)
        self.out = nn.Linear(dim, vocab)

    def forward(self, ids):
        h = torch.tanh(self.mix(self.embed(ids[:, :-1])))
        logits = self.out(h)
        return nn.functional.cross_entropy(logits.flatten(0, 1), ids[:, 1:].flatten(), ignore_index=0)


class Accumulator:
    def __init__(self, model, opt, budget):
        self.model = model
        self.opt = opt
        self.budget = budget
        self.updates = 0

    def micro_step(self, ids, tokens):
        self.budget.add(tokens)
        if self.budget.full:
            loss = self.model(ids)
            loss.backward()
            self.opt.step()
            self.opt.zero_grad()
            self.budget.clear()
            self.updates += 1
        else:
            with self.model.no_sync():
                loss = self.model(ids)
                loss.backward()
        return loss.item()


def epoch_summary(epoch, losses, updates):
    rows = [None] * dist.get_world_size()
    dist.all_gather_object(rows, (sum(losses) / len(losses), updates))
    if dist.get_rank() == 0:
        print(f"epoch {epoch}", [f"{loss:.3f}/{n}" for loss, n in rows], flush=True)


def main():
    dist.init_process_group("gloo")
    rank = dist.get_rank()
    torch.manual_seed(0)
    model = DDP(BigramLM())
    opt = torch.optim.Adam(model.parameters(), lr=1e-2)
    docs = Documents(rank)
    acc = Accumulator(model, opt, TokenBudget(256))
    for epoch in range(3):
        losses = []
        for ids, tokens in docs.micro_batches():
            losses.append(acc.micro_step(ids, tokens))
        epoch_summary(epoch, losses, acc.updates)
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
