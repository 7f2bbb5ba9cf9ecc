//! `weir mount`: what programs see of a mounted directory and a mounted server, and its end.

mod common;

use common::mount::{Mount, PATIENCE, source};
use common::{
    PAGE, Server, as_ordinary_user, fail, give_to_ordinary_user, sparse, text, weir, within,
};
use rustix::fs::{AtFlags, FlockOperation, Mode, OFlags, SeekFrom, flock, seek};
use rustix::process::{Pid, Signal, kill_process};
use serde_json::Value;
use std::fs::{self, File, OpenOptions};
use std::io::{BufRead, BufReader, Read, Write};
use std::os::unix::fs::{FileExt, MetadataExt, OpenOptionsExt, PermissionsExt, symlink};
use std::path::Path;
use std::process::{Command, Stdio};
use std::time::Duration;

const MIB: usize = 1 << 20;
#[test]
fn programs_use_a_directory_through_its_mount() {
    let (near, source) = source();
    for cache in ["weir", "kernel", "auto"] {
        let options = ["--cache", cache];
        let Some(mount) = Mount::start(near.path(), "mnt", &options, source.to_str().unwrap())
        else {
            return;
        };
        fs::write(mount.path("a"), "one").unwrap();
        fs::rename(mount.path("a"), mount.path("b")).unwrap();
        symlink("b", mount.path("link")).unwrap();
        fs::create_dir(mount.path("dir")).unwrap();
        assert_eq!(fs::read(mount.path("link")).unwrap(), b"one");
        assert_eq!(
            fs::read(source.join("b")).unwrap(),
            b"one",
            "a closed file is in the directory"
        );
        let mut names: Vec<_> =
            fs::read_dir(&mount.dir).unwrap().map(|entry| entry.unwrap().file_name()).collect();
        names.sort();
        assert_eq!(names, ["b", "dir", "link"]);
        let (mounted, real) =
            (mount.path("b").metadata().unwrap(), source.join("b").metadata().unwrap());
        assert_eq!((mounted.ino(), mounted.mode()), (real.ino(), real.mode()));

        // A write behind the end, appends, and a truncation that the open file sees.
        let mut file = OpenOptions::new().append(true).read(true).open(mount.path("b")).unwrap();
        file.write_all(b" two").unwrap();
        file.set_len(5).unwrap();
        file.write_all(b"!").unwrap();
        let mut all = String::new();
        File::open(mount.path("b")).unwrap().read_to_string(&mut all).unwrap();
        assert_eq!(all, "one t!");
        // Removed, it can be used until it is closed.
        fs::remove_file(mount.path("b")).unwrap();
        let mut at = [0; 3];
        file.read_exact_at(&mut at, 0).unwrap();
        assert_eq!((&at, file.metadata().unwrap().nlink()), (b"one", 0));
        fs::remove_dir(mount.path("dir")).unwrap();
        fs::remove_file(mount.path("link")).unwrap();
        drop(file);
        assert_eq!(fs::read_dir(&source).unwrap().count(), 0);
    }
}

#[test]
fn holes_are_found_and_stay_holes() {
    let (near, source) = source();
    sparse(&source.join("sparse"), 1 << 40, [(0, PAGE), (1 << 30, PAGE)]);
    let Some(mount) = Mount::start(near.path(), "mnt", &[], source.to_str().unwrap()) else {
        return;
    };
    let file = File::open(mount.path("sparse")).unwrap();
    assert_eq!(seek(&file, SeekFrom::Hole(0)).unwrap(), PAGE);
    assert_eq!(seek(&file, SeekFrom::Data(PAGE)).unwrap(), 1 << 30);
    assert_eq!(seek(&file, SeekFrom::Hole(1 << 30)).unwrap(), (1 << 30) + PAGE);
    assert!(seek(&file, SeekFrom::Data((1 << 30) + PAGE)).is_err(), "no data follows");
    let mut zeros = vec![1; MIB];
    file.read_exact_at(&mut zeros, 1 << 39).unwrap();
    assert!(zeros.iter().all(|&byte| byte == 0));
    drop(file);
    let mut cp = Command::new("cp");
    let copied =
        cp.arg("--sparse=always").arg(mount.path("sparse")).arg(mount.path("copy")).status();
    assert!(copied.unwrap().success());
    let copy = source.join("copy").metadata().unwrap();
    assert_eq!(copy.len(), 1 << 40);
    assert!(copy.blocks() <= 64, "{} blocks", copy.blocks());
}

