//! Types that several procedures share (RFC 1813 section 2.5 and 2.6).

use weir_xdr::{Bytes, Opaque, xdr_enum, xdr_struct, xdr_union};

/// Most bytes in a filehandle.
pub const MAX_HANDLE_BYTES: usize = 64;
/// Bytes in a verifier of a write, a creation or a directory's cookies.
pub const VERIFIER_BYTES: usize = 8;

/// A filehandle, opaque to the client.
pub type FileHandle = Opaque<MAX_HANDLE_BYTES>;
/// A name in a directory. The protocol sets no limit; the record's length and the file system do.
pub type Name = Opaque<{ u32::MAX as usize }>;
/// The target of a symbolic link; as unlimited as [`Name`].
pub type Path = Opaque<{ u32::MAX as usize }>;
/// Changes when the state that it represents has changed or was lost.
pub type Verifier = [u8; VERIFIER_BYTES];
/// Attributes after the call, unless the server could not read them (`post_op_attr`).
pub type PostOpAttr = Option<Attr>;

xdr_enum! {
    /// Type of a file (`ftype3`).
    pub enum FileType {
        /// Regular file.
        Reg = 1,
        /// Directory.
        Dir = 2,
        /// Block device.
        Blk = 3,
        /// Character device.
        Chr = 4,
        /// Symbolic link.
        Lnk = 5,
        /// Socket.
        Sock = 6,
        /// Named pipe.
        Fifo = 7,
    }
}

xdr_struct! {
    /// Device numbers (`specdata3`).
    #[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
    pub struct Device {
        /// Major number.
        pub major: u32,
        /// Minor number.
        pub minor: u32,
    }

    /// A time since 1970 (`nfstime3`).
    #[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
    pub struct Time {
        /// Seconds.
        pub seconds: u32,
        /// Nanoseconds: under 1,000,000,000.
        pub nseconds: u32,
    }

    /// Attributes of a file (`fattr3`): 84 bytes.
    #[derive(Clone, Debug, PartialEq, Eq)]
    pub struct Attr {
        /// Type.
        pub kind: FileType,
        /// Permission bits, with set-id and sticky.
        pub mode: u32,
        /// Hard links.
        pub nlink: u32,
        /// Owner.
        pub uid: u32,
        /// Owning group.
        pub gid: u32,
        /// Size in bytes.
        pub size: u64,
        /// Storage in use, in bytes.
        pub used: u64,
        /// Device numbers of a device file.
        pub rdev: Device,
        /// File system.
        pub fsid: u64,
        /// Number of the file in its file system.
        pub fileid: u64,
        /// Last access.
        pub atime: Time,
        /// Last change of data.
        pub mtime: Time,
        /// Last change of data or attributes.
        pub ctime: Time,
    }

    /// Attributes that a client compares with those known from before a change (`wcc_attr`).
    #[derive(Clone, Copy, Debug, PartialEq, Eq)]
    pub struct WccAttr {
        /// Size in bytes.
        pub size: u64,
        /// Last change of data.
        pub mtime: Time,
        /// Last change of data or attributes.
        pub ctime: Time,
    }

    /// Attributes around a change, for weak cache consistency.
    #[derive(Clone, Debug, Default, PartialEq, Eq)]
    pub struct WccData {
        /// Before it; absent unless no other change can have come between.
        pub before: Option<WccAttr>,
        /// After it.
        pub after: PostOpAttr,
    }

    /// Attributes to set (`sattr3`).
    #[derive(Clone, Debug, Default, PartialEq, Eq)]
    pub struct SetAttr {
        /// Permission bits.
        pub mode: Option<u32>,
        /// Owner.
        pub uid: Option<u32>,
        /// Owning group.
        pub gid: Option<u32>,
        /// Size in bytes.
        pub size: Option<u64>,
        /// Last access.
        pub atime: SetTime,
        /// Last change of data.
        pub mtime: SetTime,
    }

    /// A name in a directory (`diropargs3`).
    #[derive(Clone, Debug, PartialEq, Eq)]
    pub struct DirOp {
        /// The directory.
        pub dir: FileHandle,
        /// The name.
        pub name: Name,
    }

    /// A new object (`CREATE3resok`, `MKDIR3resok`, `SYMLINK3resok`, `MKNOD3resok`).
    #[derive(Clone, Debug, PartialEq, Eq)]
    pub struct Created {
        /// Its handle, unless the server returned none.
        pub handle: Option<FileHandle>,
        /// Its attributes.
        pub attr: PostOpAttr,
        /// The directory around the change.
        pub dir: WccData,
    }
}

