//! Locks on mounts: with whom they end, and what is seen under them.

mod common;

use common::mount::{Mount, PATIENCE, source};
use common::{Server, as_ordinary_user, text, within};
use rustix::fs::{FlockOperation, fcntl_lock, flock};
use std::fs::{self, File, OpenOptions};
use std::io::{BufRead, BufReader, Write};
use std::os::unix::fs::{FileExt, MetadataExt, PermissionsExt, chown};
use std::path::Path;
use std::process::{Child, ChildStdout, Command, Stdio};
use std::time::Duration;

const TAKE: FlockOperation = FlockOperation::NonBlockingLockExclusive;

fn open(path: &Path) -> File {
    OpenOptions::new().read(true).write(true).create(true).truncate(false).open(path).unwrap()
}

#[test]
fn removed_files_that_are_open_can_be_locked() {
    let (near, source) = source();
    let server = Server::start(&source, &["--squash", "none"]);
    let urls = ["4.2", "4.0", "3"].map(|vers| server.url("", &format!("vers={vers}")));
    let sources = [source.to_str().unwrap().to_owned()].into_iter().chain(urls);
    for from in sources {
        let Some(mount) = Mount::start(near.path(), "mnt", &[], &from) else { return };
        let file = open(&mount.path("f"));
        fs::remove_file(mount.path("f")).unwrap();
        fcntl_lock(&file, TAKE).unwrap_or_else(|error| panic!("{from}: {error}"));
        fcntl_lock(&file, FlockOperation::Unlock).unwrap();
        flock(&file, TAKE).unwrap_or_else(|error| panic!("{from}: {error}"));
    }
}

/// The wait outlasts what a receiving thread does by itself, so that a task goes on with it.
#[test]
fn a_long_wait_for_a_lock_ends_with_what_its_holder_wrote() {
    let (near, source) = source();
    for cache in ["weir", "kernel"] {
        let from = source.to_str().unwrap();
        let Some(mount) = Mount::start(near.path(), cache, &["--cache", cache], from) else {
            return;
        };
        let holder = open(&mount.path("f"));
        for round in 0..10_u8 {
            flock(&holder, TAKE).unwrap();
            let path = mount.path("f");
            let waiter = std::thread::spawn(move || {
                let file = open(&path);
                let mut seen = [0];
                let _ = file.read_at(&mut seen, 0).unwrap();
                flock(&file, FlockOperation::LockExclusive).unwrap();
                file.read_exact_at(&mut seen, 0).unwrap();
                // close(2) does not wait for the release of a lock of flock(2) on a FUSE mount.
                flock(&file, FlockOperation::Unlock).unwrap();
                seen[0]
            });
            std::thread::sleep(Duration::from_millis(50));
            holder.write_all_at(&[round], 0).unwrap();
            flock(&holder, FlockOperation::Unlock).unwrap();
            within(PATIENCE, || waiter.is_finished().then_some(()));
            assert_eq!(waiter.join().unwrap(), round, "{cache}");
        }
    }
}

#[test]
fn what_was_written_under_a_lock_is_seen_under_the_next_one() {
    let (near, source) = source();
    let server = Server::start(&source, &["--squash", "none"]);
    for (vers, cache) in [("4.2", "weir"), ("4.2", "kernel"), ("3", "weir"), ("3", "kernel")] {
        let url = server.url("", &format!("vers={vers},actimeo=0"));
        let options = ["--cache", cache];
        let Some(one) = Mount::start(near.path(), "one", &options, &url) else { return };
        let two = Mount::start(near.path(), "two", &options, &url).unwrap();
        let (here, there) = (open(&one.path("f")), open(&two.path("f")));
        let mut seen = [0; 3];
        for (round, data) in [b"old", b"new", b"end"].into_iter().enumerate() {
            fcntl_lock(&here, TAKE).unwrap();
            here.write_all_at(data, 0).unwrap();
            fcntl_lock(&here, FlockOperation::Unlock).unwrap();
            fcntl_lock(&there, TAKE).unwrap();
            there.read_exact_at(&mut seen, 0).unwrap();
            assert_eq!(&seen, data, "{vers}, {cache}, {round}");
            fcntl_lock(&there, FlockOperation::Unlock).unwrap();
        }
        drop((here, there));
        fs::remove_file(one.path("f")).unwrap();
    }
}

fn has_python() -> bool {
    let has = Command::new("python3").arg("-V").output().is_ok();
    if !has {
        weir_skip::skip("python3 is not installed");
    }
    has
}

