//! Control groups that bound the memory of processes, including the kernel's cache for them.

use std::fs;
use std::io;
use std::path::{Path, PathBuf};

/// Processes and their limit. Removed on drop; the processes have to have ended by then.
pub(crate) struct Limit {
    group: PathBuf,
    /// The name of the file with its limit.
    file: &'static str,
}

impl Limit {
    /// Moves a process to a control group of its own.
    ///
    /// # Errors
    /// This user is not permitted, or there are no control groups for memory.
    pub(crate) fn on(process: u32, bytes: u64) -> io::Result<Self> {
        let limit = Self::new(&process.to_string(), bytes)?;
        limit.add(process)?;
        Ok(limit)
    }

    /// A control group without processes, in that of this process.
    ///
    /// # Errors
    /// As [`Self::on`].
    pub(crate) fn new(name: &str, bytes: u64) -> io::Result<Self> {
        let groups = fs::read_to_string("/proc/self/cgroup")?;
        let (parent, file) = memory_group(Path::new("/sys/fs/cgroup"), &groups)
            .ok_or_else(|| io::Error::from(io::ErrorKind::Unsupported))?;
        Self::make(parent.join(format!("weir-bench-{name}")), file, Some(bytes))
    }

    /// A control group in this one, whose limit includes its processes. This group takes no processes then
    /// (version 2 of control groups demands it).
    ///
    /// # Errors
    /// As [`Self::on`].
    pub(crate) fn within(&self, name: &str, bytes: Option<u64>) -> io::Result<Self> {
        let control = self.group.join("cgroup.subtree_control");
        if control.exists() {
            fs::write(control, "+memory")?;
        }
        Self::make(self.group.join(name), self.file, bytes)
    }

    fn make(group: PathBuf, file: &'static str, bytes: Option<u64>) -> io::Result<Self> {
        fs::create_dir(&group)?;
        let limit = Self { group, file };
        if let Some(bytes) = bytes {
            fs::write(limit.group.join(file), bytes.to_string())?;
        }
        Ok(limit)
    }

    /// Moves a process to it.
    ///
    /// # Errors
    /// There is no such process.
    pub(crate) fn add(&self, process: u32) -> io::Result<()> {
        fs::write(self.processes(), process.to_string())
    }

    /// The file to which a process writes its number to get there.
    pub(crate) fn processes(&self) -> PathBuf {
        self.group.join("cgroup.procs")
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
