import pytest

from training.orders import Orders


def test_the_newest_order_is_read(tmp_path):
    orders = Orders(tmp_path)
    assert orders.attempt() == 0
    for attempt in (1, 2, 1000):
        orders.give(attempt)
        assert Orders(tmp_path).attempt() == attempt


@pytest.mark.parametrize(
    "torn", [b"", b'{"attempt": 7}', b"\0" * 64, b'{"attempt": null}'.ljust(64), b"[7]".ljust(64)]
)
def test_an_order_that_is_half_written_is_none(tmp_path, torn):
    orders = Orders(tmp_path)
    orders.give(7)
    (tmp_path / "orders").write_bytes(torn)
    assert orders.attempt() == 0
    orders.give(8)
    assert orders.attempt() == 8


def test_nodes_of_an_attempt_can_be_told_to_leave(tmp_path):
    orders = Orders(tmp_path)
    orders.end(3)
    assert orders.attempt() == 4 and orders.says_leave(), "an attempt that runs is ended by a greater number"
    orders.give(4)
    assert orders.attempt() == 4 and not orders.says_leave()
