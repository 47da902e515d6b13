"""From the first instruction to Ready, on built-in and frozen modules only.

Executed by the launcher's command line with BUNDLE, {module name: (file, marshalled code)}. Order:
our own modules from the bundle, never from a path · the channel out of reach of programs that the
target starts · Boot · SIGURG's handler · Ready · and only then, with Run, anything of the user's.
"""

import posix
import sys
from marshal import loads

TYPE_CHECKING = False
if TYPE_CHECKING:
    from importlib.machinery import ModuleSpec
    from types import ModuleType
    from typing import Any

BUNDLE: dict[str, tuple[str, bytes]] = globals()["BUNDLE"]  # from the command line
PACKAGE = "sandbox_worker"


def load(name: str) -> "Any":  # noqa: ANN401 a module, by name
    """Makes one of our modules without the import system, which costs more than all their code."""
    file, code = BUNDLE[name]
    module: Any = type(sys)(name)
    module.__file__, module.__package__ = file, PACKAGE
    if name == PACKAGE:  # what the bundle lacks is found beside it
        module.__path__ = [file.rpartition("/")[0]]
    else:
        setattr(sys.modules[PACKAGE], name.rpartition(".")[2], module)
    sys.modules[name] = module
    exec(loads(code), module.__dict__)  # noqa: S102 our own code
    return module


class BundleFinder:
    """For what is imported later: ours come from the bundle, before every path of the user's."""

    @staticmethod
    def find_spec(name: str, _path: object = None, _target: object = None) -> "ModuleSpec | None":
        """The spec of one of our modules, or None."""
        if name not in BUNDLE:
            return None
        from _frozen_importlib import ModuleSpec

        spec = ModuleSpec(
            name,
            BundleFinder,  # type: ignore[arg-type]
            origin=BUNDLE[name][0],
        )
        spec.has_location = True
        return spec

    @staticmethod
    def create_module(_spec: "ModuleSpec") -> None:
        """The default module."""

    @staticmethod
    def exec_module(module: "ModuleType") -> None:
        """Runs the module's code in it."""
        exec(loads(BUNDLE[module.__name__][1]), module.__dict__)  # noqa: S102 our own code


def main() -> None:
    """Boots, runs the one assignment, and never returns."""
    sys.meta_path.insert(0, BundleFinder)  # a class serves as well as an object
    load(PACKAGE)
    protocol, channel, conversation = (
        load(f"{PACKAGE}.{name}") for name in ("protocol", "channel", "conversation")
    )
    posix.set_inheritable(protocol.CHANNEL_FD, False)
    own = conversation.install()
    _, version, plan = channel.receive()
    if version != protocol.VERSION:
        channel.send('{"t":"boot_failed","why":"version"}')
        posix._exit(1)  # noqa: SLF001
    own._limits = plan["result_bytes"], plan["result_items"]  # noqa: SLF001
    channel.send('{"t":"ready","version":%d}' % protocol.VERSION)
    runner = load(f"{PACKAGE}.runner")  # while the host looks at us
    runner.run(channel.receive()[1], own)


main()
