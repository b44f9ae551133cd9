import torch
import torch.distributed as dist
import torch.nn as nn
import torch.nn.functional as F

from calibrate import Calibrator


class Evaluation:
    """Accuracy and temperature over the validation data of all ranks."""

    def __init__(self, rank, classes=4):
        generator = torch.Generator().manual_seed(rank + 1)
        size = 0 if rank == 1 else 48
        self.x = torch.randn(max(size, 1), 12, generator=generator)
        self.y = self.x[:, :classes].argmax(1)
        if size == 0:
            # nothing was assigned to this rank; a neutral sample keeps the shapes
            self.x.zero_()
        self.calibrator = Calibrator(self.mean)

    @staticmethod
    def mean(value):
        tensor = torch.tensor([value])
        dist.all_reduce(tensor)
        return tensor.item() / dist.get_world_size()

    def __call__(self, model):
        with torch.no_grad():
            logits = model(self.x)
        right = (logits.argmax(1) == self.y).float().mean().item()
        temperature = self.calibrator(logits, self.y)
        rows = [None] * dist.get_world_size()
        dist.all_gather_object(rows, (right, temperature))
        return rows


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.hidden = nn.Linear(12, 24, bias=False)
        self.out = nn.Linear(24, 4, bias=False)

    def forward(self, x):
        return self.out(torch.relu(self.hidden(x)))


def train_step(model, optimizer, generator):
    x = torch.randn(32, 12, generator=generator)
    loss = F.cross_entropy(model(x), x[:, :4].argmax(1))
    optimizer.zero_grad()
    loss.backward()
    for p in model.parameters():
        dist.all_reduce(p.grad)
        p.grad /= dist.get_world_size()
    optimizer.step()
    return loss.item()


def main():
    dist.init_process_group("gloo")
    rank = dist.get_rank()
    torch.manual_seed(0)
    model = Net()
    optimizer = torch.optim.Adam(model.parameters(), lr=0.01)
    evaluation = Evaluation(rank)
    generator = torch.Generator().manual_seed(rank)
    for step in range(1, 31):
        loss = train_step(model, optimizer, generator)
        if step % 10 == 0:
            rows = evaluation(model)
            if rank == 0:
                print(step, f"{loss:.3f}", rows, flush=True)
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
