//! The groups of users according to this machine's user database (getgrouplist(3)).
//!
//! A lookup may query a directory service, so it runs on a thread that may block ([`name_service`]). The results are
//! cached for [`HOLDS`], for at most [`MAX_USERS`] users with [`MAX_GROUPS`] groups each.

use crate::name_service;
use hashlink::LruCache;
use parking_lot::Mutex;
use std::sync::Arc;
use std::time::{Duration, Instant};

const MAX_USERS: usize = 4096;
const MAX_GROUPS: usize = 1024;
/// How long a result stays valid.
const HOLDS: Duration = Duration::from_secs(300);
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

/// The cached groups of users.
#[derive(Debug)]
pub(super) struct Groups {
    known: Mutex<LruCache<u32, (Instant, Arc<GroupsOf>)>>,
}

impl Default for Groups {
    fn default() -> Self {
        Self { known: Mutex::new(LruCache::new(MAX_USERS)) }
    }
}

impl Groups {
    /// The groups of a user. An unknown user has NOGROUP as primary group and no others.
    pub(super) async fn of(&self, uid: u32) -> Arc<GroupsOf> {
        if let Some((since, groups)) = self.known.lock().get(&uid)
            && since.elapsed() < HOLDS
        {
            return groups.clone();
        }
        let found = name_service::look_up(move || look_up(uid)).await;
        let groups = Arc::new(found.unwrap_or_else(|_| unknown()));
        self.known.lock().insert(uid, (Instant::now(), groups.clone()));
        groups
    }
}

fn look_up(uid: u32) -> GroupsOf {
    let Some(user) = uzers::get_user_by_uid(uid) else { return unknown() };
    let primary = user.primary_group_id();
    let groups = uzers::get_user_groups(user.name(), primary).unwrap_or_default();
    let groups = groups.iter().map(uzers::Group::gid).filter(|&gid| gid != primary);
    GroupsOf { primary, all: [primary].into_iter().chain(groups).take(MAX_GROUPS).collect() }
}

fn unknown() -> GroupsOf {
    GroupsOf { primary: NOGROUP, all: Box::new([]) }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn groups_come_from_the_system_and_are_cached() {
        let groups = Groups::default();
        let root = groups.of(0).await;
        assert_eq!(root.primary(), 0);
        assert!(root.all().contains(&0));
        assert!(Arc::ptr_eq(&root, &groups.of(0).await), "asked for once");
        assert_eq!(groups.of(3_999_999_999).await.all(), []);
    }
}
