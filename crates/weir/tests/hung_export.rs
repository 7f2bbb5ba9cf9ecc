//! A served directory whose disk does not answer: here a mount whose process is stopped.

mod common;

use common::mount::{Mount, source};
use common::{Server, weir, within};
use rustix::process::Signal;
use std::fs;
use std::io::Read;
use std::path::Path;
use std::process::{Child, Stdio};
use std::time::Duration;

/// More than the server has threads of its own, which are four.
const CALLS: usize = 24;
const LIMIT: Duration = Duration::from_secs(180);

/// Lets a stopped mount go on, so that nothing waits for it any more.
struct Stopped<'a>(&'a Mount);

impl Drop for Stopped<'_> {
    fn drop(&mut self) {
        self.0.signal(Signal::CONT);
    }
}

/// A command that waits for the mount; ended when dropped.
struct Waiting(Child);

impl Drop for Waiting {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

/// A server of a mount, with few threads, and of a directory with the file `sound/file`.
fn serve(dir: &Path, mount: &Mount) -> Server {
    let sound = dir.join("sound");
    fs::create_dir(&sound).unwrap();
    fs::write(sound.join("file"), "in time").unwrap();
    let config = dir.join("weir.toml");
    let state = dir.join("state");
    let export = |name, dir| format!("[[export]]\npath = {dir:?}\nname = \"/{name}\"\n");
    let exports = [export("mounted", &mount.dir), export("sound", &sound)].concat();
    let server = format!("listen = \"127.0.0.1:0\"\nthreads = 4\nstate_dir = {state:?}\n");
    fs::write(&config, format!("[server]\n{server}\n{exports}")).unwrap();
    Server::configured(&config, &dir.join("log"))
}

#[test]
fn an_export_whose_disk_does_not_answer_leaves_the_others_alone() {
    let (dir, source) = source();
    for file in 0..CALLS {
        fs::write(source.join(format!("file{file}")), "late").unwrap();
    }
    let Some(mount) = Mount::start(dir.path(), "mounted", &[], source.to_str().unwrap()) else {
        return;
    };
    let server = serve(dir.path(), &mount);

    let tasks = format!("/proc/{}/task", server.child.id());
    let threads = || fs::read_dir(&tasks).unwrap().count();
    let before = threads();
    let stopped = Stopped(&mount);
    mount.signal(Signal::STOP);
    let late = |file: usize| {
        let url = server.url(&format!("mounted/file{file}"), ["vers=3", "vers=4.2"][file % 2]);
        let cat = weir(["cat", &url]).stdout(Stdio::piped()).stderr(Stdio::inherit()).spawn();
        Waiting(cat.unwrap())
    };
    let waiting: Vec<Waiting> = (0..CALLS).map(late).collect();
    // Three hold threads that the server has anyway, and some idle ones may be used again.
    within(LIMIT, || (threads() >= before + CALLS / 2).then_some(()));
    for version in ["vers=3", "vers=4.2"] {
        let url = server.url("sound/file", version);
        let mut cat = Waiting(weir(["cat", &url]).stdout(Stdio::piped()).spawn().unwrap());
        assert!(within(LIMIT, || cat.0.try_wait().unwrap()).success());
        let mut said = String::new();
        cat.0.stdout.take().unwrap().read_to_string(&mut said).unwrap();
        assert_eq!(said, "in time");
    }
    drop(stopped);
    for mut cat in waiting {
        assert!(within(LIMIT, || cat.0.try_wait().unwrap()).success());
        let mut said = String::new();
        cat.0.stdout.take().unwrap().read_to_string(&mut said).unwrap();
        assert_eq!(said, "late");
    }
}

/// A call of the store, or a reload, may wait for the disk without end.
#[test]
fn a_server_ends_although_a_disk_does_not_answer() {
    let (dir, source) = source();
    fs::write(source.join("file"), "never").unwrap();
    let Some(mount) = Mount::start(dir.path(), "mounted", &[], source.to_str().unwrap()) else {
        return;
    };
    let mut server = serve(dir.path(), &mount);
    let _stopped = Stopped(&mount);
    mount.signal(Signal::STOP);
    let url = server.url("mounted/file", "vers=4.2");
    let _waiting = Waiting(weir(["cat", &url]).stdout(Stdio::null()).spawn().unwrap());
    server.signal(Signal::HUP);
    // Until both wait.
    std::thread::sleep(Duration::from_secs(1));
    server.signal(Signal::TERM);
    assert!(within(Duration::from_secs(60), || server.child.try_wait().unwrap()).success());
}
