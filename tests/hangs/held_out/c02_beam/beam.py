from dataclasses import dataclass, field

import torch

EOS = 0


@dataclass
class Beams:
    ids: torch.Tensor
    scores: torch.Tensor
    done: torch.Tensor = field(default=None)

    @classmethod
    def start(cls, prompt, width):
        return cls(prompt.repeat(width, 1), torch.arange(width) * -1e-3,
                   torch.zeros(width, dtype=torch.bool))

    def extend(self, logits):
        logp = torch.log_softmax(logits, -1)
        best, token = logp.max(-1)
        token = torch.where(self.done, torch.full_like(token, EOS), token)
        self.scores = self.scores + torch.where(self.done, torch.zeros_like(best), best)
        self.ids = torch.cat([self.ids, token[:, None]], 1)
        self.done = self.done | (token == EOS)


def search(model, prompt, width, max_new, length):
    """Yield the beams after each new token."""
    beams = Beams.start(prompt, width)
    for step in range(max_new):
        beams.extend(model(beams.ids, step, length))
        yield beams
        if bool(beams.done.all()):
            return


def summarize(model, prompt, width=3, max_new=12, length=6):
    beams = None
    for beams in search(model, prompt, width, max_new, length):
        pass
    return beams.ids[int(beams.scores.argmax())].tolist()
