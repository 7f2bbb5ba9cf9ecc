//! Mount options, by the names that mount.nfs uses (nfs(5)), in a URL's query or after `-o`.

pub(crate) mod url;

use crate::{Error, Result};
use std::time::Duration;

/// A version of the protocol.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Version {
    /// NFSv3 (RFC 1813).
    V3,
    /// NFSv4.0 (RFC 7530).
    V4_0,
    /// NFSv4.1 (RFC 8881).
    V4_1,
    /// NFSv4.2 (RFC 7862).
    V4_2,
}

impl Version {
    /// Newest first: the order in which they are tried.
    pub const NEWEST_FIRST: [Self; 4] = [Self::V4_2, Self::V4_1, Self::V4_0, Self::V3];

    /// The minor version of version 4, or `None` for version 3.
    pub const fn minor(self) -> Option<u32> {
        match self {
            Self::V3 => None,
            Self::V4_0 => Some(0),
            Self::V4_1 => Some(1),
            Self::V4_2 => Some(2),
        }
    }
}

impl std::fmt::Display for Version {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(match self {
            Self::V3 => "3",
            Self::V4_0 => "4.0",
            Self::V4_1 => "4.1",
            Self::V4_2 => "4.2",
        })
    }
}

/// Options of a mount. The default is the newest version that the server offers, the largest
/// transfers that it accepts, and waiting for a server that is down (`hard`).
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct MountOptions {
    /// `vers=`: only this version; `None`: the newest that both sides support.
    pub vers: Option<Version>,
    /// `vers=4`: if `vers` is `None`, any minor version of NFSv4, but not version 3.
    pub only_v4: bool,
    /// `rsize=`: most bytes in one READ.
    pub rsize: u32,
    /// `wsize=`: most bytes in one WRITE.
    pub wsize: u32,
    /// `nconnect=`: TCP connections, 1 to 16.
    pub nconnect: u32,
    /// `timeo=` (tenths of a second in text): how long to wait for an answer before reconnecting
    /// and resending the call.
    pub timeo: Duration,
    /// `retrans=`: how often a soft mount retries before it fails.
    pub retrans: u32,
    /// `hard` (the default) retries forever; `soft` fails with a time-out.
    pub hard: bool,
    /// `port=`: the NFS service's port; `None`: the URL's, or 2049.
    pub port: Option<u16>,
    /// `mountport=`: the MOUNT service's port for version 3; `None`: ask rpcbind.
    pub mountport: Option<u16>,
    /// `readplus` (the default) or `noreadplus`: whether READ_PLUS is used with version 4.2.
    pub readplus: bool,
    /// `uncached`: tell the server that data read and written will not be used again (IO_ADVISE,
    /// version 4.2 only).
    pub uncached: bool,
    /// `ro`: refuse all changes.
    pub ro: bool,
    /// `actimeo=` (seconds in text): how long attributes are cached; an open always fetches them.
    /// 0, the default, disables the cache.
    pub actimeo: Duration,
    /// Whether the server may delegate files to this mount (the default). The mount then uses their
    /// attributes until the server recalls the delegation, also for longer than `actimeo`. Options in text
    /// do not change it.
    pub delegations: bool,
    /// `resvport` (the default) or `noresvport`: bind a port below 1024 if permitted, as servers
    /// require by default.
    pub resvport: bool,
    /// `uid=`: the user of the program's own operations; default: the process's user with the
    /// process's other groups. Any other user gets no other groups.
    pub uid: u32,
    /// `gid=`: the group of these operations; `None`: the process's, or for a user other than the
    /// process's the one in passwd(5), or else 65534.
    pub gid: Option<u32>,
}

impl Default for MountOptions {
    fn default() -> Self {
        Self {
            vers: None,
            only_v4: false,
            rsize: 1 << 20,
            wsize: 1 << 20,
            nconnect: 1,
            timeo: Duration::from_secs(60),
            retrans: 2,
            hard: true,
            port: None,
            mountport: None,
            readplus: true,
            uncached: false,
            ro: false,
            actimeo: Duration::ZERO,
            delegations: true,
            resvport: true,
            uid: rustix::process::geteuid().as_raw(),
            gid: None,
        }
    }
}

impl MountOptions {
    /// The versions to try, in order.
    pub(crate) fn versions(&self) -> Vec<Version> {
        match self.vers {
            Some(version) => vec![version],
            None => {
                let newest_first = Version::NEWEST_FIRST.into_iter();
                newest_first.filter(|v| !self.only_v4 || v.minor().is_some()).collect()
            }
        }
    }

