//! The commands over NFS: `weir serve` on one side, `weir` on the other.

mod common;

use common::{EXTENTS, PAGE, Server, blocks, fail, json, run, same, scratch, sparse, text, weir};
use serde_json::Value;
use std::fs;
use std::io::{Read, Write};
use std::net::{Shutdown, SocketAddr, TcpListener, TcpStream};
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::time::Duration;

/// Mount options for every version and mode.
const MANNERS: &[&str] = &["vers=4.2", "vers=4.2&noreadplus", "vers=4.1", "vers=4.0", "vers=3"];

struct Setup {
    dir: tempfile::TempDir,
    server: Server,
}

impl Setup {
    fn new() -> Self {
        let dir = scratch();
        fs::create_dir(dir.path().join("export")).unwrap();
        let server = Server::start(&dir.path().join("export"), &["--squash", "none"]);
        Self { dir, server }
    }

    fn export(&self, name: &str) -> PathBuf {
        self.dir.path().join("export").join(name)
    }

    fn local(&self, name: &str) -> PathBuf {
        self.dir.path().join(name)
    }
}

/// The server has no clients any more once commands have ended, cleanly or with an error.
#[test]
fn commands_leave_no_state_at_the_server() {
    let dir = scratch();
    let export = dir.path().join("export");
    fs::create_dir_all(export.join("dir")).unwrap();
    fs::write(export.join("file"), "hello").unwrap();
    let free = TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap();
    let options = ["--squash", "none", "--metrics", &free.port().to_string()];
    let server = Server::start(&export, &options);
    let succeeded = |operation| succeeded(free, operation);
    for vers in ["4.1", "4.2"] {
        let url = |path: &str| server.url(path, &format!("vers={vers}"));
        run(["cat", &url("file")]);
        run(["lock", &url("file"), "true"]);
        run(["lock", &url(&format!("lock{vers}")), "true"]);
        run(["ls", "-l", &url("")]);
        run(["stat", &url("dir")]);
        fail(1, ["ls", &url("nothing")]);
        fail(1, ["cat", &url("dir/nothing")]);
        let copy = dir.path().join(vers);
        run(["cp".as_ref(), "-r".as_ref(), url("dir").as_ref(), copy.as_os_str()]);
        let made = succeeded("create_session");
        assert!(made >= 8, "{made}");
        assert_eq!(succeeded("destroy_session"), made, "vers={vers}");
        assert_eq!(succeeded("destroy_clientid"), made, "vers={vers}");
    }
    // A command that needs several clients, and gets only the first of them.
    for clients in [1, 2] {
        let port = way_to(server.port, clients, |_| {});
        let url = format!("nfs://127.0.0.1:{port}/");
        let checked = weir(["check", "--leases", &url]).output().unwrap();
        let said = text(&checked);
        assert_eq!(checked.status.code(), Some(1), "{said}");
        assert!(said.contains(&format!("cannot reach 127.0.0.1:{port}")), "{said}");
        let made = succeeded("create_session");
        assert_eq!(succeeded("destroy_session"), made, "{clients} clients");
        assert_eq!(succeeded("destroy_clientid"), made, "{clients} clients");
    }
}

/// Number of successful operations of a server, from its metrics at `at`.
fn succeeded(at: SocketAddr, operation: &str) -> u64 {
    let mut stream = TcpStream::connect(at).unwrap();
    stream.write_all(b"GET /metrics HTTP/1.0\r\n\r\n").unwrap();
    let mut metrics = String::new();
    stream.read_to_string(&mut metrics).unwrap();
    let of_it = format!("operation=\"{operation}\"");
    let sum = |name: &str| -> u64 {
        let lines = metrics.lines().filter(|l| l.starts_with(name) && l.contains(&of_it));
        lines.map(|l| l.rsplit(' ').next().unwrap().parse::<u64>().unwrap()).sum()
    };
    sum("weir_operation_seconds_count") - sum("weir_failed_total")
}

fn cp(options: &[&str], from: impl AsRef<Path>, to: impl AsRef<Path>) -> Value {
    let options = ["cp", "--json"].iter().chain(options).map(Path::new);
    json(options.chain([from.as_ref(), to.as_ref()]))
}

