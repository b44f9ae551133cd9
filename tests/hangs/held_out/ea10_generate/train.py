import torch
import torch.distributed as dist
from torch import nn

from decoding import EOS, Generator, ShardedHead

VOCAB, DIM = 30, 8


class LM(nn.Module):
    def __init__(self, rank, world):
        super().__init__()
        torch.manual_seed(0)
        self.emb = nn.Embedding(VOCAB, DIM)
        self.rnn = nn.GRU(DIM, DIM, batch_first=True)
        self.head = ShardedHead(DIM, VOCAB, rank, world)

    def forward(self, tokens):
        h, _ = self.rnn(self.emb(tokens))
        return self.head(h[:, -1])

    def shared(self):
        return [p for n, p in self.named_parameters() if not n.startswith("head")]


class Task:
    """Questions whose answers have nearly the same length in each round."""

    def __init__(self, rank):
        self.rank = rank
        self.gen = torch.Generator().manual_seed(rank)

    def questions(self):
        return torch.randint(2, VOCAB, (4, 5), generator=self.gen)

    def answer_length(self, round_):
        return 7 if round_ < 2 or self.rank != 1 else 4


def train_round(model, opt, task, world, steps=3):
    for _ in range(steps):
        q = task.questions()
        h, _ = model.rnn(model.emb(q[:, :-1]))
        loss = (h[:, -1] - model.emb(q[:, -1])).pow(2).mean()
        opt.zero_grad()
        loss.backward()
        for p in model.shared():
            dist.all_reduce(p.grad)
            p.grad /= world
        opt.step()


def evaluate(model, task, round_):
    generator = Generator(model)
    out = generator.generate(task.questions(), task.answer_length(round_))
    answered = (out == EOS).any(1).float().sum()
    lengths = (out != 0).sum().float()
    stats = torch.stack([answered, lengths])
    dist.all_reduce(stats)
    return stats


def main():
    dist.init_process_group("gloo")
    rank, world = dist.get_rank(), dist.get_world_size()
    model = LM(rank, world)
    opt = torch.optim.SGD(model.shared(), lr=0.05)
    task = Task(rank)
    for round_ in range(4):
        train_round(model, opt, task, world)
        stats = evaluate(model, task, round_)
        if rank == 0:
            print(f"round {round_}: {stats.tolist()}", flush=True)
    dist.barrier()
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
