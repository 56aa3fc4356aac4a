import errno
import json
import os
import shutil
import socket
import subprocess
import sys
import textwrap
import threading
import time
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from training import store as store_module
from training.errors import UserError
from training.store import (
    MANIFEST,
    STAGING,
    Store,
    about,
    checksum,
    disk_errors,
    fingerprint,
    is_whole,
    rename_into_place,
    seal,
    verify,
    write_atomically,
)

NOBODY = 65534

needs_root = pytest.mark.skipif(
    os.geteuid() != 0, reason="only root can mount a small disk or become another user"
)


@pytest.fixture
def store(tmp_path):
    return Store(tmp_path / "store")


def publish(store, key="key", kind="models", content="content", **facts):
    with store.publish(kind, key, facts) as staging:
        (staging / "weights").write_text(content)
        (staging / "deep" / "er").mkdir(parents=True)
        (staging / "deep" / "er" / "file").write_text("below")
    return store.path(kind, key)


def staged(store):
    return sorted(path.name for path in (store.root / STAGING).iterdir())


def script(code, *arguments, **options):
    return subprocess.Popen(
        [sys.executable, "-c", textwrap.dedent(code), *map(str, arguments)],
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        **options,
    )


def age(folder, seconds):
    """Make a folder look as if it was last written to some time ago."""
    then = time.time() - seconds
    for path in (*folder.rglob("*"), folder):
        os.utime(path, (then, then))


def leave_staging(store, host=None, pid=None):
    host = store_module._host() if host is None else host
    pid = os.getpid() if pid is None else pid
    folder = store.root / STAGING / f"models-key.{host}.{pid}.abc123"
    folder.mkdir()
    (folder / "part").write_text("half")
    return folder


def pid_of_a_process_that_ended():
    process = script("pass")
    process.wait()
    return process.pid


# Publishing


def test_a_published_folder_is_found_whole_with_what_the_manifest_records(store):
    path = publish(store, source="org/model", count=3, name="日本")
    assert store.get("models", "key") == path == store.root / "models" / "key"
    assert about(path) == {"source": "org/model", "count": 3, "name": "日本"}
    assert verify(path) == []
    files = json.loads((path / MANIFEST).read_text())["files"]
    assert files["weights"] == {"bytes": 7, "sha256": checksum(path / "weights")}
    assert set(files) == {"weights", "deep/er/file"}
    assert staged(store) == []


def test_nothing_is_found_where_nothing_was_published(store):
    assert store.get("models", "key") is None
    store.path("models", "key").mkdir(parents=True)
    assert store.get("models", "key") is None, "a folder without a manifest was never published"


def cut(path):
    path.write_bytes(path.read_bytes()[:-1])


@pytest.mark.parametrize(
    "damage",
    [
        lambda path: (path / MANIFEST).write_text(""),
        lambda path: cut(path / MANIFEST),
        lambda path: (path / MANIFEST).write_bytes(b"\xff"),
        lambda path: (path / MANIFEST).write_text("[]"),
        lambda path: (path / MANIFEST).write_text('{"files": {"weights": {}}}'),
        lambda path: cut(path / "weights"),
        lambda path: (path / "deep" / "er" / "file").unlink(),
        lambda path: shutil.rmtree(path / "deep"),
    ],
)
def test_a_damaged_folder_counts_as_absent_and_is_replaced(store, damage):
    path = publish(store)
    damage(path)
    assert not is_whole(path)
    assert store.get("models", "key") is None
    assert publish(store) == path == store.get("models", "key")
    assert verify(path) == []
    assert staged(store) == []


def test_a_folder_is_readable_for_other_users_of_the_volume(store):
    assert publish(store).stat().st_mode & 0o777 == 0o755


@pytest.mark.parametrize("damage", ["change", "cut", "remove", "replace by a folder"])
def test_verify_names_a_damaged_file(store, damage):
    path = publish(store)
    file = path / "deep" / "er" / "file"
    file.unlink()
    if damage == "change":
        file.write_text("BELOW")
    elif damage == "cut":
        file.write_text("belo")
    elif damage == "replace by a folder":
        file.mkdir()
    assert verify(path) == ["deep/er/file"]


