import torch
import torch.distributed as dist
import torch.nn as nn
import torch.nn.functional as F

from layers import ParallelMLP, VocabEmbedding

VOCAB, DIM, HIDDEN = 48, 16, 36


class Tagger(nn.Module):
    def __init__(self, pretrained):
        super().__init__()
        self.embed = VocabEmbedding(VOCAB, DIM, pretrained)
        self.mlp = ParallelMLP(DIM, HIDDEN)
        torch.manual_seed(9)
        self.head = nn.Linear(DIM, 5)

    def forward(self, tokens):
        return self.head(self.mlp(self.embed(tokens)))


class Schedule:
    """The learning rate, decided on rank 0 from the loss."""

    def __init__(self, optimizer, lr):
        self.optimizer = optimizer
        self.lr = torch.tensor([lr])
        self.best = float("inf")

    def update(self, loss):
        if dist.get_rank() == 0:
            self.lr *= 1.0 if loss < self.best else 0.5
            self.best = min(self.best, loss)
        dist.broadcast(self.lr, src=0)
        for group in self.optimizer.param_groups:
            group["lr"] = self.lr.item()


def fine_tune(steps=10):
    model = Tagger(pretrained=20)
    trained = [p for p in model.parameters() if p.requires_grad]
    optimizer = torch.optim.SGD(trained, lr=0.1)
    schedule = Schedule(optimizer, 0.1)
    generator = torch.Generator().manual_seed(0)
    for step in range(steps):
        tokens = torch.randint(0, VOCAB, (4, 8), generator=generator)
        loss = F.cross_entropy(model(tokens).flatten(0, 1), tokens.flatten() % 5)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        schedule.update(loss.item())
        if dist.get_rank() == 0:
            print(f"{step} {loss.item():.4f}", flush=True)


def main():
    dist.init_process_group("gloo")
    torch.manual_seed(dist.get_rank())
    fine_tune()
    dist.barrier()
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