fn number(summary: &Value, field: &str) -> u64 {
    summary[field].as_u64().unwrap()
}

#[test]
fn a_tree_round_trips() {
    let setup = Setup::new();
    let tree = setup.local("tree");
    fs::create_dir_all(tree.join("a/b")).unwrap();
    std::os::unix::fs::symlink("b/1", tree.join("a/link")).unwrap();
    for n in 0..50 {
        fs::write(tree.join(format!("a/b/{n}")), format!("{n}").repeat(n * 100)).unwrap();
    }
    sparse(&tree.join("disk"), 40 << 20, [(PAGE, 3 * PAGE), (20 << 20, 2 << 20)]);
    for (round, manner) in MANNERS.iter().enumerate() {
        let there = setup.server.url(&format!("r{round}"), manner);
        let back = setup.local(&format!("back{round}"));
        let summary = cp(&["-rp"], &tree, &there);
        assert_eq!((number(&summary, "files"), number(&summary, "symlinks")), (51, 1), "{manner}");
        cp(&["-rp", "--uncached"], &there, &back);
        for copy in [setup.export(&format!("r{round}")), back] {
            let diff = std::process::Command::new("diff").arg("-r").args([&tree, &copy]).output();
            let diff = diff.unwrap();
            assert!(diff.status.success(), "{manner}: {}", common::text(&diff));
            let (disk, original) = (copy.join("disk"), tree.join("disk"));
            assert!(blocks(&disk) <= blocks(&original) + EXTENTS, "{manner}");
            let mtime = |path: &Path| path.metadata().unwrap().modified().unwrap();
            assert_eq!(mtime(&disk), mtime(&original), "{manner}");
            assert_eq!(fs::read_link(copy.join("a/link")).unwrap(), Path::new("b/1"));
        }
    }
}

#[test]
fn a_hole_takes_little_space_on_the_wire() {
    let setup = Setup::new();
    sparse(&setup.export("hole"), 256 << 20, []);
    let copy = setup.local("copy");
    let summary = cp(&[], setup.server.url("hole", "vers=4.2"), &copy);
    assert!(number(&summary, "wire_bytes") < 64 << 10, "{summary}");
    assert_eq!(number(&summary, "hole_bytes"), 256 << 20);
    assert_eq!((copy.metadata().unwrap().len(), blocks(&copy)), (256 << 20, 0));
}

#[test]
fn half_holes_take_half_the_bytes() {
    let setup = Setup::new();
    for kib in [4, 8, 16, 32] {
        let (name, run) = (format!("mixed{kib}"), kib << 10);
        sparse(
            &setup.export(&name),
            16 << 20,
            (0..(16 << 20) / run / 2).map(|i| (i * 2 * run, run)),
        );
        let copy = setup.local(&name);
        let summary = cp(&[], setup.server.url(&name, "vers=4.2"), &copy);
        let share = number(&summary, "wire_bytes") as f64 / f64::from(16 << 20);
        assert!(share < 0.52, "{name}: {share}");
        assert!(same(&setup.export(&name), &copy));
        assert!(blocks(&copy) <= blocks(&setup.export(&name)) + EXTENTS);
    }
}

#[test]
fn every_byte_of_an_odd_file() {
    let setup = Setup::new();
    let extents = [(0, 1), (4095, 2), (5 * PAGE + 7, 9 * PAGE), ((3 << 20) - 1, (2 << 20) + 3)];
    sparse(&setup.export("odd"), (6 << 20) + 77, extents);
    for manner in MANNERS {
        let copy = setup.local("copy");
        cp(&[], setup.server.url("odd", manner), &copy);
        assert!(same(&setup.export("odd"), &copy), "{manner}");
        let between = setup.server.url("between", manner);
        cp(&[], setup.server.url("odd", manner), &between);
        assert!(same(&setup.export("odd"), &setup.export("between")), "{manner}");
    }
}

