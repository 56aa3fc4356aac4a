"""Notices that a machine is about to be taken away."""

import json
import os
import threading
import urllib.error
import urllib.request
from collections.abc import Callable

_EVERY_S = 5.0
"""Amazon asks to look so often; a notice comes two minutes before the end."""

_TIMEOUT_S = 2.0


def aws_notice() -> str | None:
    """What EC2's instance metadata says of the end of this spot instance; None: nothing, or no answer.

    The address can be set as for every AWS SDK, by AWS_EC2_METADATA_SERVICE_ENDPOINT.
    Source: https://docs.aws.amazon.com/AWSEC2/latest/UserGuide/spot-instance-termination-notices.html
    """
    root = os.environ.get("AWS_EC2_METADATA_SERVICE_ENDPOINT", "http://169.254.169.254").rstrip("/")
    try:
        token = _ask(f"{root}/latest/api/token", "PUT", {"X-aws-ec2-metadata-token-ttl-seconds": "300"})
        notice = json.loads(
            _ask(f"{root}/latest/meta-data/spot/instance-action", "GET", {"X-aws-ec2-metadata-token": token})
        )
        return f"this machine is to {notice['action']} at {notice['time']}"
    except (OSError, ValueError, KeyError, TypeError):
        return None  # 404 as long as there is no notice


class NoticeWatch:
    """Looks for a notice in the background, and tells of it once.

    Args:
        look: Gives the notice, or None.
        on_notice: Called with it, in another thread.
        every_s: Seconds between two looks.
    """

    def __init__(
        self, look: Callable[[], str | None], on_notice: Callable[[str], None], every_s: float = _EVERY_S
    ) -> None:
        self._look = look
        self._on_notice = on_notice
        self._every_s = every_s
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._run, name="preemption-notice", daemon=True)

    def start(self) -> None:
        """Begin."""
        self._thread.start()

    def stop(self) -> None:
        """End; does not wait for a look that is under way."""
        self._stop.set()

    def _run(self) -> None:
        while not self._stop.is_set():
            notice = self._look()
            if notice is not None and not self._stop.is_set():
                self._on_notice(notice)
                return
            self._stop.wait(self._every_s)


def _ask(url: str, method: str, headers: dict[str, str]) -> str:
    request = urllib.request.Request(url, method=method, headers=headers)
    with urllib.request.urlopen(request, timeout=_TIMEOUT_S) as answer:
        return str(answer.read().decode())
