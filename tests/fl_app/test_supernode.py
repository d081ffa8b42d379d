"""The process of a device ends with Flower's loop, whatever threads there are beside it."""

import subprocess
import sys
import textwrap

import pytest

SUPERNODE = """
    import sys, threading
    from fl_app import supernode, warm_worker

    def loop():
        threading.Thread(target=threading.Event().wait).start()
        print("loop", sys.argv[0], flush=True)
        {end}

    warm_worker.find_command = lambda name: {{"flower-supernode": loop}}[name]
    supernode.run_supernode()
"""


@pytest.mark.parametrize(
    ("end", "told"), [("return", "has ended"), ("raise ValueError('broken')", "ValueError: broken")]
)
def test_a_loop_that_ends_ends_the_process(end: str, told: str) -> None:
    code = textwrap.dedent(SUPERNODE.format(end=end))
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, timeout=120, check=False
    )
    assert done.returncode == 1
    assert told in done.stderr
    assert "start the SuperNode again" in done.stderr
    assert done.stdout == "loop flower-supernode\n"