#[test]
fn ls_cat_and_stat_show_files_of_a_server() {
    let setup = Setup::new();
    fs::create_dir(setup.export("d")).unwrap();
    fs::write(setup.export("d/notes"), "some notes\n").unwrap();
    sparse(&setup.export("disk"), 1 << 20, [(16 * PAGE, 2 * PAGE)]);
    for manner in MANNERS {
        let url = |path: &str| setup.server.url(path, manner);
        assert_eq!(run(["ls", &url("")]), "d\ndisk\n", "{manner}");
        assert_eq!(run(["ls", &url("d")]), "notes\n", "{manner}");
        assert_eq!(run(["cat", &url("d/notes")]), "some notes\n", "{manner}");
        let stat = json(["stat", "--json", &url("disk")]);
        assert_eq!(stat[0]["size_bytes"], 1 << 20, "{manner}");
        assert_eq!(stat[0]["allocated_bytes"], 2 * PAGE, "{manner}");
        let says = fail(1, ["cat", &url("d/missing")]);
        assert!(says.contains("no such file or directory; check the path"), "{manner}: {says}");
        let says = fail(1, ["ls", &url("no/such/thing")]);
        assert!(says.contains("cannot mount") || says.contains("cannot find"), "{manner}: {says}");
    }
    let map = json(["map", "--json", &setup.server.url("disk", "vers=4.2")]);
    assert_eq!((&map["data_bytes"], &map["data_extents"]), (&(2 * PAGE).into(), &1.into()));
}

#[test]
fn links_within_an_export_are_followed() {
    let setup = Setup::new();
    fs::create_dir_all(setup.export("a/b")).unwrap();
    fs::write(setup.export("a/b/file"), "x").unwrap();
    for (link, target) in
        [("up", "a/b/../b"), ("a/file", "b/file"), ("loop", "loop"), ("out", "/etc/passwd")]
    {
        std::os::unix::fs::symlink(target, setup.export(link)).unwrap();
    }
    let url = |path: &str| setup.server.url(path, "");
    assert_eq!(run(["cat", &url("up/file")]), "x");
    assert_eq!(run(["cat", &url("a/file")]), "x");
    assert!(fail(1, ["cat", &url("loop")]).contains("a symbolic link leads back to itself"));
    assert!(fail(1, ["cat", &url("out")]).contains("name the file that it points to"));
}

/// `..` in a symbolic link continues above the directory that the path names, as for programs on
/// the server; it never stops there and so refers to another file.
#[test]
fn an_upward_symbolic_link_leads_to_the_file_at_the_server() {
    let setup = Setup::new();
    for dir in ["rel/a/b", "rel/b", "rel/c/d"] {
        fs::create_dir_all(setup.export(dir)).unwrap();
    }
    let link = |at: &str, target: &str| {
        std::os::unix::fs::symlink(target, setup.export(at)).unwrap();
    };
    link("rel/a/link", "../b/file");
    link("rel/a/far", "../../rel/c/../b/file");
    link("rel/a/out", "../../../rel/b/file");
    link("rel/a/new", "../b/new");
    link("rel/c/d/dir", "../../a");
    link("rel/a/nowhere", "../../no/such/thing");
    for manner in MANNERS {
        fs::write(setup.export("rel/a/b/file"), "wrong").unwrap();
        fs::write(setup.export("rel/b/file"), "right").unwrap();
        let url = |path: &str| setup.server.url(path, manner);
        for name in ["rel/a/link", "rel/a/far", "rel/c/d/dir/link"] {
            assert_eq!(run(["cat", &url(name)]), "right", "{manner}: {name}");
        }
        let other = setup.local("other");
        fs::write(&other, "other").unwrap();
        for name in ["rel/a/link", "rel/a/new"] {
            run(["cp".as_ref(), other.as_os_str(), url(name).as_ref()]);
        }
        assert_eq!(fs::read(setup.export("rel/a/b/file")).unwrap(), b"wrong", "{manner}");
        assert_eq!(fs::read(setup.export("rel/b/file")).unwrap(), b"other", "{manner}");
        assert_eq!(fs::read(setup.export("rel/b/new")).unwrap(), b"other", "{manner}");
        fs::remove_file(setup.export("rel/b/new")).unwrap();
        let says = fail(1, ["cat", &url("rel/a/nowhere")]);
        assert!(says.contains("no such file or directory"), "{manner}: {says}");
        let says = fail(1, ["cat", &url("rel/a/out")]);
        assert!(says.contains("above the root of what the server exports"), "{manner}: {says}");
    }
}

