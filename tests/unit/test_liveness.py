"""Who is gone, who may call, and who is never killed by mistake."""

from __future__ import annotations

import os
import stat
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from random import Random

import pytest

from perdure.clock import FakeClock
from perdure.errors import BadInput, InvariantError, StoreError
from perdure.model.instance import Instance, InstanceType
from perdure.runtime import liveness
from perdure.runtime.liveness import (
    Deadline,
    Host,
    InstanceLock,
    Observer,
    end_process,
    is_dead,
    new_instance_id,
    owner_of,
    side_file,
    whoami,
)
from perdure.states import InstanceStatus

LEASE_MS = 30_000
BEAT_MS = 5_000
ME = whoami()


def instance(name: str = "other", *, generation: int = 2, heartbeat: int = 7) -> Instance:
    return Instance(
        id=name,
        type=InstanceType.EXECUTOR,
        status=InstanceStatus.ACTIVE,
        host=ME.host,
        boot_id=ME.boot_id,
        pid=ME.pid,
        generation=generation,
        killable=True,
        heartbeat=heartbeat,
        heartbeat_at=0,
        started_at=0,
        stopped_at=None,
    )


class Watching:
    """An observer whose own heartbeats get through every 5 s, each followed by a look at the others."""

    def __init__(self) -> None:
        self.clock = FakeClock()
        self.observer = Observer(self.clock, LEASE_MS)

    def look(self, *instances: Instance) -> list[str]:
        self.observer.beat_acknowledged()
        return self.look_without_beat(*instances)

    def look_without_beat(self, *instances: Instance) -> list[str]:
        return [one.id for one in self.observer.saw(instances)]

    def pass_time(self, ms: int, *instances: Instance) -> list[str]:
        """Let time pass in beats while nobody's counter moves; what was said at the end."""
        gone: list[str] = []
        while ms > 0:
            self.clock.advance(min(ms, BEAT_MS))
            ms -= BEAT_MS
            gone = self.look(*instances)
        return gone


@pytest.fixture
def watching() -> Watching:
    return Watching()


# -- the observer ---------------------------------------------------------------------------


