import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch.utils.data import DataLoader

from data import Texts
from model import Tuned


def trainable(model):
    return [p for p in model.parameters() if p.requires_grad]


def average_gradients(params):
    world = dist.get_world_size()
    for p in params:
        if p.grad is None:
            continue
        dist.all_reduce(p.grad)
        p.grad /= world


def broadcast_weights(model):
    for t in model.state_dict().values():
        dist.broadcast(t, src=0)


class Accuracy:
    def __init__(self):
        self.right = self.seen = 0

    def update(self, logits, label):
        self.right += (logits.argmax(1) == label).sum().item()
        self.seen += len(label)

    def gather(self):
        parts = [torch.zeros(2) for _ in range(dist.get_world_size())]
        dist.all_gather(parts, torch.tensor([self.right, self.seen], dtype=torch.float))
        right, seen = torch.stack(parts).sum(0).tolist()
        return right / max(seen, 1)


def fit(model, loader, epochs=3):
    params = trainable(model)
    opt = torch.optim.AdamW(params, lr=1e-3)
    for epoch in range(epochs):
        acc = Accuracy()
        for step, (ids, domain, label) in enumerate(loader):
            logits = model(ids, domain)
            loss = F.cross_entropy(logits, label)
            opt.zero_grad()
            loss.backward()
            average_gradients(params)
            opt.step()
            acc.update(logits.detach(), label)
            so_far = acc.gather()
            if dist.get_rank() == 0 and step % 2 == 0:
                print(f"epoch {epoch} step {step} loss {loss.item():.3f} acc {so_far:.2f}", flush=True)


def main():
    dist.init_process_group("gloo")
    rank, world = dist.get_rank(), dist.get_world_size()
    torch.manual_seed(rank)
    model = Tuned()
    broadcast_weights(model)
    loader = DataLoader(Texts(rank, world), batch_size=12, shuffle=False)
    fit(model, loader)
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