/// A name that cannot be looked up is no failed mount.
#[test]
fn denied_access_and_long_names_are_reported() {
    let setup = Setup::new();
    for manner in MANNERS {
        let long = "x".repeat(300);
        let says = fail(1, ["cat", &setup.server.url(&format!("{long}/file"), manner)]);
        assert!(!says.contains("cannot mount"), "{manner}: {says}");
        assert!(says.contains("name too long"), "{manner}: {says}");
    }
}

#[test]
fn a_refused_root_gets_a_hint_about_root_squash() {
    if !weir_skip::is_root("only root is squashed") {
        return;
    }
    let dir = scratch();
    let export = dir.path().join("export");
    fs::create_dir(&export).unwrap();
    fs::create_dir(export.join("private")).unwrap();
    fs::set_permissions(export.join("private"), fs::Permissions::from_mode(0o700)).unwrap();
    let server = Server::start(&export, &[]);
    for manner in MANNERS {
        let copy = server.url("copy", manner);
        for args in [["cp", "/etc/hostname", &copy], ["ls", "-l", &server.url("private", manner)]] {
            let says = fail(1, args);
            assert!(says.contains("root_squash") && says.contains("-o uid="), "{manner}: {says}");
        }
        let says = fail(1, ["cat", &server.url("private/file", manner)]);
        assert!(says.contains("root_squash"), "{manner}: {says}");
        assert!(!says.contains("cannot mount"), "{manner}: {says}");
    }
}

#[test]
fn an_unreadable_link_does_not_end_a_listing() {
    let setup = Setup::new();
    fs::write(setup.export("a"), "").unwrap();
    std::os::unix::fs::symlink("a", setup.export("link")).unwrap();
    fs::write(setup.export("z"), "").unwrap();
    // Flips a bit of the filehandle in each READLINK of version 3.
    let port = way_to(setup.server.port, usize::MAX, |bytes| {
        const READLINK: [u8; 12] = [0, 1, 0x86, 0xA3, 0, 0, 0, 3, 0, 0, 0, 5];
        if bytes.windows(READLINK.len()).any(|w| w == READLINK)
            && let Some(byte) = bytes.iter_mut().nth_back(8)
        {
            *byte ^= 1;
        }
    });
    let url = format!("nfs://127.0.0.1:{port}/?mountport={port}&vers=3");
    let output = weir(["ls", "-l", &url]).output().unwrap();
    let (said, complained) = (text(&output), String::from_utf8_lossy(&output.stderr));
    assert_eq!(output.status.code(), Some(1), "{said}");
    assert!(complained.contains("cannot read the symbolic link"), "{said}");
    let listed = String::from_utf8_lossy(&output.stdout);
    let names: Vec<_> = listed.lines().filter_map(|line| line.rsplit(' ').next()).collect();
    assert_eq!(names, ["a", "link", "z"], "{said}");
}

/// Also peers that accept a connection, and send nothing or something else.
#[test]
fn mounting_a_port_without_an_nfs_server_fails_soon() {
    let silent = |_: &mut TcpStream| {
        std::thread::sleep(Duration::from_secs(60));
    };
    let curt = |_: &mut TcpStream| {};
    let other = |client: &mut TcpStream| {
        // The client may have closed the connection already.
        let _ = client.write_all(b"HTTP/1.1 400 Bad Request\r\n\r\n");
    };
    let peers: [fn(&mut TcpStream); 3] = [silent, curt, other];
    let asked = peers.map(|serve| {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let port = listener.local_addr().unwrap().port();
        std::thread::spawn(move || {
            for client in listener.incoming() {
                std::thread::spawn(move || serve(&mut client.unwrap()));
            }
        });
        std::thread::spawn(move || {
            for vers in ["", "?vers=4.0", "?vers=3"] {
                let says = fail(1, ["ls", &format!("nfs://127.0.0.1:{port}/{vers}")]);
                let want = format!("no NFS server answers at 127.0.0.1:{port}");
                assert!(says.contains(&want), "{says}");
            }
        })
    });
    asked.into_iter().for_each(|asked| asked.join().unwrap());
}

