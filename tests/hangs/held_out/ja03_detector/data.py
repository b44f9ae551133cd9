import json

import torch
from torch.utils.data import Dataset


class Scenes(Dataset):
    def __init__(self, annotations):
        with open(annotations) as file:
            self.rows = json.load(file)["images"]

    def __len__(self):
        return len(self.rows)

    def __getitem__(self, index):
        row = self.rows[index]
        generator = torch.Generator().manual_seed(row["id"])
        image = torch.randn(3, 16, 16, generator=generator)
        return image, torch.tensor(row["boxes"], dtype=torch.float32).reshape(-1, 4)


def collate(samples):
    images = torch.stack([image for image, _ in samples])
    return images, [boxes for _, boxes in samples]
