import torch
import torch.distributed as dist
from torch import nn

from meter import Meter
from plants import Plant
from schedule import Plateau

REPORT_EVERY = 5
MAX_NORM = 25.0


def synchronize(parameters):
    flat = nn.utils.parameters_to_vector(p.grad for p in parameters)
    dist.all_reduce(flat)
    flat /= dist.get_world_size()
    for parameter, part in zip(parameters, flat.split([p.numel() for p in parameters])):
        parameter.grad.copy_(part.view_as(parameter))


def main():
    dist.init_process_group("gloo")
    rank = dist.get_rank()
    torch.manual_seed(0)
    net = nn.Sequential(nn.Linear(20, 40), nn.ReLU(), nn.Linear(40, 1))
    parameters = list(net.parameters())
    optimizer = torch.optim.SGD(parameters, lr=0.02)
    plateau = Plateau(optimizer)
    meter = Meter()
    plant = Plant(rank)
    for step in range(1, 101):
        x, y = plant.rows(step)
        loss = nn.functional.mse_loss(net(x), y)
        optimizer.zero_grad()
        loss.backward()
        norm = nn.utils.clip_grad_norm_(parameters, MAX_NORM).item()
        meter.add("loss", loss.item())
        meter.add("norm", norm)
        if norm > MAX_NORM:
            meter.add("excess", norm / MAX_NORM)
        synchronize(parameters)
        optimizer.step()
        if step % REPORT_EVERY == 0:
            means = meter.reduce()
            plateau.update(means["loss"])
            if rank == 0:
                line = ", ".join(f"{name} {value:.4f}" for name, value in means.items())
                print(f"step {step}: {line}", flush=True)
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