@pytest.mark.parametrize("error", [RuntimeError, UserError, KeyboardInterrupt, SystemExit])
def test_an_exception_publishes_nothing_and_passes_through(store, error):
    with pytest.raises(error), store.publish("models", "key", {}) as staging:
        (staging / "weights").write_text("half")
        raise error("stop")
    assert store.get("models", "key") is None
    assert staged(store) == []


def test_what_cannot_be_recorded_publishes_nothing(store):
    with pytest.raises(TypeError), store.publish("models", "key", {"path": Path("x")}):
        pass
    assert store.get("models", "key") is None
    assert staged(store) == []


def test_publishing_again_keeps_the_first_content(store):
    publish(store, content="first")
    publish(store, content="second")
    assert (store.path("models", "key") / "weights").read_text() == "first"
    assert verify(store.path("models", "key")) == []


def test_the_remains_of_a_removal_that_was_killed_are_replaced(store):
    path = publish(store, content="old")
    (path / MANIFEST).unlink()
    publish(store, content="new")
    assert (path / "weights").read_text() == "new"
    assert verify(path) == []
    assert staged(store) == []


def test_a_folder_that_holds_a_manifest_of_its_own_is_sealed_anew(tmp_path):
    (tmp_path / "file").write_text("x")
    seal(tmp_path, {"round": 1})
    (tmp_path / "file").write_text("y")
    seal(tmp_path, {"round": 2})
    assert verify(tmp_path) == []
    assert about(tmp_path) == {"round": 2}


def test_the_manifest_is_utf_8_whatever_the_locale(tmp_path):
    code = """
        import sys
        from training.store import Store, about
        name = chr(0x65e5)
        store = Store(sys.argv[1])
        with store.publish("models", "key", {"name": name}) as staging:
            (staging / "weights").write_text("x")
        print(about(store.path("models", "key")) == {"name": name})
    """
    env = {**os.environ, "LC_ALL": "C", "PYTHONUTF8": "0", "PYTHONCOERCECLOCALE": "0", "PYTHONIOENCODING": "utf-8"}
    process = script(code, tmp_path, env=env)
    assert process.communicate()[0] == "True\n"
    assert verify(tmp_path / "models" / "key") == []


@pytest.mark.parametrize(
    "name",
    [
        "../up",
        "..",
        ".",
        "/etc",
        "",
        "a/b",
        "a\\b",
        "ünï",
        "日本",
        " ",
        "a b",
        "a\n",
        ".staging",
        "-x",
        "a\0b",
        "~",
    ],
)
def test_a_hostile_name_is_refused(store, name):
    for call in (
        lambda: store.path(name, "key"),
        lambda: store.path("models", name),
        lambda: store.get("models", name),
        lambda: store.publish("models", name, {}).__enter__(),
    ):
        with pytest.raises(UserError, match="cannot be a name in the store"):
            call()
    assert staged(store) == []


@given(st.text(max_size=8))
def test_a_name_that_passes_stays_inside_the_store(name):
    # A store that is not written to, so that one serves all examples.
    store = Store.__new__(Store)
    store.root = Path("/store")
    try:
        path = store.path("models", name)
    except UserError:
        return
    assert path.parent == Path("/store/models")
    assert Path(os.path.normpath(path)) == path


# Writers that are killed


def test_a_writer_that_is_killed_leaves_nothing_that_looks_finished_and_sweep_removes_it(store):
    code = """
        import sys, time
        from training.store import Store
        with Store(sys.argv[1]).publish("models", "key", {}) as staging:
            (staging / "weights").write_text("half")
            print("writing", flush=True)
            time.sleep(60)
    """
    process = script(code, store.root)
    try:
        assert process.stdout.readline() == "writing\n"
        assert store.get("models", "key") is None
        assert store.sweep() == [], "its writer is alive"
    finally:
        process.kill()
    # Killed, but not waited for: a zombie.
    deadline = time.monotonic() + 10
    while Path(f"/proc/{process.pid}/stat").exists() and time.monotonic() < deadline:
        if Path(f"/proc/{process.pid}/stat").read_text().rpartition(")")[2].split()[0] == "Z":
            break
        time.sleep(0.01)
    assert store.get("models", "key") is None
    assert [path.exists() for path in store.sweep()] == [False]
    process.wait()
    assert staged(store) == []
    publish(store)
    assert verify(store.path("models", "key")) == []