#[test]
fn a_read_only_export_stays_as_it_is() {
    let dir = scratch();
    let export = dir.path().join("export");
    fs::create_dir(&export).unwrap();
    fs::write(export.join("file"), "old").unwrap();
    let server = Server::start(&export, &["--read-only", "--squash", "none"]);
    for manner in MANNERS {
        let says = fail(1, ["cp", "/etc/hostname", &server.url("file", manner)]);
        assert!(says.contains("read-only file system; mount or export it writable"), "{says}");
    }
    assert_eq!(fs::read(export.join("file")).unwrap(), b"old");
    assert_eq!(fs::read_dir(&export).unwrap().count(), 1);
}

#[test]
fn names_are_created_moved_and_removed_at_a_server() {
    let setup = Setup::new();
    for (round, manner) in MANNERS.iter().enumerate() {
        let url = |path: &str| setup.server.url(&format!("r{round}/{path}"), manner);
        let at = |path: &str| setup.export(&format!("r{round}/{path}"));
        run(["mkdir", "-p", &url("a/b")]);
        run(["touch", &url("a/new")]);
        assert_eq!(fs::metadata(at("a/new")).unwrap().len(), 0, "{manner}");
        fs::write(at("a/b/file"), vec![1; 5000]).unwrap();
        run(["mv", &url("a/b/file"), &url("a/moved")]);
        assert_eq!(fs::read(at("a/moved")).unwrap(), [1; 5000], "{manner}");
        let drawn = run(["tree", &url("a")]);
        assert!(drawn.ends_with("├── b/\n├── moved  (4.88 KiB)\n└── new  (0 B)\n"), "{drawn}");
        let sum = &json(["du", "--json", &url("a")])[0];
        assert_eq!((&sum["files"], &sum["size_bytes"]), (&2.into(), &5000.into()), "{manner}");
        let free = json(["df", "--json", &url("")])[0]["total_bytes"].as_u64().unwrap();
        assert!(free > 0, "{manner}");
        let says = fail(1, ["rm", &url("a")]);
        assert!(says.contains("-r"), "{manner}: {says}");
        run(["rm", "-r", &url("a")]);
        assert_eq!(fs::read_dir(at("")).unwrap().count(), 0, "{manner}");
    }
}

#[test]
fn checksum_finds_a_copy_corrupted_on_the_wire() {
    let setup = Setup::new();
    let file = setup.local("file");
    fs::write(&file, [&MARK[..], &[7; 4080]].concat().repeat(64)).unwrap();
    let port = corrupting(setup.server.port);
    for manner in ["vers=4.2", "vers=3"] {
        let url = format!("nfs://127.0.0.1:{port}/copy?mountport={port}&{manner}");
        let args = ["cp".as_ref(), "--checksum".as_ref(), file.as_os_str(), url.as_ref()];
        let says = fail(1, args);
        assert!(says.contains("the stored data differs from the written data"), "{manner}: {says}");
    }
}

const MARK: &[u8; 16] = b"a mark in a page";

/// The port of a proxy to the server that flips a bit of marked data, and nothing else.
fn corrupting(server: u16) -> u16 {
    way_to(server, usize::MAX, |bytes| {
        while let Some(at) = bytes.windows(MARK.len()).position(|w| w == MARK) {
            bytes[at] ^= 1;
        }
    })
}

/// The port of a proxy to the server, for so many connections, that changes the data sent to it.
fn way_to(server: u16, connections: usize, change: fn(&mut [u8])) -> u16 {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let port = listener.local_addr().unwrap().port();
    std::thread::spawn(move || {
        let mut listener = Some(listener);
        for left in (0..connections).rev() {
            let Some(open) = &listener else { return };
            let (client, _) = open.accept().unwrap();
            if left == 0 {
                // Before this client is answered, so that no further one connects.
                listener = None;
            }
            let server = TcpStream::connect(("127.0.0.1", server)).unwrap();
            let (back, to) = (client.try_clone().unwrap(), server.try_clone().unwrap());
            std::thread::spawn(move || pass(client, to, change));
            std::thread::spawn(move || pass(server, back, |_| {}));
        }
    });
    port
}

