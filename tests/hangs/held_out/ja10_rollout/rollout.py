import torch

PAD = 0


def pad(prompts):
    longest = max(len(p) for p in prompts)
    return torch.tensor([[PAD] * (longest - len(p)) + p for p in prompts])


class Sampler:
    def __init__(self, model, max_length, temperature, seed):
        self.model = model
        self.max_length = max_length
        self.temperature = temperature
        self.generator = torch.Generator().manual_seed(seed)

    @torch.no_grad()
    def rollout(self, prompts):
        tokens = pad(prompts)
        start = tokens.size(1)
        while tokens.size(1) < self.max_length:
            logits = self.model(tokens)[:, -1] / self.temperature
            drawn = torch.multinomial(logits.softmax(-1), 1, generator=self.generator)
            tokens = torch.cat([tokens, drawn], dim=1)
        return tokens, start
