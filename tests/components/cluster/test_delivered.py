"""Which lines of a log count as new, when the log is taken up again and again."""

from datetime import UTC, datetime, timedelta, timezone

from hypothesis import given, settings
from hypothesis import strategies as st

from components.cluster.logs import Delivered

START = int(datetime(2026, 11, 30, 23, 59, 57, tzinfo=UTC).timestamp()) * 10**9
SECOND = 10**9

TEXTS = st.sampled_from([b"", b"a", b"a b", "Grüße".encode(), b"\xff\xfe", b"10%\r20%", b"2026-11-30T10:55:04Z x"])


def stamp(at, zone, *, trims):
    seconds, fraction = divmod(at, SECOND)
    digits = f".{fraction:09d}"
    if trims:
        digits = digits.rstrip("0").rstrip(".")
    time = datetime.fromtimestamp(seconds, zone).isoformat()
    return f"{time[:19]}{digits}{time[19:].replace('+00:00', 'Z')} ".encode()


@st.composite
def logs(draw):
    """Times and texts of lines; a time may be up to a second before that of an earlier line."""
    newest, lines = START, []
    for _ in range(draw(st.integers(1, 30))):
        newest += draw(st.sampled_from([0, 0, 1, 1000, SECOND // 2, SECOND, 3 * SECOND]))
        back = draw(st.sampled_from([0, 0, 0, 1, SECOND // 2, SECOND]))
        lines.append((max(START, newest - back), draw(TEXTS)))
    return lines


@settings(max_examples=100, deadline=None)
@given(data=st.data(), log=logs(), zone=st.sampled_from([0, 120, -210]), trims=st.booleans())
def test_every_line_is_taken_once_wherever_streams_are_cut(data, log, zone, trims):
    zone = timezone(timedelta(minutes=zone)) if zone else UTC
    delivered, taken, written = Delivered(), [], 0

    def read(cut):
        """What a server sends of the lines written so far, up to a byte."""
        since = delivered.since()
        begin = int(datetime.fromisoformat(since).timestamp()) * SECOND if since else 0
        sent = b"".join(stamp(at, zone, trims=trims) + text + b"\n" for at, text in log[:written] if at >= begin)
        for line in sent[: cut(len(sent))].split(b"\n")[:-1]:
            if (text := delivered.take(line)) is not None:
                taken.append(text)

    for _ in range(data.draw(st.integers(0, 6))):
        written = data.draw(st.integers(written, len(log)))
        read(lambda size: data.draw(st.integers(0, size)))
    written = len(log)
    read(lambda size: size)
    assert taken == [text.decode(errors="backslashreplace") for _, text in log]


def test_a_log_is_taken_up_a_second_before_its_last_line_in_its_own_zone():
    delivered = Delivered()
    assert delivered.since() is None
    delivered.take(b"2026-11-30T10:00:00.5+05:30 a")
    assert delivered.since() == "2026-11-30T09:59:59+05:30"
    delivered.take(b"2026-12-01T00:00:00Z b")
    assert delivered.since() == "2026-11-30T23:59:59Z"


def test_what_the_node_says_of_itself_has_no_time():
    delivered = Delivered()
    delivered.take(b"2026-11-30T10:00:00.5Z a")
    complaint = b"unable to retrieve container logs for containerd://0123"
    assert delivered.take(complaint) == complaint.decode()
    assert delivered.since() == "2026-11-30T09:59:59Z"


def test_only_the_newest_seconds_are_remembered():
    delivered = Delivered()
    for second in range(60):
        for line in range(100):
            delivered.take(b"2026-11-30T10:00:%02d.%09dZ x" % (second, line))
    delivered.since()
    assert sum(len(lines) for lines in delivered._recent.values()) == 200
