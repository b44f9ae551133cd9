import torch.nn.functional as F

from stage import IGNORE, VOCAB


class OneFOneB:
    def __init__(self, module, link, rank, world, num_micro):
        self.module, self.link = module, link
        self.rank, self.world, self.num_micro = rank, world, num_micro
        self.live = {}
        self.loss_sum = 0.0

    def forward(self, mb, tokens):
        x = tokens if self.link.prev is None else self.link.recv_activation(mb)
        out = self.module(x)
        self.live[mb] = (x, out)
        if self.link.next is not None:
            self.link.send_activation(out, mb)

    def backward(self, mb):
        x, out = self.live.pop(mb)
        out.backward(self.link.recv_grad(mb))
        if self.link.prev is not None:
            self.link.send_grad(x.grad, mb)

    def run_inner(self, micro_tokens):
        warmup = min(self.world - self.rank - 1, self.num_micro)
        for mb in range(warmup):
            self.forward(mb, micro_tokens[mb])
        for mb in range(self.num_micro - warmup):
            self.forward(mb + warmup, micro_tokens[mb + warmup])
            self.backward(mb)
        for mb in range(self.num_micro - warmup, self.num_micro):
            self.backward(mb)

    def run_last(self, micro_labels):
        for mb, labels in enumerate(micro_labels):
            x = self.link.recv_activation(mb)
            logits = self.module(x)
            if not (labels != IGNORE).any():
                continue
            loss = F.cross_entropy(logits.view(-1, VOCAB), labels.view(-1), ignore_index=IGNORE)
            loss.backward()
            self.loss_sum += loss.item()
            self.link.send_grad(x.grad, mb)
