//! Translates between uids and gids and the strings that name owners and groups in NFSv4.
//!
//! 1. A string from a client is a decimal number, or a name from this machine's user or group
//!    database (through the name service, so directory services count), optionally followed by a
//!    domain. If a domain is configured, a name with another domain matches no user or group.
//! 2. A string to a client is a decimal number, which every client accepts under AUTH_SYS (RFC 7530
//!    section 5.9). If a domain is configured, it is `name@domain` for an id that has a name.
//! 3. Lookups run on blocking threads ([`name_service`]). At most [`MAX_REMEMBERED`] results are cached, for a limited
//!    time.

use crate::name_service;
use hashlink::LruCache;
use parking_lot::Mutex;
use std::ffi::OsStr;
use std::os::unix::ffi::OsStrExt;
use std::str;
use std::time::Duration;
use std::time::Instant;
use weir_nfs::v4::types::Name;

const MAX_REMEMBERED: usize = 4096;
/// How long a result is cached, and how long the absence of one.
const FOUND_HOLDS: Duration = Duration::from_secs(600);
const NOT_FOUND_HOLDS: Duration = Duration::from_secs(30);
/// Longest name that is looked up, in bytes.
const MAX_NAME_BYTES: usize = 256;
/// The id of `nobody` and `nogroup`, if the system has no such name.
const NOBODY: u32 = 65_534;

/// Whether an id or a name is a user's or a group's.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) enum IdKind {
    User,
    Group,
}

#[derive(Clone, Debug, PartialEq, Eq, Hash)]
enum Query {
    NameOf(IdKind, u32),
    NumberOf(IdKind, Box<[u8]>),
}

#[derive(Clone, Debug, PartialEq, Eq)]
enum QueryResult {
    Name(Box<[u8]>),
    Number(u32),
    Nothing,
}

/// Maps between names and ids of users and groups, and caches the results.
#[derive(Debug)]
pub(crate) struct IdMap {
    domain: Option<Box<[u8]>>,
    remembered: Mutex<LruCache<Query, (Instant, QueryResult)>>,
}

impl IdMap {
    /// A map that sends `name@domain`, or, without a domain, decimal numbers.
    pub(crate) fn new(domain: Option<&str>) -> Self {
        Self {
            domain: domain.map(|domain| domain.as_bytes().into()),
            remembered: Mutex::new(LruCache::new(MAX_REMEMBERED)),
        }
    }

    /// The id of the user or group that a client names, or `None` if there is none.
    pub(crate) async fn number(&self, kind: IdKind, name: &[u8]) -> Option<u32> {
        if !name.is_empty() && name.iter().all(u8::is_ascii_digit) {
            return str::from_utf8(name).ok()?.parse().ok();
        }
        let (name, domain) = match name.iter().rposition(|&b| b == b'@') {
            Some(at) => (&name[..at], Some(&name[at + 1..])),
            None => (name, None),
        };
        if let (Some(ours), Some(theirs)) = (&self.domain, domain)
            && !ours.eq_ignore_ascii_case(theirs)
        {
            return None;
        }
        if name.is_empty() || name.len() > MAX_NAME_BYTES || name.contains(&0) {
            return None;
        }
        match self.find(Query::NumberOf(kind, name.into())).await {
            QueryResult::Number(number) => Some(number),
            _ if matches!(name, b"nobody" | b"nogroup") => Some(NOBODY),
            _ => None,
        }
    }

    /// The string that names a user or group to clients.
    pub(crate) async fn name(&self, kind: IdKind, number: u32) -> Name {
        let Some(domain) = &self.domain else { return decimal(number) };
        match self.find(Query::NameOf(kind, number)).await {
            QueryResult::Name(name) => [&name[..], b"@", domain].concat()[..].into(),
            _ => decimal(number),
        }
    }

    async fn find(&self, query: Query) -> QueryResult {
        if let Some((since, found)) = self.remembered.lock().get(&query) {
            let holds = if *found == QueryResult::Nothing { NOT_FOUND_HOLDS } else { FOUND_HOLDS };
            if since.elapsed() < holds {
                return found.clone();
            }
        }
        let lookup = query.clone();
        let found = name_service::look_up(move || look_up(&lookup)).await;
        let found = found.unwrap_or(QueryResult::Nothing);
        self.remembered.lock().insert(query, (Instant::now(), found.clone()));
        found
    }
}

fn decimal(number: u32) -> Name {
    number.to_string().as_bytes().into()
}

/// Queries the name service. May block, for example on a directory service.
fn look_up(query: &Query) -> QueryResult {
    let name_of = |name: &OsStr| QueryResult::Name(name.as_bytes().into());
    let found = match query {
        Query::NameOf(IdKind::User, id) => uzers::get_user_by_uid(*id).map(|u| name_of(u.name())),
        Query::NameOf(IdKind::Group, id) => uzers::get_group_by_gid(*id).map(|g| name_of(g.name())),
        Query::NumberOf(IdKind::User, name) => {
            uzers::get_user_by_name(OsStr::from_bytes(name)).map(|u| QueryResult::Number(u.uid()))
        }
        Query::NumberOf(IdKind::Group, name) => {
            uzers::get_group_by_name(OsStr::from_bytes(name)).map(|g| QueryResult::Number(g.gid()))
        }
    };
    found.unwrap_or(QueryResult::Nothing)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn owners_are_parsed_as_numbers_and_names() {
        let ids = IdMap::new(None);
        assert_eq!(ids.number(IdKind::User, b"1234").await, Some(1234));
        assert_eq!(ids.number(IdKind::User, b"99999999999").await, None);
        assert_eq!(ids.number(IdKind::User, b"root").await, Some(0));
        assert_eq!(ids.number(IdKind::User, b"root@example.org").await, Some(0));
        assert_eq!(ids.number(IdKind::Group, b"no such group").await, None);
        for name in [&b""[..], b"@a", b"a\0b", &[b'a'; 1000]] {
            assert_eq!(ids.number(IdKind::Group, name).await, None, "{name:?}");
        }
        assert!(ids.number(IdKind::User, b"nobody@x").await.is_some());
        assert_eq!(&ids.name(IdKind::User, 0).await[..], b"0", "no domain, no names");
    }

    #[tokio::test]
    async fn a_configured_domain_is_sent_and_required() {
        let ids = IdMap::new(Some("example.org"));
        assert_eq!(&ids.name(IdKind::User, 0).await[..], b"root@example.org");
        assert_eq!(&ids.name(IdKind::Group, 0).await[..], b"root@example.org");
        assert_eq!(&ids.name(IdKind::User, 4_000_000_001).await[..], b"4000000001");
        assert_eq!(ids.number(IdKind::User, b"root@EXAMPLE.org").await, Some(0));
        assert_eq!(ids.number(IdKind::User, b"root@elsewhere").await, None);
        assert_eq!(ids.number(IdKind::User, b"17").await, Some(17));
        let remembered = ids.remembered.lock().len();
        ids.name(IdKind::User, 0).await;
        assert_eq!(ids.remembered.lock().len(), remembered, "what is known is not queried again");
    }
}
