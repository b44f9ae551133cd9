"""Text classification in the style of the accelerate examples (tokens are synthetic)."""
import torch
from accelerate import Accelerator
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

from evaluate import evaluate


class Classifier(nn.Module):
    def __init__(self, vocab=100, dim=24, labels=3):
        super().__init__()
        self.emb = nn.EmbeddingBag(vocab, dim)
        self.out = nn.Linear(dim, labels)

    def forward(self, ids):
        return self.out(self.emb(ids).tanh())


def make_sets():
    g = torch.Generator().manual_seed(2)
    ids = torch.randint(100, (360, 10), generator=g)
    labels = ids.sum(1) % 3
    return TensorDataset(ids[:240], labels[:240]), TensorDataset(ids[240:], labels[240:])


def main():
    accelerator = Accelerator(cpu=True)
    torch.manual_seed(0)
    train_set, eval_set = make_sets()
    model = Classifier()
    opt = torch.optim.AdamW(model.parameters(), lr=1e-2)
    train = DataLoader(train_set, batch_size=8, shuffle=True)
    val = DataLoader(eval_set, batch_size=8)
    model, opt, train, val = accelerator.prepare(model, opt, train, val)
    for epoch in range(3):
        for ids, labels in train:
            loss = nn.functional.cross_entropy(model(ids), labels)
            opt.zero_grad()
            accelerator.backward(loss)
            opt.step()
        acc = evaluate(accelerator, model, val, show=3)
        accelerator.print(f"epoch {epoch} accuracy {acc:.3f}")
    accelerator.end_training()


if __name__ == "__main__":
    main()
