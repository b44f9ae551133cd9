class TokenMeter:
    """Counts trained tokens and says when the next evaluation is due."""

    def __init__(self, every):
        self.every = every
        self.seen = 0
        self.target = every
        self.rounds = 0

    def update(self, ids, pad):
        self.seen += int((ids != pad).sum())

    def due(self):
        if self.seen < self.target:
            return False
        self.target += self.every
        self.rounds += 1
        return True
