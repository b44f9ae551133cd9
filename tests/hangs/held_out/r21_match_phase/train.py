import torch
import torch.distributed as dist
from torch import nn

from schedule import Curriculum, Progress

STEPS = 24


class Model(nn.Module):
    def __init__(self, vocab=32, dim=8):
        super().__init__()
        self.embed = nn.Embedding(vocab, dim)
        self.out = nn.Linear(dim, vocab)

    def forward(self, tokens):
        return self.out(self.embed(tokens).cumsum(0))


class Trainer:
    def __init__(self, rank):
        torch.manual_seed(0)
        self.rank = rank
        self.world = dist.get_world_size()
        self.model = Model()
        self.optimizer = torch.optim.SGD(self.model.parameters(), lr=0.02)
        self.curriculum = Curriculum(warmup=120, refresh=400)
        self.progress = Progress()

    def document(self, step):
        generator = torch.Generator().manual_seed(step)
        # ranks 2 and 3 read the corpus of longer documents
        length = 40 if self.rank < 2 else 50
        return torch.randint(0, 32, (length,), generator=generator)

    def backward(self, tokens, weight):
        logits = self.model(tokens[:-1])
        loss = weight * nn.functional.cross_entropy(logits, tokens[1:])
        self.optimizer.zero_grad()
        loss.backward()
        return loss.item()

    def reduce(self):
        for p in self.model.parameters():
            dist.all_reduce(p.grad)
            p.grad /= self.world
        self.optimizer.step()

    def refresh(self):
        """Makes the replicas equal again."""
        for p in self.model.parameters():
            parts = [torch.empty_like(p.data) for _ in range(self.world)]
            dist.all_gather(parts, p.data)
            p.data.copy_(torch.stack(parts).mean(0))

    def step(self, number):
        tokens = self.document(number)
        match self.curriculum.advance(self.progress, len(tokens)):
            case "warmup":
                loss = self.backward(tokens, 0.1)
                self.reduce()
            case "refresh":
                self.refresh()
                loss = self.backward(tokens, 1.0)
                self.reduce()
            case _:
                loss = self.backward(tokens, 1.0)
                self.reduce()
        return loss


def main():
    dist.init_process_group("gloo")
    trainer = Trainer(dist.get_rank())
    for number in range(STEPS):
        loss = trainer.step(number)
        if trainer.rank == 0:
            print(f"step {number}: {loss:.4f}", flush=True)
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
