"""A few daemon threads for what must not run on the loop: large decodings, host tools.

Not a ThreadPoolExecutor: its threads are joined at interpreter exit, and a host tool that hangs must
not keep the program from ending.
"""

from __future__ import annotations

import queue
import sys
import threading
from collections.abc import Callable

Job = Callable[[], None]


class Pool:
    """Threads that start when there is work for them."""

    def __init__(self, name: str, size: int) -> None:
        self._name, self._size = name, size
        self._jobs: queue.SimpleQueue[Job | None] = queue.SimpleQueue()
        self._lock = threading.Lock()
        self._threads: list[threading.Thread] = []
        self._outstanding = 0

    def submit(self, job: Job) -> bool:
        """Runs `job` on one of the threads; False if not one can be had."""
        with self._lock:
            if len(self._threads) < min(self._outstanding + 1, self._size):
                thread = threading.Thread(target=self._run, name=f"sandbox-exec {self._name}", daemon=True)
                try:
                    thread.start()
                except RuntimeError:  # a limit on processes or memory, or the interpreter is ending
                    if not self._threads:
                        return False
                else:
                    self._threads.append(thread)
            self._outstanding += 1
        self._jobs.put(job)
        return True

    def replace(self) -> None:
        """Allows one thread more: one hangs in a job that was given up."""
        with self._lock:
            self._size += 1

    def close(self) -> None:
        """Ends the threads; those that hang in a job are left to the end of the process."""
        for _ in self._threads:
            self._jobs.put(None)
        for thread in self._threads:
            if thread is not threading.current_thread():
                thread.join(timeout=1.0)

    def _run(self) -> None:
        while (job := self._jobs.get()) is not None:
            try:
                job()
            except BaseException as error:  # noqa: BLE001 a bug of ours must not cost the thread as well
                sys.excepthook(type(error), error, error.__traceback__)
            job = None  # a child's text and all that was made of it would wait here for the next one
            with self._lock:
                self._outstanding -= 1
