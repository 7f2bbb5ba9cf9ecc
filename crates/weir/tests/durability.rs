//! kill -9 of the server: acknowledged data persists, and clients continue.

mod common;

use common::{Server, same, scratch, sparse, text, weir, within};
use rustix::process::Signal;
use std::fs;
use std::path::Path;
use std::process::{Child, ExitStatus};
use std::time::{Duration, Instant};

fn kill_9(mut server: Server) {
    server.signal(Signal::KILL);
    assert_eq!(server.ended(), None);
}

#[test]
fn a_successful_copy_survives_sigkill_of_the_server() {
    let dir = scratch();
    let (export, file) = (dir.path().join("export"), dir.path().join("file"));
    fs::create_dir(&export).unwrap();
    sparse(&file, 30 << 20, [(0, 12 << 20), (20 << 20, 4 << 20)]);
    for (round, vers) in ["4.2", "4.1", "4.0", "3"].iter().enumerate() {
        let server = Server::start(&export, &["--squash", "none", "--lease", "5"]);
        let url = server.url(&format!("copy{round}"), &format!("vers={vers}"));
        let output = weir(["cp".as_ref(), file.as_os_str(), url.as_ref()]).output().unwrap();
        assert!(output.status.success(), "{}", text(&output));
        kill_9(server);
        assert!(same(&file, &export.join(format!("copy{round}"))), "vers={vers}");
    }
}

/// The server is killed and restarted while a file is copied to it, and from it. `WEIR_COPY_MIB` is
/// the size of the file: with 1024, three restarts about every 100 MiB.
#[test]
fn a_copy_continues_across_restarts_of_the_server() {
    let mib = std::env::var("WEIR_COPY_MIB").map_or(48, |mib| mib.parse().unwrap());
    let restarts = (mib / 100).max(2);
    let dir = scratch();
    let [export, local] = ["export", "local"].map(|name| dir.path().join(name));
    fs::create_dir(&export).unwrap();
    fs::create_dir(&local).unwrap();
    let original = dir.path().join("original");
    sparse(&original, mib << 20, [(0, mib << 20)]);
    for vers in ["4.2", "4.1", "4.0", "3"] {
        for from_server in [false, true] {
            let server = Server::start(&export, &["--squash", "none", "--lease", "5"]);
            let url = server.url("copy", &format!("vers={vers}&timeo=20"));
            let (from, to, into) = match from_server {
                true => (url.as_ref(), local.join("copy").into_os_string(), &local),
                false => (original.as_os_str(), url.clone().into(), &export),
            };
            let begun = Instant::now();
            // Output goes to a file, which is readable even if the copy hangs.
            let says = dir.path().join("says");
            let mut cp = weir(["cp".as_ref(), from, to.as_os_str()])
                .env("WEIR_LOG", "info")
                .stderr(fs::File::create(&says).unwrap())
                .spawn()
                .unwrap();
            let server = restart_during(&mut cp, server, (&export, into), (restarts, mib));
            let which = format!("vers={vers}, from the server: {from_server}");
            let status = ended_in_time(&mut cp, Duration::from_secs(300));
            let says = fs::read_to_string(says).unwrap();
            assert!(status.is_some_and(|status| status.success()), "{which}: {status:?}: {says}");
            println!("{which}: {:.1} s, {} restarts", begun.elapsed().as_secs_f64(), 3 * restarts);
            kill_9(server);
            assert!(same(&original, &into.join("copy")), "{which}");
            assert_eq!(fs::read_dir(into).unwrap().count(), 1, "{which}: something was left");
        }
        fs::remove_file(export.join("copy")).unwrap();
        fs::remove_file(local.join("copy")).unwrap();
    }
}

/// How a program ended; kills it if it did not in time.
fn ended_in_time(child: &mut Child, limit: Duration) -> Option<ExitStatus> {
    let begun = Instant::now();
    while begun.elapsed() < limit {
        if let Some(status) = child.try_wait().unwrap() {
            return Some(status);
        }
        std::thread::sleep(Duration::from_millis(5));
    }
    child.kill().unwrap();
    None
}

/// Kills and restarts the server three times as often as given, spread evenly over a copy of so
/// many MiB.
fn restart_during(
    cp: &mut Child,
    mut server: Server,
    (export, into): (&Path, &Path),
    (restarts, mib): (u64, u64),
) -> Server {
    let bind = format!("127.0.0.1:{}", server.port);
    for restart in 0..restarts {
        let blocks = (mib << 11) * (restart + 1) / (restarts + 2);
        within(Duration::from_secs(300), || {
            let done = cp.try_wait().unwrap().is_some();
            (done || written_blocks(into) > blocks).then_some(())
        });
        // Again while clients reclaim their state.
        for _ in 0..3 {
            kill_9(server);
            server = Server::start(export, &["--squash", "none", "--lease", "5", "--bind", &bind]);
            std::thread::sleep(Duration::from_millis(30));
        }
    }
    server
}

/// Blocks in use by the files of a directory.
fn written_blocks(dir: &Path) -> u64 {
    use std::os::unix::fs::MetadataExt;
    let files = fs::read_dir(dir).unwrap().filter_map(|e| e.ok()?.metadata().ok());
    files.map(|m| m.blocks()).sum()
}
