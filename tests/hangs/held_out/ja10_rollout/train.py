import random

import torch
import torch.distributed as dist
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard

from policy import VOCABULARY, Policy
from rollout import Sampler


class Prompts:
    """Questions of a few tokens, and now and then one with an example before it."""

    def __init__(self, rank, batch=6):
        self.random = random.Random(rank)
        self.rank = rank
        self.batch = batch
        self.served = 0

    def next(self):
        prompts = []
        for _ in range(self.batch):
            self.served += 1
            length = 6
            if (self.served * 3 + self.rank) % 64 == 62:
                length = 11
            prompts.append([self.random.randrange(1, VOCABULARY) for _ in range(length)])
        return prompts


def reward(tokens, start):
    answer = tokens[:, start:]
    return (answer % 2 == 0).float().mean(1)


def normalise(rewards):
    """Advantages by the mean and deviation of the rewards of all ranks."""
    moments = torch.stack([rewards.sum(), rewards.pow(2).sum(), torch.tensor(float(len(rewards)))])
    dist.all_reduce(moments)
    mean = moments[0] / moments[2]
    deviation = (moments[1] / moments[2] - mean ** 2).clamp_min(1e-6).sqrt()
    return (rewards - mean) / deviation, mean.item()


def main():
    dist.init_process_group("gloo")
    rank = dist.get_rank()
    torch.manual_seed(0)
    mesh = init_device_mesh("cpu", (dist.get_world_size(),))
    model = Policy()
    for layer in model.layers:
        fully_shard(layer, mesh=mesh)
    fully_shard(model, mesh=mesh)
    optimizer = torch.optim.Adam(model.parameters(), lr=5e-3)
    sampler = Sampler(model, max_length=16, temperature=1.0, seed=rank)
    source = Prompts(rank)
    for iteration in range(30):
        tokens, start = sampler.rollout(source.next())
        advantages, mean = normalise(reward(tokens, start))
        logits = model(tokens[:, :-1])[:, start - 1:]
        chosen = torch.distributions.Categorical(logits=logits).log_prob(tokens[:, start:])
        loss = -(advantages.unsqueeze(1) * chosen).mean()
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        if rank == 0:
            print(f"iteration {iteration}: reward {mean:.3f}", flush=True)
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
