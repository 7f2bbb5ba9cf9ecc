//! The groups of users according to this machine's user database (getgrouplist(3)).
//!
//! A lookup may query a directory service, so it runs on a thread that may block ([`name_service`]). The results are
//! cached for [`HOLDS`], for at most [`MAX_USERS`] users with [`MAX_GROUPS`] groups each.
//!
//! A look-up that fails takes no groups away: the last known ones apply until a look-up succeeds. Some directory
//! services report their users as absent while they restart, so absence counts only [`ABSENT_AFTER`] the user was last
//! found. The first look-up of a user is retried if it fails, before the user counts as unknown.
//!
//! One call at a time looks a user up. Meanwhile, other calls use the groups that the user had when it was last found,
//! or wait for the result if it never was.

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
/// Look-ups of a user without a cached result, before a failure counts.
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

/// A user in the cache.
#[derive(Debug, Default)]
struct CachedUser {
    known: Mutex<Option<Known>>,
    /// Held by the call that looks the user up.
    look_up: tokio::sync::Mutex<()>,
}

/// A cached result.
#[derive(Debug)]
struct Known {
    groups: Arc<GroupsOf>,
    /// When a look-up last found the user, if any has.
    found: Option<Instant>,
    /// When the look-up ended.
    checked: Instant,
    holds: Duration,
}

/// The cached groups of users.
#[derive(Debug)]
pub(super) struct Groups {
    users: Mutex<LruCache<u32, Arc<CachedUser>>>,
}

impl Default for Groups {
    fn default() -> Self {
        Self { users: Mutex::new(LruCache::new(MAX_USERS)) }
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
        let begun = Instant::now();
        let user = self.users.lock().entry(uid).or_insert_with(Arc::default).clone();
        if let Some(groups) = user.valid(now) {
            return groups;
        }
        let _looks_up = match (user.look_up.try_lock(), user.last_found()) {
            (Ok(looks_up), _) => looks_up,
            (Err(_), Some((_, groups))) => return groups,
            (Err(_), None) => user.look_up.lock().await,
        };
        // Another call may have looked the user up meanwhile.
        if let Some(groups) = user.valid(now) {
            return groups;
        }
        let attempts = if user.known.lock().is_none() { ATTEMPTS } else { 1 };
        let found = look_up_repeatedly(uid, attempts, look_up).await;
        if let Err(error) = &found {
            warn!("cannot look up the groups of user {uid}: {error}");
        }
        // A look-up may take longer than its result holds.
        let now = now + begun.elapsed();
        let new = match (found, user.last_found()) {
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
        *user.known.lock() = Some(new);
        groups
    }
}

impl CachedUser {
    /// The result of the last look-up, if it is still valid.
    fn valid(&self, now: Instant) -> Option<Arc<GroupsOf>> {
        let known = self.known.lock();
        let known = known.as_ref()?;
        let is_valid = now.saturating_duration_since(known.checked) < known.holds;
        is_valid.then(|| known.groups.clone())
    }

