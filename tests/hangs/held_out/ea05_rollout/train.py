import torch
import torch.distributed as dist
from torch import nn

from env import Corridor

BUDGET = 24     # steps of the environment per iteration
ROWS = 16       # rows in a message
ITERATIONS = 8
LENGTHS = {1: 4, 2: 4, 3: 4}


class Policy(nn.Module):
    def __init__(self):
        super().__init__()
        self.net = nn.Sequential(nn.Linear(2, 16), nn.Tanh(), nn.Linear(16, 2))

    def forward(self, obs):
        return self.net(obs)


def flatten(model):
    return torch.cat([p.detach().flatten() for p in model.parameters()])


def unflatten(model, flat):
    at = 0
    with torch.no_grad():
        for p in model.parameters():
            p.copy_(flat[at:at + p.numel()].view_as(p))
            at += p.numel()


def sync_policy(model):
    flat = flatten(model)
    dist.broadcast(flat, src=0)
    unflatten(model, flat)


class Worker:
    def __init__(self, rank):
        self.rank = rank
        self.model = Policy()
        self.env = Corridor(seed=rank, length=LENGTHS[rank])
        self.gen = torch.Generator().manual_seed(rank)

    def collect(self):
        """Finished episodes only: the return of an open one is not known."""
        finished, current, obs = [], [], self.env.reset()
        for _ in range(BUDGET):
            with torch.no_grad():
                probs = torch.softmax(self.model(torch.from_numpy(obs)), 0)
            action = int(torch.multinomial(probs, 1, generator=self.gen))
            nxt, reward, done = self.env.step(action)
            current.append([obs[0], obs[1], float(action), reward])
            obs = nxt
            if done:
                finished += [row[:3] + [current[-1][3]] for row in current]
                current, obs = [], self.env.reset()
        return finished

    def run(self):
        for it in range(ITERATIONS):
            sync_policy(self.model)
            if it == 3 and self.rank == 2:
                self.env = Corridor(seed=9, length=200)  # curriculum: a longer corridor
            rows = self.collect()
            if not rows:
                continue
            message = torch.zeros(ROWS, 4)
            part = torch.tensor(rows[:ROWS])
            message[:len(part)] = part
            dist.send(message, dst=0)


class Learner:
    def __init__(self, world):
        self.world = world
        self.model = Policy()
        self.opt = torch.optim.Adam(self.model.parameters(), lr=1e-2)

    def update(self, data):
        logits = self.model(data[:, :2])
        logp = torch.log_softmax(logits, 1).gather(1, data[:, 2:3].long()).squeeze(1)
        advantage = data[:, 3] - data[:, 3].mean()
        loss = -(logp * advantage).mean()
        self.opt.zero_grad()
        loss.backward()
        self.opt.step()

    def run(self):
        for it in range(ITERATIONS):
            sync_policy(self.model)
            received = []
            for src in range(1, self.world):
                message = torch.zeros(ROWS, 4)
                dist.recv(message, src=src)
                received.append(message)
            self.update(torch.cat(received))
            print("iteration", it, flush=True)


def main():
    dist.init_process_group("gloo")
    rank, world = dist.get_rank(), dist.get_world_size()
    torch.manual_seed(0)
    (Learner(world) if rank == 0 else Worker(rank)).run()
    dist.barrier()
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