#[test]
fn a_file_without_a_name_can_get_one() {
    let (near, source) = source();
    let Some(mount) = Mount::start(near.path(), "mnt", &[], source.to_str().unwrap()) else {
        return;
    };
    let new = || {
        let flags = OFlags::TMPFILE | OFlags::RDWR;
        rustix::fs::open(&mount.dir, flags, Mode::from_raw_mode(0o600)).unwrap()
    };
    let (named, nameless) = (File::from(new()), File::from(new()));
    named.write_all_at(b"kept", 0).unwrap();
    nameless.write_all_at(b"lost", 0).unwrap();
    assert_eq!(named.metadata().unwrap().nlink(), 0);
    assert_eq!(fs::read_dir(&mount.dir).unwrap().count(), 0, "they are not listed");
    rustix::fs::linkat(&named, "", rustix::fs::CWD, mount.path("kept"), AtFlags::EMPTY_PATH)
        .unwrap();
    assert_eq!(named.metadata().unwrap().nlink(), 1);
    drop((named, nameless));
    assert_eq!(fs::read(mount.path("kept")).unwrap(), b"kept");
    let alone = || {
        let names: Vec<_> =
            fs::read_dir(&source).unwrap().map(|e| e.unwrap().file_name()).collect();
        (names == ["kept"]).then_some(())
    };
    // The last close is reported after close(2) has returned.
    within(PATIENCE, alone);
}

#[test]
fn the_first_open_chooses_the_cache_of_a_file() {
    let (near, source) = source();
    for name in ["read", "written", "marked"] {
        fs::write(source.join(name), vec![1; MIB]).unwrap();
    }
    let options = ["--cache", "auto"];
    let Some(mount) = Mount::start(near.path(), "mnt", &options, source.to_str().unwrap()) else {
        return;
    };
    let requested = || {
        let output =
            weir(["status", "--json"]).env("XDG_RUNTIME_DIR", near.path()).output().unwrap();
        assert!(output.status.success(), "{}", text(&output));
        let said: Value = serde_json::from_slice(&output.stdout).unwrap();
        said[0]["exports"][0]["read_bytes"].as_u64().unwrap()
    };
    let mut buffer = vec![0; MIB];
    // Reads all of the file, and returns how many bytes of it were requested of the mount.
    let mut requested_by = |file: &File, expected: u8| {
        let before = requested();
        file.read_exact_at(&mut buffer, 0).unwrap();
        assert!(buffer.iter().all(|&byte| byte == expected));
        requested() - before
    };
    let open = |name: &str, write: bool| {
        OpenOptions::new().read(true).write(write).open(mount.path(name)).unwrap()
    };

    // The kernel keeps what is opened for reading, and what is then written.
    let reader = open("read", false);
    assert_eq!(requested_by(&reader, 1), MIB as u64);
    assert_eq!(requested_by(&open("read", false), 1), 0);
    let writer = open("read", true);
    writer.write_all_at(&vec![2; MIB], 0).unwrap();
    assert_eq!(requested_by(&reader, 2), 0, "they share the pages");
    assert_eq!(requested_by(&writer, 2), 0);
    drop((reader, writer));

    // The mount's process keeps what is opened for writing, and what is then read.
    let writer = open("written", true);
    assert_eq!(requested_by(&writer, 1), MIB as u64);
    let reader = open("written", false);
    for value in 2..4 {
        writer.write_all_at(&vec![value; MIB], 0).unwrap();
        assert_eq!(requested_by(&reader, value), MIB as u64);
    }
    drop((reader, writer));
    // The kernel closes a file a moment after the program.
    within(PATIENCE, || (requested_by(&open("written", false), 3) == 0).then_some(()));

    // A mark: the kernel keeps nothing.
    let set = rustix::fs::setxattr(
        mount.path("marked"),
        "user.weir.uncached",
        b"1",
        rustix::fs::XattrFlags::empty(),
    );
    if set.is_err() {
        return weir_skip::skip("no extended attributes here");
    }
    let reader = open("marked", false);
    for _ in 0..2 {
        assert_eq!(requested_by(&reader, 1), MIB as u64);
    }
    assert_eq!(requested_by(&open("written", false), 3), 0, "others are kept as before");
}