    /// When the user was last found, and its groups then.
    fn last_found(&self) -> Option<(Instant, Arc<GroupsOf>)> {
        let known = self.known.lock();
        let known = known.as_ref()?;
        Some((known.found?, known.groups.clone()))
    }
}

/// Looks a user up. If this fails, up to `attempts` times.
async fn look_up_repeatedly(
    uid: u32,
    attempts: usize,
    look_up: impl Fn(u32) -> io::Result<Option<GroupsOf>> + Clone + Send + 'static,
) -> io::Result<Option<GroupsOf>> {
    let mut attempt = 1;
    loop {
        let look_up = look_up.clone();
        let found = name_service::look_up(move || look_up(uid)).await;
        match found.unwrap_or_else(|panicked| Err(io::Error::other(panicked))) {
            Err(_) if attempt < attempts => tokio::time::sleep(PAUSE).await,
            found => return found,
        }
        attempt += 1;
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

    /// More than the time that a look-up takes, from whose end its result holds.
    const LATE: Duration = Duration::from_secs(60);

    #[tokio::test]
    async fn a_failed_look_up_takes_no_groups_away() {
        let (groups, start) = (Groups::default(), Instant::now());
        assert_eq!(groups.find(7, start, found(70)).await.all(), [70]);
        let mut now = start + HOLDS + LATE;
        assert_eq!(groups.find(7, now, fails).await.all(), [70]);
        assert_eq!(groups.find(7, now, found(71)).await.all(), [70], "not asked each time");
        now += FAILED_HOLDS + LATE;
        assert_eq!(groups.find(7, now, absent).await.all(), [70], "its service may be restarting");
        now = start + ABSENT_AFTER + LATE;
        assert_eq!(groups.find(7, now, panics).await.all(), [70]);
        now += FAILED_HOLDS + LATE;
        assert_eq!(groups.find(7, now, found(71)).await.all(), [71]);
        now += ABSENT_AFTER + LATE;
        assert_eq!(groups.find(7, now, absent).await.all(), [], "it is gone");
        assert_eq!(groups.find(7, now, found(72)).await.all(), []);
        now += ABSENT_HOLDS + LATE;
        assert_eq!(groups.find(7, now, found(72)).await.all(), [72]);
    }

    /// Fails after a pause, and counts.
    fn slow(
        calls: &Arc<AtomicUsize>,
    ) -> impl Fn(u32) -> io::Result<Option<GroupsOf>> + Clone + Send + 'static {
        let calls = calls.clone();
        move |uid| {
            std::thread::sleep(Duration::from_millis(100));
            calls.fetch_add(1, Ordering::Relaxed);
            fails(uid)
        }
    }

    #[tokio::test]
    async fn a_result_holds_from_the_end_of_its_look_up() {
        let (groups, start) = (Groups::default(), Instant::now());
        let calls = Arc::default();
        groups.find(7, start, found(70)).await;
        let now = start + HOLDS + LATE;
        assert_eq!(groups.find(7, now, slow(&calls)).await.all(), [70]);
        assert_eq!(groups.find(7, now + FAILED_HOLDS, slow(&calls)).await.all(), [70]);
        assert_eq!(calls.load(Ordering::Relaxed), 1);
        assert_eq!(groups.find(7, now + FAILED_HOLDS + LATE, found(71)).await.all(), [71]);
    }

    #[tokio::test]
    async fn a_look_up_in_progress_delays_no_other_call_of_a_known_user() {
        let (groups, start) = (Groups::default(), Instant::now());
        groups.find(7, start, found(70)).await;
        let now = start + HOLDS + LATE;
        let (end, ended) = std::sync::mpsc::channel::<()>();
        let ended = Arc::new(Mutex::new(ended));
        let first = groups.find(7, now, move |uid| {
            let _ = ended.lock().recv();
            found(71)(uid)
        });
        let others = async {
            assert_eq!(groups.find(7, now, panics).await.all(), [70]);
            assert_eq!(groups.find(8, now, found(80)).await.all(), [80]);
            drop(end);
        };
        let (first, ()) = tokio::join!(biased; first, others);
        assert_eq!(first.all(), [71]);
        assert_eq!(groups.find(7, now, panics).await.all(), [71]);
    }

    /// Also if the call that looks it up goes away.
    #[tokio::test]
    async fn calls_of_a_user_that_was_never_found_share_a_look_up() {
        let (groups, now) = (Groups::default(), Instant::now());
        let gone = groups.find(7, now, found(69));
        drop(futures_util::poll!(Box::pin(gone)));
        let calls = Arc::new(AtomicUsize::new(0));
        let counted = {
            let calls = calls.clone();
            move |uid| {
                calls.fetch_add(1, Ordering::Relaxed);
                found(70)(uid)
            }
        };
        let of = || groups.find(7, now, counted.clone());
        let (a, b, c) = tokio::join!(of(), of(), of());
        assert_eq!([a.all(), b.all(), c.all()], [[70]; 3]);
        assert_eq!(calls.load(Ordering::Relaxed), 1);
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

    #[tokio::test]
    async fn only_the_first_look_up_is_retried() {
        let (groups, start) = (Groups::default(), Instant::now());
        let calls = Arc::default();
        assert_eq!(groups.find(7, start, slow(&calls)).await.all(), []);
        assert_eq!(calls.load(Ordering::Relaxed), ATTEMPTS);
        let now = start + FAILED_HOLDS + LATE;
        assert_eq!(groups.find(7, now, slow(&calls)).await.all(), []);
        assert_eq!(calls.load(Ordering::Relaxed), ATTEMPTS + 1);
        assert_eq!(groups.find(7, now + FAILED_HOLDS + LATE, found(70)).await.all(), [70]);
    }
}
