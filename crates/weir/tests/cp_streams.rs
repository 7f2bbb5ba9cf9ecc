//! `weir cp` from standard input and devices, and to standard output and devices.

mod common;

use common::{Server, blocks, fail, scratch, sparse, text, weir};
use std::fs::{self, File};
use std::io::Write;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

const MIB: u64 = 1 << 20;

#[test]
fn zeros_of_standard_input_become_holes() {
    let dir = scratch();
    let export = dir.path().join("export");
    fs::create_dir(&export).unwrap();
    let source = dir.path().join("source");
    sparse(&source, 20 * MIB, [(3 * MIB, MIB), (19 * MIB, 4096)]);
    let server = Server::start(&export, &["--squash", "none"]);
    let local = export.join("copy").to_str().unwrap().to_owned();
    for to in [local, server.url("copy", "vers=3"), server.url("copy", "vers=4.2")] {
        let mut command = weir(["cp", "-", &to]);
        // A pipe, which has no size and no holes.
        let mut cat = Command::new("cat").arg(&source).stdout(Stdio::piped()).spawn().unwrap();
        let output = command.stdin(cat.stdout.take().unwrap()).output().unwrap();
        assert!(cat.wait().unwrap().success());
        assert!(output.status.success(), "{}", text(&output));
        let copy = export.join("copy");
        assert!(common::same(&source, &copy), "{to}");
        assert!(blocks(&copy) * 512 <= MIB + 8 * 4096, "{to}: {}", blocks(&copy));
        // A file that is replaced keeps its mode.
        fs::set_permissions(&copy, fs::Permissions::from_mode(0o600)).unwrap();
        let mut command = weir(["cp", "-", &to]);
        assert!(command.stdin(Stdio::null()).output().unwrap().status.success());
        assert_eq!(copy.metadata().unwrap().len(), 0);
        assert_eq!(copy.metadata().unwrap().permissions().mode() & 0o777, 0o600);
        fs::remove_file(&copy).unwrap();
        let says = fail(1, ["cp", "-", &to.replace("copy", "")]);
        assert!(says.contains("it is a directory; name the file to write"), "{says}");
        let left: Vec<_> = fs::read_dir(&export).unwrap().collect();
        assert!(left.is_empty(), "{left:?}");
    }
}

#[test]
fn in_place_standard_input_goes_to_the_existing_file() {
    let dir = scratch();
    let export = dir.path().join("export");
    fs::create_dir(&export).unwrap();
    let source = dir.path().join("source");
    sparse(&source, 5 * MIB, [(MIB, MIB)]);
    let server = Server::start(&export, &["--squash", "none"]);
    let (copy, other) = (export.join("copy"), export.join("other"));
    let local = copy.to_str().unwrap().to_owned();
    let cp = |from: &Path, to: &str| {
        let mut command = weir(["cp", "--in-place", "-", to]);
        command.stdin(File::open(from).unwrap()).output().unwrap()
    };
    for to in [&local, &server.url("copy", "vers=3"), &server.url("copy", "vers=4.2")] {
        fs::write(&copy, "old").unwrap();
        fs::hard_link(&copy, &other).unwrap();
        let output = cp(&source, to);
        assert!(output.status.success(), "{}", text(&output));
        assert!(common::same(&source, &other), "{to}");
        assert!(blocks(&other) * 512 <= MIB + 8 * 4096, "{to}: {}", blocks(&other));
        fs::remove_file(&other).unwrap();
        let output = cp(&copy, to);
        assert_eq!(output.status.code(), Some(1), "{}", text(&output));
        assert!(text(&output).contains("they are the same file"), "{}", text(&output));
        assert!(common::same(&source, &copy), "{to}");
    }
    fs::remove_file(&copy).unwrap();
    assert!(cp(&source, &local).status.success());
    assert!(common::same(&source, &copy), "a file that does not exist is made");
}

#[test]
fn standard_output_gets_the_bytes() {
    let dir = scratch();
    let export = dir.path().join("export");
    fs::create_dir(&export).unwrap();
    let source = export.join("source");
    sparse(&source, 5 * MIB, [(MIB, MIB)]);
    let server = Server::start(&export, &["--squash", "none"]);
    let local = source.to_str().unwrap().to_owned();
    for from in [local, server.url("source", "vers=3"), server.url("source", "vers=4.2")] {
        let output = weir(["cp", &from, "-"]).output().unwrap();
        assert!(output.status.success(), "{}", text(&output));
        assert!(output.stdout == fs::read(&source).unwrap(), "{from}");
    }
    let says = fail(1, ["cp", &server.url("missing", "vers=4.2"), "-"]);
    assert!(says.contains("no such file"), "{says}");
    let says = fail(1, ["cp", "a", "b", "-"]);
    assert!(says.contains("it takes one file"), "{says}");
}

/// A loop device over a file, as far as this machine has any; detached when dropped.
struct Loop(PathBuf);

impl Loop {
    fn over(file: &Path) -> Option<Self> {
        let output = Command::new("losetup").args(["--find", "--show"]).arg(file).output().ok()?;
        let name = String::from_utf8(output.stdout).ok()?;
        let path = PathBuf::from(name.trim());
        (output.status.success() && path.exists()).then_some(Self(path))
    }
}

impl Drop for Loop {
    fn drop(&mut self) {
        let _ = Command::new("losetup").arg("--detach").arg(&self.0).output();
    }
}

