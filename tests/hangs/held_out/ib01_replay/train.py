import time

import torch
import torch.distributed as dist
from torch import nn

from replay import WIDTH, Mailbox, Replay, make_net


class Actor:
    """Sends episodes of different lengths, and a different number of them."""

    def __init__(self, rank):
        self.rank = rank
        self.gen = torch.Generator().manual_seed(rank)
        self.mail = Mailbox()

    def episode(self):
        length = torch.randint(0, 6, (1,), generator=self.gen).item()
        return [torch.randn(WIDTH, generator=self.gen) for _ in range(length)]

    def run(self):
        for _ in range(3 * self.rank + 2):
            time.sleep(0.15 * self.rank)
            self.mail.push(self.episode())
        self.mail.close()


class Learner:
    def __init__(self, actors):
        self.open = set(actors)
        self.net = make_net()
        self.opt = torch.optim.Adam(self.net.parameters(), lr=1e-2)
        self.replay = Replay(64)
        self.mail = Mailbox()
        self.updates = 0

    def update(self):
        rows = self.replay.sample(8)
        obs, action, reward = rows[:, :3], (rows[:, 3] > 0).long(), rows[:, 4]
        value = self.net(obs).gather(1, action.unsqueeze(1)).squeeze(1)
        loss = nn.functional.smooth_l1_loss(value, reward)
        self.opt.zero_grad()
        loss.backward()
        self.opt.step()
        self.updates += 1

    def run(self):
        while self.open:
            for source in sorted(self.open):
                rows = self.mail.pull(source)
                if rows is None:
                    self.open.discard(source)
                    continue
                self.replay.add(rows)
                if len(self.replay.rows) >= 8:
                    self.update()


def main():
    dist.init_process_group("gloo")
    rank = dist.get_rank()
    role = Learner(range(1, dist.get_world_size())) if rank == 0 else Actor(rank)
    role.run()
    dist.barrier()
    if rank == 0:
        print("updates", role.updates, flush=True)
    net = role.net if rank == 0 else make_net()
    for p in net.parameters():
        dist.broadcast(p.data, 0)
    dist.barrier()
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
