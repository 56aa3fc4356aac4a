"""What users of plain torchrun write: the same model and samples, a checkpoint every K steps, and no more.

`torchrun ... -m tests.faults.torchrun_side <run folder> <folder> <seconds>`: it reads model and data of a run
of Shardline, and writes `steps.jsonl` and `checkpoint.pt` into a folder of its own. The seconds are the timeout of
the process group.
"""

import json
import os
import sys
import time
from datetime import timedelta
from pathlib import Path

import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel
from transformers import LlamaForCausalLM

from training.data import GlobalOrder, PackedDataset, rank_samples
from training.run_folder import RunFolder


def main(run_folder: str, folder: str, timeout_s: str) -> None:
    """Be one rank."""
    run, own = RunFolder.at(run_folder), Path(folder)
    config, inputs = run.config(), run.inputs()
    torch.manual_seed(config.training.seed)
    torch.set_num_threads(1)
    dist.init_process_group("gloo", timeout=timedelta(seconds=float(timeout_s)))
    rank, steps = dist.get_rank(), config.training.max_steps
    assert steps is not None
    model = LlamaForCausalLM.from_pretrained(inputs.model, dtype=torch.float32)
    replica = DistributedDataParallel(model)
    optimizer = torch.optim.AdamW(model.parameters(), lr=config.training.learning_rate)
    step = 0
    if (own / "checkpoint.pt").is_file():
        saved = torch.load(own / "checkpoint.pt")
        model.load_state_dict(saved["model"])
        optimizer.load_state_dict(saved["optimizer"])
        step = saved["step"]
    dataset = PackedDataset(inputs.dataset / "train.arrow")
    order = GlobalOrder(len(dataset), config.training.seed)
    batch = config.training.global_batch_size
    while step < steps:
        samples = rank_samples(
            dataset,
            order,
            step,
            global_batch_size=batch,
            total_samples=steps * batch,
            rank=rank,
            world_size=dist.get_world_size(),
        )
        for number, sample in enumerate(samples):
            ids = torch.tensor(sample.input_ids[None], dtype=torch.int64)
            labels = torch.tensor(sample.labels, dtype=torch.int64)
            replica.require_backward_grad_sync = number == len(samples) - 1
            logits = replica(input_ids=ids).logits[0]
            torch.nn.functional.cross_entropy(logits, labels).div(len(samples)).backward()
        optimizer.step()
        optimizer.zero_grad()
        step += 1
        if rank == 0:
            with (own / "steps.jsonl").open("a") as log:
                log.write(json.dumps({"step": step, "time": time.time(), "pid": os.getpid()}) + "\n")
            if step % config.checkpoint.every_steps == 0:
                state = {"model": model.state_dict(), "optimizer": optimizer.state_dict(), "step": step}
                torch.save(state, own / "checkpoint.new")
                (own / "checkpoint.new").replace(own / "checkpoint.pt")
    dist.destroy_process_group()


if __name__ == "__main__":
    main(*sys.argv[1:])
