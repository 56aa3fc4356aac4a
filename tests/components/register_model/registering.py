"""Helpers of these tests: write what earlier steps leave, run the step, look at MLflow."""

import json
import socket
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from components.register_model.register import Registration, register_run
from components.step import Step
from training.events import EventWriter, TrainStep
from training.run_folder import RunFolder

START = 1_790_000_000.0
SECRET = "s3cret-Pa55"


def write_steps(folder: RunFolder, attempt: int, steps: range, start: float, loss: float) -> None:
    writer = EventWriter(folder.events, f"rank-0-{attempt}", attempt)
    for i, step in enumerate(steps):
        writer.write(
            TrainStep(
                time=start + i,
                step=step,
                num_steps=6,
                loss=loss - 0.1 * step,
                grad_norm=1.0,
                learning_rate=1e-4,
                num_tokens=1000,
                num_supervised=400,
                seconds=0.5,
                memory_gib=1.5,
            )
        )
    writer.close()


def write_evaluation(folder: RunFolder, base_loss: float, tuned_loss: float) -> None:
    folder.evaluation.mkdir(exist_ok=True)
    for name, loss in (("base", base_loss), ("tuned", tuned_loss)):
        result = {
            "name": name,
            "loss": loss,
            "perplexity": 2.718281828**loss,
            "num_supervised": 1234,
            "seconds": 1.0,
            "generations": [],
        }
        (folder.evaluation / f"{name}.json").write_text(json.dumps(result))


def register(folder: RunFolder) -> Registration:
    with Step("register_model", str(folder.root), folder.run) as step:
        return register_run(step)


def aliases(uri: str, name: str = "shardline-model") -> dict[str, str]:
    # The SQL store gives numbers, the server text.
    return {alias: str(version) for alias, version in client_of(uri).get_registered_model(name).aliases.items()}


def client_of(uri: str) -> Any:
    from mlflow import MlflowClient

    return MlflowClient(tracking_uri=uri, registry_uri=uri)


@dataclass(frozen=True)
class Server:
    """A server that runs."""

    address: str
    """HOST:PORT."""
    folder: Path
    """Where its database and artifacts are."""

    @property
    def uri(self) -> str:
        return f"http://{self.address}"


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])
