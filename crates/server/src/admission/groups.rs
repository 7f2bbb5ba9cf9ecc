//! The groups of users according to this machine's user database (getgrouplist(3)).
//!
//! A lookup may query a directory service, so it runs on a thread that may block ([`name_service`]). The results are
//! cached for [`HOLDS`], for at most [`MAX_USERS`] users with [`MAX_GROUPS`] groups each.
//!
//! A look-up that fails takes no groups away: the last known ones apply until a look-up succeeds. Some directory
//! services report their users as absent while they restart, so absence counts only [`ABSENT_AFTER`] the user was last
//! found. For a user that was never found, a failed look-up is retried before the user counts as unknown.

use crate::name_service;
use hashlink::LruCache;
use nix::errno::Errno;
use nix::unistd::{Uid, User, getgrouplist};
use parking_lot::Mutex;
use std::ffi::CString;
use std::io;
use std::sync::Arc;
use std::time::{Duration, Instant};
use tracing::warn;

const MAX_USERS: usize = 4096;
const MAX_GROUPS: usize = 1024;
/// How long a result stays valid.
const HOLDS: Duration = Duration::from_secs(300);
/// How long the absence of a user stays valid.
const ABSENT_HOLDS: Duration = Duration::from_secs(30);
/// How long after it was last found a user keeps its groups although look-ups no longer find it.
const ABSENT_AFTER: Duration = Duration::from_secs(600);
/// How long the user of a failed look-up is not looked up again.
const FAILED_HOLDS: Duration = Duration::from_secs(5);
/// Look-ups of a user that was never found, before a failure counts.
const ATTEMPTS: usize = 5;
/// Pause between them.
const PAUSE: Duration = Duration::from_secs(1);
/// The primary group of a user that the user database does not have.
const NOGROUP: u32 = 65_534;

/// The groups of a user. `all` includes the primary group.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct GroupsOf {
    primary: u32,
    all: Box<[u32]>,
}

impl GroupsOf {
    pub(super) fn primary(&self) -> u32 {
        self.primary
    }

    pub(super) fn all(&self) -> &[u32] {
        &self.all
    }
}

/// A cached result.
#[derive(Debug)]
struct Known {
    groups: Arc<GroupsOf>,
    /// When a look-up last found the user, if any has.
    found: Option<Instant>,
    checked: Instant,
    holds: Duration,
}

/// The cached groups of users.
#[derive(Debug)]
pub(super) struct Groups {
    known: Mutex<LruCache<u32, Known>>,
}

impl Default for Groups {
    fn default() -> Self {
        Self { known: Mutex::new(LruCache::new(MAX_USERS)) }
    }
}

impl Groups {
    /// The groups of a user. An unknown user has NOGROUP as primary group and no others.
    pub(super) async fn of(&self, uid: u32) -> Arc<GroupsOf> {
        self.find(uid, Instant::now(), look_up).await
    }

    async fn find(
        &self,
        uid: u32,
        now: Instant,
        look_up: impl Fn(u32) -> io::Result<Option<GroupsOf>> + Clone + Send + 'static,
    ) -> Arc<GroupsOf> {
        if let Some(known) = self.known.lock().get(&uid)
            && now.saturating_duration_since(known.checked) < known.holds
        {
            return known.groups.clone();
        }
        let mut attempts = 0;
        let found = loop {
            let look_up = look_up.clone();
            let found = name_service::look_up(move || look_up(uid)).await;
            attempts += 1;
            match found.unwrap_or_else(|panicked| Err(io::Error::other(panicked))) {
                Err(_) if attempts < ATTEMPTS && self.last_found(uid).is_none() => {
                    tokio::time::sleep(PAUSE).await;
                }
                found => break found,
            }
        };
        if let Err(error) = &found {
            warn!("cannot look up the groups of user {uid}: {error}");
        }
        let before = self.last_found(uid);
        let new = match (found, before) {
            (Ok(Some(groups)), _) => {
                Known { groups: Arc::new(groups), found: Some(now), checked: now, holds: HOLDS }
            }
            (found, Some((since, groups)))
                if found.is_err() || now.saturating_duration_since(since) < ABSENT_AFTER =>
            {
                Known { groups, found: Some(since), checked: now, holds: FAILED_HOLDS }
            }
            (found, _) => {
                let holds = if found.is_err() { FAILED_HOLDS } else { ABSENT_HOLDS };
                Known { groups: Arc::new(unknown()), found: None, checked: now, holds }
            }
        };
        let groups = new.groups.clone();
        self.known.lock().insert(uid, new);
        groups
    }

