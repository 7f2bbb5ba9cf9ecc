//! How to synchronize: names that are left out, and files that are up to date.

use crate::failure::{Failure, Result};
use crate::mounts::Place;
use ignore::gitignore::{Gitignore, GitignoreBuilder};
use parking_lot::Mutex;
use std::collections::HashMap;
use std::ffi::OsStr;
use std::os::unix::ffi::OsStrExt;
use std::path::Path;
use std::sync::atomic::AtomicBool;
use std::time::{SystemTime, UNIX_EPOCH};
use weir_vfs::{Attr, FileId, FileKind};

/// Patterns in the syntax of gitignore(5): the last one that matches counts.
#[derive(Clone, Debug)]
pub struct Filter(Gitignore);

impl Filter {
    /// Leaves out what matches `exclude`, except for what matches `include`.
    ///
    /// # Errors
    /// A pattern is not well-formed.
    pub fn new<'a>(
        exclude: impl IntoIterator<Item = &'a str>,
        include: impl IntoIterator<Item = &'a str>,
    ) -> Result<Self> {
        let mut builder = GitignoreBuilder::new("");
        builder.allow_unclosed_class(false);
        let failed = |pattern: &str, error: ignore::Error| {
            let failure = Failure::new(format!("use the pattern {pattern}"), error.to_string());
            failure.advice("write it as in a .gitignore file")
        };
        // Lines of a file that stand for nothing would protect nothing.
        let check = |pattern: &str| match pattern {
            _ if pattern.trim().is_empty() => refused(pattern, "it is empty", "name a file"),
            _ if pattern.starts_with('#') => refused(
                pattern,
                "it is a comment in a .gitignore file",
                "write \\# for the character",
            ),
            _ if pattern.starts_with("./") => refused(
                pattern,
                "paths are relative to the top of the tree",
                "begin it with / instead",
            ),
            _ => Ok(()),
        };
        for pattern in exclude {
            check(pattern)?;
            builder.add_line(None, pattern).map_err(|error| failed(pattern, error))?;
        }
        for pattern in include {
            check(pattern)?;
            let line = format!("!{pattern}");
            builder.add_line(None, &line).map_err(|error| failed(pattern, error))?;
        }
        let built = builder.build().map_err(|error| failed("list", error))?;
        Ok(Self(built))
    }

    /// Whether it leaves out the file at `path`, relative to the top of the tree. Directories above it
    /// are not examined.
    pub fn excludes(&self, path: &[u8], is_directory: bool) -> bool {
        self.0.matched(Path::new(OsStr::from_bytes(path)), is_directory).is_ignore()
    }

    /// Whether it leaves out nothing.
    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }
}

fn refused(pattern: &str, failed: &str, advice: &str) -> Result<()> {
    Err(Failure::new(format!("use the pattern '{pattern}'"), failed).advice(advice))
}

/// How to synchronize.
#[derive(Debug)]
pub struct Mirror {
    /// Names that are left out.
    pub filter: Filter,
    /// Compare the content of files that are equal by size and time, too.
    pub compares_content: bool,
    /// Write files that changed anew, not only their changed ranges.
    pub whole_files: bool,
    /// Remove what the source does not have.
    pub deletes: bool,
    /// The paths of directories of the source, relative to its top.
    pub(crate) paths: Mutex<HashMap<FileId, Vec<u8>>>,
    /// A file waits for a directory of its name to be removed.
    pub(crate) is_blocked: AtomicBool,
    /// What could be removed is gone: a directory that is still there stays.
    pub(crate) is_removed: AtomicBool,
}

impl Mirror {
    /// A synchronization with these options, which compares files by size and time.
    pub fn new(filter: Filter, deletes: bool) -> Self {
        Self {
            filter,
            compares_content: false,
            whole_files: false,
            deletes,
            paths: Mutex::default(),
            is_blocked: AtomicBool::new(false),
            is_removed: AtomicBool::new(false),
        }
    }

    /// Whether an entry takes part, and its path if it is a directory.
    pub(crate) fn takes(&self, from: &Place, attr: &Attr) -> bool {
        let is_directory = attr.kind == FileKind::Directory;
        let mut paths = self.paths.lock();
        // The top is in no directory of the tree.
        let path = match (paths.get(&from.dir), &from.name) {
            (Some(above), Some(name)) => below(above, name),
            _ => Vec::new(),
        };
        let takes = path.is_empty() || !self.filter.excludes(&path, is_directory);
        if takes && is_directory {
            paths.insert(attr.id, path);
        }
        takes
    }
}

/// The path of `name` in the directory at `path`.
pub(crate) fn below(path: &[u8], name: &[u8]) -> Vec<u8> {
    if path.is_empty() { name.to_vec() } else { [path, b"/", name].concat() }
}

