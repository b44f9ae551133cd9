import json
import subprocess
import sys


def official_score(predictions, labels, path="predictions.json"):
    """The score by the benchmark's own script."""
    with open(path, "w") as file:
        json.dump(list(zip(predictions.tolist(), labels.tolist())), file)
    process = subprocess.Popen(
        [sys.executable, "-S", "score.py", path], stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True)
    code = process.wait()
    if code:
        raise RuntimeError(f"score.py failed: {code}")
    lines = process.stdout.read().splitlines()
    return json.loads(lines[-1])["accuracy"]
