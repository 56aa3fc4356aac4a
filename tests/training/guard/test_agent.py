"""How a node ends its ranks."""

import contextlib
import signal
import subprocess
import sys

from training.guard.agent import RankAgent


class Ended:
    """A rank that has been reaped, of which the word has not come yet."""

    exitcode = None

    def __init__(self):
        process = subprocess.Popen([sys.executable, "-S", "-c", ""])
        process.wait()
        self.pid = process.pid
        self.looks = 0

    def is_alive(self):
        self.looks += 1
        return self.looks == 1

    def join(self, timeout):
        pass


class Living(Ended):
    """A rank that is at work."""

    def __init__(self):
        self.process = subprocess.Popen([sys.executable, "-S", "-c", "import time; time.sleep(600)"])
        self.pid = self.process.pid

    def is_alive(self):
        return self.process.poll() is None

    def join(self, timeout):
        with contextlib.suppress(subprocess.TimeoutExpired):
            self.process.wait(timeout)


def test_a_rank_that_has_just_ended_keeps_none_of_the_others_from_being_told():
    agent, living = RankAgent.__new__(RankAgent), Living()
    agent._ranks, agent._tails = {0: Ended(), 1: living}, []
    agent._shutdown(signal.SIGTERM, 20)
    assert living.process.poll() == -signal.SIGTERM
