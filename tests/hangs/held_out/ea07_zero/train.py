import torch
import torch.distributed as dist
from torch import nn

from zero import ShardedAdam


class Tagger(nn.Module):
    """A classifier of sentences with an auxiliary scale for sentences that have a rating."""

    def __init__(self, vocab=40, dim=12, classes=3):
        super().__init__()
        self.emb = nn.EmbeddingBag(vocab, dim)
        self.body = nn.Linear(dim, dim)
        self.classes = nn.Linear(dim, classes)
        self.rating = nn.Linear(dim, 1, bias=False)

    def forward(self, tokens):
        return torch.tanh(self.body(self.emb(tokens)))


def loss_of(model, batch):
    h = model(batch["tokens"])
    loss = nn.functional.cross_entropy(model.classes(h), batch["label"])
    rated = ~batch["rating"].isnan()
    if rated.any():
        guess = model.rating(h[rated]).squeeze(1)
        loss = loss + 0.3 * nn.functional.mse_loss(guess, batch["rating"][rated])
    return loss


class Reviews:
    def __init__(self, rank, size=6):
        self.gen = torch.Generator().manual_seed(rank)
        self.rank, self.size = rank, size

    def batch(self, step):
        tokens = torch.randint(0, 40, (self.size, 7), generator=self.gen)
        label = torch.randint(0, 3, (self.size,), generator=self.gen)
        rating = torch.rand(self.size, generator=self.gen)
        # most sources have a few unrated reviews; one has a stretch without any rating
        rating[step % self.size] = float("nan")
        if self.rank == 2 and step >= 7:
            rating[:] = float("nan")
        return {"tokens": tokens, "label": label, "rating": rating}


def main():
    dist.init_process_group("gloo")
    rank = dist.get_rank()
    torch.manual_seed(11)
    model = Tagger()
    opt = ShardedAdam(model)
    print(f"rank {rank} keeps {opt.load_of(rank)} values", flush=True)
    data = Reviews(rank)
    for step in range(20):
        loss = loss_of(model, data.batch(step))
        opt.zero_grad()
        loss.backward()
        opt.step()
        if step % 5 == 4 and rank == 0:
            print(step, loss.item(), flush=True)
    dist.barrier()
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
