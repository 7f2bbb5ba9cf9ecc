//! In whose name operations run, on a mount that several users use.
//!
//! The kernel sends a user and a group. The user's other groups are looked up in /proc, and used for
//! `VALID` without another look: the kernel checks permissions itself, with the groups of the moment.

use crate::wire::request::Requester;
use parking_lot::Mutex;
use std::collections::HashMap;
use std::time::{Duration, Instant};
use weir_vfs::{Caller, Cred};

/// How long a look-up is used.
const VALID: Duration = Duration::from_secs(1);
/// Most threads of which look-ups are kept.
const MOST: usize = 1024;

/// A thread, and the user and group that it acts as.
type Thread = (u32, u32, u32);
/// Groups, and when they were looked up.
type Known = (Instant, Vec<u32>);

#[derive(Default)]
pub(crate) struct Callers {
    groups: Mutex<HashMap<Thread, Known>>,
}

impl Callers {
    pub(crate) fn of(&self, from: Requester) -> Caller {
        let Requester { uid, gid, pid } = from;
        let now = Instant::now();
        let mut known = self.groups.lock();
        if let Some((since, groups)) = known.get(&(pid, uid, gid))
            && now.duration_since(*since) < VALID
        {
            return Caller::As(Cred { uid, gid, groups: groups.clone() });
        }
        let groups = groups_of(pid);
        if known.len() >= MOST {
            known.clear();
        }
        known.insert((pid, uid, gid), (now, groups.clone()));
        Caller::As(Cred { uid, gid, groups })
    }
}

/// The supplementary groups of a thread; none if it is in another namespace.
fn groups_of(pid: u32) -> Vec<u32> {
    let status = std::fs::read_to_string(format!("/proc/{pid}/status")).unwrap_or_default();
    let line = status.lines().find_map(|line| line.strip_prefix("Groups:"));
    line.unwrap_or_default().split_whitespace().filter_map(|group| group.parse().ok()).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn groups_are_those_of_the_thread() {
        let mut own: Vec<u32> =
            rustix::process::getgroups().unwrap().iter().map(|group| group.as_raw()).collect();
        let mut found = groups_of(std::process::id());
        own.sort_unstable();
        found.sort_unstable();
        assert_eq!(found, own);
        assert!(groups_of(0).is_empty());
    }
}
