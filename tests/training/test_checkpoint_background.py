"""What is done beside the training: in order, with its failures kept, and told of when it hangs."""

import threading
import time

from torch.distributed.checkpoint.api import CheckpointException

from training.checkpoint.background import Background


def make(timeout_s=60.0):
    told = []
    background = Background(
        "test",
        lambda: told.append("begun"),
        timeout_s,
        lambda what: told.append(f"{what} hangs"),
        lambda what, seconds: told.append(f"{what} is back after {seconds:.1f} s"),
    )
    return background, told


def test_things_are_done_in_order_in_one_thread():
    background, told = make()
    for number in range(20):
        background.submit("it", lambda number=number: told.append((number, threading.get_ident())))
    assert background.wait(5)
    assert told[0] == "begun" and [number for number, _ in told[1:]] == list(range(20))
    assert len({thread for _, thread in told[1:]}) == 1 and told[1][1] != threading.get_ident()


def test_the_first_failure_is_kept_and_each_future_has_its_own():
    background, _ = make()

    def fail(error):
        raise error

    first, second = OSError(28, "full"), OSError(5, "broken")
    done = [background.submit("it", lambda error=error: fail(error)) for error in (first, second)]
    fine = background.submit("it", lambda: None)
    assert background.wait(5) and background.has_failed
    assert [future.exception() for future in done] == [first, second] and fine.exception() is None
    assert background.take_failure() is first
    assert background.take_failure() is None and not background.has_failed


def test_a_thread_outlives_whatever_is_raised_in_it():
    background, _ = make()
    for error in (SystemExit(1), KeyboardInterrupt(), CheckpointException("not saved", {})):

        def fail(error=error):
            raise error

        done = background.submit("it", fail)
        assert background.wait(5), "or whoever waits for it would wait for ever"
        assert done.exception() is error and background.take_failure() is error


def test_a_thread_outlives_what_is_raised_in_telling_of_a_return():
    def refuse(what, seconds):
        raise OSError(28, "No space left on device")

    background = Background("test", lambda: None, 0.05, lambda what: None, refuse)
    for _ in range(2):
        background.submit("it", lambda: time.sleep(0.2))
        assert background.wait(5) and background.take_failure() is None


def test_what_hangs_is_told_once_and_its_return_too():
    background, told = make(timeout_s=0.1)
    gate = threading.Event()
    background.submit("the save", lambda: gate.wait(20) and None)
    started = time.monotonic()
    assert not background.wait(0.4)
    assert time.monotonic() - started < 5
    assert told == ["begun", "the save hangs"]
    gate.set()
    assert background.wait(5)
    assert told[2].startswith("the save is back after") and len(told) == 3
    background.submit("the next", lambda: None)
    assert background.wait(5) and len(told) == 3
