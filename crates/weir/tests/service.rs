//! `weir serve` as a service: its communication with systemd, its end, and the privileges that it
//! keeps as root.

mod common;

use common::mount::{Mount, source};
use common::nfs3::Client;
use common::{Server, run, scratch, text, weir, within};
use rustix::process::Signal;
use serde_json::Value;
use std::collections::BTreeSet;
use std::ffi::OsStr;
use std::fs;
use std::io::{BufRead, BufReader};
use std::net::TcpListener;
use std::os::unix::fs::{FileExt, MetadataExt, PermissionsExt};
use std::os::unix::net::UnixDatagram;
use std::path::Path;
use std::process::{Command, Stdio};
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;
use weir_skip::is_root;

const PATIENCE: Duration = Duration::from_secs(120);

fn export(dir: &Path) -> std::path::PathBuf {
    let export = dir.join("export");
    fs::create_dir(&export).unwrap();
    fs::set_permissions(&export, fs::Permissions::from_mode(0o777)).unwrap();
    export
}

/// Kills a server when dropped in a panic.
struct Ending<'a>(&'a mut Server);

impl Drop for Ending<'_> {
    fn drop(&mut self) {
        if std::thread::panicking() {
            let _ = self.0.child.kill();
        }
    }
}

#[test]
fn shutdown_during_writes_keeps_all_acknowledged_data() {
    const BLOCK: usize = 64 << 10;
    const WRITERS: u64 = 4;
    let dir = scratch();
    let export = export(dir.path());
    let mut server = Server::start(&export, &["--squash", "none", "--budget", "256M"]);
    let port = server.port;
    let acknowledged: Vec<AtomicU64> = (0..WRITERS).map(|_| AtomicU64::new(0)).collect();
    let root = Client::connect(port, 0, &[]).mount("/");
    std::thread::scope(|scope| {
        for (writer, acknowledged) in acknowledged.iter().enumerate() {
            let root = &root;
            scope.spawn(move || {
                let mut client = Client::connect(port, 1000, &[]);
                let file = client.create(root, &format!("file{writer}"));
                for block in 0u64.. {
                    let bytes = vec![(block % 251 + 1) as u8; BLOCK];
                    if !client.write(&file, block * BLOCK as u64, &bytes) {
                        break;
                    }
                    acknowledged.store(block + 1, Ordering::SeqCst);
                }
            });
        }
        // If it panics, the server ends first, so that the writers end, which the scope waits for.
        let server = Ending(&mut server);
        within(PATIENCE, || {
            acknowledged.iter().all(|n| n.load(Ordering::SeqCst) > 100).then_some(())
        });
        server.0.signal(Signal::TERM);
        assert_eq!(server.0.ended(), Some(0));
    });
    for (writer, acknowledged) in acknowledged.iter().enumerate() {
        let file = fs::File::open(export.join(format!("file{writer}"))).unwrap();
        for block in 0..acknowledged.load(Ordering::SeqCst) {
            let mut bytes = vec![0; BLOCK];
            file.read_exact_at(&mut bytes, block * BLOCK as u64).unwrap();
            assert!(bytes.iter().all(|&b| b == (block % 251 + 1) as u8), "block {block}");
        }
    }
    // And it recognises its files again.
    let server = Server::start(&export, &["--squash", "none"]);
    let mut client = Client::connect(server.port, 1000, &[]);
    assert_eq!(client.mount("/"), root);
    let file = client.lookup(&root, "file0");
    assert_eq!(client.read(&file), 0);
}

/// The messages to the service manager since the last call, up to one that contains this.
fn told(socket: &UnixDatagram, until: &str) -> String {
    let mut all = String::new();
    while !all.contains(until) {
        let mut message = [0; 4096];
        let len = socket.recv(&mut message).unwrap();
        all.push_str(std::str::from_utf8(&message[..len]).unwrap());
        all.push('\n');
    }
    all
}