@pytest.mark.parametrize("moment", ["seal", "rename"])
def test_a_writer_that_is_killed_at_the_last_moment_leaves_nothing_that_looks_finished(store, moment):
    code = """
        import os, signal, sys
        from training import store
        def die(*args):
            os.kill(os.getpid(), signal.SIGKILL)
        if sys.argv[2] == "seal":
            store._fsync = die
        else:
            store.rename_into_place = die
        with store.Store(sys.argv[1]).publish("models", "key", {}) as staging:
            (staging / "weights").write_text("whole")
    """
    assert script(code, store.root, moment).wait() == -9
    assert store.get("models", "key") is None
    assert len(store.sweep()) == 1


def test_sweep_leaves_the_staging_of_a_living_process_however_long_it_writes(store):
    folder = leave_staging(store)
    os.utime(folder / "part", (time.time() - 30 * 86400, time.time()))
    assert store.sweep() == []


def test_sweep_removes_the_staging_of_a_process_that_ended(store):
    folder = leave_staging(store, pid=pid_of_a_process_that_ended())
    assert store.sweep() == [folder]
    assert staged(store) == []


def test_sweep_removes_staging_from_before_the_process_of_its_number_began(store):
    folder = leave_staging(store)
    age(folder, 3 * 86400)
    assert store.sweep() == [folder]


@pytest.mark.parametrize("host", ["other-host", "10-0-0-1", "ip-10-0-0-1-ec2-internal"])
def test_sweep_leaves_the_staging_of_another_host_until_it_is_old(store, host):
    folder = leave_staging(store, host=host, pid=pid_of_a_process_that_ended())
    age(folder, 23 * 3600)
    assert store.sweep() == []
    age(folder, 25 * 3600)
    assert store.sweep() == [folder]


def test_staging_of_another_host_is_young_as_long_as_a_file_deep_inside_grows(store):
    folder = leave_staging(store, host="other-host")
    (folder / "deep").mkdir()
    (folder / "deep" / "file").write_text("x")
    age(folder, 25 * 3600)
    os.utime(folder / "deep" / "file")
    assert store.sweep() == []


def test_a_host_whose_name_has_dots_knows_its_own_staging(store, monkeypatch):
    monkeypatch.setattr(socket, "gethostname", lambda: "ip-10-0-0-1.ec2.internal")
    with store.publish("models", "key", {}) as staging:
        assert store.sweep() == []
        left = staging.with_name(staging.name.replace(f".{os.getpid()}.", f".{pid_of_a_process_that_ended()}."))
        left.mkdir()
        assert store.sweep() == [left]


@pytest.mark.parametrize(
    "name", ["x", "a.b.c.d", "...", "models-key.HOST.pid.rand", "models-key.HOST.-1.rand", "a b.c"]
)
def test_sweep_leaves_what_does_not_look_like_staging(store, name):
    folder = store.root / STAGING / name.replace("HOST", store_module._host())
    folder.mkdir()
    age(folder, 3 * 86400)
    assert store.sweep() == []


def test_sweep_names_only_what_is_gone(store, monkeypatch):
    leave_staging(store, pid=pid_of_a_process_that_ended())
    monkeypatch.setattr(shutil, "rmtree", lambda *args, **options: None)
    assert store.sweep() == []


# Several processes


def test_two_processes_that_publish_the_same_key_at_once_both_end_well(store):
    code = """
        import sys, time
        from pathlib import Path
        from training.store import Store, verify
        store = Store(sys.argv[1])
        for number in range(int(sys.argv[3])):
            barrier = Path(sys.argv[1], f"barrier-{number}")
            barrier.mkdir(exist_ok=True)
            with store.publish("models", f"key-{number}", {"by": sys.argv[2]}) as staging:
                for name in "abc":
                    (staging / name).write_text(sys.argv[2] * 1000)
                (barrier / sys.argv[2]).touch()
                while len(list(barrier.iterdir())) < 2:
                    pass
            path = store.get("models", f"key-{number}")
            assert path is not None and verify(path) == [], number
    """
    rounds = 12
    writers = [script(code, store.root, name, rounds) for name in ("one", "two")]
    for process in writers:
        output, _ = process.communicate(timeout=60)
        assert (process.returncode, output) == (0, "")
    for number in range(rounds):
        path = store.get("models", f"key-{number}")
        assert verify(path) == []
        by = about(path)["by"]
        assert [(path / name).read_text() for name in "abc"] == [by * 1000] * 3, "the content of one, not of both"
    assert staged(store) == []