#[test]
fn locks_of_an_open_file_description_end_with_it() {
    if !has_python() {
        return;
    }
    let script = "
import fcntl, os, struct, sys, time
def lock(fd):
    fcntl.fcntl(fd, 37, struct.pack('hhqqi4x', fcntl.F_WRLCK, 0, 0, 0, 0)) # F_OFD_SETLK
one, two = (os.open(sys.argv[1], os.O_RDWR | os.O_CREAT) for _ in range(2))
lock(one)
try:
    lock(two)
    sys.exit('granted twice')
except BlockingIOError:
    pass
os.close(one)
for _ in range(12000):
    try:
        lock(two)
        sys.exit()
    except BlockingIOError:
        time.sleep(0.01)
sys.exit('not released')";
    let (near, source) = source();
    let server = Server::start(&source, &["--squash", "none"]);
    for from in [source.to_str().unwrap(), &server.url("", "vers=4.2"), &server.url("", "vers=3")] {
        let Some(mount) = Mount::start(near.path(), "mnt", &[], from) else { return };
        let said = Command::new("python3").args(["-c", script]).arg(mount.path("f")).output();
        let said = said.unwrap();
        assert!(said.status.success(), "{from}: {}", text(&said));
    }
}

/// A process that locks a byte of a file, and then waits for the other one.
struct Locker {
    child: Child,
    said: BufReader<ChildStdout>,
}

impl Locker {
    fn start(path: &Path, byte: u32) -> Self {
        let script = "
import errno, fcntl, sys
file, byte = open(sys.argv[1], 'r+b'), int(sys.argv[2])
fcntl.lockf(file, fcntl.LOCK_EX, 1, byte)
print('held', flush=True)
sys.stdin.readline()
try:
    fcntl.lockf(file, fcntl.LOCK_EX, 1, 1 - byte)
    print('both')
except OSError as error:
    print('deadlock' if error.errno == errno.EDEADLK else error)";
        let mut command = Command::new("python3");
        command.args(["-c", script]).arg(path).arg(byte.to_string());
        let mut child = command.stdin(Stdio::piped()).stdout(Stdio::piped()).spawn().unwrap();
        let said = BufReader::new(child.stdout.take().unwrap());
        let mut locker = Self { child, said };
        assert_eq!(locker.next(), "held\n");
        locker
    }

    fn next(&mut self) -> String {
        let mut line = String::new();
        self.said.read_line(&mut line).unwrap();
        line
    }
}

#[test]
fn a_deadlock_of_locks_is_reported_as_one() {
    if !has_python() {
        return;
    }
    let (near, source) = source();
    fs::write(source.join("f"), "ab").unwrap();
    let server = Server::start(&source, &["--squash", "none"]);
    let url = server.url("", "vers=4.2");
    let Some(mount) = Mount::start(near.path(), "mnt", &[], &url) else { return };
    let mut lockers = [0, 1].map(|byte| Locker::start(&mount.path("f"), byte));
    for locker in &mut lockers {
        locker.child.stdin.take().unwrap().write_all(b"\n").unwrap();
    }
    let mut said = lockers.each_mut().map(Locker::next);
    said.sort();
    assert_eq!(said, ["both\n", "deadlock\n"]);
    for locker in &mut lockers {
        locker.child.wait().unwrap();
    }
}

#[test]
fn new_directories_inherit_set_group_id_from_a_group_that_the_user_is_not_in() {
    if !weir_skip::is_root("only root mounts for other users everywhere") {
        return;
    }
    let (near, source) = source();
    fs::set_permissions(near.path(), fs::Permissions::from_mode(0o755)).unwrap();
    fs::create_dir(source.join("shared")).unwrap();
    chown(source.join("shared"), None, Some(5000)).unwrap();
    fs::set_permissions(source.join("shared"), fs::Permissions::from_mode(0o2777)).unwrap();
    let from = source.to_str().unwrap();
    let Some(mount) = Mount::start(near.path(), "mnt", &["--allow-other"], from) else { return };
    let mut command = Command::new("sh");
    command.args(["-c", "umask 0; mkdir dir"]).current_dir(mount.path("shared"));
    let said = as_ordinary_user(command).output().unwrap();
    assert!(said.status.success(), "{}", text(&said));
    let made = source.join("shared/dir").metadata().unwrap();
    assert_eq!((made.gid(), made.mode() & 0o7777), (5000, 0o2777));
}