#[test]
fn systemd_passes_sockets_and_receives_the_status() {
    let dir = scratch();
    let export = export(dir.path());
    fs::write(export.join("notes"), "all is well").unwrap();
    let config = dir.path().join("weir.toml");
    let state = dir.path().join("state");
    // The port is taken: the server serves the sockets that are passed to it.
    let text = format!(
        "[server]\nlisten = \"127.0.0.1:1\"\nstate_dir = {state:?}\n[[export]]\npath = {export:?}\nname = \"/x\"\n"
    );
    fs::write(&config, text).unwrap();
    let manager = UnixDatagram::bind(dir.path().join("notify")).unwrap();
    manager.set_read_timeout(Some(PATIENCE)).unwrap();
    let sockets = [0, 1].map(|_| TcpListener::bind("127.0.0.1:0").unwrap());
    let ports = sockets.each_ref().map(|socket| socket.local_addr().unwrap().port());
    let [first, second] = sockets.map(std::os::fd::OwnedFd::from);
    // Descriptors 3 and 4, and the process's own number, as sd_listen_fds(3) requires.
    let mut command = Command::new("sh");
    let script = "exec 3<&0 4<&2 0</dev/null 2>/dev/null; \
                  LISTEN_PID=$$ LISTEN_FDS=2 exec \"$0\" serve --json --config \"$1\"";
    command.args(["-c", script, env!("CARGO_BIN_EXE_weir")]).arg(&config);
    command.stdin(Stdio::from(first)).stderr(Stdio::from(second));
    command.env("NOTIFY_SOCKET", dir.path().join("notify"));
    let mut server = Server::spawn(command);
    let ready = told(&manager, "READY=1");
    assert!(ready.contains("STATUS=serving /x at 127.0.0.1:"), "{ready}");
    for port in ports {
        let url = format!("nfs://127.0.0.1:{port}/x/notes?vers=4.2");
        assert_eq!(run(["cat", &url]), "all is well");
    }
    server.signal(Signal::HUP);
    let reloaded = told(&manager, "READY=1");
    let reloading = reloaded.find("RELOADING=1").expect("it says that it reloads");
    assert!(reloaded[reloading..].contains("MONOTONIC_USEC="), "{reloaded}");
    assert!(reloaded.find("READY=1").unwrap() > reloading);
    server.signal(Signal::TERM);
    told(&manager, "STOPPING=1");
    assert_eq!(server.ended(), Some(0));
}

#[test]
fn a_reload_ends_when_removed_exports_are_written_out() {
    const BLOCK: usize = 256 << 10;
    let dir = scratch();
    let (kept, gone) = (export(dir.path()), dir.path().join("gone"));
    fs::create_dir(&gone).unwrap();
    fs::set_permissions(&gone, fs::Permissions::from_mode(0o777)).unwrap();
    let config = dir.path().join("weir.toml");
    let state = dir.path().join("state");
    let serves = |exports: &[(&Path, &str)]| {
        let mut text = format!("[server]\nlisten = \"127.0.0.1:0\"\nstate_dir = {state:?}\n");
        for (path, name) in exports {
            text += &format!("[[export]]\npath = {path:?}\nname = \"{name}\"\n");
        }
        fs::write(&config, text).unwrap();
    };
    serves(&[(&kept, "/kept"), (&gone, "/gone")]);
    let manager = UnixDatagram::bind(dir.path().join("notify")).unwrap();
    manager.set_read_timeout(Some(PATIENCE)).unwrap();
    let mut command = weir(["serve", "--json", "--config"]);
    command.arg(&config).env("NOTIFY_SOCKET", dir.path().join("notify"));
    let mut server = Server::spawn(command);
    told(&manager, "READY=1");
    let mut client = Client::connect(server.port, 0, &[]);
    let root = client.mount("/gone");
    let file = client.create(&root, "file");
    let bytes: Vec<u8> = (0..64).flat_map(|block| vec![block as u8 + 1; BLOCK]).collect();
    for (block, part) in bytes.chunks(BLOCK).enumerate() {
        assert!(client.write(&file, (block * BLOCK) as u64, part));
    }
    serves(&[(&kept, "/kept")]);
    server.signal(Signal::HUP);
    told(&manager, "RELOADING=1");
    told(&manager, "READY=1");
    assert!(fs::read(gone.join("file")).unwrap() == bytes);
    server.signal(Signal::TERM);
    told(&manager, "STOPPING=1");
    assert_eq!(server.ended(), Some(0));
}

