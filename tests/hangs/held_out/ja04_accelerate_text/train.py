import json

import torch
from accelerate import Accelerator
from accelerate.utils import DataLoaderConfiguration, set_seed
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

from metrics import Accuracy


class BagOfWords(nn.Module):
    def __init__(self, vocabulary=200, width=16, classes=4):
        super().__init__()
        self.embed = nn.Embedding(vocabulary, width)
        self.head = nn.Sequential(nn.Linear(width, width), nn.Tanh(), nn.Linear(width, classes))

    def forward(self, tokens):
        return self.head(self.embed(tokens).mean(1))


def make_data(samples, seed):
    generator = torch.Generator().manual_seed(seed)
    tokens = torch.randint(0, 200, (samples, 12), generator=generator)
    return TensorDataset(tokens, tokens[:, 0] % 4)


def train_epoch(accelerator, model, loader, optimizer, scheduler, accuracy):
    model.train()
    for tokens, labels in loader:
        logits = model(tokens)
        loss = nn.functional.cross_entropy(logits, labels)
        accelerator.backward(loss)
        accelerator.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        scheduler.step()
        optimizer.zero_grad()
        accuracy.update(logits, labels)
    return accuracy.compute()


def main():
    with open("config.json") as file:
        config = json.load(file)
    accelerator = Accelerator(cpu=True, dataloader_config=DataLoaderConfiguration(**config["dataloader"]))
    set_seed(config["seed"])
    model = BagOfWords()
    optimizer = torch.optim.AdamW(model.parameters(), lr=config["lr"])
    warmup = config["warmup"]
    scheduler = torch.optim.lr_scheduler.LambdaLR(optimizer, lambda n: min(1.0, (n + 1) / warmup))
    data = make_data(config["samples"], config["seed"])
    loader = DataLoader(data, batch_size=config["batch_size"], shuffle=True)
    model, optimizer, loader, scheduler = accelerator.prepare(model, optimizer, loader, scheduler)
    accuracy = Accuracy(accelerator)
    for epoch in range(config["epochs"]):
        value = train_epoch(accelerator, model, loader, optimizer, scheduler, accuracy)
        accelerator.print(f"epoch {epoch}: accuracy {value:.3f}")
    accelerator.end_training()


if __name__ == "__main__":
    main()