    /// When a user was last found, and its groups then.
    fn last_found(&self, uid: u32) -> Option<(Instant, Arc<GroupsOf>)> {
        let mut known = self.known.lock();
        let known = known.get(&uid)?;
        Some((known.found?, known.groups.clone()))
    }
}

/// Queries the name service; `None` if there is no such user. May block, for example on a directory service.
///
/// If the directory service fails only for the list of groups, getgrouplist(3) does not report this, and the result
/// lacks the groups of that service.
fn look_up(uid: u32) -> io::Result<Option<GroupsOf>> {
    let user = match User::from_uid(Uid::from_raw(uid)) {
        Ok(user) => user,
        // These may mean that there is no such user (getpwuid_r(3)).
        Err(Errno::ENOENT | Errno::ESRCH | Errno::EBADF | Errno::EPERM) => None,
        Err(error) => return Err(error.into()),
    };
    let Some(user) = user else { return Ok(None) };
    let primary = user.gid.as_raw();
    let groups = getgrouplist(&CString::new(user.name)?, user.gid)?;
    let groups = groups.iter().map(|gid| gid.as_raw()).filter(|&gid| gid != primary);
    let all = [primary].into_iter().chain(groups).take(MAX_GROUPS).collect();
    Ok(Some(GroupsOf { primary, all }))
}

fn unknown() -> GroupsOf {
    GroupsOf { primary: NOGROUP, all: Box::new([]) }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::atomic::{AtomicUsize, Ordering};

    #[tokio::test]
    async fn groups_come_from_the_system_and_are_cached() {
        let groups = Groups::default();
        let root = groups.of(0).await;
        assert_eq!(root.primary(), 0);
        assert!(root.all().contains(&0));
        assert!(Arc::ptr_eq(&root, &groups.of(0).await), "asked for once");
        assert_eq!(groups.of(3_999_999_999).await.all(), []);
    }

    fn found(gid: u32) -> impl Fn(u32) -> io::Result<Option<GroupsOf>> + Clone + Send + 'static {
        move |_| Ok(Some(GroupsOf { primary: gid, all: Box::new([gid]) }))
    }

    fn fails(_: u32) -> io::Result<Option<GroupsOf>> {
        Err(io::ErrorKind::TimedOut.into())
    }

    fn absent(_: u32) -> io::Result<Option<GroupsOf>> {
        Ok(None)
    }

    fn panics(_: u32) -> io::Result<Option<GroupsOf>> {
        panic!("a look-up panics, as this test wants")
    }

    #[tokio::test]
    async fn a_failed_look_up_takes_no_groups_away() {
        let (groups, start) = (Groups::default(), Instant::now());
        assert_eq!(groups.find(7, start, found(70)).await.all(), [70]);
        let mut now = start + HOLDS;
        assert_eq!(groups.find(7, now, fails).await.all(), [70]);
        assert_eq!(groups.find(7, now, found(71)).await.all(), [70], "not asked each time");
        now += FAILED_HOLDS;
        assert_eq!(groups.find(7, now, absent).await.all(), [70], "its service may be restarting");
        now = start + ABSENT_AFTER;
        assert_eq!(groups.find(7, now, panics).await.all(), [70]);
        now += FAILED_HOLDS;
        assert_eq!(groups.find(7, now, found(71)).await.all(), [71]);
        now += ABSENT_AFTER;
        assert_eq!(groups.find(7, now, absent).await.all(), [], "it is gone");
        assert_eq!(groups.find(7, now, found(72)).await.all(), []);
        now += ABSENT_HOLDS;
        assert_eq!(groups.find(7, now, found(72)).await.all(), [72]);
    }

    #[tokio::test]
    async fn a_failed_first_look_up_is_retried() {
        let groups = Groups::default();
        let calls = Arc::new(AtomicUsize::new(0));
        let second = {
            let calls = calls.clone();
            move |uid| match calls.fetch_add(1, Ordering::Relaxed) {
                0 => fails(uid),
                _ => found(70)(uid),
            }
        };
        assert_eq!(groups.find(7, Instant::now(), second).await.all(), [70]);
        assert_eq!(calls.load(Ordering::Relaxed), 2);
    }
}
