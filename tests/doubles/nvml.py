"""A stand-in for the module `pynvml`: GPUs as dictionaries of what they tell."""

from types import SimpleNamespace

HEALTHY = {
    "name": "NVIDIA H100 80GB HBM3",
    "recovery": 0,
    "ecc": 0,
    "rows": (0, 0, 0, 0),
    "used": 4 * 2**20,
    "links": [1] * 18,
    "throttle": 0x1,
    "temperature": 34,
    "xids": [],
}
"""As an idle one tells; 0x1 is idle clocks."""


class NVMLError(Exception):
    pass


class NVMLError_NotSupported(NVMLError):  # named as pynvml names it
    pass


class NVMLError_InvalidArgument(NVMLError):
    pass


class NVMLError_GpuIsLost(NVMLError):
    pass


class NVMLError_Timeout(NVMLError):
    pass


class NVMLError_LibraryNotFound(NVMLError):
    pass


class Nvml:
    """The functions of NVML that are read.

    Args:
        gpus: What differs from a healthy one, of each; a value that is an exception is raised.
        init: Raised at the start.
    """

    NVMLError = NVMLError
    NVML_NVLINK_MAX_LINKS = 36
    nvmlMemory_v2 = 0x02000028

    def __init__(self, gpus, init=None):
        self._gpus = [{**HEALTHY, **gpu} for gpu in gpus]
        self._init = init

    def nvmlInit(self):
        if self._init:
            raise self._init

    def nvmlShutdown(self):
        pass

    def nvmlDeviceGetCount(self):
        return len(self._gpus)

    def nvmlSystemGetDriverVersion(self):
        return b"570.86.15"

    def nvmlDeviceGetHandleByIndex(self, index):
        return self._gpus[index]

    def nvmlDeviceGetUUID(self, gpu):
        return f"GPU-{self._gpus.index(gpu)}"

    def nvmlDeviceGetName(self, gpu):
        return _told(gpu, "name")

    def nvmlDeviceGetFieldValues(self, gpu, fields):
        assert fields == [230]
        value = _told(gpu, "recovery")
        return [SimpleNamespace(nvmlReturn=3 if value is None else 0, value=SimpleNamespace(uiVal=value))]

    def nvmlDeviceGetTotalEccErrors(self, gpu, kind, counter):
        assert (kind, counter) == (1, 0)
        return _told(gpu, "ecc")

    def nvmlDeviceGetRemappedRows(self, gpu):
        return _told(gpu, "rows")

    def nvmlDeviceGetMemoryInfo(self, gpu, version=None):
        return SimpleNamespace(used=_told(gpu, "used"))

    def nvmlDeviceGetNvLinkState(self, gpu, link):
        links = _told(gpu, "links")
        if link >= len(links):
            raise NVMLError_InvalidArgument
        return links[link]

    def nvmlDeviceGetCurrentClocksEventReasons(self, gpu):
        return _told(gpu, "throttle")

    def nvmlEventSetCreate(self):
        return []

    def nvmlDeviceRegisterEvents(self, gpu, kinds, events):
        assert kinds == 0x8
        events += [(gpu, xid) for xid in _told(gpu, "xids")]

    def nvmlEventSetWait_v2(self, events, timeout_ms):
        if not events:
            raise NVMLError_GpuIsLost
        gpu, xid = events.pop(0)
        if xid is None:
            raise NVMLError_Timeout
        return SimpleNamespace(device=gpu, eventType=0x8, eventData=xid)

    def nvmlDeviceGetPciInfo(self, gpu):
        return SimpleNamespace(busId=b"00000000:%02d:00.0" % self._gpus.index(gpu))

    def nvmlDeviceGetTemperature(self, gpu, sensor):
        return _told(gpu, "temperature")


def _told(gpu, what):
    value = gpu[what]
    if isinstance(value, Exception):
        raise value
    return value
