import torch
from torch import nn


class Backbone(nn.Module):
    def __init__(self, width=8):
        super().__init__()
        self.body = nn.Sequential(
            nn.Conv2d(3, width, 3, padding=1), nn.BatchNorm2d(width), nn.ReLU(), nn.MaxPool2d(4),
            nn.Conv2d(width, width, 3, padding=1), nn.BatchNorm2d(width), nn.ReLU())
        self.score = nn.Conv2d(width, 1, 1)
        self.offset = nn.Conv2d(width, 4, 1)

    def forward(self, images):
        features = self.body(images)
        return self.score(features).flatten(1), self.offset(features).flatten(2).transpose(1, 2)


class DetectionTask:
    def __init__(self, model, cells=4):
        self.model = model
        step = (torch.arange(cells) + 0.5) / cells
        self.centers = torch.cartesian_prod(step, step)

    def match(self, boxes):
        """For each cell, whether it is inside a box, and the box."""
        x, y = self.centers[:, 1:], self.centers[:, :1]
        inside = (x > boxes[:, 0]) & (x < boxes[:, 2]) & (y > boxes[:, 1]) & (y < boxes[:, 3])
        if not len(boxes):
            return inside.any(1), torch.zeros(len(self.centers), 4)
        return inside.any(1), boxes[inside.float().argmax(1)]

    def training_step(self, images, targets):
        scores, offsets = self.model(images)
        matched = [self.match(boxes) for boxes in targets]
        positive = torch.stack([mask for mask, _ in matched])
        if not positive.any():
            return None
        wanted = torch.stack([box for _, box in matched])
        objectness = nn.functional.binary_cross_entropy_with_logits(scores, positive.float())
        boxes = nn.functional.smooth_l1_loss(offsets[positive], wanted[positive])
        return objectness + 2 * boxes
