import torch
import torch.distributed as dist
import torch.nn as nn

from utils import Saver, say


class AutoEncoder(nn.Module):
    def __init__(self, dim=30, code=6):
        super().__init__()
        self.encoder = nn.Sequential(nn.Linear(dim, 16), nn.ReLU(), nn.Linear(16, code))
        self.decoder = nn.Sequential(nn.Linear(code, 16), nn.ReLU(), nn.Linear(16, dim))

    def forward(self, x):
        return self.decoder(self.encoder(x))


def average_gradients(model):
    flat = torch.cat([p.grad.flatten() for p in model.parameters()])
    dist.all_reduce(flat)
    flat /= dist.get_world_size()
    offset = 0
    for p in model.parameters():
        p.grad.copy_(flat[offset:offset + p.numel()].view_as(p))
        offset += p.numel()


def train(model, optimizer, saver, steps=20):
    generator = torch.Generator().manual_seed(dist.get_rank())
    basis = torch.randn(5, 30, generator=torch.Generator().manual_seed(99))
    for step in range(steps):
        x = torch.randn(8, 5, generator=generator) @ basis
        loss = nn.functional.mse_loss(model(x), x)
        optimizer.zero_grad()
        loss.backward()
        average_gradients(model)
        optimizer.step()
        saver.save(step)
        say(step, f"{loss.item():.3f}")


def main():
    dist.init_process_group("gloo")
    torch.manual_seed(0)
    model = AutoEncoder()
    optimizer = torch.optim.Adam(model.parameters(), lr=2e-3)
    train(model, optimizer, Saver(model, optimizer))
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