def test_two_processes_that_replace_remains_at_once_leave_one_whole_folder(store):
    code = """
        import sys
        from pathlib import Path
        from training.store import Store, verify
        store = Store(sys.argv[1])
        for number in range(int(sys.argv[3])):
            barrier = Path(sys.argv[1], f"barrier-{number}")
            barrier.mkdir(exist_ok=True)
            with store.publish("models", f"key-{number}", {}) as staging:
                (staging / "weights").write_text("whole")
                (barrier / sys.argv[2]).touch()
                while len(list(barrier.iterdir())) < 2:
                    pass
    """
    rounds = 30
    for number in range(rounds):
        remains = store.path("models", f"key-{number}")
        remains.mkdir(parents=True)
        (remains / "weights").write_text("old")
    writers = [script(code, store.root, name, rounds) for name in ("one", "two")]
    for process in writers:
        output, _ = process.communicate(timeout=60)
        assert (process.returncode, output) == (0, "")
    for number in range(rounds):
        path = store.get("models", f"key-{number}")
        assert verify(path) == []
        assert (path / "weights").read_text() == "whole"
    assert staged(store) == []


def test_a_reader_never_sees_a_part_of_a_folder(store):
    stop = threading.Event()
    seen, parts = set(), []

    def read():
        while not stop.is_set():
            for number in range(40):
                path = store.get("models", f"key-{number}")
                if path is not None and path not in seen:
                    seen.add(path)
                    if verify(path) or (path / "weights").stat().st_size != 300_000:
                        parts.append(path)

    reader = threading.Thread(target=read)
    reader.start()
    try:
        for number in range(40):
            publish(store, key=f"key-{number}", content="x" * 300_000)
        deadline = time.monotonic() + 10
        while len(seen) < 40 and time.monotonic() < deadline:
            time.sleep(0.01)
    finally:
        stop.set()
        reader.join()
    assert parts == []
    assert len(seen) == 40


# Disks that refuse


@pytest.fixture
def small_disk(tmp_path):
    folder = tmp_path / "small"
    folder.mkdir()
    mounted = subprocess.run(
        ["mount", "-t", "tmpfs", "-o", "size=256k", "tmpfs", str(folder)], capture_output=True, text=True
    )
    if mounted.returncode != 0:
        pytest.skip(f"a small disk cannot be mounted here: {mounted.stderr.strip()}")
    yield folder
    subprocess.run(["umount", str(folder)], check=True)


@needs_root
def test_a_full_disk_is_one_sentence_and_leaves_the_store_usable(small_disk):
    store = Store(small_disk / "store")
    publish(store, key="before")
    with (
        pytest.raises(UserError, match=r"disk of the store .* is full") as caught,
        store.publish("models", "big", {}) as staging,
    ):
        (staging / "small").write_text("fits")
        (staging / "weights").write_bytes(b"x" * 500_000)
    assert "\n" not in str(caught.value)
    assert store.get("models", "big") is None
    assert staged(store) == []
    assert verify(publish(store, key="after")) == []


@needs_root
def test_a_disk_that_is_full_for_the_manifest_alone_publishes_nothing(small_disk):
    store = Store(small_disk / "store")
    with (
        pytest.raises(UserError, match="is full"),
        store.publish("models", "key", {"long": "x" * 10_000}) as staging,
    ):
        free = shutil.disk_usage(small_disk).free
        (staging / "weights").write_bytes(b"x" * (free - 4096))
    assert store.get("models", "key") is None
    assert staged(store) == []


