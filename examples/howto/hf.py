"""Train a small model with the trainer of Hugging Face's transformers, on the CPU."""

import torch
from transformers import Trainer, TrainingArguments


class Regression(torch.nn.Module):
    """A linear regression with its loss."""

    def __init__(self) -> None:
        super().__init__()
        self.linear = torch.nn.Linear(32, 1)

    def forward(self, x: torch.Tensor, labels: torch.Tensor) -> dict[str, torch.Tensor]:
        """Return the loss, as the trainer expects it."""
        return {"loss": torch.nn.functional.mse_loss(self.linear(x), labels)}


def main() -> None:
    rows = [{"x": torch.randn(32), "labels": torch.randn(1)} for _ in range(64)]
    options = TrainingArguments(
        "out",
        max_steps=20,
        logging_steps=10,
        save_strategy="no",
        report_to="none",
        use_cpu=True,
        ddp_backend="gloo",
        disable_tqdm=True,
    )
    Trainer(Regression(), options, train_dataset=rows).train()


if __name__ == "__main__":
    main()
