"""Output is bytes, bounded, counted exactly, and never what a child's end waits for."""

import os
import subprocess
import time

import pytest

from children import watch
from children.watch import SUCCEEDED, Growth, how, regression


@regression("anomalyco/opencode#48414")
def test_a_silent_grandchild_with_the_output_open_keeps_nobody_waiting(case):
    outcome = case.sh("sleep 600 & echo done")
    assert how(outcome) == SUCCEEDED
    assert outcome.stdout.text == "done\n"

    # Whoever reads until end of file waits for the grandchild:
    began = time.monotonic()
    naive = subprocess.Popen(["sh", "-c", "sleep 1 & echo done"], stdout=-1)
    with naive:
        assert naive.stdout.read() == b"done\n"
    assert time.monotonic() - began > 0.9


@regression("ducks/claux#21")
def test_a_flood_is_counted_and_not_kept(case):
    flood, kept = 1 << 30, 1_000_000
    with Growth() as growth:
        outcome = case.sh(f"yes | head -c {flood}", limits=watch.limits(output_bytes=kept), within=50)
    assert how(outcome) == SUCCEEDED
    out = outcome.stdout
    assert (out.total_bytes, out.dropped_bytes) == (flood, flood - kept)
    assert out.head == out.tail == b"y\n" * (kept // 4)
    assert str(flood - kept) in out.text
    assert growth.bytes < 10_000_000


@regression("withcatai/node-llama-cpp#596")
def test_output_and_input_are_no_part_of_the_conversation(case):
    def target():

        os.write(1, b'\x00\xff{"id":1}\n' * 1000)
        os.write(1, b'{"t":"result"}\nnull\n')
        os.system("cat")
        os.system("ls -l /proc/self/fd >&2")
        return 7

    outcome = case.run(target)
    assert (how(outcome), outcome.value) == (SUCCEEDED, 7)
    assert outcome.stdout.head.count(b'\x00\xff{"id":1}\n') == 1000
    assert "socket" not in outcome.stderr.text
    assert "pipe" in outcome.stderr.text


@pytest.mark.parametrize("kind", ["random", "truncated", "cut"])
@regression("SWE-agent/SWE-agent#697")
def test_output_that_is_no_text_is_output(case, kind):
    match kind:
        case "random":
            outcome = case.sh("head -c 100000 /dev/urandom")
            assert len(outcome.stdout.head) == outcome.stdout.total_bytes == 100_000
            assert "\N{REPLACEMENT CHARACTER}" in outcome.stdout.text
        case "truncated":
            outcome = case.sh(r"printf '\360\050'")
            assert outcome.stdout.head == b"\xf0("
            assert outcome.stdout.text == "\N{REPLACEMENT CHARACTER}("
            with pytest.raises(UnicodeDecodeError):
                outcome.stdout.head.decode()
        case "cut":
            # Each of the four bytes of a character in a write of its own, and across the border of a pipe.
            outcome = case.sh(
                r"for byte in 360 237 220 215; do printf \\$byte; sleep 0.05; done;"
                r"head -c 65533 /dev/zero | tr '\0' x; printf '\360\237\220\215'"
            )
            assert outcome.stdout.text == "\N{SNAKE}" + "x" * 65_533 + "\N{SNAKE}"
    assert how(outcome) == SUCCEEDED
