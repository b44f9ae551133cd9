import torch


class Accuracy:
    def __init__(self, accelerator):
        self.accelerator = accelerator
        self.reset()

    def reset(self):
        self.counts = torch.zeros(2)

    def update(self, logits, labels):
        hits = (logits.argmax(-1) == labels).sum()
        self.counts += torch.tensor([float(hits), float(labels.numel())])

    def compute(self):
        counts = self.accelerator.gather(self.counts.unsqueeze(0)).sum(0)
        self.reset()
        return (counts[0] / counts[1]).item()