#[test]
fn its_requests_are_counted() {
    let (near, source) = source();
    fs::write(source.join("file"), vec![1; 3 * MIB]).unwrap();
    let Some(mount) = Mount::start(near.path(), "mnt", &[], source.to_str().unwrap()) else {
        return;
    };
    let said = |args: &[&str]| -> Value {
        let output = weir(args).env("XDG_RUNTIME_DIR", near.path()).output().unwrap();
        assert!(output.status.success(), "{}", text(&output));
        serde_json::from_slice(&output.stdout).unwrap()
    };
    fs::read(mount.path("file")).unwrap();
    fs::write(mount.path("new"), vec![2; MIB]).unwrap();
    let export = said(&["status", "--json"])[0]["exports"][0].clone();
    assert_eq!(export["path"], mount.dir.to_str().unwrap());
    assert_eq!((&export["read_bytes"], &export["written_bytes"]), (&(3 * MIB).into(), &MIB.into()));
    // A request is counted after its reply was sent.
    let counted = |status: &Value, name: &str| {
        let operations = status[0]["operations"].as_array().unwrap();
        let found = operations.iter().find(|one| one["protocol"] == "fuse" && one["name"] == name);
        found.is_some_and(|one| {
            let counts = one["by_duration"].as_array().unwrap();
            counts.iter().map(|count| count.as_u64().unwrap()).sum::<u64>()
                == one["count"].as_u64().unwrap()
        })
    };
    within(PATIENCE, || {
        let status = said(&["status", "--json"]);
        ["lookup", "open", "read", "write"].iter().all(|name| counted(&status, name)).then_some(())
    });
    let top = said(&["top", "--once", "--json", "--interval", "0.1", mount.dir.to_str().unwrap()]);
    let total = &top["processes"][0]["total"];
    assert_eq!((&total["read_bytes"], &total["written_bytes"]), (&(3 * MIB).into(), &MIB.into()));
}

#[test]
fn direct_io_needs_no_alignment_and_leaves_the_cache() {
    let (near, source) = source();
    fs::write(source.join("hot"), vec![1; 8 * MIB]).unwrap();
    fs::write(source.join("cold"), vec![2; 64 * MIB]).unwrap();
    let Some(mount) = Mount::start(near.path(), "mnt", &[], source.to_str().unwrap()) else {
        return;
    };
    let resident = |name: &str| {
        let output = weir(["status", "--json"])
            .arg(mount.path(name))
            .env("XDG_RUNTIME_DIR", near.path())
            .output()
            .unwrap();
        assert!(output.status.success(), "{}", text(&output));
        let said: Value = serde_json::from_slice(&output.stdout).unwrap();
        said[0]["resident_bytes"].as_u64().unwrap_or_else(|| panic!("{said}"))
    };
    fs::read(mount.path("hot")).unwrap();
    assert_eq!(resident("hot"), 8 * MIB as u64);
    let direct = OFlags::DIRECT.bits().cast_signed();
    let cold = OpenOptions::new().read(true).custom_flags(direct).open(mount.path("cold")).unwrap();
    // Odd lengths and offsets, into memory at an odd address.
    let mut buffer = vec![0; MIB];
    let mut at = 0;
    while at < 64 * MIB as u64 {
        let read = cold.read_at(&mut buffer[1..], at).unwrap();
        assert!(buffer[1..=read].iter().all(|&byte| byte == 2));
        at += read as u64;
    }
    drop(cold);
    // The pages are dropped after the reply.
    within(PATIENCE, || (resident("cold") == 0).then_some(()));
    assert_eq!(resident("hot"), 8 * MIB as u64);
}

#[test]
fn the_data_of_a_stopped_mount_is_in_the_directory() {
    let (near, source) = source();
    let Some(mut mount) = Mount::start(near.path(), "mnt", &[], source.to_str().unwrap()) else {
        return;
    };
    let mut file = File::create(mount.path("open")).unwrap();
    file.write_all(&vec![7; 3 * MIB]).unwrap();
    mount.signal(Signal::TERM);
    assert!(mount.ended().success());
    assert!(!mount.is_mounted());
    assert_eq!(fs::read(source.join("open")).unwrap(), vec![7; 3 * MIB]);
    assert!(file.write_all(b"more").is_err(), "the file system is gone");
}

