//! Types shared by several operations.

use super::error::Error;
use std::time::{Duration, SystemTime, UNIX_EPOCH};
use weir_rpc::AuthSys;
use weir_xdr::{
    Decode, Decoder, Encode, Encoder, List, Opaque, Result, xdr_enum, xdr_struct, xdr_union,
};

/// Most bytes in a filehandle.
pub const MAX_FILEHANDLE_BYTES: usize = 128;
/// Most bytes in a state owner, client owner or server owner.
pub const MAX_OWNER_BYTES: usize = 1024;
/// Most bytes that a string may have on the wire; what a server takes is less, and it says so
/// with an error of its own.
pub const MAX_STRING_BYTES: usize = 65536;
/// Most elements in lists that have no limit of their own.
pub const MAX_LIST: usize = 65536;

/// A filehandle.
pub type FileHandle = Opaque<MAX_FILEHANDLE_BYTES>;
/// A path component, owner or other string; need not be UTF-8.
pub type Name = Opaque<MAX_STRING_BYTES>;
/// The target of a symbolic link.
pub type LinkText = Opaque<MAX_STRING_BYTES>;
/// Bytes that only the peer understands.
pub type Blob = Opaque<{ usize::MAX }>;
/// A path, as components.
pub type PathName = List<Name, 1024>;
/// A number that changes with the peer's instance.
pub type Verifier = [u8; 8];
/// A client's short name.
pub type ClientId = u64;
/// A session's name.
pub type SessionId = [u8; 16];
/// A pNFS device's name.
pub type DeviceId = [u8; 16];
/// An opaque owner within a client.
pub type Owner = Opaque<MAX_OWNER_BYTES>;

xdr_struct! {
    /// Names state that a client holds.
    #[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, PartialOrd, Ord)]
    pub struct StateId {
        /// Counts the changes of the state.
        pub seqid: u32,
        /// Which state.
        pub other: [u8; 12],
    }

    /// A directory's or file's change attribute around a change.
    #[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
    pub struct ChangeInfo {
        /// Nothing else changed in between.
        pub atomic: bool,
        /// Before.
        pub before: u64,
        /// After.
        pub after: u64,
    }

    /// A time since 1970-01-01 00:00 UTC.
    #[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, PartialOrd, Ord)]
    pub struct NfsTime {
        /// Whole seconds; negative before 1970.
        pub seconds: i64,
        /// Nanoseconds, added to the seconds; below 1,000,000,000.
        pub nseconds: u32,
    }

    /// Which file system.
    #[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
    pub struct FsId {
        /// Major part.
        pub major: u64,
        /// Minor part.
        pub minor: u64,
    }

    /// Device numbers.
    #[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
    pub struct SpecData {
        /// Major number.
        pub major: u32,
        /// Minor number.
        pub minor: u32,
    }

    /// An owner of opens or locks.
    #[derive(Clone, Debug, Default, PartialEq, Eq, Hash)]
    pub struct StateOwner {
        /// The client; ignored from minor version 1 on, where the session identifies it.
        pub client_id: ClientId,
        /// The owner within the client.
        pub owner: Owner,
    }

    /// A universal address (RFC 5665).
    #[derive(Clone, Debug, Default, PartialEq, Eq, Hash)]
    pub struct NetAddr {
        /// Kind of transport, `tcp` or `tcp6`.
        pub netid: Name,
        /// The address, `127.0.0.1.8.1` for instance.
        pub addr: Name,
    }

    /// A verifier and the name that a client has chosen for itself.
    #[derive(Clone, Debug, Default, PartialEq, Eq, Hash)]
    pub struct ClientOwner {
        /// Changes when the client restarts.
        pub verifier: Verifier,
        /// The name.
        pub owner: Owner,
    }

    /// Who a server is, for trunking.
    #[derive(Clone, Debug, Default, PartialEq, Eq, Hash)]
    pub struct ServerOwner {
        /// Connections to the same minor part may share a session.
        pub minor_id: u64,
        /// Connections to the same major part may share a client id.
        pub major_id: Owner,
    }

    /// What software a peer is.
    #[derive(Clone, Debug, Default, PartialEq, Eq)]
    pub struct ImplId {
        /// Domain name of its maker.
        pub domain: Name,
        /// Its name.
        pub name: Name,
        /// When it was built.
        pub date: NfsTime,
    }

    /// A conflicting lock.
    #[derive(Clone, Debug, PartialEq, Eq)]
    pub struct LockDenied {
        /// First byte.
        pub offset: u64,
        /// Length; all ones: to the end of the file.
        pub length: u64,
        /// Its kind.
        pub kind: LockType,
        /// Whose it is.
        pub owner: StateOwner,
    }

    /// The result of a COPY or a WRITE_SAME.
    #[derive(Clone, Debug, PartialEq, Eq)]
    pub struct WriteResponse {
        /// Identifies the work if it continues in the background.
        pub callback_id: List<StateId, 1>,
        /// Bytes written so far.
        pub count: u64,
        /// How stable they are.
        pub committed: StableHow,
        /// Changes when the server loses unstable data.
        pub verifier: Verifier,
    }

    /// How a GSS mechanism is to be used.
    #[derive(Clone, Debug, PartialEq, Eq)]
    pub struct GssInfo {
        /// Object identifier of the mechanism.
        pub oid: Blob,
        /// Quality of protection.
        pub qop: u32,
        /// Service: 1 none, 2 integrity, 3 privacy.
        pub service: u32,
    }

    /// GSS contexts for the backchannel.
    #[derive(Clone, Debug, PartialEq, Eq)]
    pub struct GssCbHandles {
        /// Service: 1 none, 2 integrity, 3 privacy.
        pub service: u32,
        /// The server's handle.
        pub handle_from_server: Blob,
        /// The client's handle.
        pub handle_from_client: Blob,
    }

    /// Bytes of a layout-type-specific kind.
    #[derive(Clone, Debug, Default, PartialEq, Eq)]
    pub struct LayoutBody {
        /// Layout type.
        pub kind: u32,
        /// The bytes.
        pub body: Blob,
    }

    /// A change that a client is notified of.
    #[derive(Clone, Debug, PartialEq, Eq)]
    pub struct Notify {
        /// Kinds of change.
        pub mask: super::bitmap::Bitmap,
        /// The changes, encoded by kind.
        pub values: Blob,
    }
}

