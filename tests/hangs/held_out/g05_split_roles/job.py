from datetime import timedelta
import time

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.utils import parameters_to_vector, vector_to_parameters

from roles import Roles

ROUNDS = 4


def train_some(model, roles, rounds):
    params = list(model.parameters())
    for step in range(rounds * 5 + 5):
        g = torch.Generator().manual_seed(step * 4 + roles.rank)
        x = torch.randn(16, 7, generator=g)
        loss = nn.functional.cross_entropy(model(x), x.argmax(1) % 3)
        grads = torch.autograd.grad(loss, params)
        with torch.no_grad():
            for p, grad in zip(params, grads):
                dist.all_reduce(grad, group=roles.train_group)
                p -= 0.1 * grad / len(roles.trainers)


@torch.no_grad()
def judge(model, roles):
    hits = torch.zeros(2)
    for part in range(3):
        g = torch.Generator().manual_seed(900 + roles.rank * 3 + part)
        x = torch.randn(64, 7, generator=g)
        hits += torch.tensor([(model(x).argmax(1) == x.argmax(1) % 3).sum().item(), 64.0])
        time.sleep(0.2)
    dist.all_reduce(hits, group=roles.judge_group)
    return (hits[0] / hits[1]).item()


def hand_over(model):
    flat = parameters_to_vector(model.parameters()).detach().clone()
    dist.broadcast(flat, src=0)
    vector_to_parameters(flat, model.parameters())


def main():
    dist.init_process_group("gloo", timeout=timedelta(seconds=600))
    roles = Roles(trainers=2)
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(7, 14), nn.Tanh(), nn.Linear(14, 3))
    for r in range(ROUNDS):
        if roles.trains:
            train_some(model, roles, r)
        else:
            score = judge(model, roles)
            if roles.rank == roles.judges[0]:
                print("round", r, "score", round(score, 3), flush=True)
        hand_over(model)
    dist.barrier()
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
