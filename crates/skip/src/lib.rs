//! The one way for a test to skip: [`skip`] prints `skipped: TEST: REASON`, past the test harness, which captures
//! the output of passing tests, and appends that line to the file that `WEIR_SKIPS` names, if it is set.
//!
//! `.ci/run` collects these lines and fails on those that `.ci/allowed-skips` does not contain. What a test does not
//! apply to (a version of NFS, say) is not skipped: only what the machine lacks is.

#![forbid(unsafe_code)]

use std::ffi::OsStr;
use std::fmt::Display;
use std::io::Write;
use std::os::unix::fs::MetadataExt;
use std::panic::Location;
use std::path::Path;

/// Reports that the calling test, or a part of it, is skipped because the machine lacks something.
///
/// TEST is `PACKAGE:BINARY:NAME`; on a thread that is not the test's own, NAME is the caller's file and line.
///
/// # Panics
/// The file that `WEIR_SKIPS` names cannot be written.
#[track_caller]
pub fn skip(reason: impl Display) {
    let line = line(&test(Location::caller()), &reason.to_string());
    // A closed stderr is no failure of the test.
    let _ = std::io::stderr().write_all(line.as_bytes());
    if let Some(path) = std::env::var_os("WEIR_SKIPS") {
        append(Path::new(&path), &line);
    }
}

/// Whether this process is the superuser's; if not, reports that the calling test is skipped because of `reason`.
///
/// # Panics
/// As [`skip`].
#[track_caller]
pub fn is_root(reason: &str) -> bool {
    // The owner of the directory is the process's effective user (proc(5)).
    let root = std::fs::metadata("/proc/self").is_ok_and(|process| process.uid() == 0);
    if !root {
        skip(reason);
    }
    root
}

/// The line of a skip; a reason of several lines becomes one.
fn line(test: &str, reason: &str) -> String {
    let words: Vec<&str> = reason.split_whitespace().collect();
    format!("skipped: {test}: {}\n", words.join(" "))
}

fn append(path: &Path, line: &str) {
    let file = std::fs::OpenOptions::new().append(true).create(true).open(path);
    // One write, so that lines of several processes do not mix.
    let done = file.and_then(|mut file| file.write_all(line.as_bytes()));
    done.unwrap_or_else(|error| panic!("WEIR_SKIPS names {}: {error}", path.display()));
}

fn test(caller: &Location<'_>) -> String {
    // Cargo sets it for the tests that it runs.
    let package = std::env::var("CARGO_PKG_NAME").unwrap_or_default();
    let exe = std::env::current_exe().unwrap_or_default();
    let stem = exe.file_stem().and_then(OsStr::to_str).unwrap_or_default();
    let binary = stem.rsplit_once('-').map_or(stem, |(name, _hash)| name);
    let thread = std::thread::current();
    match thread.name() {
        Some(name) if !is_a_workers(name) => format!("{package}:{binary}:{name}"),
        _ => format!("{package}:{binary}:{}:{}", caller.file(), caller.line()),
    }
}

/// Whether a thread's name is not that of a test: with one test thread, tests run in `main`.
fn is_a_workers(name: &str) -> bool {
    name == "main" || name.starts_with("tokio-") || name.starts_with("weir-")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_line_names_the_test_and_the_reason_on_one_line() {
        let test = test(Location::caller());
        let name = "tests::the_line_names_the_test_and_the_reason_on_one_line";
        assert!(test.ends_with(name) || test.contains("lib.rs:"), "{test}");
        assert!(test.contains(":weir_skip:"), "{test}");
        assert_eq!(line("t", "no\n  x here\n"), "skipped: t: no x here\n");
    }

    #[test]
    fn a_skip_on_another_thread_names_the_caller() {
        let of_a_worker = std::thread::spawn(|| test(Location::caller())).join();
        assert!(of_a_worker.unwrap().contains("lib.rs:"));
    }

    #[test]
    fn lines_are_appended() {
        let path = std::env::temp_dir().join(format!("weir-skip-{}", std::process::id()));
        // A process of the same number may have left it.
        let _ = std::fs::remove_file(&path);
        for reason in ["one", "two"] {
            append(&path, &line("t", reason));
        }
        let found = std::fs::read_to_string(&path);
        std::fs::remove_file(&path).unwrap();
        assert_eq!(found.unwrap(), "skipped: t: one\nskipped: t: two\n");
    }

    #[test]
    fn a_skip_that_cannot_be_collected_fails_the_test() {
        let lost = std::panic::catch_unwind(|| append(Path::new("/nonexistent/skips"), "x\n"));
        assert!(lost.is_err());
    }
}
