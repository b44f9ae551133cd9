class Outliers:
    """Keeps conspicuous blocks of features, to look at them at the end."""

    def __init__(self, limit):
        self.limit = limit
        self.kept = []

    def check(self, number, block):
        peak = block.mine().abs().max().item()
        if peak > self.limit:
            self.kept.append((number, peak, block))

    def report(self, rank):
        for number, peak, block in self.kept:
            print(f"rank {rank}: block {number} of {tuple(block.data.shape)} peaks at {peak:.1f}", flush=True)
