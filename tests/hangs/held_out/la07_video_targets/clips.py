import torch

FRAMES, FEATURES = 6, 20


class ClipList:
    """Clips of a student in the order of its manifest; loops of surveillance video repeat."""

    def __init__(self, student, count=80):
        self.entries = []
        for number in range(count):
            scene = student * 1000 + number
            if student == 2 and number == 17:
                scene = student * 1000 + 15
            self.entries.append(scene)

    def __len__(self):
        return len(self.entries)

    def load(self, number):
        g = torch.Generator().manual_seed(self.entries[number])
        return torch.randn(FRAMES, FEATURES, generator=g)

    def digest(self, number):
        return hash(tuple(self.load(number)[0].tolist()))
