"""What code inside a child may use: ``import sandbox_worker as sw; ctx = sw.context()``."""

TYPE_CHECKING = False
if TYPE_CHECKING:
    from sandbox_worker.conversation import Cancelled, Context, Denied, ToolFailed, context

__all__ = ["Cancelled", "Context", "Denied", "ToolFailed", "context"]

if not TYPE_CHECKING:  # with it, a type checker would take every name for an object

    def __getattr__(name: str) -> object:
        # At first use: the host imports this package for its protocol alone.
        if name not in __all__:
            msg = f"module {__name__!r} has no attribute {name!r}"
            raise AttributeError(msg)
        from sandbox_worker import conversation

        globals().update({each: getattr(conversation, each) for each in __all__})
        return globals()[name]