/// Whether the regular file at the destination needs no look: it is equal by size, time, mode and owner.
pub(crate) fn is_done(mirror: &Mirror, source: &Attr, there: &Attr) -> bool {
    let state = |attr: &Attr| (attr.mode, attr.uid, attr.gid);
    let is_like = is_equal(source, there) && state(source) == state(there);
    !mirror.compares_content && is_like && !has_other_names(source, there)
}

/// Whether the file at the destination has names that the source does not have. Its attributes are those
/// of other files, too, so it is written anew.
pub(crate) fn has_other_names(source: &Attr, there: &Attr) -> bool {
    there.nlink > source.nlink
}

/// Whether a regular file is equal by size and time.
pub(crate) fn is_equal(source: &Attr, there: &Attr) -> bool {
    there.kind == FileKind::Regular && there.size == source.size && is_kept_as(source.mtime, there)
}

/// The steps in which file systems keep modification times, in nanoseconds: FAT, ext3, exFAT, some servers, NTFS.
const STEPS: [u128; 5] = [2_000_000_000, 1_000_000_000, 10_000_000, 1_000, 100];

/// Whether a file that was given the modification time `set` has it: the same, or cut to a whole number of steps of
/// its file system. The time of its last change, which no program sets, is in such steps, too.
pub(crate) fn is_kept_as(set: SystemTime, there: &Attr) -> bool {
    let nanos = |time: SystemTime| time.duration_since(UNIX_EPOCH).map(|since| since.as_nanos());
    match (set.duration_since(there.mtime), nanos(there.mtime), nanos(there.ctime)) {
        (Ok(cut), Ok(mtime), Ok(ctime)) if !cut.is_zero() => STEPS.iter().any(|step| {
            cut.as_nanos() < *step && mtime.is_multiple_of(*step) && ctime.is_multiple_of(*step)
        }),
        _ => set == there.mtime,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::time::Duration;
    use weir_stores::memory::MemoryFs;
    use weir_vfs::FileSystem;

    #[tokio::test]
    async fn a_time_is_kept_in_steps_of_the_file_system() {
        let time = |nanos| UNIX_EPOCH + Duration::from_nanos(nanos);
        let root = MemoryFs::new();
        let some = root.getattr(root.root()).await.unwrap();
        let at = |mtime, ctime| Attr { mtime, ctime, ..some.clone() };
        let set = time(1_000_000_001_234_567_891);
        for (kept, step) in [
            (1_000_000_001_234_567_891, 1),
            (1_000_000_001_234_567_800, 100),
            (1_000_000_001_234_567_000, 1_000),
            (1_000_000_001_230_000_000, 10_000_000),
            (1_000_000_001_000_000_000, 1_000_000_000),
            (1_000_000_000_000_000_000, 2_000_000_000),
        ] {
            assert!(is_kept_as(set, &at(time(kept), time(7 * step))), "{kept}");
            // A file system with shorter steps keeps the whole time.
            assert_eq!(is_kept_as(set, &at(time(kept), time(7 * step + 1))), step == 1, "{kept}");
        }
        for other in [
            1_000_000_001_234_567_890,
            1_000_000_001_234_567_892,
            1_000_000_001_234_567_900,
            1_000_000_001_234_566_000,
            1_000_000_002_000_000_000,
            999_999_998_000_000_000,
        ] {
            assert!(!is_kept_as(set, &at(time(other), UNIX_EPOCH)), "{other}");
        }
        let before = UNIX_EPOCH - Duration::from_nanos(1_500_000_000);
        assert!(is_kept_as(before, &at(before, UNIX_EPOCH)));
        assert!(!is_kept_as(before, &at(UNIX_EPOCH, UNIX_EPOCH)));
    }

    #[test]
    fn patterns_are_those_of_gitignore() {
        let filter = Filter::new(["*.o", "/top", "build/", "a/**/z"], ["keep.o"]).unwrap();
        for (path, is_directory, excluded) in [
            ("x.o", false, true),
            ("deep/x.o", false, true),
            ("deep/keep.o", false, false),
            ("top", false, true),
            ("deep/top", false, false),
            ("build", true, true),
            ("build", false, false),
            ("a/b/c/z", false, true),
        ] {
            assert_eq!(filter.excludes(path.as_bytes(), is_directory), excluded, "{path}");
        }
        for useless in ["a[b", "", " ", "#x#", "./x"] {
            assert!(Filter::new([useless], []).is_err(), "{useless}");
            assert!(Filter::new([], [useless]).is_err(), "{useless}");
        }
        assert!(Filter::new(["\\#x#"], []).unwrap().excludes(b"#x#", false));
        assert!(Filter::new([], []).unwrap().is_empty());
        assert!(Filter::new(["*"], []).unwrap().excludes(b"\xff\n", false));
    }
}
