import torch


def show_errors(accelerator, wrong, budget):
    lines = []
    for ids, pred in wrong:
        if len(lines) >= budget:
            break
        lines.append(f"{ids[:4].tolist()} -> {int(pred)}")
    if lines and accelerator.is_main_process:
        accelerator.wait_for_everyone()
        print("\n".join(lines), flush=True)


@torch.no_grad()
def evaluate(accelerator, model, loader, show):
    model.eval()
    hits, count, wrong = 0, 0, []
    for ids, labels in loader:
        pred = model(ids).argmax(-1)
        all_pred, all_labels = accelerator.gather_for_metrics((pred, labels))
        hits += (all_pred == all_labels).sum().item()
        count += len(all_labels)
        bad = pred != labels
        wrong += list(zip(ids[bad], pred[bad]))
    show_errors(accelerator, wrong, show)
    model.train()
    return hits / count