#[test]
fn the_units_are_sound() {
    let dist = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../dist");
    let service = fs::read_to_string(dist.join("weir.service")).unwrap();
    let line = |key: &str| {
        let found = service.lines().find_map(|line| line.strip_prefix(&format!("{key}=")));
        found.unwrap_or_else(|| panic!("no {key}")).to_owned()
    };
    // The command line that it starts is valid: the only error is that this machine has no such
    // file.
    let start = line("ExecStart");
    let (_, args) = start.split_once(' ').unwrap();
    let output = weir(args.split(' ').chain(["--check"])).output().unwrap();
    let said = text(&output);
    let config = args.rsplit(' ').next().unwrap();
    let absent = !Path::new(config).exists();
    assert!(!absent || said.contains(&format!("cannot read the configuration {config}")), "{said}");
    assert!(line("ExecReload").ends_with("-HUP $MAINPID"));
    // The privileges that the program keeps are granted.
    let given = line("CapabilityBoundingSet");
    for kept in [
        "SETUID",
        "SETGID",
        "CHOWN",
        "DAC_OVERRIDE",
        "DAC_READ_SEARCH",
        "FOWNER",
        "FSETID",
        "MKNOD",
    ] {
        assert!(given.split(' ').any(|cap| cap == format!("CAP_{kept}")), "{kept}");
    }
    // A start that fails is repeated until it succeeds: by default, systemd gives up after five in 10 s.
    let mount = fs::read_to_string(dist.join("weir-mount@.service")).unwrap();
    for unit in [&service, &mount] {
        let (above, below) = unit.split_once("\n[Service]\n").unwrap();
        let has = |section: &str, wanted: &str| section.lines().any(|line| line == wanted);
        assert!(has(above, "StartLimitIntervalSec=0"), "{above}");
        for wanted in ["Restart=on-failure", "RestartSec=5"] {
            assert!(has(below, wanted), "{wanted}: {below}");
        }
    }
    let Ok(found) = Command::new("systemd-analyze").arg("--version").output() else {
        weir_skip::skip("systemd-analyze is not installed");
        return;
    };
    assert!(found.status.success());
    let dir = scratch();
    let copy = service.replace("/usr/local/bin/weir", env!("CARGO_BIN_EXE_weir"));
    fs::write(dir.path().join("weir.service"), copy).unwrap();
    fs::copy(dist.join("weir.socket"), dir.path().join("weir.socket")).unwrap();
    let mount = mount.replace("/usr/local/bin/weir", env!("CARGO_BIN_EXE_weir"));
    fs::write(dir.path().join("weir-mount@.service"), mount).unwrap();
    for unit in ["weir.service", "weir.socket", "weir-mount@.service"] {
        let verify = Command::new("systemd-analyze")
            .args(["verify", "--man=no", "--recursive-errors=no"])
            .arg(dir.path().join(unit))
            .output()
            .unwrap();
        assert!(verify.status.success(), "{unit}: {}", text(&verify));
    }
}

/// A program that manages systemd's units, with these arguments; `None` if it is missing, or too old for them.
fn analyzed(args: &[&OsStr]) -> Option<String> {
    let output = Command::new("systemd-analyze").args(args).output().ok()?;
    output.status.success().then(|| String::from_utf8(output.stdout).unwrap())
}

