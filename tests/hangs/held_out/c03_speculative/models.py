import torch
from torch import nn

EOS = 0


class CountingLM(nn.Module):
    """Predicts the next number; a weak copy errs on some of them."""

    def __init__(self, vocab, errs_on=()):
        super().__init__()
        self.table = nn.Embedding(vocab, vocab)
        with torch.no_grad():
            self.table.weight.zero_()
            for tok in range(vocab):
                self.table.weight[tok, (tok + 1) % vocab] = 5.0
            for tok in errs_on:
                self.table.weight[tok, (tok + 5) % vocab] = 9.0

    @torch.inference_mode()
    def greedy(self, token):
        return int(self.table(torch.tensor(token)).argmax())
