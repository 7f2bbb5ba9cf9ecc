//! A served directory whose disk does not answer: here a mount whose process is stopped.

mod common;

use common::mount::{Mount, source};
use common::{Server, weir, within};
use rustix::process::Signal;
use std::fs;
use std::io::Read;
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

#[test]
fn an_export_whose_disk_does_not_answer_leaves_the_others_alone() {
    let (dir, source) = source();
    for file in 0..CALLS {
        fs::write(source.join(format!("file{file}")), "late").unwrap();
    }
    let Some(mount) = Mount::start(dir.path(), "mounted", &[], source.to_str().unwrap()) else {
        return;
    };
    let sound = dir.path().join("sound");
    fs::create_dir(&sound).unwrap();
    fs::write(sound.join("file"), "in time").unwrap();
    let config = dir.path().join("weir.toml");
    let state = dir.path().join("state");
    let export = |name, dir| format!("[[export]]\npath = {dir:?}\nname = \"/{name}\"\n");
    let exports = [export("mounted", &mount.dir), export("sound", &sound)].concat();
    let server = format!("listen = \"127.0.0.1:0\"\nthreads = 4\nstate_dir = {state:?}\n");
    fs::write(&config, format!("[server]\n{server}\n{exports}")).unwrap();
    let server = Server::configured(&config, &dir.path().join("log"));

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
