import torch
from torch.utils.data import Dataset

JOINTS = 6
CAMERAS = 3
SIDE = 16


class PoseFrames(Dataset):
    """Frames of a studio recording; three cameras take turns."""

    def __init__(self, frames=360, blackout=(1, 84, 110)):
        self.frames = frames
        self.camera, self.begin, self.end = blackout

    def __len__(self):
        return self.frames

    def __getitem__(self, index):
        g = torch.Generator().manual_seed(1000 + index)
        image = torch.rand(1, SIDE, SIDE, generator=g)
        xy = torch.randint(1, SIDE - 1, (JOINTS, 2), generator=g)
        visible = (torch.rand(JOINTS, generator=g) < 0.8).float()
        visible[0] = 1.0
        if index % CAMERAS == self.camera and self.begin <= index < self.end:
            image.zero_()
            visible.zero_()
        return image, xy, visible
