import shutil
import tempfile
import time

import torch
import torch.distributed as dist
import torch.nn as nn
import torch.nn.functional as F
from accelerate import Accelerator
from accelerate.utils import broadcast_object_list
from torch.utils.data import DataLoader

from data import prepare


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.net = nn.Sequential(nn.Linear(6, 32), nn.ReLU(), nn.Linear(32, 2))

    def forward(self, x):
        return self.net(x)


def shared_folder(accelerator):
    folder = [tempfile.mkdtemp(prefix="points-") if accelerator.is_main_process else None]
    broadcast_object_list(folder, from_process=0)
    return folder[0]


def evaluate(accelerator, model, loader):
    model.eval()
    right = seen = 0
    for x, y in loader:
        with torch.no_grad():
            guess = model(x).argmax(1)
        guess, y = accelerator.gather_for_metrics((guess, y))
        right += (guess == y).sum().item()
        seen += len(y)
    model.train()
    return right / seen, seen


def save(accelerator, model, folder, epoch):
    accelerator.wait_for_everyone()
    if accelerator.is_main_process:
        time.sleep(1.5)
        torch.save(accelerator.unwrap_model(model).state_dict(), f"{folder}/{epoch}.pt")


def main():
    dist.init_process_group("gloo")
    accelerator = Accelerator(cpu=True, gradient_accumulation_steps=2)
    folder = shared_folder(accelerator)
    with accelerator.main_process_first():
        training, validation = prepare(accelerator, folder)
    model = Net()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    model, optimizer, loader, held_out = accelerator.prepare(
        model, optimizer, DataLoader(training, batch_size=8, shuffle=True), DataLoader(validation, batch_size=7)
    )
    for epoch in range(3):
        for x, y in loader:
            with accelerator.accumulate(model):
                loss = F.cross_entropy(model(x), y)
                accelerator.backward(loss)
                optimizer.step()
                optimizer.zero_grad()
        accuracy, seen = evaluate(accelerator, model, held_out)
        accelerator.print(f"epoch {epoch}: {accuracy:.2f} of {seen}")
        save(accelerator, model, folder, epoch)
    accelerator.wait_for_everyone()
    if accelerator.is_main_process:
        shutil.rmtree(folder)
    accelerator.end_training()


if __name__ == "__main__":
    main()
