import torch
from torch.utils.data import Dataset

PALETTE = {(0, 0, 0): 0, (128, 64, 128): 1, (70, 70, 70): 2, (107, 142, 35): 3}
COLORS = list(PALETTE)
SIDE = 10


class StreetScenes(Dataset):
    """Images with colored masks; one annotator has used another brush for sidewalks."""

    def __init__(self, count=300, odd=(101,)):
        self.count = count
        self.odd = set(odd)

    def __len__(self):
        return self.count

    def mask_colors(self, index):
        g = torch.Generator().manual_seed(index)
        rows = torch.randint(len(COLORS), (SIDE,), generator=g).tolist()
        colors = [COLORS[row] for row in rows]
        if index in self.odd:
            colors[SIDE // 2] = (244, 35, 232)
        return colors

    def __getitem__(self, index):
        classes = [PALETTE[color] for color in self.mask_colors(index)]
        mask = torch.tensor(classes)[:, None].expand(SIDE, SIDE)
        noise = torch.randn(3, SIDE, SIDE, generator=torch.Generator().manual_seed(index + 7))
        return noise * 0.2 + mask / len(PALETTE), mask.contiguous()