#[test]
fn block_devices_are_written_over_and_read() {
    let dir = scratch();
    let backing = dir.path().join("backing");
    fs::write(&backing, vec![0xFF; 8 * MIB as usize]).unwrap();
    let Some(device) = Loop::over(&backing) else {
        return weir_skip::skip("no loop devices");
    };
    let export = dir.path().join("export");
    fs::create_dir(&export).unwrap();
    sparse(&export.join("image"), 6 * MIB, [(MIB, MIB), (4 * MIB, 1000)]);
    let server = Server::start(&export, &["--squash", "none"]);
    let path = device.0.to_str().unwrap();
    let output = weir(["cp", &server.url("image", "vers=4.2"), path]).output().unwrap();
    assert!(output.status.success(), "{}", text(&output));
    let on_device = fs::read(&device.0).unwrap();
    let image = fs::read(export.join("image")).unwrap();
    assert!(on_device[..image.len()] == image, "holes are zeros");
    assert!(on_device[image.len()..].iter().all(|&byte| byte == 0xFF), "the rest is as it was");
    let output = weir(["cp", path, &server.url("back", "vers=4.2")]).output().unwrap();
    assert!(output.status.success(), "{}", text(&output));
    assert!(fs::read(export.join("back")).unwrap() == on_device);
    // A device exists, and takes one source.
    let output = weir(["cp", "-n"]).arg(export.join("image")).arg(path).output().unwrap();
    assert!(output.status.success(), "{}", text(&output));
    let image = export.join("image").to_str().unwrap().to_owned();
    for args in [["cp", &image, &image, path], ["cp", "-t", path, &image]] {
        assert!(fail(1, args).contains("takes one source"), "{args:?}");
    }
    assert!(fs::read(&device.0).unwrap() == on_device);
    // A file of the kernel, whose size does not describe its content.
    let output = weir(["cp", "/proc/filesystems", path]).output().unwrap();
    assert!(output.status.success(), "{}", text(&output));
    let known = fs::read("/proc/filesystems").unwrap();
    let on_device = fs::read(&device.0).unwrap();
    assert!(!known.is_empty() && on_device.starts_with(&known));
    // What does not fit is not begun.
    File::create(export.join("large")).unwrap().set_len(9 * MIB).unwrap();
    let says = fail(1, ["cp", &server.url("large", "vers=4.2"), path]);
    assert!(says.contains("it has 8388608 bytes"), "{says}");
    assert!(fs::read(&device.0).unwrap() == on_device);
}

#[test]
fn a_stream_replaces_nothing_that_is_to_stay() {
    let dir = scratch();
    let file = dir.path().join("existing");
    fs::write(&file, "existing").unwrap();
    for (option, answer) in [("--dry-run", ""), ("-n", ""), ("-i", "n\n")] {
        let mut command = weir(["cp", option]);
        // A named pipe, so that -i reads its answer from standard input.
        let pipe = dir.path().join("pipe");
        let _ = fs::remove_file(&pipe);
        assert!(Command::new("mkfifo").arg(&pipe).status().unwrap().success());
        // Ends when the command has opened the pipe, whether it reads it or not.
        let writer = std::thread::spawn({
            let pipe = pipe.clone();
            move || fs::write(pipe, "new")
        });
        let mut child = command
            .arg(&pipe)
            .arg(&file)
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .stderr(Stdio::piped())
            .spawn()
            .unwrap();
        child.stdin.take().unwrap().write_all(answer.as_bytes()).unwrap();
        let output = child.wait_with_output().unwrap();
        let _ = writer.join().unwrap();
        assert!(output.status.success(), "{option}: {}", text(&output));
        assert_eq!(fs::read(&file).unwrap(), b"existing", "{option}");
    }
    let output = weir(["cp", "--dry-run"]).arg(&file).arg("-").output().unwrap();
    assert!(output.status.success() && output.stdout.is_empty());
}

/// Its first line would be the answer, and be missing in the copy.
#[test]
fn standard_input_that_is_copied_answers_no_question() {
    let dir = scratch();
    let (file, data) = (dir.path().join("existing"), dir.path().join("data"));
    fs::write(&data, "yes\nnew").unwrap();
    let cp = |option: &str, from: &str| {
        let mut cat = Command::new("cat").arg(&data).stdout(Stdio::piped()).spawn().unwrap();
        let mut command = weir(["cp", option, from]);
        let output = command.arg(&file).stdin(cat.stdout.take().unwrap()).output().unwrap();
        cat.wait().unwrap();
        output
    };
    fs::write(&file, "existing").unwrap();
    for from in ["-", "/dev/stdin", "/proc/self/fd/0"] {
        let output = cp("-i", from);
        assert_eq!(output.status.code(), Some(1), "{}", text(&output));
        assert!(text(&output).contains("use -f to replace it"), "{}", text(&output));
        assert_eq!(fs::read(&file).unwrap(), b"existing", "{from}");
    }
    assert!(cp("-n", "-").status.success());
    assert_eq!(fs::read(&file).unwrap(), b"existing");
    for option in ["-f", "-u"] {
        fs::write(&file, "existing").unwrap();
        assert!(cp(option, "-").status.success());
        assert_eq!(fs::read(&file).unwrap(), b"yes\nnew", "{option}");
    }
}
