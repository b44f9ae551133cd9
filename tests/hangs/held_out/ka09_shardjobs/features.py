import torch

CATALOG = {"train": 9, "valid": 4, "test": 2}


def list_files(stage):
    return [f"{stage}-{i:03d}.wav" for i in range(CATALOG[stage])]


class Extractor:
    def __init__(self, frame=128):
        self.frame = frame
        self.mean, self.std = 0.0, 1.0
        self.window = torch.hann_window(frame)

    def set_scale(self, mean, std):
        self.mean, self.std = mean, max(std, 1e-6)

    def read(self, name):
        generator = torch.Generator().manual_seed(sum(map(ord, name)))
        return torch.randn(60 * self.frame, generator=generator)

    def write(self, name):
        signal = (self.read(name) - self.mean) / self.std
        frames = signal.unfold(0, self.frame, self.frame // 2) * self.window
        return torch.fft.rfft(frames).abs().log1p().shape[0]