@needs_root
def test_a_full_disk_that_a_library_reports_in_its_own_words_is_the_same_sentence(small_disk):
    import torch
    from safetensors.torch import save_file

    store = Store(small_disk / "store")
    with pytest.raises(UserError, match="is full"), store.publish("models", "key", {}) as staging:
        save_file({"weight": torch.zeros(200_000)}, staging / "model.safetensors")
    assert staged(store) == []


@needs_root
def test_a_disk_that_is_full_from_the_start_is_one_sentence(small_disk):
    with pytest.raises(OSError), (small_disk / "filler").open("wb") as file:
        file.write(b"x" * 10**6)
    with pytest.raises(UserError, match="is full"):
        publish(Store(small_disk / "store"))


@pytest.mark.parametrize("number", [errno.ENOSPC, errno.EDQUOT, errno.EFBIG])
def test_no_space_in_any_of_its_forms_is_one_sentence(store, number):
    with pytest.raises(UserError, match="is full"), store.publish("models", "key", {}):
        raise OSError(number, os.strerror(number))
    assert staged(store) == []


def test_a_file_that_may_not_grow_is_one_sentence(store):
    code = """
        import resource, sys
        from training.errors import UserError
        from training.store import Store
        store = Store(sys.argv[1])
        resource.setrlimit(resource.RLIMIT_FSIZE, (1000, 1000))
        try:
            with store.publish("models", "key", {}) as staging:
                (staging / "weights").write_bytes(b"x" * 2000)
        except UserError as error:
            print(error)
    """
    output, _ = script(code, store.root).communicate()
    assert output.splitlines() == [
        f"the disk of the store {store.root} is full: free some space (unfinished work is removed by itself) or "
        "choose another store"
    ]
    assert staged(store) == []


@needs_root
@pytest.mark.parametrize("place", ["the store", "above the store"])
def test_no_permission_is_one_sentence_that_names_the_place(tmp_path, place):
    root = tmp_path / "mine" / "store"
    root.parent.mkdir()
    if place == "the store":
        Store(root)
    # pytest's folder is for its user alone.
    for folder in (tmp_path, *tmp_path.parents[:-2]):
        folder.chmod(0o755)
    code = """
        import os, sys
        from training.errors import UserError
        from training.store import Store
        os.setgroups([]); os.setgid(int(sys.argv[2])); os.setuid(int(sys.argv[2]))
        try:
            with Store(sys.argv[1]).publish("models", "key", {}):
                pass
        except UserError as error:
            print(error)
    """
    output, _ = script(code, root, NOBODY).communicate()
    assert output.startswith("no permission to write ")
    assert f"make the store {root} writable" in output
    assert len(output.splitlines()) == 1


@needs_root
def test_a_disk_that_is_mounted_read_only_is_one_sentence(small_disk):
    store = Store(small_disk / "store")
    subprocess.run(["mount", "-o", "remount,ro", str(small_disk)], check=True)
    with pytest.raises(UserError, match="no permission to write"):
        publish(store)


def test_an_error_about_another_place_is_not_blamed_on_the_store(store, tmp_path):
    elsewhere = tmp_path / "elsewhere"
    with pytest.raises(PermissionError), store.publish("models", "key", {}):
        raise PermissionError(errno.EACCES, "Permission denied", str(elsewhere))
    with pytest.raises(FileNotFoundError), store.publish("models", "key", {}):
        (store.root / "missing").read_text()
    with pytest.raises(RuntimeError, match="something else"), store.publish("models", "key", {}):
        raise RuntimeError("something else")
    assert staged(store) == []


@pytest.mark.parametrize("place", ["root", "parent", "kind", "staging"])
def test_a_file_in_the_way_is_named(tmp_path, place):
    root = tmp_path / "a" / "store"
    file = {"root": root, "parent": root.parent, "kind": root / "models", "staging": root / STAGING}[place]
    file.parent.mkdir(parents=True, exist_ok=True)
    file.write_text("in the way")
    with pytest.raises(UserError, match="needs a folder where there is a file") as caught:
        publish(Store(root))
    assert f"move {file} away" in str(caught.value)
    assert file.read_text() == "in the way"


def test_a_file_in_place_of_a_published_folder_is_named(store):
    file = store.path("models", "key")
    file.parent.mkdir()
    file.write_text("in the way")
    with pytest.raises(UserError, match="needs a folder where there is a file") as caught:
        publish(store)
    assert f"move {file} away" in str(caught.value)
    assert staged(store) == []


