import time

import torch
import torch.distributed as dist

dist.init_process_group("gloo")

from accelerate import Accelerator
from accelerate.utils import set_seed
from torch import nn

from data import build


def evaluate(accelerator, model, loader):
    model.eval()
    right = total = 0
    with torch.no_grad():
        for x, y in loader:
            guess, truth = accelerator.gather_for_metrics((model(x).argmax(dim=1), y))
            right += (guess == truth).sum().item()
            total += len(truth)
    model.train()
    return right / total


def report(accelerator, epoch, accuracy):
    if accelerator.is_main_process:
        time.sleep(1.0)
        print(f"epoch {epoch}: accuracy {accuracy:.3f}", flush=True)


def train(accelerator, epochs=6, patience=2):
    train_loader, val_loader = build(accelerator)
    model = nn.Sequential(nn.Linear(9, 16), nn.ReLU(), nn.Linear(16, 2))
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
    model, optimizer, train_loader, val_loader = accelerator.prepare(
        model, optimizer, train_loader, val_loader
    )
    best, bad = 0.0, 0
    for epoch in range(epochs):
        for x, y in train_loader:
            with accelerator.accumulate(model):
                loss = nn.functional.cross_entropy(model(x), y)
                accelerator.backward(loss)
                if accelerator.sync_gradients:
                    accelerator.clip_grad_norm_(model.parameters(), 1.0)
                optimizer.step()
                optimizer.zero_grad()
        accuracy = evaluate(accelerator, model, val_loader)
        report(accelerator, epoch, accuracy)
        best, bad = (accuracy, 0) if accuracy > best else (best, bad + 1)
        if accelerator.is_main_process and bad >= patience:
            accelerator.set_trigger()
        if accelerator.check_trigger():
            break
    return best


def main():
    torch.set_num_threads(1)
    set_seed(1)
    accelerator = Accelerator(cpu=True, gradient_accumulation_steps=2)
    best = train(accelerator)
    accelerator.wait_for_everyone()
    if accelerator.is_main_process:
        print(f"best {best:.3f}", flush=True)
    accelerator.end_training()


if __name__ == "__main__":
    main()
