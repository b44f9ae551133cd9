import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel as DDP

from metrics import EventLog, Flusher

DIM = 12


class Policy(nn.Module):
    def __init__(self):
        super().__init__()
        self.body = nn.Sequential(nn.Linear(DIM, 24), nn.Tanh(), nn.Linear(24, 3))

    def forward(self, x):
        return self.body(x)


class Rollouts:
    def __init__(self, rank):
        self.gen = torch.Generator().manual_seed(20 + rank)
        self.scale = 3.0 if rank == 2 else 1.0

    def batch(self, size=10):
        obs = torch.randn(size, DIM, generator=self.gen) * self.scale
        action = torch.randint(0, 3, (size,), generator=self.gen)
        reward = obs[:, 0] - 0.5 * action
        return obs, action, reward


def update(model, opt, obs, action, reward):
    logp = model(obs).log_softmax(-1).gather(1, action[:, None]).squeeze(1)
    loss = -(logp * (reward - reward.mean())).mean()
    opt.zero_grad()
    loss.backward()
    opt.step()
    return loss.item()


def record_outliers(log, step, reward, limit=3.5):
    for i, r in enumerate(reward.tolist()):
        if abs(r) > limit:
            log.add(step=step, row=i, reward=round(r, 3))


def main():
    dist.init_process_group("gloo")
    torch.manual_seed(0)
    torch.set_num_threads(1)
    rank = dist.get_rank()
    model = DDP(Policy())
    opt = torch.optim.Adam(model.parameters(), lr=1e-3)
    log = EventLog(rank)
    flusher = Flusher(log)
    rollouts = Rollouts(rank)
    for step in range(30):
        obs, action, reward = rollouts.batch()
        loss = update(model, opt, obs, action, reward)
        record_outliers(log, step, reward)
        if rank == 0 and step % 5 == 0:
            print(f"step {step} loss {loss:.4f}", flush=True)
    flusher.close()
    dist.barrier()
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
