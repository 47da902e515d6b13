"""What user code sees of its host: goal, boundary, steers, asks, events, partial results.

Cancel has no thread of its own: the host sends Cancel and SIGURG, whose handler raises `Cancelled` once
in the main thread. An asynchronous exception set from another thread would wait out every C call
(measured: 1.5 s in a sleep of 1.5 s; the handler 0.1 s).
"""

import _signal
import posix
from _thread import allocate_lock, get_ident

from sandbox_worker import channel, protocol

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any


class Cancelled(BaseException):
    """The host asked this child to end. Raised once, in the main thread; let it pass."""


class Denied(Exception):
    """The host refused an ask. The text says why."""


class ToolFailed(Exception):
    """The host ran the tool and it failed, or it could not be run."""


class _Pending:
    """An ask that waits for its answer."""

    __slots__ = ("answer", "wake")

    def __init__(self) -> None:
        self.answer: tuple[Any, ...] | None = None
        self.wake = allocate_lock()
        self.wake.acquire()


class Context:
    """The child's view of its own launch. One per process: `context`.

    Attributes:
        id: the child's id, as the host knows it.
        goal, context: the texts of a goal; empty for a callable or a command.
        toolsets: names of the toolsets that this child holds.
        workspace, scratch: directories, or None.
    """

    def __init__(self) -> None:
        self.id, self.goal, self.context = "", "", ""
        self.toolsets: tuple[str, ...] = ()
        self.workspace: str | None = None
        self.scratch: str | None = None
        self._armed = False  # Cancelled may be raised now
        self._cancelled = False  # it has been asked
        self._raised = False
        self._steers: list[tuple[int, str]] = []
        self._reader = allocate_lock()  # held by the one thread that reads the channel
        self._asks: dict[int, _Pending] = {}
        self._asked = 0
        self._limits = (protocol.DEFAULT_RESULT_BYTES, protocol.DEFAULT_RESULT_ITEMS)
        self._owner = posix.getpid()
        self._main = get_ident()

    def boundary(self) -> list[str]:
        """A safe point between two steps of work.

        Returns:
            The steer texts that arrived since the last boundary, in order.

        Raises:
            Cancelled: the host asked this child to end.
        """
        self._require_own_process()
        if self._reader.acquire(False):
            try:
                while (message := channel.poll()) is not None:
                    self._take(message)
            finally:
                self._release_reader()
        if self._cancelled:  # again, too: an import's callback or a __del__ may have swallowed the first
            self._raised = True
            raise Cancelled
        if not self._steers:
            return []
        # Taken means: user code holds it. Cancelled must not come between the word and the deed.
        with shielded(self):
            taken, self._steers = self._steers, []
            channel.send('{"t":"steer_taken","ids":[%s]}' % ",".join(str(number) for number, _ in taken))
        return [text for _, text in taken]

    def emit(self, kind: str, **data: object) -> None:
        """Sends a progress event; it is not part of the result.

        Args:
            kind: a short name, at most 200 characters.
            data: values of the kinds that can travel up; at most 1,000, of about 64 KB together.
        """
        self._require_own_process()
        from sandbox_worker import values

        channel.send(*_with_data('{"t":"event","kind":%s' % values.quote(kind, protocol.MAX_NAME), data))

    def partial(self, value: object) -> None:
        """Leaves a partial result: the outcome shows the last one if this child is cut short."""
        self._require_own_process()
        from sandbox_worker import values

        text = values.encode(value, *self._limits)
        with shielded(self):
            channel.send_value('{"t":"partial"}', text)

    def ask(self, tool: str, **args: object) -> object:
        """Asks the host to run one of its tools.

        Args:
            tool: the tool's name; it must be granted to this child.
            args: the tool's arguments; at most 1,000 values, of 64 KB together.

        Returns:
            What the tool returned.

        Raises:
            Denied: the tool is not granted, or the arguments are not valid for it.
            ToolFailed: the tool failed, timed out, or too many asks are under way ("busy").
        """
        self._require_own_process()
        from sandbox_worker import values

        if len(self._asks) >= protocol.MAX_ASKS_IN_FLIGHT:
            raise ToolFailed("busy")
        self._asked += 1
        number, pending = self._asked, _Pending()
        header = '{"t":"ask","id":%d,"tool":%s' % (number, values.quote(tool, protocol.MAX_NAME))
        message = _with_data(header, args)
        self._asks[number] = pending
        try:
            channel.send(*message)
            status, payload = self._wait(pending)
        finally:
            del self._asks[number]
        if status == protocol.ANSWERED:
            return _loaded(payload)
        raise (Denied if status == protocol.DENIED else ToolFailed)(payload)

    def _wait(self, pending: _Pending) -> "tuple[Any, ...]":
        """Reads until this ask is answered, or lets the thread that reads already do it."""
        while pending.answer is None:
            if self._reader.acquire(False):
                try:
                    while pending.answer is None:
                        self._take(channel.receive())
                finally:
                    self._release_reader()
            else:
                pending.wake.acquire()
        return pending.answer

    def _release_reader(self) -> None:
        self._reader.release()
        for waiting in list(self._asks.values()):  # one of them reads on
            if waiting.answer is None and waiting.wake.locked():
                waiting.wake.release()
                return

    def _take(self, message: "tuple[Any, ...]") -> None:
        kind = message[0]
        if kind == protocol.Down.STEER:
            self._steers.append((message[1], message[2]))
        elif kind == protocol.Down.CANCEL:
            self._cancelled = True
        elif kind == protocol.Down.ANSWER:
            pending = self._asks.get(message[1])
            if pending is not None:
                pending.answer = message[2:]
                if pending.wake.locked():
                    pending.wake.release()

    def _on_signal(self, _signum: int, _frame: object) -> None:
        """SIGURG: Cancel was sent."""
        self._cancelled = True
        if self._armed and not self._raised and posix.getpid() == self._owner:
            self._raised = True
            raise Cancelled

    def _require_own_process(self) -> None:
        if posix.getpid() != self._owner:
            msg = "this is a forked copy: the channel to the host belongs to the child that forked it"
            raise RuntimeError(msg)


