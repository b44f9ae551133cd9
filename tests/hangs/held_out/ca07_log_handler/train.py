import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel as DDP

import logs
from data import Sensor


class AutoEncoder(nn.Module):
    def __init__(self):
        super().__init__()
        self.encode = nn.Sequential(nn.Linear(6, 8), nn.Tanh(), nn.Linear(8, 3))
        self.decode = nn.Sequential(nn.Linear(3, 8), nn.Tanh(), nn.Linear(8, 6))

    def forward(self, x):
        return self.decode(self.encode(x))


def train(model, sensor, logger, steps=20, log_every=5):
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-3)
    for step in range(steps):
        x = sensor.window(step * 16)
        loss = (model(x) - x).pow(2).mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        if step % log_every == 0:
            logger.info("step %d loss %.4f", step, loss.item())


def main():
    torch.set_num_threads(1)
    dist.init_process_group("gloo")
    torch.manual_seed(0)
    logger = logs.setup()
    logger.info("ready")
    model = DDP(AutoEncoder())
    train(model, Sensor(dist.get_rank()), logger)
    logger.info("done")
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