def test_a_root_with_a_tilde_is_in_the_home_folder(tmp_path, monkeypatch):
    monkeypatch.setenv("HOME", str(tmp_path))
    assert Store("~/store").root == tmp_path / "store"


def test_a_relative_root_stays_where_it_was_when_the_working_folder_changes(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    store = Store("store")
    monkeypatch.chdir("/")
    assert publish(store).parent.parent == tmp_path / "store"


def test_renaming_across_disks_is_an_error_and_not_a_copy(tmp_path, monkeypatch):
    def cross_device(self, target):
        raise OSError(errno.EXDEV, "Invalid cross-device link")

    (tmp_path / "staging").mkdir()
    monkeypatch.setattr(Path, "rename", cross_device)
    with pytest.raises(OSError, match="cross-device"), disk_errors(tmp_path):
        rename_into_place(tmp_path / "staging", tmp_path / "target")


# Small files


def test_a_small_file_is_replaced_whole(tmp_path):
    path = tmp_path / "new" / "file.json"
    write_atomically(path, "old")
    write_atomically(path, "日本")
    assert path.read_text(encoding="utf-8") == "日本"
    assert path.stat().st_mode & 0o777 == 0o644
    assert list(path.parent.iterdir()) == [path]


def test_a_writer_that_is_killed_leaves_the_old_content(tmp_path):
    path = tmp_path / "file"
    path.write_text("old")
    code = """
        import os, signal, sys
        from pathlib import Path
        from training.store import write_atomically
        os.fsync = lambda descriptor: os.kill(os.getpid(), signal.SIGKILL)
        write_atomically(Path(sys.argv[1]), "new" * 10000)
    """
    assert script(code, path).wait() == -9
    assert path.read_text() == "old"


def test_a_write_that_fails_leaves_the_old_content_and_nothing_else(tmp_path, monkeypatch):
    path = tmp_path / "file"
    path.write_text("old")

    def fail(descriptor):
        raise OSError(errno.EIO, "Input/output error")

    monkeypatch.setattr(os, "fsync", fail)
    with pytest.raises(OSError, match="Input/output"):
        write_atomically(path, "new")
    assert path.read_text() == "old"
    assert list(tmp_path.iterdir()) == [path]


def test_a_reader_of_a_small_file_sees_one_content_or_the_other(tmp_path):
    path = tmp_path / "file"
    contents = {"a" * 100_000, "b" * 50_000}
    write_atomically(path, "a" * 100_000)
    stop = threading.Event()

    def write():
        while not stop.is_set():
            for content in contents:
                write_atomically(path, content)

    writer = threading.Thread(target=write)
    writer.start()
    try:
        assert {path.read_text() for _ in range(300)} <= contents
    finally:
        stop.set()
        writer.join()


# Fingerprints


def test_a_fingerprint_is_what_it_always_was():
    # Changing it makes every store fetch and tokenize everything again.
    assert (
        fingerprint(model="org/model", revision="abc", options={"b": [1, 2.5, None], "a": True})
        == "262a4f71e0babc88"
    )


json_values = st.recursive(
    st.none()
    | st.booleans()
    | st.integers()
    | st.floats(allow_nan=False)
    | st.text(st.characters(exclude_categories=["Cs"])),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text("abc"), inner, max_size=3),
    max_leaves=8,
)


@given(st.dictionaries(st.text("abcdefg", min_size=1), json_values, max_size=5), st.randoms())
def test_a_fingerprint_does_not_depend_on_the_order_of_its_parts(parts, random):
    items = list(parts.items())
    random.shuffle(items)
    assert fingerprint(**dict(items)) == fingerprint(**parts)


@given(json_values, json_values)
def test_other_parts_have_another_fingerprint(one, other):
    same = json.dumps(one, sort_keys=True) == json.dumps(other, sort_keys=True)
    assert (fingerprint(part=one) == fingerprint(part=other)) == same


def test_a_fingerprint_can_be_a_name_in_the_store(store):
    assert store.path("models", fingerprint(a=1)).name == fingerprint(a=1)
    assert len(fingerprint(a=1)) == 16