/// What the server calls and a filter might leave out: without one of them it would be killed, or serve less.
const CALLS: &str = "\
    accept4 bind capset chown clone3 close_range connect copy_file_range epoll_pwait eventfd2 faccessat2 fadvise64 \
    fallocate fanotify_init fanotify_mark fchmod fchmodat fchown fchownat fcntl fdatasync fgetxattr flistxattr \
    flock fremovexattr fsetxattr fstatfs fsync ftruncate futex getdents64 getrandom getsockopt getxattr \
    inotify_add_watch inotify_init1 io_uring_enter io_uring_register io_uring_setup ioctl lgetxattr linkat listen \
    llistxattr lremovexattr lsetxattr madvise membarrier mkdirat mknodat mmap mprotect mremap munmap \
    name_to_handle_at newfstatat open_by_handle_at openat openat2 ppoll prctl pread64 preadv preadv2 prlimit64 \
    pwrite64 pwritev pwritev2 readlinkat recvmsg renameat2 rt_sigaction rt_sigprocmask sched_getaffinity \
    sched_yield sendfile sendmsg set_robust_list setfsgid setfsuid setgroups setresuid setsockopt shutdown \
    sigaltstack socket socketpair splice statfs statx symlinkat sync_file_range syncfs uname unlinkat utimensat \
    writev";

#[test]
fn the_servers_unit_permits_what_it_calls() {
    let dist = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../dist/weir.service");
    let unit = fs::read_to_string(&dist).unwrap();
    let has = |wanted: &str| unit.lines().any(|line| line == wanted);
    assert!(has("SystemCallErrorNumber=EPERM"), "a call that is left out kills the server");
    // An export below one of these would be empty.
    assert!(has("ProtectHome=no") && has("PrivateTmp=no"), "{unit}");
    if analyzed(&["syscall-filter".as_ref(), "@system-service".as_ref()]).is_none() {
        weir_skip::skip("systemd-analyze is not installed");
        return;
    }
    let lines = unit.lines().filter_map(|line| line.strip_prefix("SystemCallFilter="));
    let mut ahead: Vec<String> = lines.flat_map(str::split_whitespace).map(str::to_owned).collect();
    let mut permitted = BTreeSet::new();
    while let Some(name) = ahead.pop() {
        if name.starts_with('@') {
            let set = analyzed(&["syscall-filter".as_ref(), name.as_ref()]).unwrap();
            // The first line is the set's name, and one with a # describes it.
            let names = set.lines().skip(1).map(str::trim);
            ahead.extend(names.filter(|line| !line.starts_with('#')).map(str::to_owned));
        } else {
            permitted.insert(name);
        }
    }
    let missing: Vec<_> =
        CALLS.split_whitespace().filter(|call| !permitted.contains(*call)).collect();
    assert_eq!(missing, [""; 0]);
    // The capabilities that are left of those that it names, and what it sees of /home.
    let args = ["security", "--offline=true", "--json=short"].map(OsStr::new);
    let Some(security) = analyzed(&[&args[..], &[dist.as_os_str()]].concat()) else {
        weir_skip::skip("this systemd-analyze does not analyze files");
        return;
    };
    let rows: Value = serde_json::from_str(&security).unwrap();
    let is_taken = |field: &str| {
        let row = rows.as_array().unwrap().iter().find(|row| row["json_field"] == field);
        row.unwrap_or_else(|| panic!("no {field}: {security}"))["set"].as_bool()
    };
    assert_eq!(is_taken("CapabilityBoundingSet_CAP_MKNOD"), Some(false));
    assert_eq!(is_taken("ProtectHome"), Some(false));
}

/// What the guard of a mount needs, and what waits for the mount.
#[test]
fn a_mounts_unit_spares_its_guard_and_starts_when_it_is_usable() {
    let dist = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../dist");
    let unit = fs::read_to_string(dist.join("weir-mount@.service")).unwrap();
    let (_, service) = unit.split_once("\n[Service]\n").unwrap();
    for wanted in ["Type=notify", "TimeoutStartSec=infinity", "KillMode=process"] {
        assert!(service.lines().any(|line| line == wanted), "{wanted}: {service}");
    }
    assert!(service.contains(" mount --foreground "), "{service}");
}

