//! `weir cat` of local files.

mod common;

use common::mount::{Mount, source};
use common::{Server, blocks, fail, run, same, scratch, sparse, text, weir};
use std::fs::{self, File, OpenOptions};
use std::io::{Read, Seek, SeekFrom};
use std::process::{Command, Stdio};

#[test]
fn to_a_pipe_all_bytes() {
    let dir = scratch();
    let file = dir.path().join("file");
    sparse(&file, 5 << 20, [(100, 50), (3 << 20, 1 << 20)]);
    let output = weir(["cat".as_ref(), file.as_os_str()]).output().unwrap();
    assert!(output.status.success());
    assert_eq!(output.stdout, fs::read(&file).unwrap());
}

#[test]
fn to_a_file_holes_stay_holes() {
    let dir = scratch();
    let (file, copy) = (dir.path().join("file"), dir.path().join("copy"));
    sparse(&file, 64 << 20, [(8192, 4096), (32 << 20, 70_000)]);
    let status = weir(["cat".as_ref(), file.as_os_str()])
        .stdout(File::create(&copy).unwrap())
        .status()
        .unwrap();
    assert!(status.success());
    assert!(same(&file, &copy));
    assert!(blocks(&copy) <= blocks(&file));
}

#[test]
fn old_content_of_an_output_file_does_not_show_through_holes() {
    let dir = scratch();
    let (file, copy) = (dir.path().join("file"), dir.path().join("copy"));
    sparse(&file, 100_000, [(50_000, 10)]);
    fs::write(&copy, vec![7; 200_000]).unwrap();
    for append in [false, true] {
        let out = OpenOptions::new().write(true).append(append).open(&copy).unwrap();
        let status = weir(["cat".as_ref(), file.as_os_str()]).stdout(out).status().unwrap();
        assert!(status.success());
    }
    let (source, copied) = (fs::read(&file).unwrap(), fs::read(&copy).unwrap());
    assert_eq!(copied[..100_000], source);
    assert_eq!(copied[100_000..200_000], [7; 100_000]);
    assert_eq!(copied[200_000..], source);
}

#[test]
fn parts_of_files() {
    let dir = scratch();
    let file = dir.path().join("file");
    fs::write(&file, "0123456789").unwrap();
    let cat = |options: &[&str]| {
        run(["cat"].iter().chain(options).map(AsRef::as_ref).chain([file.as_os_str()]))
    };
    assert_eq!(cat(&["--offset", "3", "--length", "4"]), "3456");
    assert_eq!(cat(&["--offset", "8"]), "89");
    assert_eq!(cat(&["--offset", "99"]), "");
    assert_eq!(cat(&["--uncached"]), "0123456789");
}

#[test]
fn a_closed_pipe_is_no_error() {
    let dir = scratch();
    let file = dir.path().join("file");
    sparse(&file, 1 << 30, [(0, 1 << 20)]);
    let mut cat = weir(["cat".as_ref(), file.as_os_str()])
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .unwrap();
    let mut first = [0; 10];
    cat.stdout.take().unwrap().read_exact(&mut first).unwrap();
    let output = cat.wait_with_output().unwrap();
    assert_eq!(output.stderr, b"");
}

#[test]
fn unreadable_files_are_reported() {
    let dir = scratch();
    let says = fail(1, ["cat".as_ref(), dir.path().as_os_str()]);
    assert!(says.ends_with("it is a directory\n"), "{says}");
    let full = Command::new("sh")
        .args(["-c", &format!("{} cat /etc/passwd >/dev/full", env!("CARGO_BIN_EXE_weir"))])
        .output()
        .unwrap();
    assert_eq!(full.status.code(), Some(1));
    let says = String::from_utf8_lossy(&full.stderr);
    assert!(says.contains("cannot write to standard output: no space left"), "{says}");
}

/// The work is done all the same.
#[test]
fn lines_that_cannot_be_written_are_a_failure() {
    let dir = scratch();
    let path = |name: &str| dir.path().join(name).to_str().unwrap().to_owned();
    fs::create_dir_all(path("from/below")).unwrap();
    fs::write(path("from/a"), "a").unwrap();
    fs::write(path("from/below/b"), "b").unwrap();
    let full = |args: &[&str]| {
        let output = OpenOptions::new().write(true).open("/dev/full").unwrap();
        let output = weir(args).stdout(output).output().unwrap();
        assert_eq!(output.status.code(), Some(1), "{args:?}: {}", text(&output));
        let says = text(&output);
        assert_eq!(
            says.matches("cannot write to standard output: no space left").count(),
            1,
            "{says}"
        );
    };
    full(&["sync", "--dry-run", &path("from"), &path("to")]);
    assert!(!dir.path().join("to").exists());
    full(&["sync", "-v", &path("from"), &path("to")]);
    assert_eq!(fs::read(path("to/below/b")).unwrap(), b"b");
    full(&["cp", "-v", &path("from/a"), &path("copy")]);
    assert_eq!(fs::read(path("copy")).unwrap(), b"a");
    full(&["rm", "-rv", &path("from"), &path("copy")]);
    assert!(!dir.path().join("from").exists() && !dir.path().join("copy").exists());
}

/// A mount keeps what is written until the file is closed; its server may not let files grow that far.
#[test]
fn a_loss_that_the_close_of_the_output_reports_is_a_failure() {
    let (near, source) = source();
    fs::write(source.join("file"), [7; 4096]).unwrap();
    let export = near.path().join("export");
    fs::create_dir(&export).unwrap();
    let mut command = Command::new("sh");
    // 8 or 16 MiB: the server's own files are smaller.
    let limited = "trap '' XFSZ; ulimit -f 16384; exec \"$0\" \"$@\"";
    command.args(["-c", limited, env!("CARGO_BIN_EXE_weir"), "serve", "--json", "--log", "error"]);
    command.args(["--bind", "127.0.0.1:0", "--squash", "none", "--state-dir"]);
    command.arg(export.with_extension("state")).arg(&export);
    let server = Server::spawn(command);
    let url = server.url("", "vers=4.2");
    let Some(mount) = Mount::start(near.path(), "mnt", &[], &url) else { return };
    let file = source.join("file");
    // Here another program has written, and one more has closed the output first.
    let empty = near.path().join("empty");
    fs::create_dir(&empty).unwrap();
    let mut shell = Command::new("sh");
    shell.args(["-c", "echo lost; env true; exec \"$0\" ls \"$1\"", env!("CARGO_BIN_EXE_weir")]);
    shell.arg(empty);
    let [cat, ls] = [["cat".as_ref(), file.as_os_str()], ["ls".as_ref(), source.as_os_str()]];
    for mut command in [weir(cat), weir(ls), shell] {
        let mut output = File::create(mount.path("output")).unwrap();
        output.seek(SeekFrom::Start(64 << 20)).unwrap();
        let wrote = command.stdout(output).output().unwrap();
        assert_eq!(wrote.status.code(), Some(1), "{command:?}");
        let says = text(&wrote);
        assert!(says.contains("cannot write to standard output"), "{command:?}: {says}");
    }
}

/// Nothing, or all of it, would be wrong, and look like success.
#[test]
fn a_share_of_an_unknown_size_is_refused() {
    for option in ["--length", "--offset"] {
        let says = fail(1, ["cat", option, "50%", "/proc/version"]);
        assert!(says.contains("is not known"), "{says}");
    }
    let version = fs::read_to_string("/proc/version").unwrap();
    assert_eq!(run(["cat", "--offset", "2", "--length", "3", "/proc/version"]), version[2..5]);
}
