"""Threads for what must not run on the loop."""

import threading

from sandbox_exec.engine.pool import Pool

SECONDS = 10.0


def test_a_job_that_raises_is_told_and_costs_no_thread(monkeypatch):
    told, done = [], threading.Event()
    monkeypatch.setattr("sys.excepthook", lambda *error: told.append(error[0]))
    pool = Pool("test", 2)
    for _ in range(6):
        assert pool.submit(lambda: 1 / 0)
    assert pool.submit(done.set)
    assert done.wait(SECONDS)
    assert told == [ZeroDivisionError] * 6
    pool.close()


def test_close_from_one_of_its_own_threads():
    pool, done = Pool("test", 1), threading.Event()

    def close():
        pool.close()
        done.set()

    pool.submit(close)
    assert done.wait(SECONDS)
