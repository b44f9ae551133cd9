from contextlib import nullcontext


class TokenAccumulator:
    """Gradients are applied once `budget` tokens have gone through the model."""

    def __init__(self, budget):
        self.budget = budget
        self.tokens = 0
        self.updates = 0

    def add(self, tokens):
        self.tokens += tokens

    @property
    def full(self):
        return self.tokens >= self.budget

    def context(self, model):
        if self.full:
            return nullcontext()
        return model.no_sync()

    def applied(self):
        self.tokens = 0
        self.updates += 1
