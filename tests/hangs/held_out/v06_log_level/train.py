import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel as DDP

from utils import MeterGroup, setup_logging


class TinyConv(nn.Module):
    def __init__(self, classes=5):
        super().__init__()
        self.conv = nn.Conv2d(1, 8, 3, padding=1)
        self.pool = nn.AdaptiveAvgPool2d(2)
        self.fc = nn.Linear(32, classes)

    def forward(self, x):
        return self.fc(self.pool(torch.relu(self.conv(x))).flatten(1))


class Images:
    def __init__(self, rank, batch=8):
        self.gen = torch.Generator().manual_seed(rank)
        self.batch = batch

    def next(self):
        y = torch.randint(0, 5, (self.batch,), generator=self.gen)
        x = torch.randn(self.batch, 1, 8, 8, generator=self.gen) + y[:, None, None, None]
        return x, y


def train(model, data, logger, steps=30, log_every=10):
    opt = torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9)
    meters = MeterGroup("loss", "acc")
    for step in range(1, steps + 1):
        x, y = data.next()
        logits = model(x)
        loss = nn.functional.cross_entropy(logits, y)
        opt.zero_grad()
        loss.backward()
        opt.step()
        meters["loss"].update(loss.item(), len(y))
        meters["acc"].update((logits.argmax(1) == y).float().mean().item(), len(y))
        if step % log_every == 0:
            logger.info("step %d: %s", step, meters)
            meters.reset()


def main():
    dist.init_process_group("gloo")
    torch.manual_seed(0)
    torch.set_num_threads(1)
    rank = dist.get_rank()
    logger = setup_logging(rank)
    model = DDP(TinyConv())
    train(model, Images(rank), logger)
    logger.warning("finished")
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
