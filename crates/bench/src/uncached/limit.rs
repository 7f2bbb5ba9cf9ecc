//! A control group that bounds the memory of a process, including the kernel's cache for it.

use std::fs;
use std::io;
use std::path::{Path, PathBuf};

/// Removed on drop; the process has to have ended by then.
pub(crate) struct Limit {
    group: PathBuf,
}

impl Limit {
    /// Moves a process to a control group of its own.
    ///
    /// # Errors
    /// This user is not permitted, or there are no control groups for memory.
    pub(crate) fn on(process: u32, bytes: u64) -> io::Result<Self> {
        let groups = fs::read_to_string("/proc/self/cgroup")?;
        let (parent, file) = memory_group(Path::new("/sys/fs/cgroup"), &groups)
            .ok_or_else(|| io::Error::from(io::ErrorKind::Unsupported))?;
        let group = parent.join(format!("weir-bench-{process}"));
        fs::create_dir(&group)?;
        let limit = Self { group };
        fs::write(limit.group.join(file), bytes.to_string())?;
        fs::write(limit.group.join("cgroup.procs"), process.to_string())?;
        Ok(limit)
    }
}

impl Drop for Limit {
    fn drop(&mut self) {
        // The group becomes empty shortly after its last process has ended.
        for _ in 0..50 {
            if fs::remove_dir(&self.group).is_ok() {
                return;
            }
            std::thread::sleep(std::time::Duration::from_millis(10));
        }
    }
}

/// The memory control group of this process, and the name of the file with its limit.
fn memory_group(mounts: &Path, groups: &str) -> Option<(PathBuf, &'static str)> {
    let fields = |line: &'_ str| -> Option<(String, String)> {
        let mut fields = line.splitn(3, ':').skip(1);
        Some((fields.next()?.to_owned(), fields.next()?.trim_start_matches('/').to_owned()))
    };
    let lines: Vec<_> = groups.lines().filter_map(fields).collect();
    if let Some((_, group)) = lines.iter().find(|(c, _)| c.split(',').any(|c| c == "memory")) {
        return Some((mounts.join("memory").join(group), "memory.limit_in_bytes"));
    }
    let (_, group) = lines.iter().find(|(controllers, _)| controllers.is_empty())?;
    Some((mounts.join(group), "memory.max"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn both_versions_are_found() {
        let found = |groups| memory_group(Path::new("/c"), groups);
        let first = found("5:cpu,cpuacct:/a\n4:memory:/a/b\n0::/\n");
        assert_eq!(first, Some((PathBuf::from("/c/memory/a/b"), "memory.limit_in_bytes")));
        assert_eq!(found("0::/user\n"), Some((PathBuf::from("/c/user"), "memory.max")));
        assert_eq!(found(""), None);
    }
}
