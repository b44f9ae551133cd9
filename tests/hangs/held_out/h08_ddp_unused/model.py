"""Detector with an optional mask head."""
import torch
from torch import nn


class Detector(nn.Module):
    def __init__(self, dim=24):
        super().__init__()
        self.backbone = nn.Sequential(nn.Linear(dim, 48), nn.ReLU(), nn.Linear(48, 32), nn.ReLU())
        self.boxes = nn.Linear(32, 4)
        self.masks = nn.Linear(32, 9)

    def forward(self, images, boxes, masks):
        feats = self.backbone(images)
        losses = {"box": nn.functional.smooth_l1_loss(self.boxes(feats), boxes)}
        positive = masks.flatten(1).any(1)
        if positive.any():
            pred = self.masks(feats[positive])
            losses["mask"] = nn.functional.mse_loss(pred, masks[positive].float())
        return losses


def fake_batch(rank, step):
    g = torch.Generator().manual_seed(31 * rank + step)
    images = torch.randn(8, 24, generator=g)
    boxes = torch.rand(8, 4, generator=g)
    masks = torch.rand(8, 9, generator=g) > 0.5
    if rank == 1 and step == 6:
        masks[:] = False  # a batch of empty pictures
    return images, boxes, masks
