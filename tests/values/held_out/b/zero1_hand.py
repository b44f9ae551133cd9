"""ZeRO-1 by hand: gradients are averaged, each rank updates the parameters it owns and sends them to the others."""
import argparse
import time
import torch
import torch.distributed as dist
import torch.nn as nn
import torch.nn.functional as F


class TabularNet(nn.Module):
    def __init__(self):
        super().__init__()
        self.categories = nn.Embedding(20, 16)
        self.numeric = nn.Linear(16, 16)
        self.trunk = nn.Sequential(nn.Linear(32, 48), nn.ReLU(), nn.LayerNorm(48), nn.Linear(48, 48), nn.ReLU())
        self.mean = nn.Linear(48, 1)
        self.log_var = nn.Linear(48, 1)

    def forward(self, category, numeric):
        x = torch.cat([self.categories(category), self.numeric(numeric)], -1)
        h = self.trunk(x)  # @missed_broadcast
        return self.mean(h).squeeze(-1), self.log_var(h).squeeze(-1)


class ShardedAdam:
    def __init__(self, model, lr, mutant):
        self.rank, self.world = dist.get_rank(), dist.get_world_size()
        self.named = list(model.named_parameters())
        self.mutant = mutant
        self.owner = {name: i % self.world for i, (name, _) in enumerate(self.named)}
        mine = [p for name, p in self.named if self.owner[name] == self.rank]
        self.inner = torch.optim.Adam(mine, lr=lr, weight_decay=0.01)

    def reduce(self):
        for name, p in self.named:
            dist.all_reduce(p.grad)
            p.grad /= self.world

    def clip(self, max_norm):
        if self.mutant == "clip_owned":
            grads = [p.grad for name, p in self.named if self.owner[name] == self.rank]
        else:
            grads = [p.grad for _, p in self.named]
        norm = torch.sqrt(sum(g.square().sum() for g in grads))  # @clip_owned
        scale = torch.clamp(max_norm / (norm + 1e-6), max=1.0)
        for _, p in self.named:
            p.grad.mul_(scale)  # @clip_owned

    def step(self, number):
        self.inner.step()
        for name, p in self.named:
            if self.mutant == "missed_broadcast" and name == "trunk.3.weight" and number == 1:
                continue
            dist.broadcast(p.data, src=self.owner[name])  # @missed_broadcast

    def zero_grad(self):
        for _, p in self.named:
            p.grad = None


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--layout", default="one", choices=["one", "zero1"])
    parser.add_argument("--mutant", default="none")
    args = parser.parse_args()
    dist.init_process_group("gloo")
    rank, world = dist.get_rank(), dist.get_world_size()
    torch.manual_seed(3)
    model = TabularNet()
    optimizer = ShardedAdam(model, 0.02, args.mutant)
    gen = torch.Generator().manual_seed(11)
    category = torch.randint(0, 20, (4, 24), generator=gen)
    numeric = torch.randn(4, 24, 16, generator=gen)
    target = torch.randn(4, 24, generator=gen)
    for step in range(4):
        per = 24 // world
        mine = slice(rank * per, (rank + 1) * per)
        mean, log_var = model(category[step, mine], numeric[step, mine])
        loss = F.gaussian_nll_loss(mean, target[step, mine], log_var.exp())
        loss.backward()
        optimizer.reduce()
        # The gradients of step 1 are scaled down strongly to see the effect of clipping in Adam's averages.
        optimizer.clip(0.2 if step != 1 else 0.02)
        optimizer.step(step)
        optimizer.zero_grad()
        with torch.no_grad():
            model.eval()
            mean, log_var = model(category[0], numeric[0])
            check = F.mse_loss(mean, target[0])
            model.train()
        shown = torch.stack([loss.detach(), check])
        dist.all_reduce(shown)
        if rank == 0:
            print(f"{step} loss {shown[0].item() / world:.7f} evaluation {shown[1].item() / world:.7f}")
    dist.barrier()
    dist.destroy_process_group()
    time.sleep(0.3)  # threads of gloo may need the interpreter once more


if __name__ == "__main__":
    main()
