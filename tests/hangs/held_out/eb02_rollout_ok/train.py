import time

import torch
import torch.distributed as dist
from torch import nn

import protocol

UPDATES = 30


def build():
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(2, 8), nn.Tanh(), nn.Linear(8, 1))


class Worker:
    """Plays with the policy that it got last, at its own speed."""

    def __init__(self, rank, size):
        self.rank, self.size = rank, size
        self.model = build()
        self.gen = torch.Generator().manual_seed(rank)

    def play(self):
        time.sleep({1: 0.02, 2: 0.3}.get(self.rank, 4.0))
        n = int(torch.randint(0, protocol.ROWS + 1, (1,), generator=self.gen))
        if n == 0:
            return []      # no episode has ended
        obs = torch.randn(n, 2, generator=self.gen)
        with torch.no_grad():
            value = self.model(obs)
        return torch.cat([obs, obs.sum(1, keepdim=True) - 0.1 * value], 1).tolist()

    def run(self):
        played = 0
        while True:
            protocol.send_rollout(self.play())
            order, flat = protocol.receive_policy(self.size)
            if order == protocol.STOP:
                return played
            nn.utils.vector_to_parameters(flat.clone(), self.model.parameters())
            played += 1


class Learner:
    def __init__(self, world):
        self.world = world
        self.model = build()
        self.opt = torch.optim.Adam(self.model.parameters(), lr=1e-2)

    def flat(self):
        return nn.utils.parameters_to_vector(self.model.parameters()).detach()

    def update(self, rows):
        loss = nn.functional.mse_loss(self.model(rows[:, :2]), rows[:, 2:])
        self.opt.zero_grad()
        loss.backward()
        self.opt.step()

    def run(self):
        updates, active = 0, set(range(1, self.world))
        while active:
            src, rows = protocol.receive_rollout()
            if len(rows):
                self.update(rows)
                updates += 1
            if updates >= UPDATES:
                active.discard(src)
                protocol.send_policy(self.flat(), src, protocol.STOP)
            else:
                protocol.send_policy(self.flat(), src, protocol.GO)
        return updates


def main():
    dist.init_process_group("gloo")
    rank, world = dist.get_rank(), dist.get_world_size()
    if rank == 0:
        count = Learner(world).run()
    else:
        size = nn.utils.parameters_to_vector(build().parameters()).numel()
        count = Worker(rank, size).run()
    counts = [None] * world
    dist.all_gather_object(counts, count)
    if rank == 0:
        print("updates and rollouts:", counts, flush=True)
    dist.barrier()
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