impl StateId {
    /// No state: READ and WRITE without an open.
    pub const ANONYMOUS: Self = Self { seqid: 0, other: [0; 12] };
    /// No state; READ ignores locks and share reservations.
    pub const READ_BYPASS: Self = Self { seqid: u32::MAX, other: [0xff; 12] };
    /// The current stateid (minor version 1 on).
    pub const CURRENT: Self = Self { seqid: 1, other: [0; 12] };
    /// A stateid that is never valid (minor version 1 on).
    pub const INVALID: Self = Self { seqid: u32::MAX, other: [0; 12] };

    /// Whether it is [`ANONYMOUS`](Self::ANONYMOUS) or [`READ_BYPASS`](Self::READ_BYPASS).
    pub fn is_special(&self) -> bool {
        *self == Self::ANONYMOUS || *self == Self::READ_BYPASS
    }
}

xdr_enum! {
    /// Type of a file.
    pub enum FileType {
        /// Regular file.
        Regular = 1,
        /// Directory.
        Directory = 2,
        /// Block device.
        Block = 3,
        /// Character device.
        Char = 4,
        /// Symbolic link.
        Symlink = 5,
        /// Socket.
        Socket = 6,
        /// Named pipe.
        Fifo = 7,
        /// Directory of named attributes.
        AttrDir = 8,
        /// Named attribute.
        NamedAttr = 9,
    }

    /// Stability of data, provided or required (ordered).
    pub enum StableHow {
        /// Until COMMIT.
        Unstable = 0,
        /// Data, and the metadata needed to find it, are durable.
        DataSync = 1,
        /// Data and all attributes are durable.
        FileSync = 2,
    }

    /// Kinds of byte-range lock.
    pub enum LockType {
        /// Shared.
        Read = 1,
        /// Exclusive.
        Write = 2,
        /// Shared, and the client will wait for it.
        ReadWaiting = 3,
        /// Exclusive, and the client will wait for it.
        WriteWaiting = 4,
    }

    /// Data or hole.
    pub enum Content {
        /// Data.
        Data = 0,
        /// A hole.
        Hole = 1,
    }

    /// What a layout is for.
    pub enum LayoutIoMode {
        /// Reading.
        Read = 1,
        /// Reading and writing.
        ReadWrite = 2,
        /// Either (returns and recalls).
        Any = 3,
    }
}