#[test]
fn a_mount_in_the_foreground_tells_systemd_when_it_is_usable() {
    let (dir, source) = source();
    let from = source.to_str().unwrap();
    let at = dir.path().canonicalize().unwrap().join("mnt");
    fs::create_dir(&at).unwrap();
    // A process in the background is not the one that systemd waits for.
    for foreground in [false, true] {
        let manager = UnixDatagram::bind(dir.path().join(format!("notify-{foreground}"))).unwrap();
        manager.set_read_timeout(Some(PATIENCE)).unwrap();
        let option = if foreground { "--foreground" } else { "--announce" };
        let mut command = weir(["mount", option, "--budget", "32M", from]);
        command.arg(&at).env("XDG_RUNTIME_DIR", dir.path()).stdout(Stdio::piped());
        command.env("NOTIFY_SOCKET", dir.path().join(format!("notify-{foreground}")));
        let mut mount = Mount { child: command.spawn().unwrap(), dir: at.clone() };
        let mut said = String::new();
        if foreground {
            let ready = told(&manager, "READY=1");
            assert!(ready.contains(&format!("STATUS=mount {from} on ")), "{ready}");
        } else {
            let mut out = BufReader::new(mount.child.stdout.take().unwrap());
            out.read_line(&mut said).unwrap();
            if said != "mounted\n" {
                assert!(!mount.ended().success());
                return weir_skip::skip("this machine does not let this test mount");
            }
        }
        assert!(mount.is_mounted());
        mount.signal(Signal::TERM);
        assert!(mount.ended().success());
        if !foreground {
            manager.set_nonblocking(true).unwrap();
            assert!(manager.recv(&mut [0; 100]).is_err(), "it told systemd");
        }
    }
}

#[test]
fn a_root_server_keeps_only_the_privileges_that_it_needs() {
    if !is_root("only root has privileges to give up") {
        return;
    }
    let dir = scratch();
    let export = export(dir.path());
    let secret = export.join("secret");
    fs::write(&secret, "for the group").unwrap();
    fs::set_permissions(&secret, fs::Permissions::from_mode(0o640)).unwrap();
    std::os::unix::fs::chown(&secret, Some(4000), Some(2000)).unwrap();
    let server = Server::start(&export, &["--squash", "none"]);

    // Every thread, including those started for io_uring and by the cache.
    // CHOWN, DAC_OVERRIDE, DAC_READ_SEARCH, FOWNER, FSETID, SETGID, SETUID, MKNOD.
    const KEPT: u64 = 0xDF | 1 << 27;
    let tasks = fs::read_dir(format!("/proc/{}/task", server.child.id())).unwrap();
    let mut threads = 0;
    for task in tasks.flatten() {
        // It may have ended since.
        let Ok(status) = fs::read_to_string(task.path().join("status")) else { continue };
        let field = |name: &str| {
            let line = status.lines().find_map(|line| line.strip_prefix(name)).unwrap();
            u64::from_str_radix(line.trim(), 16).unwrap()
        };
        for set in ["CapPrm:", "CapEff:", "CapBnd:"] {
            assert_eq!(field(set) & !KEPT, 0, "{set} of {:?}", task.path());
        }
        assert_eq!((field("CapInh:"), field("CapAmb:"), field("NoNewPrivs:")), (0, 0, 1));
        threads += 1;
    }
    assert!(threads > 2, "{threads} threads");

    // Each user acts as itself, supplementary groups count, and no call keeps another caller's
    // rights.
    let mut root = Client::connect(server.port, 0, &[]);
    let top = root.mount("/");
    let file = root.lookup(&top, "secret");
    const DENIED: u32 = 13;
    let outcomes = [
        (1000, &[2000][..], 0),
        (1000, &[2001], DENIED),
        (1000, &[5, 6, 2000], 0),
        (4000, &[], 0),
        (1001, &[], DENIED),
        (0, &[], 0),
    ];
    for _ in 0..20 {
        for (uid, groups, expected) in outcomes {
            let mut client = Client::connect(server.port, uid, groups);
            assert_eq!(client.read(&file), expected, "{uid} {groups:?}");
        }
    }
    let owners: BTreeSet<(u32, u32)> = [0, 1000, 4000]
        .into_iter()
        .map(|uid| {
            let name = format!("of{uid}");
            Client::connect(server.port, uid, &[]).create(&top, &name);
            let made = fs::metadata(export.join(name)).unwrap();
            (made.uid(), made.gid())
        })
        .collect();
    assert_eq!(owners, [(0, 0), (1000, 1000), (4000, 4000)].into());
}

