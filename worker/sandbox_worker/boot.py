"""From the first instruction to Ready, on built-in and frozen modules only.

Executed by the launcher's command line with BUNDLE, {module name: (file, marshalled code)}. Order:
our own modules from the bundle, never from a path · the channel out of reach of programs that the
target starts · Boot · SIGURG's handler · Ready · and only then, with Run, anything of the user's.
"""

import _signal
import posix
import sys
from _frozen_importlib import ModuleSpec
from marshal import loads

BUNDLE: dict[str, tuple[str, bytes]]


class BundleFinder:
    """Finds `sandbox_worker` in the bundle, before every path: a package of that name cannot shadow it."""

    @staticmethod
    def find_spec(name: str, _path: object = None, _target: object = None) -> ModuleSpec | None:
        """The spec of one of our modules, or None."""
        if name not in BUNDLE:
            return None
        file = BUNDLE[name][0]
        spec = ModuleSpec(name, BundleFinder, origin=file, is_package=name == "sandbox_worker")
        spec.has_location = True
        if name == "sandbox_worker":  # what the bundle lacks (later: tools) is found beside it
            spec.submodule_search_locations = [file.rpartition("/")[0]]
        return spec

    @staticmethod
    def create_module(_spec: ModuleSpec) -> None:
        """The default module."""

    @staticmethod
    def exec_module(module: object) -> None:
        """Runs the module's code in it."""
        exec(loads(BUNDLE[module.__name__][1]), module.__dict__)  # noqa: S102 our own code


def main() -> None:
    """Boots, runs the one assignment, and never returns."""
    sys.meta_path.insert(0, BundleFinder)
    from sandbox_worker import channel, conversation, protocol  # noqa: PLC0415 the finder must stand first

    posix.set_inheritable(protocol.CHANNEL_FD, False)  # noqa: FBT003
    own = conversation.install()
    _, version, plan = channel.receive()
    if version != protocol.VERSION:
        channel.send('{"t":"boot_failed","why":"version"}')
        posix._exit(1)  # noqa: SLF001
    own._limits = plan["result_bytes"], plan["result_items"]  # noqa: SLF001
    channel.send('{"t":"ready","version":%d}' % protocol.VERSION)

    from sandbox_worker import runner  # noqa: PLC0415 nothing waits for it before Ready

    runner.run(channel.receive()[1], own)


main()
