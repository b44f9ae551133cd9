import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel as DDP

from evaluate import Evaluation


def batch(generator, width=12, rows=32):
    inputs = torch.randn(rows, width, generator=generator)
    return inputs, inputs.sin().sum(1, keepdim=True)


def main():
    dist.init_process_group("gloo")
    torch.manual_seed(0)
    net = DDP(nn.Sequential(nn.Linear(12, 48), nn.GELU(), nn.Linear(48, 1)))
    optimizer = torch.optim.AdamW(net.parameters(), lr=3e-3)
    generator = torch.Generator().manual_seed(1000 + dist.get_rank())
    evaluation = Evaluation()
    for step in range(1, 101):
        inputs, targets = batch(generator)
        loss = nn.functional.mse_loss(net(inputs), targets)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        if step % 10 == 0:
            error = evaluation.run(net.module)
            if dist.get_rank() == 0:
                print(f"step {step}: error {error:.3f}", flush=True)
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
