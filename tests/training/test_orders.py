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