impl LockType {
    /// Whether the lock is exclusive.
    pub const fn is_write(self) -> bool {
        matches!(self, Self::Write | Self::WriteWaiting)
    }

    /// Whether the client will wait for it.
    pub const fn is_waiting(self) -> bool {
        matches!(self, Self::ReadWaiting | Self::WriteWaiting)
    }
}

xdr_union! {
    /// A time to set.
    #[derive(Clone, Copy, Debug, PartialEq, Eq)]
    pub enum SetTime {
        /// The server's clock.
        ToServerTime = 0,
        /// This time.
        ToClientTime(NfsTime) = 1,
    }

    /// A server, by name or by address.
    #[derive(Clone, Debug, PartialEq, Eq)]
    pub enum NetLoc {
        /// A name.
        Name(Name) = 1,
        /// A URL.
        Url(Name) = 2,
        /// An address.
        NetAddr(NetAddr) = 3,
    }

    /// How the server may authenticate on the backchannel.
    #[derive(Clone, Debug, PartialEq, Eq)]
    pub enum CallbackSec {
        /// AUTH_NONE.
        None = 0,
        /// AUTH_SYS, as this user.
        Sys(AuthSys) = 1,
        /// RPCSEC_GSS.
        Gss(GssCbHandles) = 6,
    }
}

/// A security flavor with which a file is accessible.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum SecInfo {
    /// RPCSEC_GSS, with this mechanism.
    Gss(GssInfo),
    /// Any other flavor, by its number.
    Flavor(u32),
}

/// Number of RPCSEC_GSS among the flavors.
const RPCSEC_GSS: u32 = 6;

impl Encode for SecInfo {
    fn encode(&self, e: &mut Encoder) {
        match self {
            Self::Gss(info) => {
                e.u32(RPCSEC_GSS);
                e.put(info);
            }
            Self::Flavor(flavor) => e.u32(*flavor),
        }
    }
}

impl Decode for SecInfo {
    fn decode(d: &mut Decoder) -> Result<Self> {
        match d.u32()? {
            RPCSEC_GSS => d.get().map(Self::Gss),
            flavor => Ok(Self::Flavor(flavor)),
        }
    }
}

/// Success, or an error; a status with nothing after it.
pub type Status = std::result::Result<(), Error>;

/// Nanoseconds in a second.
const NANOS: u32 = 1_000_000_000;

impl NfsTime {
    /// The same time; `None` if there are a second's nanoseconds or more, or the machine has no such
    /// time.
    pub fn to_system(self) -> Option<SystemTime> {
        if self.nseconds >= NANOS {
            return None;
        }
        let seconds = Duration::from_secs(self.seconds.unsigned_abs());
        let whole = match self.seconds < 0 {
            true => UNIX_EPOCH.checked_sub(seconds),
            false => UNIX_EPOCH.checked_add(seconds),
        };
        whole?.checked_add(Duration::from_nanos(self.nseconds.into()))
    }
}

#[cfg(test)]
pub(crate) const STATEID: StateId = StateId { seqid: 7, other: *b"abcdefghijkl" };

#[cfg(test)]
mod tests {
    use super::*;
    use weir_xdr::sample::check;

    #[test]
    fn samples() {
        check(&STATEID, "00000007 61626364 65666768 696a6b6c");
        check(&StateId::READ_BYPASS, "ffffffff ffffffff ffffffff ffffffff");
        check(&NfsTime { seconds: -1, nseconds: 5 }, "ffffffff ffffffff 00000005");
        check(&SetTime::ToServerTime, "00000000");
        check(
            &SetTime::ToClientTime(NfsTime { seconds: 2, nseconds: 3 }),
            "00000001 00000000 00000002 00000003",
        );
        check(&SecInfo::Flavor(1), "00000001");
        check(
            &SecInfo::Gss(GssInfo { oid: b"\x2a"[..].into(), qop: 0, service: 2 }),
            "00000006 00000001 2a000000 00000000 00000002",
        );
        check(
            &NetLoc::NetAddr(NetAddr { netid: "tcp".into(), addr: "1.2".into() }),
            "00000003 00000003 74637000 00000003 312e3200",
        );
        check(
            &CallbackSec::Sys(AuthSys::default()),
            "00000001 00000000 00000000 00000000 00000000 00000000",
        );
        check(&Err::<(), _>(Error::Stale), "00000046");
    }
}