#[test]
fn a_file_without_a_name_leaves_none_when_the_mount_is_stopped() {
    let (near, source) = source();
    let Some(mut mount) = Mount::start(near.path(), "mnt", &[], source.to_str().unwrap()) else {
        return;
    };
    let flags = OFlags::TMPFILE | OFlags::RDWR;
    let file = rustix::fs::open(&mount.dir, flags, Mode::from_raw_mode(0o600)).unwrap();
    File::from(file.try_clone().unwrap()).write_all(&vec![7; MIB]).unwrap();
    assert_eq!(fs::read_dir(&source).unwrap().count(), 1);
    mount.signal(Signal::TERM);
    assert!(mount.ended().success());
    assert_eq!(fs::read_dir(&source).unwrap().count(), 0);
    drop(file);
}

#[test]
fn a_killed_mount_is_unmounted_and_keeps_what_was_synced() {
    let (near, source) = source();
    let from = source.to_str().unwrap();
    let Some(mut mount) = Mount::start(near.path(), "mnt", &[], from) else { return };
    let mut file = File::create(mount.path("synced")).unwrap();
    file.write_all(b"safe").unwrap();
    file.sync_all().unwrap();
    mount.signal(Signal::KILL);
    mount.ended();
    assert!(file.write_all(b"more").is_err());
    within(PATIENCE, || (!mount.is_mounted()).then_some(()));
    assert_eq!(fs::read(source.join("synced")).unwrap(), b"safe");
    let again = Mount::start(near.path(), "mnt", &[], from).unwrap();
    assert_eq!(fs::read(again.path("synced")).unwrap(), b"safe");
}

#[test]
fn it_goes_to_the_background_and_ends_when_it_is_unmounted() {
    let (near, source) = source();
    let Some(probe) = Mount::start(near.path(), "probe", &[], source.to_str().unwrap()) else {
        return;
    };
    drop(probe);
    let dir = near.path().canonicalize().unwrap().join("mnt");
    fs::create_dir(&dir).unwrap();
    let mut command = weir(["mount", "--budget", "32M"]);
    let output =
        command.arg(&source).arg(&dir).env("XDG_RUNTIME_DIR", near.path()).output().unwrap();
    assert!(output.status.success() && output.stdout.is_empty(), "{}", text(&output));
    // By a child: what another test of this process forks would keep the file open, and the mount busy.
    let written =
        Command::new("sh").args(["-c", "printf one > \"$0\""]).arg(dir.join("a")).status();
    assert!(written.unwrap().success());
    let status = || {
        let mut command = weir(["status", "--json"]);
        let output = command.env("XDG_RUNTIME_DIR", near.path()).output().unwrap();
        serde_json::from_slice::<Value>(&output.stdout).unwrap_or_default()
    };
    let said = status();
    let process = &said[0];
    assert_eq!(process["command"], "mount", "{said}");
    let pid = process["pid"].as_i64().unwrap();
    let unmounted = match rustix::process::geteuid().is_root() {
        true => Command::new("umount").arg(&dir).status(),
        false => Command::new("fusermount3").arg("-u").arg(&dir).status(),
    };
    assert!(unmounted.unwrap().success());
    within(PATIENCE, || (!Path::new(&format!("/proc/{pid}")).exists()).then_some(()));
    assert_eq!(fs::read(source.join("a")).unwrap(), b"one");
}

