"""Looking for threads that were left behind never waits for itself."""

from __future__ import annotations

import subprocess
import sys

PROGRAM = """
import gc, threading
from holdfast.runtime.failures.left_behind import LEFT_BEHIND

class Cycle:
    pass

def garbage():
    one = Cycle()
    one.itself, one.local = one, threading.local()
    one.local.value = one

# The collection is due at one allocation after the other, so that it is once due in the middle.
for threshold in range(2, 40):
    over = threading.Event()
    threads = [threading.Thread(target=over.wait) for _ in range(8)]
    for each in threads:
        each.start()
    gc.collect()
    garbage()
    gc.set_threshold(threshold)
    LEFT_BEHIND.runs("key")
    gc.set_threshold(700)
    over.set()
    for each in threads:
        each.join()
print("done", gc.isenabled())
"""


def test_a_garbage_collection_does_not_stop_the_process():
    """Python 3.11 makes the frames of other threads under a lock that the end of a `threading.local` needs, too."""
    ended = subprocess.run([sys.executable, "-c", PROGRAM], capture_output=True, text=True, timeout=60, check=False)
    assert ended.stdout == "done True\n", ended.stderr
