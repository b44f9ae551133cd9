import torch
import torch.distributed as dist
import torch.nn as nn
import torch.nn.functional as F
from accelerate import Accelerator
from torch.utils.data import DataLoader

from data import WORDS, BagDataset, build_vocab, make_corpus


class BagModel(nn.Module):
    def __init__(self):
        super().__init__()
        self.net = nn.Sequential(nn.Linear(len(WORDS) + 1, 24), nn.Tanh(), nn.Linear(24, 2))

    def forward(self, bag):
        return self.net(bag)


def prepare_data(accelerator):
    texts = make_corpus(accelerator.process_index)
    # the main process fills the cache of the vocabulary, the others find it there
    with accelerator.main_process_first():
        vocab = build_vocab(accelerator, texts)
    return DataLoader(BagDataset(texts, vocab), batch_size=16, shuffle=True)


def agree_on_start(accelerator):
    seed = torch.tensor([1234.0 + accelerator.process_index])
    seeds = accelerator.gather(seed)
    torch.manual_seed(int(seeds[0]))


def train(accelerator, model, optimizer, loader, epochs=2):
    for epoch in range(epochs):
        total = torch.zeros(1)
        for bag, label in loader:
            optimizer.zero_grad()
            loss = F.cross_entropy(model(bag), label)
            accelerator.backward(loss)
            optimizer.step()
            total += loss.detach()
        mean = accelerator.reduce(total, reduction="mean")
        accelerator.print(f"epoch {epoch}: {mean.item() / len(loader):.3f}")


def main():
    dist.init_process_group("gloo")
    accelerator = Accelerator(cpu=True)
    agree_on_start(accelerator)
    loader = prepare_data(accelerator)
    model = BagModel()
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    model, optimizer = accelerator.prepare(model, optimizer)
    train(accelerator, model, optimizer, loader)
    accelerator.end_training()


if __name__ == "__main__":
    main()