xdr_union! {
    /// A time to set (`set_atime`, `set_mtime`).
    #[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
    pub enum SetTime {
        /// Leave it.
        #[default]
        Keep = 0,
        /// The server's clock.
        Now = 1,
        /// This time.
        To(Time) = 2,
    }
}

impl SetAttr {
    /// Sets nothing.
    pub const NONE: Self = Self {
        mode: None,
        uid: None,
        gid: None,
        size: None,
        atime: SetTime::Keep,
        mtime: SetTime::Keep,
    };
}

impl DirOp {
    /// A name in a directory, by its handle.
    pub fn new(dir: FileHandle, name: impl Into<Bytes>) -> Self {
        Self { dir, name: Opaque(name.into()) }
    }
}

/// Attributes and their encoding, for the samples of procedures that contain them.
#[cfg(test)]
pub(crate) mod sample {
    use super::*;

    pub(crate) fn attr() -> Attr {
        Attr {
            kind: FileType::Reg,
            mode: 0o644,
            nlink: 1,
            uid: 1000,
            gid: 100,
            size: 0x1_0000_0005,
            used: 4096,
            rdev: Device { major: 8, minor: 1 },
            fsid: 0xfeed,
            fileid: 42,
            atime: Time { seconds: 1, nseconds: 2 },
            mtime: Time { seconds: 3, nseconds: 4 },
            ctime: Time { seconds: 5, nseconds: 6 },
        }
    }

    pub(crate) const ATTR: &str = "00000001 000001a4 00000001 000003e8 00000064 00000001 00000005
        00000000 00001000 00000008 00000001 00000000 0000feed 00000000 0000002a
        00000001 00000002 00000003 00000004 00000005 00000006";

    pub(crate) fn wcc() -> WccData {
        let Attr { size, mtime, ctime, .. } = attr();
        WccData { before: Some(WccAttr { size, mtime, ctime }), after: None }
    }

    pub(crate) const WCC: &str =
        "00000001 00000001 00000005 00000003 00000004 00000005 00000006 00000000";

    pub(crate) fn handle() -> FileHandle {
        "handle".into()
    }

    pub(crate) const HANDLE: &str = "00000006 68616e64 6c650000";

    pub(crate) fn dir_op() -> DirOp {
        DirOp::new(handle(), "name5")
    }

    pub(crate) const DIR_OP: &str = "00000006 68616e64 6c650000 00000005 6e616d65 35000000";

    pub(crate) fn set_attr() -> SetAttr {
        SetAttr {
            mode: Some(0o600),
            size: Some(7),
            atime: SetTime::Now,
            mtime: SetTime::To(Time { seconds: 8, nseconds: 9 }),
            ..SetAttr::NONE
        }
    }

    pub(crate) const SET_ATTR: &str = "00000001 00000180 00000000 00000000
        00000001 00000000 00000007 00000001 00000002 00000008 00000009";

    pub(crate) fn created() -> Created {
        Created { handle: Some(handle()), attr: Some(attr()), dir: wcc() }
    }

    pub(crate) fn created_wire() -> String {
        format!("00000000 00000001 {HANDLE} 00000001 {ATTR} {WCC}")
    }
}

#[cfg(test)]
mod tests {
    use super::sample::*;
    use weir_xdr::sample::check;
    use weir_xdr::wire_len;

    #[test]
    fn shared_types() {
        check(&attr(), ATTR);
        assert_eq!(wire_len(&attr()), 84);
        check(&wcc(), WCC);
        check(&handle(), HANDLE);
        check(&dir_op(), DIR_OP);
        check(&set_attr(), SET_ATTR);
    }
}
