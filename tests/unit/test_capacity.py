"""More children than the host can hold are refused with the figure."""

import resource

import pytest

import sandbox_exec as sx
from sandbox_exec.engine import capacity
from sandbox_exec.engine.capacity import Room, make_room


def test_as_many_as_fit_and_not_one_more():
    room = Room("beds", 100, 10, 7)
    room.check(12)
    with pytest.raises(sx.ConfigError, match="max_children=13 needs 101 beds, there are 100: 12 fit"):
        room.check(13)
    with pytest.raises(sx.ConfigError, match=": 0 fit"):
        Room("beds", 5, 10, 7).check(1)


@pytest.mark.parametrize("short", ["descriptors", "tasks", "memory"])
def test_what_is_short_is_named(monkeypatch, short):
    if short == "descriptors":
        monkeypatch.setattr(resource, "getrlimit", lambda _: (256, 300))
        said = r"descriptors \(ulimit -Hn\), there are 300: 39 fit"
    elif short == "tasks":
        monkeypatch.setattr(
            capacity, "_number", lambda file: 50 if "pids.max" in file or "pid_max" in file else None
        )
        said = "there are 50: 17 fit"
    else:
        monkeypatch.setattr("os.sysconf", lambda name: {"SC_PHYS_PAGES": 50_000, "SC_PAGE_SIZE": 4096}[name])
        said = "bytes of memory, there are 204,800,000: 49 fit"
    with pytest.raises(sx.ConfigError, match=said):
        make_room(60)


def test_what_this_host_says_of_itself_is_enough_for_a_few():
    make_room(4)
    with pytest.raises(sx.ConfigError, match="fit"):
        sx.SandboxExecutor(max_children=10**9)
