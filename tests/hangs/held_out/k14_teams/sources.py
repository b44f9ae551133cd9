import torch

FILES = [
    ["text-00.bin", "text-01.bin", "text-02.bin"],
    ["text-10.bin", "text-11.bin", "text-12.bin"],
    ["image-00.bin", "image-01.bin", "image-02.bin"],
    ["image-10.bin", "images-11.bin", "image-12.bin"],
]


class Source:
    def __init__(self, rank):
        self.rank = rank
        self.g = torch.Generator().manual_seed(rank)

    def __iter__(self):
        for name in FILES[self.rank]:
            kind = name.split("-")[0]
            for _ in range(4):
                yield kind, torch.randn(8, 12, generator=self.g)