#[test]
fn a_user_without_privileges_serves_as_itself() {
    if !is_root("only root can become another; all other tests show the same then") {
        return;
    }
    let dir = scratch();
    let export = export(dir.path());
    // Other users may be unable to reach directories below this checkout.
    let binary = tempfile::Builder::new().prefix("weir").tempfile_in("/var/tmp").unwrap();
    fs::copy(env!("CARGO_BIN_EXE_weir"), binary.path()).unwrap();
    fs::set_permissions(binary.path(), fs::Permissions::from_mode(0o755)).unwrap();
    let binary = binary.into_temp_path();
    let place = tempfile::Builder::new().prefix("weir").tempdir_in("/var/tmp").unwrap();
    let served = place.path().join("served");
    fs::create_dir(&served).unwrap();
    for path in [place.path(), &served] {
        std::os::unix::fs::chown(path, Some(1234), Some(1234)).unwrap();
    }
    drop(export);
    let mut command = Command::new(&binary);
    command.args(["serve", "--json", "--log", "warn", "--bind", "127.0.0.1:0", "--state-dir"]);
    command.arg(place.path().join("state")).arg(&served).current_dir("/");
    std::os::unix::process::CommandExt::uid(&mut command, 1234);
    std::os::unix::process::CommandExt::gid(&mut command, 1234);
    let mut server = Server::spawn(command);
    let mut client = Client::connect_as(1234, server.port, 77, &[]);
    let top = client.mount("/");
    client.create(&top, "made");
    assert_eq!(fs::metadata(served.join("made")).unwrap().uid(), 1234);
    // Root may do all that anyway; other users have no access to this user's files, whichever user
    // they claim to be.
    assert_eq!(Client::connect(server.port, 77, &[]).mount("/"), top);
    for claimed in [0, 1234, 1235] {
        let mut other = Client::connect_as(1235, server.port, claimed, &[]);
        assert!(other.is_refused(&top), "as {claimed}");
    }
    server.signal(Signal::TERM);
    assert_eq!(server.ended(), Some(0));
}

#[test]
fn a_root_server_maps_local_users_to_themselves() {
    if !is_root("only root can become another user, or serve as others") {
        return;
    }
    let dir = scratch();
    let export = export(dir.path());
    let secret = export.join("secret");
    fs::write(&secret, "for the owner and the group").unwrap();
    fs::set_permissions(&secret, fs::Permissions::from_mode(0o640)).unwrap();
    std::os::unix::fs::chown(&secret, Some(4000), Some(2000)).unwrap();
    let server = Server::start(&export, &["--squash", "none"]);
    let mut root = Client::connect(server.port, 0, &[]);
    let top = root.mount("/");
    let file = root.lookup(&top, "secret");

    const DENIED: u32 = 13;
    assert_eq!(Client::connect_as(4000, server.port, 4000, &[]).read(&file), 0, "its own file");
    for claimed in [0, 4000] {
        let mut liar = Client::connect_as(4001, server.port, claimed, &[]);
        assert!(liar.is_refused(&file), "as {claimed}");
    }
    let mut liar = Client::connect_as(4001, server.port, 4001, &[2000]);
    assert_eq!(liar.read(&file), DENIED, "in a group that it is not in");
    drop(server);

    let trusting = Server::start(&export, &["--squash", "none", "--insecure"]);
    let mut any = Client::connect_as(4001, trusting.port, 4000, &[]);
    assert_eq!(any.read(&file), 0, "where that is asked for");
}