    /// The user, group and other groups of the program's own operations. A user other than the
    /// process's gets none of the process's groups, as these would extend its rights.
    pub(crate) fn identity(&self) -> (u32, u32, Vec<u32>) {
        if self.uid == rustix::process::geteuid().as_raw() {
            let gid = self.gid.unwrap_or_else(|| rustix::process::getegid().as_raw());
            let groups = rustix::process::getgroups().unwrap_or_default();
            let groups = groups.into_iter().map(rustix::process::Gid::as_raw).collect();
            return (self.uid, gid, groups);
        }
        let gid = self.gid.or_else(|| group_of(self.uid)).unwrap_or(UNKNOWN_GID);
        (self.uid, gid, Vec::new())
    }

    /// Applies a list such as `vers=4.2,noreadplus,rsize=65536`. Accepts names of libnfs's URLs and
    /// of fstab(5), too; those without a meaning here are [ignored](IGNORED).
    ///
    /// # Errors
    /// [`Error::Option`] for an unknown option or a value out of range.
    pub fn apply(&mut self, list: &str) -> Result<()> {
        list.split([',', '&']).filter(|o| !o.is_empty()).try_for_each(|o| self.set(o))
    }

    fn set(&mut self, option: &str) -> Result<()> {
        let bad = |reason| Error::Option { option: option.to_owned(), reason };
        let (key, value) = match option.split_once('=') {
            Some((key, value)) => (key, Some(value)),
            None => (option, None),
        };
        let number = |least: u32, most: u32| {
            value
                .and_then(|v| v.parse::<u32>().ok())
                .filter(|n| (least..=most).contains(n))
                .ok_or_else(|| bad("not a number in its range"))
        };
        let port = || number(1, 65535).map(|n| u16::try_from(n).ok());
        match key {
            "vers" | "nfsvers" | "v" | "version" => {
                self.vers = match value {
                    Some("3") => Some(Version::V3),
                    Some("4.0") => Some(Version::V4_0),
                    Some("4.1") => Some(Version::V4_1),
                    Some("4.2") => Some(Version::V4_2),
                    Some("4") => None,
                    _ => return Err(bad("the versions are 3, 4, 4.0, 4.1 and 4.2")),
                };
                self.only_v4 = value == Some("4");
            }
            // As mount.nfs spelled it before `vers=4.1`.
            "minorversion" => {
                self.vers = match number(0, 2)? {
                    0 => Some(Version::V4_0),
                    1 => Some(Version::V4_1),
                    _ => Some(Version::V4_2),
                };
            }
            "rsize" => self.rsize = number(1024, MAX_TRANSFER)?,
            "wsize" => self.wsize = number(1024, MAX_TRANSFER)?,
            "nconnect" => self.nconnect = number(1, 16)?,
            "timeo" => self.timeo = Duration::from_millis(u64::from(number(1, 36_000)?) * 100),
            "retrans" => self.retrans = number(0, 1000)?,
            "hard" => self.hard = true,
            "soft" | "softerr" => self.hard = false,
            "port" | "nfsport" => self.port = port()?,
            "mountport" => self.mountport = port()?,
            "readplus" => self.readplus = true,
            "noreadplus" => self.readplus = false,
            "uncached" => self.uncached = true,
            "ro" => self.ro = true,
            "rw" => self.ro = false,
            "actimeo" => self.actimeo = Duration::from_secs(number(0, 86_400)?.into()),
            "noac" => self.actimeo = Duration::ZERO,
            "resvport" => self.resvport = true,
            "noresvport" => self.resvport = false,
            "uid" => self.uid = number(0, u32::MAX)?,
            "gid" => self.gid = Some(number(0, u32::MAX)?),
            "sec" if value == Some("sys") => {}
            "sec" => return Err(bad("only sec=sys is supported")),
            "proto" | "mountproto" if matches!(value, Some("tcp" | "tcp6")) => {}
            "tcp" => {}
            "proto" | "mountproto" | "udp" | "rdma" => {
                return Err(bad("only proto=tcp is supported"));
            }
            "mountvers" if value == Some("3") => {}
            "mountvers" => return Err(bad("only mountvers=3 is supported")),
            key if IGNORED.contains(&key) || key.starts_with("x-") => {}
            _ => return Err(bad("no such option")),
        }
        Ok(())
    }
}