#[test]
fn two_mounts_of_a_server_see_what_the_other_closed_and_locked() {
    let (near, source) = source();
    let server = Server::start(&source, &["--squash", "none"]);
    for (vers, options) in
        [("vers=4.2", ["--attr-timeout", "60"]), ("vers=3", ["--cache", "kernel"])]
    {
        let url = server.url("", vers);
        let Some(one) = Mount::start(near.path(), "one", &options, &url) else { return };
        let two = Mount::start(near.path(), "two", &options, &url).unwrap();
        fs::write(one.path("f"), "first").unwrap();
        assert_eq!(fs::read(two.path("f")).unwrap(), b"first");
        fs::write(one.path("f"), "the second").unwrap();
        assert_eq!(fs::read(two.path("f")).unwrap(), b"the second", "{vers}");
        assert_eq!(two.path("f").metadata().unwrap().len(), 10);
        let open = |mount: &Mount| {
            OpenOptions::new().read(true).write(true).open(mount.path("f")).unwrap()
        };
        let (here, there) = (open(&one), open(&two));
        flock(&here, FlockOperation::LockExclusive).unwrap();
        assert!(flock(&there, FlockOperation::NonBlockingLockExclusive).is_err(), "{vers}");
        drop(here);
        let taken = || flock(&there, FlockOperation::NonBlockingLockExclusive).ok();
        within(PATIENCE, taken);
        drop(there);
        fs::remove_file(one.path("f")).unwrap();
    }
}

#[test]
fn the_kernels_pages_are_as_new_as_the_last_open() {
    let (near, source) = source();
    let server = Server::start(&source, &["--squash", "none"]);
    let url = server.url("", "vers=4.2,actimeo=0");
    let options = ["--cache", "kernel", "--attr-timeout", "0"];
    let Some(one) = Mount::start(near.path(), "one", &options, &url) else { return };
    let two = Mount::start(near.path(), "two", &options, &url).unwrap();
    fs::write(one.path("f"), "old").unwrap();
    assert_eq!(fs::read(two.path("f")).unwrap(), b"old");
    // The same size, and the attributes are asked for before the file is opened again.
    fs::write(one.path("f"), "new").unwrap();
    for _ in 0..3 {
        two.path("f").metadata().unwrap();
    }
    assert_eq!(fs::read(two.path("f")).unwrap(), b"new");
}

#[test]
fn closed_files_do_not_stay_open_at_the_server() {
    let (near, source) = source();
    let server = Server::start(&source, &["--squash", "none"]);
    for vers in ["4.0", "4.2"] {
        let url = server.url("", &format!("vers={vers}"));
        let Some(mount) = Mount::start(near.path(), vers, &[], &url) else { return };
        let dir = mount.path(vers);
        fs::create_dir(&dir).unwrap();
        for n in 0..300 {
            fs::write(dir.join(n.to_string()), vers).unwrap();
        }
        let below = source.canonicalize().unwrap().join(vers);
        let open = || {
            let all = fs::read_dir(format!("/proc/{}/fd", server.child.id())).unwrap();
            let paths = all.flatten().filter_map(|fd| fs::read_link(fd.path()).ok());
            paths.filter(|path| path.parent() == Some(&below)).count()
        };
        within(PATIENCE, || (open() <= 80).then_some(()));
        assert_eq!(fs::read(dir.join("7")).unwrap(), vers.as_bytes());
    }
}

#[test]
fn on_a_mount_by_root_the_kernel_reads_ahead_by_the_largest_read() {
    if !weir_skip::is_root("only root changes how far the kernel reads ahead") {
        return;
    }
    let (near, source) = source();
    let Some(mount) = Mount::start(near.path(), "mnt", &[], source.to_str().unwrap()) else {
        return;
    };
    let device = mount.dir.metadata().unwrap().dev();
    let (major, minor) = (rustix::fs::major(device), rustix::fs::minor(device));
    let setting = format!("/sys/class/bdi/{major}:{minor}/read_ahead_kb");
    match fs::read_to_string(&setting) {
        Ok(kib) => assert_eq!(kib.trim(), "1024"),
        Err(error) => weir_skip::skip(format!("{setting}: {error}")),
    }
}

#[test]
fn a_change_of_data_by_any_user_removes_set_id_bits() {
    if !weir_skip::is_root("only root mounts for other users everywhere") {
        return;
    }
    let (near, source) = source();
    fs::set_permissions(near.path(), fs::Permissions::from_mode(0o755)).unwrap();
    let options = ["--allow-other"];
    let Some(mount) = Mount::start(near.path(), "mnt", &options, source.to_str().unwrap()) else {
        return;
    };
    for change in ["echo x >> \"$F\"", ": > \"$F\"", "truncate -s 1 \"$F\""] {
        fs::write(source.join("f"), "data").unwrap();
        fs::set_permissions(source.join("f"), fs::Permissions::from_mode(0o6777)).unwrap();
        std::thread::sleep(Duration::from_millis(1100));
        let mut command = Command::new("sh");
        command.args(["-c", change]).current_dir("/").env("F", mount.path("f"));
        let said = as_ordinary_user(command).output().unwrap();
        assert!(said.status.success(), "{change}: {}", text(&said));
        assert_eq!(source.join("f").metadata().unwrap().mode() & 0o7777, 0o777, "{change}");
    }
}