/// Forwards bytes until either end is closed.
fn pass(mut from: TcpStream, mut to: TcpStream, change: impl Fn(&mut [u8])) {
    let mut buffer = vec![0; 64 << 10];
    while let Ok(n) = from.read(&mut buffer)
        && n > 0
    {
        change(&mut buffer[..n]);
        if to.write_all(&buffer[..n]).is_err() {
            break;
        }
    }
    // The other direction ends by itself.
    let _ = to.shutdown(Shutdown::Both);
}

/// A small ext4 with space reserved for the superuser; unmounted on drop.
struct SmallDisk(tempfile::TempDir);

impl SmallDisk {
    fn new() -> Option<Self> {
        let dir = scratch();
        let (image, at) = (dir.path().join("image"), dir.path().join("at"));
        fs::File::create(&image).unwrap().set_len(64 << 20).unwrap();
        fs::create_dir(&at).unwrap();
        let run = |program: &str, args: &[&std::ffi::OsStr]| {
            let output = std::process::Command::new(program).args(args).output();
            output.is_ok_and(|output| output.status.success())
        };
        let mkfs = ["-q".as_ref(), "-F".as_ref(), "-m".as_ref(), "20".as_ref(), image.as_os_str()];
        let mount = ["-o".as_ref(), "loop".as_ref(), image.as_os_str(), at.as_os_str()];
        (run("mkfs.ext4", &mkfs) && run("mount", &mount)).then_some(Self(dir))
    }

    fn path(&self) -> PathBuf {
        self.0.path().join("at")
    }
}

impl Drop for SmallDisk {
    fn drop(&mut self) {
        drop(std::process::Command::new("umount").arg(self.path()).status());
    }
}

#[test]
fn a_full_disk_is_reported_and_earlier_copies_are_synced() {
    let root = rustix::process::geteuid().is_root();
    let Some(disk) = root.then(SmallDisk::new).flatten() else {
        weir_skip::skip("takes root, mkfs.ext4 and loop devices");
        return;
    };
    let export = disk.path();
    fs::set_permissions(&export, fs::Permissions::from_mode(0o777)).unwrap();
    let dir = scratch();
    let file = dir.path().join("file");
    let bytes: Vec<u8> = (0..5 << 20).map(|at: u32| (at % 251) as u8).collect();
    fs::write(&file, &bytes).unwrap();
    let mut server = Server::start(&export, &["--squash", "none"]);
    for (round, manner) in MANNERS.iter().enumerate() {
        let manner = format!("{manner}&uid=65534&gid=65534");
        let name = |n: u32| format!("r{round}-{n}");
        let mut copied = 0;
        let says = loop {
            let url = server.url(&name(copied), &manner);
            let output = weir(["cp".as_ref(), file.as_os_str(), url.as_ref()]).output().unwrap();
            if !output.status.success() {
                break text(&output);
            }
            copied += 1;
            assert!(copied < 64, "{manner}: the disk is never full");
        };
        assert!(says.contains("no space left"), "{manner}: {says}");
        assert!(copied > 0, "{manner}: {says}");
        // The reserved space is still free, and nothing is left of the failed copy.
        let space = rustix::fs::statvfs(&export).unwrap();
        assert!(space.f_bfree * space.f_frsize > 8 << 20, "{manner}");
        let ours = |name: &str| name.starts_with('r') || name.starts_with(".weir");
        let names = fs::read_dir(&export).unwrap().map(|e| e.unwrap().file_name());
        let names = names.filter(|n| n.to_str().is_some_and(ours)).count();
        assert_eq!(names, copied as usize, "{manner}");
        // Nor was data of the others only in the server's memory.
        server.child.kill().unwrap();
        server.child.wait().unwrap();
        for n in 0..copied {
            assert!(fs::read(export.join(name(n))).unwrap() == bytes, "{manner}: {n}");
            fs::remove_file(export.join(name(n))).unwrap();
        }
        let _ = fs::remove_dir_all(export.with_extension("state"));
        server = Server::start(&export, &["--squash", "none"]);
    }
    drop(server);
}
