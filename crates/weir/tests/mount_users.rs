//! The users of a mount: of a directory, and of a server that maps root to another user.

mod common;

use common::mount::{Mount, source};
use common::{Server, as_ordinary_user, text};
use std::fs;
use std::os::unix::fs::{MetadataExt, PermissionsExt};
use std::os::unix::process::CommandExt;
use std::process::Command;

/// The mounting process, root, may then not open what only its users may.
#[test]
fn users_have_their_own_files_on_a_server_that_maps_root_to_another_user() {
    if !weir_skip::is_root("only root mounts for other users everywhere") {
        return;
    }
    let (near, source) = source();
    fs::set_permissions(near.path(), fs::Permissions::from_mode(0o755)).unwrap();
    fs::set_permissions(&source, fs::Permissions::from_mode(0o777)).unwrap();
    let server = Server::start(&source, &[]);
    for vers in ["3", "4.2"] {
        let from = format!("nfs://127.0.0.1:{p}/?mountport={p}&vers={vers}", p = server.port);
        let Some(mount) = Mount::start(near.path(), vers, &["--allow-other"], &from) else {
            return;
        };
        let as_user = |user: u32, script: &str| {
            let mut command = Command::new("sh");
            command.args(["-c", script]).current_dir("/").env("M", &mount.dir).env("V", vers);
            command.uid(user).gid(user).output().unwrap()
        };
        let script = "umask 077; echo one > \"$M/f$V\" && echo two >> \"$M/f$V\" && cat \"$M/f$V\"";
        let said = as_user(4321, script);
        assert_eq!(
            (said.status.success(), &said.stdout[..]),
            (true, &b"one\ntwo\n"[..]),
            "{said:?}"
        );
        let made = source.join(format!("f{vers}"));
        let stat = made.metadata().unwrap();
        assert_eq!((stat.uid(), stat.mode() & 0o777), (4321, 0o600));
        assert_eq!(fs::read(&made).unwrap(), b"one\ntwo\n");
        let script = "mkdir -m 700 \"$M/d$V\" && : > \"$M/d$V/x\" && ls \"$M/d$V\"";
        let said = as_user(4321, script);
        assert_eq!((said.status.success(), &said.stdout[..]), (true, &b"x\n"[..]), "{said:?}");
        let said = as_user(4322, "cat \"$M/f$V\"");
        assert!(!said.status.success() && text(&said).contains("denied"), "{}", text(&said));
        // What may not be opened is not left behind.
        as_user(4321, "umask 0777; echo x > \"$M/none$V\"");
        let none = fs::read(source.join(format!("none{vers}")));
        assert!(none.as_ref().ok().is_none_or(|data| data == b"x\n"), "{none:?}");
    }
}

/// The kernel has checked the right to execute it, and opens it for reading.
#[test]
fn a_program_that_its_user_may_only_execute_is_executed() {
    if !weir_skip::is_root("only root mounts for other users everywhere") {
        return;
    }
    let (near, source) = source();
    fs::set_permissions(near.path(), fs::Permissions::from_mode(0o755)).unwrap();
    let program = source.join("p");
    fs::copy("/bin/true", &program).unwrap();
    fs::set_permissions(&program, fs::Permissions::from_mode(0o711)).unwrap();
    let server = Server::start(&source, &[]);
    let remote = |v| format!("nfs://127.0.0.1:{p}/?mountport={p}&vers={v}", p = server.port);
    let local = source.to_str().unwrap().to_owned();
    for (name, from) in [("local", local), ("v3", remote("3")), ("v4.2", remote("4.2"))] {
        let Some(mount) = Mount::start(near.path(), name, &["--allow-other"], &from) else {
            return;
        };
        let as_user = |script: &str| {
            let mut command = Command::new("sh");
            command.args(["-c", script]).current_dir("/").env("P", mount.path("p"));
            as_ordinary_user(command).output().unwrap()
        };
        for _ in 0..2 {
            let said = as_user("\"$P\"");
            assert!(said.status.success(), "{name}: {}", text(&said));
            let said = as_user("cat \"$P\"");
            assert!(!said.status.success() && said.stdout.is_empty(), "{name}");
            assert!(text(&said).contains("Permission denied"), "{name}: {}", text(&said));
        }
    }
    // The mount's owner is such a user for the server, which version 3 tells the client.
    let mount = Mount::start(near.path(), "own", &[], &remote("3")).unwrap();
    for _ in 0..2 {
        let said = Command::new(mount.path("p")).output().unwrap();
        assert!(said.status.success(), "{}", text(&said));
        let read = fs::read(mount.path("p"));
        assert_eq!(read.unwrap_err().kind(), std::io::ErrorKind::PermissionDenied);
    }
}
