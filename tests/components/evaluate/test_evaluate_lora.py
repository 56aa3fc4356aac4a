"""Runs whose tuned model is an adapter, or was one."""

import json
import shutil

import pytest
import torch
from peft import LoraConfig, get_peft_model

from training.store import seal

# peft asks transformers for something by its former name.
pytestmark = pytest.mark.filterwarnings("ignore:.*is_gradient_checkpointing")

LORA = {"training": {"precision": "fp32", "method": "lora"}, "lora": {"rank": 4}}


def tune(base):
    settings = LoraConfig(r=4, lora_alpha=8, target_modules="all-linear", task_type="CAUSAL_LM")
    model = get_peft_model(base, settings)
    torch.manual_seed(2)
    for name, parameter in model.named_parameters():
        if "lora_B" in name:
            torch.nn.init.normal_(parameter, std=0.3)
    return model


def measured(step, out):
    result = json.loads((step.folder.evaluation / "tuned.json").read_text())
    return result["loss"], [g["answer"] for g in result["generations"]], (out / "report.html").read_text()


def test_an_adapter_is_measured_on_the_base_in_the_store(trained_run, make_model, tokenizer, metrics, evaluate):
    step = trained_run("adapter", tuned=False, **LORA)
    adapted = tune(make_model(0))
    # There is no such model anywhere: the base has to come from the store.
    adapted.peft_config["default"].base_model_name_or_path = "org/nowhere"
    adapted.save_pretrained(step.folder.model)
    tokenizer.save_pretrained(step.folder.model)
    shutil.copy(step.folder.inputs().model / "config.json", step.folder.model)
    seal(step.folder.model, {"run": "adapter"})
    loss, answers, report = measured(step, evaluate(step))

    whole = trained_run("merged", tuned=False, **{**LORA, "lora": {"rank": 4, "export": "merged"}})
    adapted.merge_and_unload().save_pretrained(whole.folder.model)
    tokenizer.save_pretrained(whole.folder.model)
    seal(whole.folder.model, {"run": "merged"})
    merged_loss, merged_answers, merged_report = measured(whole, evaluate(whole))

    assert loss == pytest.approx(merged_loss, rel=1e-5)
    assert answers == merged_answers
    assert abs(loss - metrics["base_loss"]) > 0.01
    assert "LoRA adapter of rank 4, of use only on the base model" in report
    assert "whole, with a LoRA adapter of rank 4 merged into the base model" in merged_report


def test_a_full_fine_tuning_says_nothing_of_adapters(trained_run, evaluate):
    report = (evaluate(trained_run()) / "report.html").read_text()
    assert "adapter" not in report.partition("Resolved configuration")[0]
