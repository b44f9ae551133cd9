import contextlib


class TokenBudget:
    """Gradients are accumulated until the optimizer step has seen enough tokens."""

    def __init__(self, net, optimizer, budget):
        self.net, self.optimizer, self.budget = net, optimizer, budget
        self.tokens = 0
        self.updates = 0

    @contextlib.contextmanager
    def microbatch(self, n_tokens):
        self.tokens += n_tokens
        if self.tokens < self.budget:
            with self.net.no_sync():
                yield
            return
        yield
        self.optimizer.step()
        self.optimizer.zero_grad()
        self.tokens = 0
        self.updates += 1