/// The mode is not the writer's to change, so the write itself has to remove the bit.
#[test]
fn an_ordinary_user_writes_a_file_of_another_one_with_set_id_bits() {
    if !weir_skip::is_root("only root makes files of several users") {
        return;
    }
    let (near, source) = source();
    let file = source.join("f");
    fs::write(&file, "data\n").unwrap();
    give_to_ordinary_user(near.path(), &source);
    let group = source.metadata().unwrap().gid();
    std::os::unix::fs::chown(&file, Some(0), Some(group)).unwrap();
    fs::set_permissions(&file, fs::Permissions::from_mode(0o2775)).unwrap();
    let user = "mkdir mnt said; mkfifo said/fifo
        \"$0\" mount --announce --budget 32M source mnt > said/fifo & read said < said/fifo || exit 77
        echo more >> mnt/f; code=$?; kill $!; wait $!; exit $code";
    let root = "mknod fuse c 10 229; chmod 666 fuse; mount --bind fuse /dev/fuse; rm fuse
        exec setpriv --reuid 65534 --regid 65534 --clear-groups \\
            unshare --user --map-current-user --keep-caps -m sh -c \"$@\"";
    let mut command = Command::new("unshare");
    command.args(["-m", "sh", "-ec", root, "sh", user, env!("CARGO_BIN_EXE_weir")]);
    command.current_dir(near.path()).env("XDG_RUNTIME_DIR", near.path());
    let output = command.output().unwrap();
    if output.status.code() == Some(77) {
        return weir_skip::skip(text(&output));
    }
    assert!(output.status.success(), "{}", text(&output));
    assert_eq!(fs::read_to_string(&file).unwrap(), "data\nmore\n");
    assert_eq!(file.metadata().unwrap().mode() & 0o7777, 0o775);
}

#[test]
fn a_program_that_waits_for_a_dead_server_can_be_killed() {
    let (near, source) = source();
    fs::write(source.join("f"), vec![3; MIB]).unwrap();
    let server = Server::start(&source, &[]);
    let url = server.url("", "vers=4.2");
    let Some(mount) = Mount::start(near.path(), "mnt", &["--attr-timeout", "0"], &url) else {
        return;
    };
    fs::metadata(mount.path("f")).unwrap();
    server.pause();
    let mut stuck = Vec::new();
    // Not SIGINT: what a shell starts in the background ignores it.
    for signal in [Signal::KILL, Signal::TERM] {
        let mut command = Command::new("cat");
        let child = command.arg(mount.path("f")).stdout(Stdio::null()).spawn();
        stuck.push((child.unwrap(), signal));
    }
    std::thread::sleep(Duration::from_secs(1));
    for (child, signal) in &mut stuck {
        assert!(child.try_wait().unwrap().is_none(), "it waits");
        kill_process(Pid::from_child(child), *signal).unwrap();
        let ended = within(PATIENCE, || child.try_wait().unwrap());
        assert!(!ended.success());
    }
    server.signal(Signal::CONT);
    assert_eq!(fs::read(mount.path("f")).unwrap(), vec![3; MIB]);
}

