"""A loop of Hugging Face's accelerate: accumulation, gathered metrics, sharded batches."""

from typing import Any

import torch
from accelerate import Accelerator
from accelerate.utils import broadcast_object_list, set_seed
from torch import nn
from torch.utils.data import DataLoader, TensorDataset


def main() -> None:
    accelerator = Accelerator(cpu=True, gradient_accumulation_steps=2)
    set_seed(0)
    model = nn.Sequential(nn.Linear(10, 32), nn.ReLU(), nn.Linear(32, 2))
    data = TensorDataset(torch.randn(40, 10), torch.randint(2, (40,)))
    model, optimizer, loader = accelerator.prepare(
        model, torch.optim.AdamW(model.parameters()), DataLoader(data, batch_size=4, shuffle=True)
    )
    for _ in range(2):
        for x, y in loader:
            with accelerator.accumulate(model):
                accelerator.backward(nn.functional.cross_entropy(model(x), y))
                accelerator.clip_grad_norm_(model.parameters(), 1.0)
                optimizer.step()
                optimizer.zero_grad()
        right: list[Any] = [
            accelerator.gather_for_metrics(model(x).argmax(-1) == y) for x, y in loader
        ]
        accelerator.reduce(torch.cat(right).float().mean(), "mean")
    broadcast_object_list([accelerator.process_index])
    accelerator.wait_for_everyone()
    accelerator.end_training()


if __name__ == "__main__":
    main()
