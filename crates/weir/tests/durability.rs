//! kill -9 of the server: what was acknowledged is there, and clients go on.

mod common;

use common::{Server, same, scratch, sparse, text, weir, within};
use rustix::process::Signal;
use std::fs;
use std::path::Path;
use std::process::Stdio;
use std::time::Duration;

fn kill_9(mut server: Server) {
    server.signal(Signal::KILL);
    assert_eq!(server.ended(), None);
}

#[test]
fn what_a_copy_that_succeeded_wrote_survives() {
    let dir = scratch();
    let (export, file) = (dir.path().join("export"), dir.path().join("file"));
    fs::create_dir(&export).unwrap();
    sparse(&file, 30 << 20, [(0, 12 << 20), (20 << 20, 4 << 20)]);
    for (round, vers) in ["4.2", "4.1", "3"].iter().enumerate() {
        let server = Server::start(&export, &["--squash", "none", "--lease", "5"]);
        let url = server.url(&format!("copy{round}"), &format!("vers={vers}"));
        let output = weir(["cp".as_ref(), file.as_os_str(), url.as_ref()]).output().unwrap();
        assert!(output.status.success(), "{}", text(&output));
        kill_9(server);
        assert!(same(&file, &export.join(format!("copy{round}"))), "vers={vers}");
    }
}

#[test]
fn a_copy_goes_on_over_restarts_of_the_server() {
    let dir = scratch();
    let (export, file) = (dir.path().join("export"), dir.path().join("file"));
    fs::create_dir(&export).unwrap();
    sparse(&file, 48 << 20, [(0, 48 << 20)]);
    for vers in ["4.2", "3"] {
        let mut server = Server::start(&export, &["--squash", "none", "--lease", "5"]);
        let bind = format!("127.0.0.1:{}", server.port);
        let url = server.url("copy", &format!("vers={vers}&timeo=20"));
        let mut cp = weir(["cp".as_ref(), file.as_os_str(), url.as_ref()])
            .stderr(Stdio::piped())
            .spawn()
            .unwrap();
        for blocks in [4 << 11, 24 << 11] {
            // In the middle of it: some data is there, not all.
            within(Duration::from_secs(60), || {
                let done = cp.try_wait().unwrap().is_some();
                (done || written_blocks(&export) > blocks).then_some(())
            });
            kill_9(server);
            server = Server::start(&export, &["--squash", "none", "--lease", "5", "--bind", &bind]);
        }
        let status = within(Duration::from_secs(120), || cp.try_wait().unwrap());
        let output = cp.wait_with_output().unwrap();
        assert!(status.success(), "vers={vers}: {}", text(&output));
        kill_9(server);
        assert!(same(&file, &export.join("copy")), "vers={vers}");
        fs::remove_file(export.join("copy")).unwrap();
        assert_eq!(fs::read_dir(&export).unwrap().count(), 0, "vers={vers}");
    }
}

/// Blocks in use by the files of a directory.
fn written_blocks(dir: &Path) -> u64 {
    use std::os::unix::fs::MetadataExt;
    let files = fs::read_dir(dir).unwrap().filter_map(|e| e.ok()?.metadata().ok());
    files.map(|m| m.blocks()).sum()
}
