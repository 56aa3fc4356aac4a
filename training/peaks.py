"""What accelerators can compute at most, as their makers publish it: the denominator of MFU."""

import re
from dataclasses import dataclass

import torch


@dataclass(frozen=True)
class _Peak:
    """Published peaks of one accelerator, dense: half of what a data sheet gives "with sparsity".

    Attributes:
        names: Pattern of the whole name that torch reports, less the brand before it.
        bf16: TFLOP/s of matrix products in bf16 that are summed in fp32; None: it has none.
        fp32: TFLOP/s in IEEE fp32; None: not published, or in versions that disagree.
    """

    names: str
    bf16: float | None
    fp32: float | None


# fp32 is not TF32, of which a product keeps ten bits: torch takes TF32 only where a program switches it on, and
# this one does not. On NVIDIA's that is the rate of the CUDA cores, on AMD's of the matrix cores.
_PEAKS = (
    # "NVIDIA V100 Tensor Core GPU" data sheet.
    # https://images.nvidia.com/content/technologies/volta/pdf/volta-v100-datasheet-update-us-1165301-r5.pdf
    _Peak(r"V100-SXM2-\d+GB", bf16=None, fp32=15.7),
    _Peak(r"V100-PCIE-\d+GB", bf16=None, fp32=14.0),
    _Peak(r"V100S-PCIE-\d+GB", bf16=None, fp32=16.4),
    # "NVIDIA T4 Tensor Core GPU" data sheet.
    # https://www.nvidia.com/content/dam/en-zz/Solutions/Data-Center/tesla-t4/t4-tensor-core-datasheet-951643.pdf
    _Peak(r"T4", bf16=None, fp32=8.1),
    # "NVIDIA A100 Tensor Core GPU" data sheet, which gives SXM and PCIe the same.
    # https://www.nvidia.com/content/dam/en-zz/Solutions/Data-Center/a100/pdf/nvidia-a100-datasheet-us-nvidia-1758950-r4-web.pdf
    _Peak(r"A100(-SXM4-\d+GB|-PCIE-\d+GB| \d+GB PCIe)", bf16=312, fp32=19.5),
    # "NVIDIA A10" data sheet.
    # https://www.nvidia.com/content/dam/en-zz/Solutions/Data-Center/a10/pdf/a10-datasheet.pdf
    _Peak(r"A10", bf16=125, fp32=31.2),
    # "NVIDIA A10G", the data sheet of AWS, whose card it is: slower in matrix products than the A10.
    # https://d1.awsstatic.com/product-marketing/ec2/NVIDIA_AWS_A10G_DataSheet_FINAL_02_17_2022.pdf
    _Peak(r"A10G", bf16=70, fp32=35),
    # "NVIDIA Ampere GA102 GPU Architecture", appendix.
    # https://www.nvidia.com/content/PDF/nvidia-ampere-ga-102-gpu-architecture-whitepaper-v2.1.pdf
    _Peak(r"A40", bf16=149.7, fp32=37.4),
    _Peak(r"RTX A6000", bf16=154.8, fp32=38.7),
    # "NVIDIA Ada GPU Architecture", appendix; GeForce sums bf16 in fp32 at half the rate.
    # https://images.nvidia.com/aem-dam/Solutions/geforce/ada/nvidia-ada-gpu-architecture.pdf
    _Peak(r"GeForce RTX 4090", bf16=165.2, fp32=82.6),
    # "NVIDIA L4", "L40" and "L40S" data sheets.
    # https://www.nvidia.com/en-us/data-center/l4/ and …/l40/ and …/l40s/
    _Peak(r"L4", bf16=121, fp32=30.3),
    _Peak(r"L40", bf16=181.05, fp32=90.5),
    _Peak(r"L40S", bf16=362.05, fp32=91.6),
    # "NVIDIA H100 Tensor Core GPU" data sheet: SXM, PCIe, NVL (of one card). https://www.nvidia.com/en-us/data-center/h100/
    _Peak(r"H100 80GB HBM3", bf16=989.4, fp32=66.9),
    _Peak(r"H100 PCIe", bf16=756, fp32=51.2),
    _Peak(r"H100 NVL", bf16=835, fp32=60),
    # "NVIDIA H200 Tensor Core GPU" data sheet: SXM, NVL. https://www.nvidia.com/en-us/data-center/h200/
    _Peak(r"H200", bf16=989.4, fp32=66.9),
    _Peak(r"H200 NVL", bf16=835, fp32=60),
    # "NVIDIA GH200 Grace Hopper Superchip" data sheet, which gives its GPU the figures of the H100 SXM.
    # https://resources.nvidia.com/en-us-grace-cpu/grace-hopper-superchip
    _Peak(r"GH200 \d+GB?( HBM3e?)?", bf16=989.4, fp32=66.9),
    # "NVIDIA Blackwell" data sheet: HGX B200, and one of the two GPUs of a GB200. Its editions differ in fp32.
    # https://resources.nvidia.com/en-us-blackwell-architecture/datasheet
    _Peak(r"B200", bf16=2250, fp32=None),
    _Peak(r"GB200", bf16=2500, fp32=None),
    # "AMD Instinct MI250X"; torch sees its two dies as two devices, so these are halves of the card's.
    # https://www.amd.com/en/products/accelerators/instinct/mi200/mi250x.html
    _Peak(r"MI250X", bf16=191.5, fp32=47.85),
    # "AMD Instinct MI300X" and "MI325X", which differ in memory alone.
    # https://www.amd.com/en/products/accelerators/instinct/mi300/mi300x.html and …/mi325x.html
    _Peak(r"MI3(00|25)X( OAM| VF)?", bf16=1307.4, fp32=163.4),
)

_PRECISIONS = ("bfloat16", "float32", "float64", "float8")

_BRAND = re.compile(r"^(NVIDIA |Tesla |AMD |Instinct )*")


def peak_tflops(device_name: str | None, precision: str) -> float | None:
    """The published dense peak of one device.

    Args:
        device_name: As torch reports it; see `device_name`.
        precision: Of the matrix products, as torch names it: `bfloat16`, `float32`, `float64`; or `float8`, which
            has no peak here: some products are in float8 and the rest in bf16, so that neither is the one to
            compare with.

    Returns:
        TFLOP/s. None: the device or the precision is not in the table, which is better than the figure of
        another: names that are nearly the same may differ by a factor, and a slice of a device (MIG) is no whole.

    Raises:
        ValueError: There is no such precision.
    """
    if precision not in _PRECISIONS:
        raise ValueError(f"the precision is {precision!r}, which is none of {', '.join(_PRECISIONS)}")
    name = _BRAND.sub("", device_name or "")
    for peak in _PEAKS:
        if re.fullmatch(peak.names, name):
            return {"bfloat16": peak.bf16, "float32": peak.fp32}.get(precision)
    return None


def device_name(device: torch.device) -> str | None:
    """The name that the device's driver gives it; None on a CPU, or where its back end tells none."""
    if device.type == "cpu":
        return None
    ask = getattr(torch.get_device_module(device), "get_device_name", None)
    return str(ask(device)) if ask is not None else None
