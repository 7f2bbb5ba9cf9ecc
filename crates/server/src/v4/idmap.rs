//! Owners and groups as NFSv4 writes them: strings.
//!
//! Numbers go out as decimal strings, which every client takes under AUTH_SYS (RFC 7530 section
//! 5.9); what comes in may also be a name of this machine, with any domain after it.

use std::fs;
use std::str;

/// Where names are looked up.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Kind {
    User,
    Group,
}

impl Kind {
    fn database(self) -> &'static str {
        match self {
            Self::User => "/etc/passwd",
            Self::Group => "/etc/group",
        }
    }
}

/// The number of an owner or group, or `None` for a name that nobody has.
pub(crate) fn number(kind: Kind, name: &[u8]) -> Option<u32> {
    if !name.is_empty() && name.iter().all(u8::is_ascii_digit) {
        return str::from_utf8(name).ok()?.parse().ok();
    }
    let database = fs::read(kind.database()).ok()?;
    find(&database, name.split(|&b| b == b'@').next()?)
}

/// Finds a name in a database of lines `name:password:number:...`.
fn find(database: &[u8], name: &[u8]) -> Option<u32> {
    database.split(|&b| b == b'\n').find_map(|line| {
        let mut fields = line.split(|&b| b == b':');
        if fields.next() != Some(name) || name.is_empty() {
            return None;
        }
        str::from_utf8(fields.nth(1)?).ok()?.parse().ok()
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_and_names() {
        assert_eq!(number(Kind::User, b"1234"), Some(1234));
        assert_eq!(number(Kind::User, b"99999999999"), None);
        assert_eq!(number(Kind::User, b"root@example.org"), Some(0));
        assert_eq!(number(Kind::Group, b"no such group"), None);
        assert_eq!(number(Kind::Group, b""), None);
        assert_eq!(find(b"a:x:1:2\nab:x:7:3\n\n:x:9", b"ab"), Some(7));
        assert_eq!(find(b"a:x:1:2\n\n:x:9", b""), None);
    }
}