def _with_data(header: str, data: dict[str, object]) -> tuple[str, bytes]:
    """Completes the line of an event or ask: its data is in it, or is its text."""
    from sandbox_worker import values

    if (plain := values.plain(data)) is not None:
        return f'{header},"plain":{plain}}}', b""
    return header + "}", values.encode(data, protocol.CHUNK_BYTES, protocol.MAX_EVENT_ITEMS)


class exposed:  # noqa: N801 used like a function
    """Lets `Cancelled` come to the main thread: while the user's code runs, and no longer.

    One that comes between the code's end and this one's is raised in its place.
    """

    __slots__ = ("_context",)

    def __init__(self, of: Context) -> None:
        self._context = of

    def __enter__(self) -> None:
        self._context._armed = True  # noqa: SLF001 one module, one reason

    def __exit__(self, *_: object) -> None:
        self._context._armed = False  # noqa: SLF001


class shielded:  # noqa: N801 used like a function
    """Keeps `Cancelled` away from the main thread; raises it afterwards if it was asked meanwhile."""

    __slots__ = ("_before", "_context")

    def __init__(self, of: Context) -> None:
        self._context, self._before = of, False

    def __enter__(self) -> None:
        if get_ident() == self._context._main:  # noqa: SLF001 one module, one reason
            self._before, self._context._armed = self._context._armed, False  # noqa: SLF001

    def __exit__(self, *_: object) -> None:
        own = self._context
        if get_ident() == own._main:  # noqa: SLF001
            own._armed = self._before  # noqa: SLF001
            if own._armed and own._cancelled and not own._raised:  # noqa: SLF001
                own._raised = True  # noqa: SLF001
                raise Cancelled


def _loaded(payload: tuple[str, bytes]) -> object:
    """A tool's answer; its class may be one of the host's alone."""
    try:
        return load(payload)
    except Exception as error:
        msg = f"the tool's answer cannot be had in a child: {type(error).__name__}: {error}"
        raise ToolFailed(msg) from error


def load(payload: tuple[str, bytes]) -> "Any":  # noqa: ANN401 whatever the host sent
    """Restores what the host sent down: marshalled where that is exact, else pickled."""
    how, data = payload
    if how == "marshal":
        import marshal

        return marshal.loads(data)
    import pickle

    return pickle.loads(data)


_context: Context | None = None


def context() -> Context:
    """The running child's context.

    Raises:
        RuntimeError: this process is not a child of an executor.
    """
    if _context is None:
        msg = "sandbox_worker.context() has an answer only inside a child"
        raise RuntimeError(msg)
    return _context


def install() -> Context:
    """Makes the context and its SIGURG handler; once, before Ready."""
    global _context  # noqa: PLW0603 one per process, by design
    _context = Context()
    _signal.signal(_signal.SIGURG, _context._on_signal)  # noqa: SLF001
    posix.register_at_fork(after_in_child=_after_fork)
    return _context


def _after_fork() -> None:
    """A program that the target forks must not hold the channel: its host would wait for it."""
    try:
        posix.close(protocol.CHANNEL_FD)
    except OSError:
        return
