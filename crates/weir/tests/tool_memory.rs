//! Peak memory of copies of trees: that of the page cache, which is configured, and little more.

mod common;

use common::{scratch, weir};
use std::fs;
use std::path::Path;
use std::process::Stdio;
use std::time::Duration;

const MIB: u64 = 1 << 20;
const BUDGET: u64 = 64 * MIB;
/// For the program itself (18 MiB of it are its file), its threads, what stores know of files, and
/// the entries of one directory. All data is more than both.
const BESIDE: u64 = 96 * MIB;

/// Makes 20,000 files of 8 KiB, half of them in one directory.
fn tree(top: &Path) {
    for n in 0..20_000 {
        let dir = top.join(if n % 2 == 0 { "all".into() } else { format!("dir{}", n % 40) });
        fs::create_dir_all(&dir).unwrap();
        fs::write(dir.join(format!("a file with the number {n:06}")), [n as u8 | 1; 8192]).unwrap();
    }
}

/// Runs `weir`; returns the most memory that it took, in bytes.
fn peak(args: &[&str]) -> u64 {
    let mut child = weir(args).stdin(Stdio::null()).spawn().unwrap();
    let mut peak = 0;
    loop {
        let status = fs::read_to_string(format!("/proc/{}/status", child.id())).unwrap();
        let line = status.lines().find_map(|line| line.strip_prefix("VmHWM:"));
        let kib = line.and_then(|line| line.trim().strip_suffix(" kB")?.parse::<u64>().ok());
        peak = peak.max(kib.unwrap_or_default() << 10);
        if let Some(status) = child.try_wait().unwrap() {
            assert!(status.success(), "{args:?}");
            return peak;
        }
        std::thread::sleep(Duration::from_millis(2));
    }
}

#[test]
fn copies_of_many_files_take_the_memory_of_their_budget() {
    let dir = scratch();
    let at = |name: &str| dir.path().join(name).to_str().unwrap().to_owned();
    let (from, to) = (at("tree"), at("copy"));
    tree(Path::new(&from));
    for args in [&["cp", "-rpT"][..], &["sync", "--delete"], &["sync", "--delete", "--checksum"]] {
        let peak = peak(&[args, &["--budget", "64M", &from, &to]].concat());
        assert!(peak < BUDGET + BESIDE, "{args:?}: {} MiB", peak / MIB);
    }
    let files = fs::read_dir(Path::new(&to).join("all")).unwrap().count();
    assert_eq!(files, 10_000);
}
