"""Published peaks: exactly the named device's, or none."""

import pytest
import torch

from training.peaks import device_name, peak_tflops

KNOWN = {
    "Tesla V100-SXM2-16GB": (None, 15.7),
    "Tesla V100-PCIE-32GB": (None, 14.0),
    "Tesla V100S-PCIE-32GB": (None, 16.4),
    "Tesla T4": (None, 8.1),
    "NVIDIA A100-SXM4-80GB": (312, 19.5),
    "A100-PCIE-40GB": (312, 19.5),
    "NVIDIA A100 80GB PCIe": (312, 19.5),
    "NVIDIA A10": (125, 31.2),
    "NVIDIA A10G": (70, 35),
    "NVIDIA A40": (149.7, 37.4),
    "NVIDIA RTX A6000": (154.8, 38.7),
    "NVIDIA GeForce RTX 4090": (165.2, 82.6),
    "NVIDIA L4": (121, 30.3),
    "NVIDIA L40": (181.05, 90.5),
    "NVIDIA L40S": (362.05, 91.6),
    "NVIDIA H100 80GB HBM3": (989.4, 66.9),
    "NVIDIA H100 PCIe": (756, 51.2),
    "NVIDIA H100 NVL": (835, 60),
    "NVIDIA H200": (989.4, 66.9),
    "NVIDIA H200 NVL": (835, 60),
    "NVIDIA GH200 480GB": (989.4, 66.9),
    "NVIDIA GH200 144G HBM3e": (989.4, 66.9),
    "NVIDIA B200": (2250, None),
    "NVIDIA GB200": (2500, None),
    "AMD Instinct MI250X": (191.5, 47.85),
    "AMD Instinct MI300X": (1307.4, 163.4),
    "AMD Instinct MI325X": (1307.4, 163.4),
}


@pytest.mark.parametrize("name", KNOWN)
def test_known_devices(name):
    assert (peak_tflops(name, "bfloat16"), peak_tflops(name, "float32")) == KNOWN[name]


@pytest.mark.parametrize(
    "name",
    [
        "NVIDIA H100",
        "NVIDIA A1000",
        "NVIDIA A100X",
        "NVIDIA L400",
        "NVIDIA T400 4GB",
        "NVIDIA RTX 6000 Ada Generation",
        "NVIDIA GeForce RTX 4090 D",
        "NVIDIA GeForce RTX 4090 Laptop GPU",
        "NVIDIA A100-SXM4-40GB MIG 3g.20gb",
        "NVIDIA H200 MIG 1g.18gb",
        "AMD Instinct MI250X/MI250",
        "AMD Instinct MI300A",
        "",
        None,
    ],
)
def test_a_name_that_is_only_similar_has_no_peak(name):
    assert peak_tflops(name, "bfloat16") is None
    assert peak_tflops(name, "float32") is None


@pytest.mark.parametrize("precision", ["float8", "float64"])
def test_no_peak_for_a_mixture_or_an_unlisted_precision(precision):
    assert peak_tflops("NVIDIA H200", precision) is None


def test_a_precision_of_another_spelling_is_an_error_and_not_silently_unknown():
    with pytest.raises(ValueError, match="'bf16'"):
        peak_tflops(None, "bf16")


def test_precisions_are_as_torch_names_them():
    for dtype, peak in ((torch.bfloat16, 989.4), (torch.float32, 66.9), (torch.float64, None)):
        assert peak_tflops("NVIDIA H200", str(dtype).removeprefix("torch.")) == peak


def test_a_cpu_has_no_name():
    assert device_name(torch.device("cpu")) is None
    assert peak_tflops(device_name(torch.device("cpu")), "float32") is None


def test_an_accelerator_is_asked_for_its_own_name(monkeypatch):
    monkeypatch.setattr(torch.cuda, "get_device_name", lambda device: f"NVIDIA of {device}")
    assert device_name(torch.device("cuda", 1)) == "NVIDIA of cuda:1"
