import torch
import torch.distributed as dist
from torch import nn

from roles import Actors, Learner

ROUNDS = 12


class Policy(nn.Module):
    def __init__(self):
        super().__init__()
        self.net = nn.Sequential(nn.Linear(3, 12), nn.Tanh(), nn.Linear(12, 2))

    def forward(self, obs):
        return self.net(obs)


def average(policy, group, size):
    for p in policy.parameters():
        dist.all_reduce(p.grad, group=group)
        p.grad /= size


def main():
    dist.init_process_group("gloo")
    rank, world = dist.get_rank(), dist.get_world_size()
    torch.manual_seed(0)
    policy = Policy()
    learners = dist.new_group([0, 1])
    actors = dist.new_group(list(range(2, world)))
    role = Learner(rank, policy) if rank < 2 else Actors(rank, policy)
    for step in range(ROUNDS):
        if rank < 2:
            obs, act, reward = role.receive(rank + 2)
            loss = role.loss(obs, act, reward)
            loss.backward()
            average(policy, learners, 2)
            role.update()
        else:
            role.send(rank - 2, role.rollout())
            if step % 4 == 3:
                mean = torch.tensor([role.mean_reward()])
                dist.all_reduce(mean, group=actors)
                if rank == 2:
                    print(f"round {step}: reward {mean.item() / (world - 2):.3f}", flush=True)
        for p in policy.parameters():
            dist.broadcast(p.data, src=0)
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
