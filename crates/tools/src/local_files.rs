//! The regular files of a local tree, for what needs descriptors of the kernel.

use crate::failure::{Failure, Result};
use ignore::{DirEntry, WalkBuilder};
use rustix::fs::{Mode, OFlags};
use std::cmp::Ordering;
use std::ffi::OsStr;
use std::fs::File;
use std::io;
use std::path::{Path, PathBuf};

/// The regular files at or below `top`, each directory's in the order of their names. Symbolic links
/// are not followed, other file systems are entered.
pub fn local_files(top: &Path) -> impl Iterator<Item = Result<PathBuf>> {
    let by_name = |a: &OsStr, b: &OsStr| -> Ordering { a.cmp(b) };
    let walk = WalkBuilder::new(top).standard_filters(false).sort_by_file_name(by_name).build();
    let is_regular =
        |entry: &DirEntry| entry.file_type().is_some_and(|file_type| file_type.is_file());
    walk.filter_map(move |entry| match entry {
        Ok(entry) => is_regular(&entry).then(|| Ok(entry.into_path())),
        Err(error) => Some(Err(Failure::new("list the files", error.to_string()))),
    })
}

/// Opens a regular file for reading. Does not wait for a writer if a pipe has taken its place.
///
/// # Errors
/// Those of open(2); `InvalidInput` for other kinds of files.
pub fn open(path: &Path) -> io::Result<File> {
    let flags = OFlags::RDONLY | OFlags::NOFOLLOW | OFlags::NONBLOCK | OFlags::CLOEXEC;
    let file = File::from(rustix::fs::open(path, flags, Mode::empty())?);
    match file.metadata()?.is_file() {
        true => Ok(file),
        false => Err(io::ErrorKind::InvalidInput.into()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_regular_files_are_found_and_opened() {
        let dir = tempfile::tempdir().unwrap();
        let top = dir.path();
        std::fs::create_dir(top.join(".hidden")).unwrap();
        for name in ["b", "a", ".hidden/c"] {
            std::fs::write(top.join(name), name).unwrap();
        }
        std::fs::write(top.join(".gitignore"), "a\n").unwrap();
        std::os::unix::fs::symlink("a", top.join("link")).unwrap();
        let found: Result<Vec<PathBuf>> = local_files(top).collect();
        let names = [".gitignore", ".hidden/c", "a", "b"].map(|name| top.join(name));
        assert_eq!(found.unwrap(), names);
        assert_eq!(local_files(&top.join("a")).count(), 1);
        assert!(local_files(&top.join("none")).all(|found| found.is_err()));
        assert!(open(&top.join("a")).is_ok());
        assert!(open(&top.join("link")).is_err());
        assert!(open(top).is_err());
    }
}