def test_a_frozen_instance_is_gone_after_one_lease_and_not_before(watching: Watching) -> None:
    frozen = instance()
    watching.look(frozen)

    after_nine_tenths = watching.pass_time(LEASE_MS * 9 // 10, frozen)
    at_the_lease = watching.pass_time(LEASE_MS // 10, frozen)
    later = watching.pass_time(LEASE_MS // 10, frozen)

    assert after_nine_tenths == []
    assert at_the_lease == ["other"]
    assert later == ["other"]


def test_an_instance_that_beats_is_never_gone(watching: Watching) -> None:
    said = []

    for beat in range(100):
        watching.clock.advance(BEAT_MS)
        said.append(watching.look(instance(heartbeat=beat)))

    assert said == [[]] * 100


def test_only_the_silent_ones_are_named_in_the_order_given(watching: Watching) -> None:
    said = []

    for beat in range(7):
        said.append(watching.look(instance("b"), instance("live", heartbeat=beat), instance("a")))
        watching.clock.advance(BEAT_MS)

    assert said == [[]] * 6 + [["b", "a"]]


@pytest.mark.parametrize("jump_ms", [86_400_000, -3_600_000])
def test_a_jump_of_the_wall_clock_accuses_nobody_and_hides_nobody(watching: Watching, jump_ms: int) -> None:
    frozen = instance()
    watching.look(frozen)

    watching.clock.jump(jump_ms)

    assert watching.pass_time(LEASE_MS - BEAT_MS, frozen) == []
    assert watching.pass_time(BEAT_MS, frozen) == ["other"]


def test_an_observer_that_was_stopped_accuses_nobody_until_a_new_lease_is_over(watching: Watching) -> None:
    frozen = instance()
    watching.look(frozen)

    watching.clock.advance(10 * LEASE_MS)

    assert watching.look(frozen) == []
    assert watching.pass_time(LEASE_MS - BEAT_MS, frozen) == []
    assert watching.pass_time(BEAT_MS, frozen) == ["other"]


def test_while_the_disk_stalls_reads_accuse_nobody(watching: Watching) -> None:
    healthy = instance()
    watching.look(healthy)
    said = []

    for _ in range(20):
        watching.clock.advance(BEAT_MS)
        said.append(watching.look_without_beat(healthy))
    # The disk is back, and the observer's beat was the first to get through.
    said.append(watching.look(healthy))

    assert said == [[]] * 21


def test_a_healthy_instance_survives_the_longest_stall_that_does_not_reset_the_watches() -> None:
    watching = Watching()
    watching.look(instance(heartbeat=1))

    # Half a lease of stall, then up to a third of a lease until the other one's turn to beat comes.
    watching.clock.advance(LEASE_MS // 2)
    watching.look(instance(heartbeat=1))
    watching.clock.advance(LEASE_MS // 3)
    said = watching.look(instance(heartbeat=1))

    assert said == []


def test_a_stall_between_two_looks_accuses_nobody(watching: Watching) -> None:
    healthy = instance()
    watching.look(healthy)

    watching.clock.advance(LEASE_MS * 2 // 3)
    watching.observer.beat_acknowledged()
    watching.clock.advance(LEASE_MS // 3)

    assert watching.look_without_beat(healthy) == []


def test_who_looks_seldom_finds_the_silent_ones_all_the_same(watching: Watching) -> None:
    frozen = instance()
    watching.look(frozen)

    for _ in range(2 * LEASE_MS // BEAT_MS):
        watching.clock.advance(BEAT_MS)
        watching.observer.beat_acknowledged()

    assert watching.look_without_beat(frozen) == ["other"]


def test_a_counter_that_starts_again_is_a_sign_of_life(watching: Watching) -> None:
    watching.look(instance(heartbeat=900))
    watching.pass_time(LEASE_MS - BEAT_MS, instance(heartbeat=900))

    assert watching.pass_time(BEAT_MS, instance(heartbeat=1)) == []
    assert watching.pass_time(LEASE_MS, instance(heartbeat=1)) == ["other"]


def test_a_new_generation_of_the_same_id_is_watched_anew(watching: Watching) -> None:
    watching.look(instance(generation=2))
    watching.pass_time(LEASE_MS - BEAT_MS, instance(generation=2))

    assert watching.pass_time(BEAT_MS, instance(generation=3)) == []


def test_an_instance_that_was_removed_and_comes_back_is_watched_anew(watching: Watching) -> None:
    watching.look(instance())
    watching.pass_time(LEASE_MS - BEAT_MS, instance())
    watching.pass_time(BEAT_MS)

    assert watching.pass_time(BEAT_MS, instance()) == []


# -- the owner's deadline -------------------------------------------------------------------


def test_an_owner_may_call_until_four_fifths_of_a_lease_after_its_beat_began() -> None:
    deadline = Deadline(LEASE_MS)

    deadline.beat_acknowledged(1_000)

    assert deadline.may_call(1_000)
    assert deadline.may_call(24_999)
    assert not deadline.may_call(25_000)


def test_each_acknowledged_beat_moves_the_deadline() -> None:
    deadline = Deadline(LEASE_MS)
    deadline.beat_acknowledged(0)

    deadline.beat_acknowledged(5_000)

    assert deadline.may_call(28_999)
    assert not deadline.may_call(29_000)


def test_an_owner_without_an_acknowledged_beat_may_not_call() -> None:
    assert not Deadline(LEASE_MS).may_call(0)


def test_a_late_answer_to_an_old_beat_does_not_shorten_the_deadline() -> None:
    deadline = Deadline(LEASE_MS)
    deadline.beat_acknowledged(10_000)

    deadline.beat_acknowledged(5_000)

    assert deadline.may_call(33_999)
    assert not deadline.may_call(34_000)


def test_an_owner_stops_calling_before_anyone_may_take_over(watching: Watching) -> None:
    deadline = Deadline(LEASE_MS)
    deadline.beat_acknowledged(watching.clock.boot_ms())
    watching.look(instance())

    may_call_when_gone = [
        deadline.may_call(watching.clock.boot_ms())
        for _ in range(2 * LEASE_MS // 100)
        if watching.pass_time(100, instance())
    ]

    assert may_call_when_gone
    assert not any(may_call_when_gone)


# -- who and where --------------------------------------------------------------------------


def test_this_process_is_known_by_host_boot_and_pid() -> None:
    assert whoami() == ME
    assert ME.host
    assert len(ME.boot_id) == 36
    assert ME.pid == os.getpid()


def test_an_instance_id_tells_the_second_and_ends_in_six_hex_digits() -> None:
    first = new_instance_id(1_790_000_000_999, Random(1))
    other = new_instance_id(1_790_000_000_999, Random(2))

    assert first == f"agt_20260921141320_{Random(1).getrandbits(24):06x}"
    assert len(first) == len("agt_") + 14 + 1 + 6
    assert first != other


def test_the_side_file_lies_beside_the_database_it_really_is(tmp_path: Path) -> None:
    (tmp_path / "real.db").touch()
    (tmp_path / "link.db").symlink_to("real.db")

    assert side_file(tmp_path / "real.db", "") == tmp_path / "real.db-live"
    assert side_file(tmp_path / "link.db", "") == tmp_path / "real.db-live"


def test_a_servers_side_file_lies_in_a_private_folder_whose_name_knows_no_password(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("XDG_RUNTIME_DIR", str(tmp_path))

    path = side_file(None, "postgresql://ann:secret@db/agents?sslmode=require&password=secret")

    assert path.parent == tmp_path / "perdure"
    assert stat.S_IMODE(path.parent.stat().st_mode) == 0o700
    assert path == side_file(None, "postgresql://ann:other@db/agents?sslmode=require&password=other")
    assert path == side_file(None, "postgresql://ann@db/agents?sslmode=require")
    assert path != side_file(None, "postgresql://ann@db/others?sslmode=require")


def test_a_folder_of_ours_that_others_could_read_is_closed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_RUNTIME_DIR", str(tmp_path))
    (tmp_path / "perdure").mkdir()
    (tmp_path / "perdure").chmod(0o777)

    path = side_file(None, "postgresql://db/agents")

    assert stat.S_IMODE(path.parent.stat().st_mode) == 0o700


def test_a_link_in_the_place_of_the_private_folder_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_RUNTIME_DIR", str(tmp_path))
    (tmp_path / "elsewhere").mkdir()
    (tmp_path / "perdure").symlink_to("elsewhere")

    with pytest.raises(StoreError, match="XDG_RUNTIME_DIR"):
        side_file(None, "postgresql://db/agents")


# -- the lock, inside one process -----------------------------------------------------------


@pytest.fixture
def side(tmp_path: Path) -> Path:
    return tmp_path / "agents.db-live"


@pytest.fixture
def lock() -> Iterator[InstanceLock]:
    held = InstanceLock()
    yield held
    held.release()


def test_a_held_byte_is_not_free_and_a_released_one_is(side: Path, lock: InstanceLock) -> None:
    assert lock.hold(side, 7, owner="a")
    assert InstanceLock.is_free(side, 7, owner="a") is False

    lock.release()
    lock.release()

    assert InstanceLock.is_free(side, 7, owner="a") is True


def test_the_side_file_is_private(side: Path, lock: InstanceLock) -> None:
    lock.hold(side, 7)

    assert stat.S_IMODE(side.stat().st_mode) == 0o600


def test_many_instances_hold_bytes_of_one_file(side: Path, lock: InstanceLock) -> None:
    neighbour = InstanceLock()

    assert lock.hold(side, 7, owner="a")
    assert neighbour.hold(side, 8, owner="b")
    neighbour.release()

    assert InstanceLock.is_free(side, 7, owner="a") is False
    assert InstanceLock.is_free(side, 8, owner="b") is True


def test_what_cannot_be_told_is_none(side: Path, lock: InstanceLock) -> None:
    without_a_file = InstanceLock.is_free(side, 7, owner="a")
    lock.hold(side, 7, owner="a")
    not_locked_yet = InstanceLock.is_free(side, 8, owner="b")
    of_another_owner = InstanceLock.is_free(side, 7, owner="b")

    assert (without_a_file, not_locked_yet, of_another_owner) == (None, None, None)


def test_a_new_file_of_the_same_name_proves_no_death(side: Path, lock: InstanceLock) -> None:
    lock.hold(side, 7, owner="a")

    side.unlink()
    side.touch()

    assert InstanceLock.is_free(side, 7, owner="a") is None


def test_a_byte_that_an_older_owner_still_holds_is_not_given_twice(side: Path, lock: InstanceLock) -> None:
    lock.hold(side, 7, owner="old")
    new = InstanceLock()

    took = new.hold(side, 7, owner="new")
    lock.release()

    assert not took
    assert InstanceLock.is_free(side, 7, owner="new") is None


def test_a_place_that_cannot_be_written_gives_no_lock_and_no_error(tmp_path: Path, lock: InstanceLock) -> None:
    (tmp_path / "link-live").symlink_to("elsewhere")

    assert not lock.hold(tmp_path / "missing" / "db-live", 7)
    assert not lock.hold(tmp_path / "link-live", 7)
    assert not (tmp_path / "elsewhere").exists()


def test_without_such_locks_nothing_is_held_and_nothing_is_told(
    side: Path, lock: InstanceLock, monkeypatch: pytest.MonkeyPatch
) -> None:
    other = InstanceLock()
    other.hold(side, 7, owner="a")
    monkeypatch.setattr(liveness, "_SET_LOCK", None)
    monkeypatch.setattr(liveness, "_GET_LOCK", None)

    assert not lock.hold(side, 8, owner="b")
    assert InstanceLock.is_free(side, 7, owner="a") is None
    other.release()


def test_a_second_hold_and_a_slot_that_is_no_generation_are_refused(side: Path, lock: InstanceLock) -> None:
    with pytest.raises(BadInput, match="slot: 0"):
        lock.hold(side, 0)
    lock.hold(side, 7)

    with pytest.raises(InvariantError):
        lock.hold(side, 8)


# -- death ----------------------------------------------------------------------------------


def hold_for(one: Instance, side: Path, lock: InstanceLock) -> None:
    assert lock.hold(side, one.generation, owner=owner_of(one.id, one.boot_id))


def test_a_free_byte_proves_death_under_this_kernel_or_an_earlier_one_of_this_host(
    side: Path, lock: InstanceLock
) -> None:
    now, earlier = instance("now", generation=2), replace(instance("earlier", generation=3), boot_id="before")
    hold_for(now, side, lock)
    alive = is_dead(now, me=ME, path=side)
    lock.release()
    hold_for(earlier, side, lock)
    lock.release()

    assert not alive
    assert is_dead(now, me=ME, path=side)
    assert is_dead(earlier, me=ME, path=side)


def test_a_machine_that_shares_the_file_but_not_the_locks_proves_nothing(side: Path, lock: InstanceLock) -> None:
    one = instance()
    hold_for(one, side, lock)
    lock.release()

    assert not is_dead(one, me=Host("elsewhere", "another boot", 4), path=side)
    assert not is_dead(one, me=replace(ME, boot_id=""), path=side)
    assert not is_dead(replace(one, boot_id=""), me=ME, path=side)


def test_an_instance_that_has_registered_and_not_locked_yet_is_not_dead(side: Path, lock: InstanceLock) -> None:
    hold_for(instance("first", generation=2), side, lock)

    assert not is_dead(instance("second", generation=3), me=ME, path=side)


@pytest.fixture
def bystander() -> Iterator[subprocess.Popen[bytes]]:
    """A process that has nothing to do with us and lives until its input ends."""
    command = [sys.executable, "-c", "input()"]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stderr=subprocess.DEVNULL) as process:
        yield process
        process.kill()


def test_a_process_that_does_not_hold_the_byte_is_never_killed(
    side: Path, lock: InstanceLock, bystander: subprocess.Popen[bytes]
) -> None:
    # As in a container: the byte is held, but its owner's pid means somebody else here.
    one = replace(instance(), pid=bystander.pid)
    hold_for(one, side, lock)

    assert not end_process(one, me=ME, path=side)
    assert bystander.poll() is None


def test_this_process_and_the_first_one_are_never_killed(side: Path, lock: InstanceLock) -> None:
    one = instance()
    hold_for(one, side, lock)

    assert not end_process(one, me=ME, path=side)
    assert not end_process(one, me=replace(ME, pid=4), path=side)
    for pid in (1, 0, -1):
        assert not end_process(replace(one, pid=pid), me=ME, path=side)
