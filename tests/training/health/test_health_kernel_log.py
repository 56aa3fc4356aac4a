import os
import time

import pytest

from training.health.kernel_log import KernelLog, parse_line, recent
from training.health.policy import load_policy
from training.health.xid import Xid, check_xids, judge_xid, parse_xid

POLICY = load_policy()


def xid_line(number, text="pid=1234, name=python", gpu="0000:17:00"):
    return f"NVRM: Xid (PCI:{gpu}): {number}, {text}"


def kmsg(text, seconds_ago=0.0):
    return f"3,1042,{int((time.monotonic() - seconds_ago) * 1e6)},-;{text}\n"


def check(tmp_path, *lines):
    path = tmp_path / "kmsg"
    path.write_text("".join(lines))
    return check_xids(POLICY, path)


def test_lines_of_every_form_are_read():
    assert parse_line("6,339,5140900,-,caller=T1;NET: a;b") == parse_line("[    5.140900] NET: a;b")
    assert parse_line("<6>[    5.140900] NET: a;b").uptime_s == 5.1409
    assert parse_line("NET: a").uptime_s is None


@pytest.mark.parametrize(
    ("line", "found"),
    [
        (xid_line(79), Xid(79, "0000:17:00", "pid=1234, name=python")),
        ("NVRM: Xid (PCI:0000:9b:00): 48", Xid(48, "0000:9b:00", "")),
        ("x kernel: [1.5] NVRM: Xid (PCI:0000:9b:00.0): 31, Ch 1", Xid(31, "0000:9b:00.0", "Ch 1")),
        ("NVRM: GPU at PCI:0000:9b:00: GPU-12", None),
    ],
)
def test_xids_are_found(line, found):
    assert parse_xid(line) == found


@pytest.mark.parametrize(
    ("number", "text", "action"),
    [
        (54, "", "isolate"),
        (79, "GPU has fallen off the bus.", "reboot"),
        (48, "", "reset"),
        (31, "", "restart"),
        (43, "", "monitor"),
        (45, "", "follow"),
        (154, "GPU recovery action changed from 0x0 (None) to 0x1 (GPU Reset Required)", "reset"),
        (154, "GPU recovery action changed from 0x1 (GPU Reset Required) to 0x2 (Node Reboot Required)", "reboot"),
        (154, "GPU recovery action changed from 0x1 (GPU Reset Required) to 0x0 (None)", "monitor"),
        (154, "GPU recovery action changed from 0x0 (None) to 0x4 (Drain and Reset)", "reset"),
        (149, "NETIR_LINK_EVT  Fatal  XC0 i0 Link 15 (0x004505c6 0x00000000)", "reset"),
        (145, "RLW_CTRL Nonfatal XC0 i14 Link -1 (0x01a3c0e2 0x00000000)", "monitor"),
        (7, "", "monitor"),
    ],
)
def test_what_an_xid_asks_for(number, text, action):
    verdict = judge_xid(Xid(number, "0000:17:00", text), POLICY)
    assert verdict.action == action
    assert verdict.is_fatal == (action in ("isolate", "reboot", "reset"))


def test_the_newest_hour_of_the_log_is_judged(tmp_path):
    assert check(tmp_path, kmsg("NET: up")).status == "ok"
    fatal = check(tmp_path, kmsg(xid_line(31)), kmsg(xid_line(79)), kmsg(" continued"))
    assert fatal.status == "failed" and "XID 79" in fatal.text and fatal.advice == "reboot the machine"
    assert fatal.measured == {"31": 1, "79": 1}
    assert check(tmp_path, kmsg(xid_line(31))).status == "warning"
    # A line without a time cannot be told to be old.
    assert check(tmp_path, xid_line(79) + "\n").status == "failed"


def test_what_was_dealt_with_long_ago_does_not_count(tmp_path):
    limits = POLICY.thresholds.model_copy(update={"kernel_log_window_s": 5.0})
    path = tmp_path / "kmsg"
    path.write_text(kmsg(xid_line(79), seconds_ago=20))
    assert check_xids(POLICY.model_copy(update={"thresholds": limits}), path).status == "ok"


def test_a_program_error_that_returns_on_one_gpu_points_to_the_gpu(tmp_path):
    spread = [kmsg(xid_line(31, gpu=f"0000:{bus}:00")) for bus in (17, 18, 19)]
    assert "may be the GPU" not in check(tmp_path, *spread).text
    result = check(tmp_path, *[kmsg(xid_line(31))] * 3)
    assert result.status == "warning" and "came 3 times" in result.text and "--deep" in result.advice


def test_a_log_that_cannot_be_read_is_not_called_healthy(tmp_path):
    assert check_xids(POLICY, tmp_path / "none").status == "not_present"
    assert recent(tmp_path / "none", 60) is None


def test_what_is_no_log_is_neither_called_healthy_nor_in_the_way(tmp_path):
    assert check_xids(POLICY, tmp_path).status == "not_present"
    assert list(KernelLog(tmp_path, from_end=True).lines()) == []
    os.mkfifo(tmp_path / "pipe")
    log = KernelLog(tmp_path / "pipe", from_end=True)
    with (tmp_path / "pipe").open("w") as pipe:
        pipe.write("one line\n")
        pipe.flush()
        assert [line.text for line in log.lines()] == ["one line"]
    log.close()


def test_a_log_is_followed_through_half_lines_and_rotation(tmp_path):
    path = tmp_path / "log"
    path.write_text("old\n")
    log = KernelLog(path, from_end=True)
    assert list(log.lines()) == []
    with path.open("a") as file:
        file.write("one\ntw")
        file.flush()
        assert [line.text for line in log.lines()] == ["one"]
        file.write("o\n")
        file.flush()
        assert [line.text for line in log.lines()] == ["two"]
    path.rename(tmp_path / "log.1")
    path.write_text("three\n")
    assert [line.text for line in log.lines()] == ["three"]
    path.write_text("4\n")
    assert [line.text for line in log.lines()] == ["4"]
    log.close()


def test_a_log_that_comes_later_is_read_from_its_beginning(tmp_path):
    log = KernelLog(tmp_path / "log", from_end=True)
    assert list(log.lines()) == []
    (tmp_path / "log").write_text("first\n")
    assert [line.text for line in log.lines()] == ["first"]
    log.close()
