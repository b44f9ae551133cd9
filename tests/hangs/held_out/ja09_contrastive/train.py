import torch
import torch.distributed as dist
from torch.nn import functional as F

from gather import gather_rows
from towers import TwoTowers


class Pairs:
    def __init__(self, rank, batch=8):
        self.rank = rank
        self.batch = batch
        self.order = list(range(40))
        if rank == 2:
            self.order[7] = 3  # the crawl holds some albums twice

    def __iter__(self):
        for position, album in enumerate(self.order):
            words = torch.Generator().manual_seed(1000 * self.rank + album)
            pixels = torch.Generator().manual_seed(1000 * self.rank + 500 + position)
            captions = torch.randint(0, 300, (self.batch, 6), generator=words)
            yield captions, torch.randn(self.batch, 3, 8, 8, generator=pixels)


def contrastive_loss(model, captions, images):
    text, image = model(captions, images)
    text, image = gather_rows(text), gather_rows(image)
    logits = model.scale.exp() * image @ text.T
    target = torch.arange(len(logits))
    return (F.cross_entropy(logits, target) + F.cross_entropy(logits.T, target)) / 2


def all_finite(loss):
    votes = torch.zeros(dist.get_world_size())
    dist.all_gather_into_tensor(votes, torch.isfinite(loss).float().reshape(1))
    return bool(votes.all())


def average_gradients(model):
    for parameter in model.parameters():
        if parameter.grad is None:
            parameter.grad = torch.zeros_like(parameter)
        dist.all_reduce(parameter.grad)
        parameter.grad /= dist.get_world_size()


def main():
    dist.init_process_group("gloo")
    torch.manual_seed(0)
    model = TwoTowers()
    optimizer = torch.optim.AdamW(model.parameters(), lr=2e-3)
    for step, (captions, images) in enumerate(Pairs(dist.get_rank())):
        loss = contrastive_loss(model, captions, images)
        optimizer.zero_grad()
        loss.backward()
        if all_finite(loss.detach()):
            average_gradients(model)
            optimizer.step()
        if dist.get_rank() == 0 and step % 5 == 0:
            print(f"step {step}: {loss.item():.4f}", flush=True)
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
