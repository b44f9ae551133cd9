class GradualFreezer:
    """Freezes the layers, from the bottom on, whose weights hardly move any more."""

    def __init__(self, blocks, threshold):
        self.blocks = list(blocks)
        self.threshold = threshold
        self.frozen = 0
        self.last = [self.snapshot(block) for block in self.blocks]

    @staticmethod
    def snapshot(block):
        return [p.detach().clone() for p in block.parameters()]

    def movement(self, index):
        now = self.snapshot(self.blocks[index])
        moved = sum((a - b).norm().item() for a, b in zip(now, self.last[index]))
        self.last[index] = now
        return moved

    def update(self):
        if self.frozen == len(self.blocks) - 1:
            return
        moved = self.movement(self.frozen)
        if moved < self.threshold:
            for parameter in self.blocks[self.frozen].parameters():
                parameter.requires_grad_(False)
            self.frozen += 1
