//! The memory available to this program, and the page cache's default share.

use crate::failure::Failure;
use crate::size::Size;
use crate::text::size_text;
use std::fs;
use std::path::{Path, PathBuf};

/// The smallest budget with which a cache works well, in bytes.
const LEAST_BUDGET_BYTES: u64 = 16 << 20;

/// The largest read-ahead window of a command's page cache, in bytes.
pub const READAHEAD_BYTES: u64 = 8 << 20;

/// The cache budget in bytes: the requested one, or a quarter of memory up to `cap_bytes`.
pub fn budget_bytes(asked: Option<Size>, cap_bytes: u64) -> u64 {
    let memory = memory_bytes(Path::new("/"));
    let budget = match asked {
        Some(size) => size.of(memory),
        None => (memory / 4).min(cap_bytes),
    };
    budget.max(LEAST_BUDGET_BYTES)
}

/// Rejects a budget that exceeds memory, or is too small to be intended.
pub fn check_budget(asked: Option<Size>) -> Result<(), Failure> {
    check_budget_of(asked, most_bytes())
}

fn check_budget_of(asked: Option<Size>, memory: u64) -> Result<(), Failure> {
    let Some(Size::Bytes(bytes)) = asked else { return Ok(()) };
    let refused = |failed, advice: String| {
        Err(Failure::new(format!("use a budget of {}", size_text(bytes)), failed).advice(advice))
    };
    if bytes > memory {
        let failed =
            format!("this machine, or this program's control group, has {}", size_text(memory));
        return refused(failed, "take less, or a share of it like 50%".into());
    }
    if bytes < LEAST_BUDGET_BYTES {
        let failed = format!("a page cache takes {} at least", size_text(LEAST_BUDGET_BYTES));
        return refused(failed, format!("did you mean {bytes}M or {bytes}G?"));
    }
    Ok(())
}

/// All memory available to this program: the largest later budget.
pub fn most_bytes() -> u64 {
    memory_bytes(Path::new("/"))
}

/// Memory in bytes: the machine's, or a control group's limit if lower. `root` is `/`.
fn memory_bytes(root: &Path) -> u64 {
    let machine = fs::read_to_string(root.join("proc/meminfo"))
        .ok()
        .and_then(|text| mem_total_bytes(&text))
        .unwrap_or(1 << 30);
    let groups = fs::read_to_string(root.join("proc/self/cgroup")).unwrap_or_default();
    groups.lines().filter_map(|line| group_limit_bytes(root, line)).fold(machine, u64::min)
}

fn mem_total_bytes(meminfo: &str) -> Option<u64> {
    let line = meminfo.lines().find(|line| line.starts_with("MemTotal:"))?;
    let kib: u64 = line.split_ascii_whitespace().nth(1)?.parse().ok()?;
    Some(kib << 10)
}

/// The lowest limit between the group of a `/proc/self/cgroup` line and the root.
fn group_limit_bytes(root: &Path, line: &str) -> Option<u64> {
    let mut fields = line.splitn(3, ':');
    let (_, controllers, group) = (fields.next()?, fields.next()?, fields.next()?);
    let (hierarchy, file) = match controllers {
        "" => ("sys/fs/cgroup", "memory.max"),
        c if c.split(',').any(|c| c == "memory") => {
            ("sys/fs/cgroup/memory", "memory.limit_in_bytes")
        }
        _ => return None,
    };
    let top = root.join(hierarchy);
    let mut group: PathBuf = top.join(group.trim_start_matches('/'));
    let mut lowest = None;
    while group.starts_with(&top) {
        let limit = fs::read_to_string(group.join(file)).ok();
        let limit = limit.and_then(|text| text.trim().parse::<u64>().ok());
        lowest = limit.into_iter().chain(lowest).min();
        if !group.pop() {
            break;
        }
    }
    lowest
}

#[cfg(test)]
mod tests {
    use super::*;

    fn machine(files: &[(&str, &str)]) -> tempfile::TempDir {
        let root = tempfile::tempdir().unwrap();
        for (path, text) in files {
            let path = root.path().join(path);
            fs::create_dir_all(path.parent().unwrap()).unwrap();
            fs::write(path, text).unwrap();
        }
        root
    }

    #[test]
    fn the_lowest_limit_of_all_groups_counts() {
        let root = machine(&[
            ("proc/meminfo", "MemTotal:  16777216 kB\nMemFree: 1 kB\n"),
            ("proc/self/cgroup", "0::/system/weir\n"),
            ("sys/fs/cgroup/system/weir/memory.max", "max\n"),
            ("sys/fs/cgroup/system/memory.max", "1073741824\n"),
            ("sys/fs/cgroup/memory.max", "max\n"),
        ]);
        assert_eq!(memory_bytes(root.path()), 1 << 30);
    }

    #[test]
    fn the_first_version_of_control_groups_counts_too() {
        let root = machine(&[
            ("proc/meminfo", "MemTotal: 4194304 kB\n"),
            ("proc/self/cgroup", "5:cpu,cpuacct:/a\n4:memory:/a\n"),
            ("sys/fs/cgroup/memory/a/memory.limit_in_bytes", "536870912"),
        ]);
        assert_eq!(memory_bytes(root.path()), 512 << 20);
    }

    #[test]
    fn an_impossible_budget_is_refused() {
        let check = |bytes| check_budget_of(Some(Size::Bytes(bytes)), 24 << 30);
        assert!(check(24 << 30).is_ok() && check(LEAST_BUDGET_BYTES).is_ok());
        let says = check(500 << 30).unwrap_err().to_string();
        assert!(says.contains("has 24.00 GiB; take less"), "{says}");
        let says = check(3).unwrap_err().to_string();
        assert!(says.contains("16.00 MiB at least; did you mean 3M or 3G?"), "{says}");
        assert!(check_budget_of(Some(Size::Percent(50.0)), 1).is_ok());
    }

    #[test]
    fn without_control_groups_the_limit_is_the_machines_memory() {
        let root = machine(&[("proc/meminfo", "MemTotal: 4194304 kB\n")]);
        assert_eq!(memory_bytes(root.path()), 4 << 30);
    }
}
