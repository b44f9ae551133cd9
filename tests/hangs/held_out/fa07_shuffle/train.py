import torch
import torch.distributed as dist
import torch.nn as nn

from shuffle import Shuffler

EPOCHS = 6
USERS = 30


def read_log(rank, epoch):
    """Click records (user, item): one file for each rank and day."""
    gen = torch.Generator().manual_seed(17 * epoch + rank)
    count = 90
    if epoch == 3 and rank == 1:  # a campaign day of that region
        count = 200
    users = torch.arange(count) % USERS
    items = torch.randint(0, 50, (count,), generator=gen)
    return list(zip(users.tolist(), items.tolist()))


class Recommender(nn.Module):
    def __init__(self):
        super().__init__()
        self.user = nn.Embedding(USERS, 8)
        self.item = nn.Embedding(50, 8)

    def forward(self, pairs):
        return (self.user(pairs[:, 0]) * self.item(pairs[:, 1])).sum(-1)


def fit(model, opt, data, world):
    loss = nn.functional.softplus(-model(data)).mean()
    loss.backward()
    for p in model.parameters():
        dist.all_reduce(p.grad)
        p.grad /= world
    opt.step()
    opt.zero_grad()
    return loss.item()


def main():
    dist.init_process_group("gloo")
    rank, world = dist.get_rank(), dist.get_world_size()
    torch.manual_seed(0)
    model = Recommender()
    opt = torch.optim.Adam(model.parameters(), lr=0.01)
    shuffler = Shuffler(rank, world)
    for epoch in range(EPOCHS):
        data, rounds = shuffler.run(read_log(rank, epoch))
        loss = fit(model, opt, data, world)
        if rank == 0:
            print(f"epoch {epoch} rounds {rounds} records {len(data)} loss {loss:.4f}", flush=True)
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