/// Its end closes the file, and closing writes out; the kernel does not interrupt that.
#[test]
fn a_program_with_data_for_a_dead_server_can_be_killed() {
    let (near, source) = source();
    let server = Server::start(&source, &["--squash", "none"]);
    // One thread, and several: the kernel ends them in different ways.
    let one = "exec 9>\"$0\" && printf written >&9 && echo ready && read never";
    let several = "exec python3 -c '
import os, sys, threading, time
os.write(os.open(sys.argv[1], os.O_CREAT | os.O_WRONLY), b\"written\")
threading.Thread(target=time.sleep, args=(1000,)).start()
print(\"ready\", flush=True)
time.sleep(1000)' \"$0\"";
    let has_python = Command::new("python3").arg("-V").output().is_ok();
    if !has_python {
        weir_skip::skip("python3 is not installed");
    }
    let ways = [("3", Signal::KILL, one), ("4.0", Signal::TERM, one)];
    let threads = [("4.1", Signal::KILL, several), ("4.2", Signal::TERM, several)];
    for (vers, signal, script) in ways.into_iter().chain(threads.into_iter().filter(|_| has_python))
    {
        let url = server.url("", &format!("vers={vers}"));
        let Some(mount) = Mount::start(near.path(), vers, &[], &url) else { return };
        let mut command = Command::new("sh");
        command.args(["-c", script]).arg(mount.path(vers));
        let mut child = command.stdin(Stdio::piped()).stdout(Stdio::piped()).spawn().unwrap();
        let mut ready = String::new();
        BufReader::new(child.stdout.take().unwrap()).read_line(&mut ready).unwrap();
        assert_eq!(ready, "ready\n");
        server.pause();
        kill_process(Pid::from_child(&child), signal).unwrap();
        within(PATIENCE, || child.try_wait().unwrap());
        server.signal(Signal::CONT);
        // What it wrote is written out all the same.
        within(PATIENCE, || (fs::read(source.join(vers)).unwrap() == b"written").then_some(()));
    }
}

#[test]
fn a_wait_for_a_lock_ends_with_the_program() {
    let (near, source) = source();
    fs::write(source.join("f"), "").unwrap();
    let Some(mount) = Mount::start(near.path(), "mnt", &[], source.to_str().unwrap()) else {
        return;
    };
    let held = File::open(mount.path("f")).unwrap();
    flock(&held, FlockOperation::LockExclusive).unwrap();
    let mut waiting = Command::new("flock").arg(mount.path("f")).arg("true").spawn().unwrap();
    std::thread::sleep(Duration::from_millis(500));
    assert!(waiting.try_wait().unwrap().is_none(), "it waits");
    kill_process(Pid::from_child(&waiting), Signal::TERM).unwrap();
    within(PATIENCE, || waiting.try_wait().unwrap());
    drop(held);
    // Its wait is over, so it does not get the lock now.
    let again = File::open(mount.path("f")).unwrap();
    within(PATIENCE, || flock(&again, FlockOperation::NonBlockingLockExclusive).ok());
}

#[test]
fn other_users_have_their_own_rights() {
    if !weir_skip::is_root("only root mounts for other users everywhere") {
        return;
    }
    let (near, source) = source();
    fs::set_permissions(near.path(), fs::Permissions::from_mode(0o755)).unwrap();
    fs::write(source.join("secret"), "s").unwrap();
    fs::set_permissions(source.join("secret"), fs::Permissions::from_mode(0o600)).unwrap();
    fs::create_dir(source.join("open")).unwrap();
    fs::set_permissions(source.join("open"), fs::Permissions::from_mode(0o777)).unwrap();
    let from = source.to_str().unwrap();
    let as_user = |mount: &Mount, script: &str| {
        let mut command = Command::new("sh");
        command.args(["-c", script]).current_dir("/").env("M", &mount.dir);
        as_ordinary_user(command).output().unwrap()
    };
    let Some(own) = Mount::start(near.path(), "own", &[], from) else { return };
    let said = as_user(&own, "ls \"$M\"");
    assert!(!said.status.success(), "a mount is its owner's: {}", text(&said));
    drop(own);
    let shared = Mount::start(near.path(), "shared", &["--allow-other"], from).unwrap();
    let said = as_user(&shared, "cat \"$M/secret\"");
    assert!(!said.status.success() && text(&said).contains("Permission denied"), "{}", text(&said));
    let said = as_user(&shared, "umask 027; echo x > \"$M/open/f\" && mkdir \"$M/open/d\"");
    assert!(said.status.success(), "{}", text(&said));
    let made = source.join("open/f").metadata().unwrap();
    assert_eq!((made.uid(), made.mode() & 0o777), (65534, 0o640));
    let said = as_user(&shared, "rm -f \"$M/secret\"; echo y > \"$M/new\"");
    assert!(!said.status.success(), "{}", text(&said));
    assert!(source.join("secret").exists() && !source.join("new").exists());
}

#[test]
fn what_cannot_be_mounted_is_refused_and_leaves_no_mount() {
    let (near, source) = source();
    let near = near.path().canonicalize().unwrap();
    let inside = source.join("inside");
    fs::create_dir(&inside).unwrap();
    fs::write(near.join("file"), "").unwrap();
    let at = |path: &Path| path.to_str().unwrap().to_owned();
    for (from, to, says) in [
        (at(&source), at(&inside), "the mount would contain itself"),
        (at(&near.join("missing")), at(&inside), "no such file"),
        (at(&near.join("file")), at(&inside), "not a directory"),
        ("nfs://127.0.0.1:1/".to_owned(), at(&inside), "cannot reach"),
        (at(&source), at(&near.join("nowhere")), "No such file"),
    ] {
        let said = fail(1, ["mount", &from, &to]);
        assert!(said.to_lowercase().contains(&says.to_lowercase()), "{from} on {to}: {said}");
    }
    let table = fs::read_to_string("/proc/self/mountinfo").unwrap();
    assert!(!table.contains(&at(&inside)));
}

/// As a container gets it: the process that serves has no right to mount.
#[test]
fn a_connection_that_another_process_has_mounted_is_served() {
    if !weir_skip::is_root("mounting a connection without Weir needs root") {
        return;
    }
    let (near, source) = source();
    let dir = near.path().canonicalize().unwrap().join("mnt");
    fs::create_dir(&dir).unwrap();
    let script = "exec 9<>/dev/fuse || exit 77
        mount -i -t fuse -o fd=9,rootmode=40000,user_id=0,group_id=0 none \"$1\" || exit 77
        exec setpriv --bounding-set -sys_admin --inh-caps -sys_admin -- \
            \"$0\" mount --announce --budget 32M \"$2\" /dev/fd/9";
    let mut command = Command::new("sh");
    command.args(["-c", script]).arg(weir([""; 0]).get_program()).arg(&dir).arg(&source);
    command.env("XDG_RUNTIME_DIR", near.path()).stdout(Stdio::piped());
    let mut child = command.spawn().unwrap();
    let mut said = String::new();
    BufReader::new(child.stdout.take().unwrap()).read_line(&mut said).unwrap();
    if said != "mounted\n" {
        let code = child.wait().unwrap().code();
        assert_eq!(code, Some(77), "the connection is not served");
        return weir_skip::skip("the kernel refuses a mount");
    }
    let mut mount = Mount { child, dir: dir.clone() };
    fs::write(mount.path("f"), "through it").unwrap();
    assert_eq!(fs::read(mount.path("f")).unwrap(), b"through it");
    mount.signal(Signal::TERM);
    assert!(mount.ended().success());
    assert_eq!(fs::read(source.join("f")).unwrap(), b"through it");
    assert!(mount.is_mounted(), "it is not this process's to unmount");
    assert!(Command::new("umount").arg("-l").arg(&dir).status().unwrap().success());
}

#[test]
fn descriptors_of_something_else_are_not_served() {
    let (_near, source) = source();
    let source = source.to_str().unwrap();
    for (descriptor, says) in [("1", "not one of /dev/fuse"), ("99", "No such file")] {
        let said = fail(1, ["mount", "--foreground", source, &format!("/dev/fd/{descriptor}")]);
        assert!(said.contains("descriptor") && said.contains(says), "{said}");
    }
    let said = fail(1, ["mount", "--foreground", source, "/dev/fd/x"]);
    assert!(said.contains("o such file"), "{said}");
}

#[test]
fn a_read_only_mount_refuses_changes() {
    let (near, source) = source();
    fs::write(source.join("f"), "x").unwrap();
    let options = ["--read-only"];
    let Some(mount) = Mount::start(near.path(), "mnt", &options, source.to_str().unwrap()) else {
        return;
    };
    let refused = fs::write(mount.path("g"), "").unwrap_err();
    assert_eq!(refused.kind(), std::io::ErrorKind::ReadOnlyFilesystem);
    assert!(fs::remove_file(mount.path("f")).is_err());
    assert_eq!(fs::read(mount.path("f")).unwrap(), b"x");
}
