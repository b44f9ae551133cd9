import torch
import torch.distributed as dist

dist.init_process_group("gloo")

from accelerate import Accelerator
from accelerate.utils import set_seed
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

from metrics import Meter, Tracker


class Classifier(nn.Module):
    def __init__(self, width=24):
        super().__init__()
        self.body = nn.Sequential(nn.Linear(10, width), nn.GELU(), nn.LayerNorm(width))
        self.head = nn.Linear(width, 3)

    def forward(self, x):
        return self.head(self.body(x))


def make_data():
    x = torch.randn(240, 10)
    y = x[:, :3].argmax(dim=1)
    return DataLoader(TensorDataset(x, y), batch_size=8, shuffle=True)


def train(accelerator, epochs=2, log_every=4):
    model = Classifier()
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    model, optimizer, loader = accelerator.prepare(model, optimizer, make_data())
    tracker, meter = Tracker(accelerator), Meter()
    step = 0
    for epoch in range(epochs):
        for x, y in loader:
            loss = nn.functional.cross_entropy(model(x), y)
            accelerator.backward(loss)
            accelerator.clip_grad_norm_(model.parameters(), 1.0)
            optimizer.step()
            optimizer.zero_grad()
            meter.update(loss.item(), len(x))
            step += 1
            if step % log_every == 0:
                tracker.report(step, meter)
                meter.reset()
    accelerator.wait_for_everyone()
    return tracker.history


def main():
    torch.set_num_threads(1)
    set_seed(3)
    accelerator = Accelerator(cpu=True)
    history = train(accelerator)
    if accelerator.is_main_process:
        print(history, flush=True)
    accelerator.end_training()


if __name__ == "__main__":
    main()