/// Options of nfs(5), mount(8), fstab(5) and libnfs without a meaning for a user-space mount,
/// accepted without effect like all names that begin with `x-`. They control when and by whom a
/// mount is made, the kernel's treatment of devices and access times, or its caching.
pub const IGNORED: &[&str] = &[
    "_netdev",
    "ac",
    "acdirmax",
    "acdirmin",
    "acl",
    "acregmax",
    "acregmin",
    "async",
    "atime",
    "auto",
    "auto-traverse-mounts",
    "autoreconnect",
    "bg",
    "clientaddr",
    "comment",
    "cto",
    "defaults",
    "dev",
    "diratime",
    "dircache",
    "exec",
    "fg",
    "fsc",
    "group",
    "intr",
    "lazytime",
    "local_lock",
    "lock",
    "lookupcache",
    "max_connect",
    "namlen",
    "noacl",
    "noatime",
    "noauto",
    "nocto",
    "nodev",
    "nodiratime",
    "noexec",
    "nofail",
    "nofsc",
    "nointr",
    "nolazytime",
    "nolock",
    "nordirplus",
    "norelatime",
    "nosharecache",
    "nosoftreval",
    "nostrictatime",
    "nosuid",
    "notrunkdiscovery",
    "nouser",
    "owner",
    "rdirplus",
    "readahead",
    "relatime",
    "retry",
    "sharecache",
    "softreval",
    "strictatime",
    "suid",
    "sync",
    "tcp-syncnt",
    "trunkdiscovery",
    "user",
    "users",
];

/// The group of a user that passwd(5) does not list (`nogroup`).
const UNKNOWN_GID: u32 = 65534;

/// The group that passwd(5) gives a user.
fn group_of(uid: u32) -> Option<u32> {
    let users = std::fs::read_to_string("/etc/passwd").ok()?;
    users.lines().find_map(|line| {
        let mut ids = line.split(':').skip(2);
        let is_user = ids.next()?.parse() == Ok(uid);
        is_user.then(|| ids.next()?.parse().ok()).flatten()
    })
}

/// Largest `rsize` and `wsize`, in bytes; bounds the memory for a reply.
pub(crate) const MAX_TRANSFER: u32 = 4 << 20;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_of_libnfs_and_fstab_are_known() {
        let mut o = MountOptions::default();
        o.apply("version=3&nfsport=2050&mountport=2051").unwrap();
        assert_eq!((o.vers, o.port, o.mountport), (Some(Version::V3), Some(2050), Some(2051)));
        o.apply("vers=4,minorversion=1,tcp,_netdev,intr,noatime,retry=5,x-systemd.automount,bg")
            .unwrap();
        assert_eq!(o.vers, Some(Version::V4_1));
        let mut sorted = IGNORED.to_vec();
        sorted.sort_unstable();
        assert_eq!(IGNORED, sorted);
        for bad in ["udp", "proto=rdma", "mountvers=1", "minorversion=3", "xattr"] {
            let error = MountOptions::default().apply(bad).unwrap_err();
            assert!(error.to_string().contains(bad), "{error}");
        }
    }

    #[test]
    fn another_user_does_not_get_the_process_groups() {
        let own = rustix::process::geteuid().as_raw();
        let own_group = rustix::process::getegid().as_raw();
        let of = |list: &str| {
            let mut options = MountOptions::default();
            options.apply(list).unwrap();
            options.identity()
        };
        assert_eq!((of("").0, of("").1), (own, own_group));
        // No user has this number.
        let (uid, gid, groups) = of("uid=3999999998");
        assert_eq!((uid, gid, groups), (3_999_999_998, UNKNOWN_GID, vec![]));
        assert_eq!(of("uid=3999999998,gid=7"), (3_999_999_998, 7, vec![]));
    }

    #[test]
    fn options_are_read_and_bounded() {
        let mut o = MountOptions::default();
        o.apply("vers=4.1,rsize=65536,soft,timeo=7,noreadplus,,port=1234").unwrap();
        assert_eq!((o.vers, o.rsize, o.hard), (Some(Version::V4_1), 65536, false));
        assert_eq!((o.timeo, o.readplus, o.port), (Duration::from_millis(700), false, Some(1234)));
        for bad in ["vers=5", "rsize=1", "rsize", "rsize=99999999999", "sec=krb5", "blah", "port=0"]
        {
            let error = MountOptions::default().apply(bad).unwrap_err();
            assert!(error.to_string().contains(bad), "{error}");
        }
    }
}
