import queue
import threading

import torch


class RecordStore:
    """Records of one host: features with annotations."""

    def __init__(self, host, count):
        self.host = host
        self.count = count

    def __len__(self):
        return self.count

    def __getitem__(self, index):
        gen = torch.Generator().manual_seed(self.host * 10_000 + index)
        boxes = [{"xywh": torch.rand(4, generator=gen), "cls": index % 3} for _ in range(6)]
        if self.host == 2 and index == 77:
            del boxes[3]["cls"]
        return {"image": torch.rand(24, generator=gen), "boxes": boxes}


def collate(records):
    images = torch.stack([r["image"] for r in records])
    boxes = torch.stack([torch.stack([b["xywh"] for b in r["boxes"]]).mean(0) for r in records])
    classes = torch.tensor([r["boxes"][0]["cls"] for r in records])
    weights = torch.tensor([sum(b["cls"] == r["boxes"][0]["cls"] for b in r["boxes"]) / 6 for r in records])
    return images, boxes, classes, weights


class Feed:
    def __init__(self, store, batch_size, depth=2):
        self.store = store
        self.batch_size = batch_size
        self.buffer = queue.Queue(depth)
        self.thread = threading.Thread(target=self.fill, name="feed", daemon=True)
        self.thread.start()

    def fill(self):
        for start in range(0, len(self.store), self.batch_size):
            rows = range(start, min(start + self.batch_size, len(self.store)))
            self.buffer.put(collate([self.store[i] for i in rows]))
        self.buffer.put(None)

    def __iter__(self):
        while True:
            batch = self.buffer.get()
            if batch is None:
                return
            yield batch
