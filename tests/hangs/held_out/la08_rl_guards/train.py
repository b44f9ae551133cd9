import torch
import torch.distributed as dist
from torch import nn

from arena import MOVES, Corridor
from guards import default_guards

WALLS = {0: (), 1: (), 2: (), 3: (11, 12)}


class Reinforce:
    def __init__(self, rank, world):
        torch.manual_seed(5)
        self.world = world
        self.policy = nn.Sequential(nn.Linear(3, 24), nn.Tanh(), nn.Linear(24, MOVES))
        self.optimizer = torch.optim.Adam(self.policy.parameters(), lr=0.01)
        self.arena = Corridor(seed=rank, walls=WALLS[rank])
        self.guards = default_guards()
        self.baseline = 0.0
        self.cooldowns = 0

    def collect(self, layout, episodes=10):
        results = [self.arena.episode(self.policy, layout) for _ in range(episodes)]
        returns = torch.tensor([score for _, _, score in results])
        loss = torch.zeros(())
        for logps, entropy, score in results:
            loss = loss - (score - self.baseline) * logps.sum() - 0.01 * entropy
        entropy = torch.stack([e for _, e, _ in results]).mean().item()
        return loss / episodes, returns, entropy

    def update(self, loss):
        self.optimizer.zero_grad()
        loss.backward()
        norm = nn.utils.get_total_norm([p.grad for p in self.policy.parameters()]).item()
        for p in self.policy.parameters():
            dist.all_reduce(p.grad)
            p.grad /= self.world
        self.optimizer.step()
        return norm

    def cool_down(self):
        self.cooldowns += 1
        for group in self.optimizer.param_groups:
            group["lr"] *= 0.9

    def iterate(self, layout):
        loss, returns, entropy = self.collect(layout)
        norm = self.update(loss)
        self.baseline = 0.9 * self.baseline + 0.1 * returns.mean().item()
        report = {"returns": returns, "entropy": entropy, "grad_norm": norm}
        if any(guard.tripped(report) for guard in self.guards):
            self.cool_down()
        return returns.mean().item()


def main():
    dist.init_process_group("gloo")
    rank, world = dist.get_rank(), dist.get_world_size()
    agent = Reinforce(rank, world)
    for layout in range(60):
        score = agent.iterate(layout)
        if rank == 0 and layout % 3 == 0:
            print(f"layout {layout} return {score:.3f}", flush=True)
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
