//! Attributes (`fattr4`: RFC 8881 section 5, RFC 7862 section 12, RFC 8275, RFC 8276, RFC 9754).
//!
//! 1. One row in the table below gives an attribute its number, field and type; encoding, decoding
//!    and the sets are generated from it.
//! 2. On the wire the values follow in numerical order, without lengths of their own: after one
//!    without a row, nothing can be decoded. Such a set is [`AttrError::Unknown`], which is not an
//!    error of the message: the values as a whole have a length.

use super::acl::{Ace, Acl, MAX_ACES};
use super::bitmap::Bitmap;
use super::error::Error;
use super::types::{FileHandle, FileType, FsId, Name, NfsTime, SetTime, SpecData, Status};
use weir_xdr::{Decode, Decoder, Encode, Encoder, List, Opaque, Result, xdr_struct};

xdr_struct! {
    /// Mode bits and which of them to set.
    #[derive(Clone, Copy, Debug, PartialEq, Eq)]
    pub struct ModeMasked {
        /// The bits.
        pub mode: u32,
        /// Those of them that count.
        pub mask: u32,
    }

    /// The mode of a new file, and the umask that applies unless an ACL is inherited.
    #[derive(Clone, Copy, Debug, PartialEq, Eq)]
    pub struct ModeUmask {
        /// Mode bits.
        pub mode: u32,
        /// Bits to take off.
        pub umask: u32,
    }

    /// A security label.
    #[derive(Clone, Debug, PartialEq, Eq)]
    pub struct SecLabel {
        /// Its format.
        pub format: u32,
        /// Its policy.
        pub policy: u32,
        /// The label.
        pub label: Name,
    }

    /// Which arguments OPEN supports (`open_arguments4`, RFC 9754 section 3.1): each set holds the
    /// numbers of RFC 9754, not the bits of OPEN.
    #[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
    pub struct OpenArguments {
        /// Values of `share_access`, without wants.
        pub share_access: Bitmap,
        /// Values of `share_deny`.
        pub share_deny: Bitmap,
        /// Wants: values up to 15, then numbers of bits in `share_access`.
        pub share_access_want: Bitmap,
        /// Kinds of claim.
        pub open_claim: Bitmap,
        /// Ways to create.
        pub create_mode: Bitmap,
    }

    /// The locations of a file system.
    #[derive(Clone, Debug, Default, PartialEq, Eq)]
    pub struct FsLocations {
        /// Root of the file system, as components.
        pub root: List<Name, 1024>,
        /// The places.
        pub locations: List<FsLocation, 64>,
    }

    /// A place where a file system is.
    #[derive(Clone, Debug, PartialEq, Eq)]
    pub struct FsLocation {
        /// The servers.
        pub servers: List<Name, 64>,
        /// Its root there, as components.
        pub root: List<Name, 1024>,
    }
}

macro_rules! attributes {
    ($($(#[$meta:meta])* $constant:ident = $number:literal, $field:ident: $ty:ty;)*) => {
        $($(#[$meta])* pub const $constant: u32 = $number;)*

        /// The present attributes of a file.
        #[derive(Clone, Debug, Default, PartialEq, Eq)]
        pub struct Attrs {
            $($(#[$meta])* pub $field: Option<$ty>,)*
        }

        #[cfg(test)]
        const NUMBERS: &[u32] = &[$($number),*];

        /// Every attribute that has a row.
        pub const KNOWN: Bitmap = Bitmap::of(&[$($number),*]);

        impl Attrs {
            /// The numbers of those that are present.
            pub fn present(&self) -> Bitmap {
                let mut set = Bitmap::EMPTY;
                $(if self.$field.is_some() { set.insert($number); })*
                set
            }

            /// Drops those that are not in `set`.
            pub fn retain(&mut self, set: Bitmap) {
                $(if !set.contains($number) { self.$field = None; })*
            }

            fn encode_values(&self, e: &mut Encoder) {
                $(if let Some(value) = &self.$field { e.put(value); })*
            }

            fn decode_values(set: Bitmap, d: &mut Decoder) -> Result<Self> {
                Ok(Self { $($field: if set.contains($number) { Some(d.get()?) } else { None },)* })
            }
        }

        /// The name of an attribute, in lower case.
        pub const fn name(number: u32) -> Option<&'static str> {
            match number { $($number => Some(stringify!($field)),)* _ => None }
        }
    };
}

// In numerical order, because that is the order of the values on the wire.
attributes! {
    /// Attributes that the server knows.
    SUPPORTED_ATTRS = 0, supported_attrs: Bitmap;
    /// Type of the file.
    TYPE = 1, kind: FileType;
    /// When filehandles end; 0: never.
    FH_EXPIRE_TYPE = 2, fh_expire_type: u32;
    /// Advances with every change of data or attributes.
    CHANGE = 3, change: u64;
    /// Size in bytes.
    SIZE = 4, size: u64;
    /// Hard links can be made.
    LINK_SUPPORT = 5, link_support: bool;
    /// Symbolic links can be made.
    SYMLINK_SUPPORT = 6, symlink_support: bool;
    /// The file has named attributes.
    NAMED_ATTR = 7, named_attr: bool;
    /// Which file system.
    FSID = 8, fsid: FsId;
    /// Two filehandles never refer to the same file.
    UNIQUE_HANDLES = 9, unique_handles: bool;
    /// Lease in seconds.
    LEASE_TIME = 10, lease_time: u32;
    /// Why the attributes of a directory's entry are missing, or OK.
    RDATTR_ERROR = 11, rdattr_error: Status;
    /// Access control list.
    ACL = 12, acl: List<Ace, MAX_ACES>;
    /// Kinds of entries that access control lists support.
    ACLSUPPORT = 13, aclsupport: u32;
    /// The file was archived.
    ARCHIVE = 14, archive: bool;
    /// Times can be set.
    CANSETTIME = 15, cansettime: bool;
    /// Names that differ only in case are the same.
    CASE_INSENSITIVE = 16, case_insensitive: bool;
    /// Names keep their case.
    CASE_PRESERVING = 17, case_preserving: bool;
    /// Only the superuser may change a file's owner.
    CHOWN_RESTRICTED = 18, chown_restricted: bool;
    /// Filehandle.
    FILEHANDLE = 19, filehandle: FileHandle;
    /// Inode number.
    FILEID = 20, fileid: u64;
    /// Files that the caller may still make.
    FILES_AVAIL = 21, files_avail: u64;
    /// Files that may still be made.
    FILES_FREE = 22, files_free: u64;
    /// Files in all.
    FILES_TOTAL = 23, files_total: u64;
    /// Where else the file system is.
    FS_LOCATIONS = 24, fs_locations: FsLocations;
    /// The file is hidden.
    HIDDEN = 25, hidden: bool;
    /// All files of the file system have the same capabilities.
    HOMOGENEOUS = 26, homogeneous: bool;
    /// Largest file size, in bytes.
    MAXFILESIZE = 27, maxfilesize: u64;
    /// Most hard links to a file.
    MAXLINK = 28, maxlink: u32;
    /// Longest name, in bytes.
    MAXNAME = 29, maxname: u32;
    /// Most bytes of a READ.
    MAXREAD = 30, maxread: u64;
    /// Most bytes of a WRITE.
    MAXWRITE = 31, maxwrite: u64;
    /// MIME type.
    MIMETYPE = 32, mimetype: Name;
    /// Permission bits.
    MODE = 33, mode: u32;
    /// Long names are refused, not cut.
    NO_TRUNC = 34, no_trunc: bool;
    /// Hard links.
    NUMLINKS = 35, numlinks: u32;
    /// Owner: `name@domain`, or a number.
    OWNER = 36, owner: Name;
    /// Owning group: `name@domain`, or a number.
    OWNER_GROUP = 37, owner_group: Name;
    /// Bytes to the hard quota.
    QUOTA_AVAIL_HARD = 38, quota_avail_hard: u64;
    /// Bytes to the soft quota.
    QUOTA_AVAIL_SOFT = 39, quota_avail_soft: u64;
    /// Bytes that count for the quota.
    QUOTA_USED = 40, quota_used: u64;
    /// Device numbers.
    RAWDEV = 41, rawdev: SpecData;
    /// Bytes free for the caller.
    SPACE_AVAIL = 42, space_avail: u64;
    /// Bytes free.
    SPACE_FREE = 43, space_free: u64;
    /// Bytes in all.
    SPACE_TOTAL = 44, space_total: u64;
    /// Bytes that the file takes.
    SPACE_USED = 45, space_used: u64;
    /// The file is the system's.
    SYSTEM = 46, system: bool;
    /// Last access.
    TIME_ACCESS = 47, time_access: NfsTime;
    /// Last access, to set.
    TIME_ACCESS_SET = 48, time_access_set: SetTime;
    /// Last backup.
    TIME_BACKUP = 49, time_backup: NfsTime;
    /// Creation.
    TIME_CREATE = 50, time_create: NfsTime;
    /// Smallest difference of times.
    TIME_DELTA = 51, time_delta: NfsTime;
    /// Last change of attributes.
    TIME_METADATA = 52, time_metadata: NfsTime;
    /// Last change of data.
    TIME_MODIFY = 53, time_modify: NfsTime;
    /// Last change of data, to set.
    TIME_MODIFY_SET = 54, time_modify_set: SetTime;
    /// Inode number of the directory that a file system is mounted on.
    MOUNTED_ON_FILEID = 55, mounted_on_fileid: u64;
    /// Discretionary access control list.
    DACL = 58, dacl: Acl;
    /// System access control list.
    SACL = 59, sacl: Acl;
    /// pNFS layout types of the file system.
    FS_LAYOUT_TYPES = 62, fs_layout_types: List<u32, 64>;
    /// pNFS layout types of the file.
    LAYOUT_TYPES = 64, layout_types: List<u32, 64>;
    /// Block size for pNFS.
    LAYOUT_BLKSIZE = 65, layout_blksize: u32;
    /// Mode bits to set, and which.
    MODE_SET_MASKED = 74, mode_set_masked: ModeMasked;
    /// Attributes that an exclusive create may set.
    SUPPATTR_EXCLCREAT = 75, suppattr_exclcreat: Bitmap;
    /// Which encodings names may be in.
    FS_CHARSET_CAP = 76, fs_charset_cap: u32;
    /// Alignment of CLONE, in bytes.
    CLONE_BLKSIZE = 77, clone_blksize: u32;
    /// Bytes that removing the file would free.
    SPACE_FREED = 78, space_freed: u64;
    /// How the change attribute moves.
    CHANGE_ATTR_TYPE = 79, change_attr_type: u32;
    /// Security label.
    SEC_LABEL = 80, sec_label: SecLabel;
    /// Mode and umask of a new file, to set.
    MODE_UMASK = 81, mode_umask: ModeUmask;
    /// Whether extended attributes are supported.
    XATTR_SUPPORT = 82, xattr_support: bool;
    /// Last access, from the holder of a delegation with times.
    TIME_DELEG_ACCESS = 84, time_deleg_access: NfsTime;
    /// Last change of data, from the holder of a delegation with times.
    TIME_DELEG_MODIFY = 85, time_deleg_modify: NfsTime;
    /// Which arguments OPEN supports.
    OPEN_ARGUMENTS = 86, open_arguments: OpenArguments;
    /// The file is marked as uncached (draft).
    UNCACHEABLE_FILE_DATA = 87, uncacheable_file_data: bool;
}

/// Attributes that SETATTR, CREATE and OPEN may set.
pub const SETTABLE: Bitmap = Bitmap::of(&[
    SIZE,
    ACL,
    ARCHIVE,
    HIDDEN,
    MIMETYPE,
    MODE,
    OWNER,
    OWNER_GROUP,
    SYSTEM,
    TIME_ACCESS_SET,
    TIME_BACKUP,
    TIME_CREATE,
    TIME_MODIFY_SET,
    DACL,
    SACL,
    MODE_SET_MASKED,
    SEC_LABEL,
    MODE_UMASK,
    UNCACHEABLE_FILE_DATA,
])
.union(OF_DELEGATES);

/// Attributes that only the holder of a delegation sets, and CB_GETATTR asks for (RFC 9754 section 5).
pub const OF_DELEGATES: Bitmap = Bitmap::of(&[TIME_DELEG_ACCESS, TIME_DELEG_MODIFY]);

/// Attributes that can be set but not read.
pub const WRITE_ONLY: Bitmap =
    Bitmap::of(&[TIME_ACCESS_SET, TIME_MODIFY_SET, MODE_SET_MASKED, MODE_UMASK])
        .union(OF_DELEGATES);

/// Why received attributes cannot be used.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum AttrError {
    /// One of them has no row.
    Unknown(Bitmap),
    /// The values are not what the set says.
    BadXdr(Bitmap),
}

impl AttrError {
    /// The set that the peer sent.
    pub const fn asked(self) -> Bitmap {
        match self {
            Self::Unknown(set) | Self::BadXdr(set) => set,
        }
    }
}

/// A set of attributes and their values, as they arrive.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Fattr(pub std::result::Result<Box<Attrs>, AttrError>);

impl Default for Fattr {
    fn default() -> Self {
        Self(Ok(Box::default()))
    }
}

impl From<Attrs> for Fattr {
    fn from(attrs: Attrs) -> Self {
        Self(Ok(Box::new(attrs)))
    }
}

impl Fattr {
    /// The attributes that the peer named.
    pub fn asked(&self) -> Bitmap {
        match &self.0 {
            Ok(attrs) => attrs.present(),
            Err(error) => error.asked(),
        }
    }

    /// The attributes, or the protocol's error.
    ///
    /// # Errors
    /// [`Error::AttrNotSupp`] for an unknown attribute, [`Error::BadXdr`] for bad values.
    pub fn attrs(&self) -> std::result::Result<&Attrs, Error> {
        match &self.0 {
            Ok(attrs) => Ok(attrs),
            Err(AttrError::Unknown(_)) => Err(Error::AttrNotSupp),
            Err(AttrError::BadXdr(_)) => Err(Error::BadXdr),
        }
    }
}

impl Encode for Attrs {
    fn encode(&self, e: &mut Encoder) {
        e.put(&self.present());
        let mark = e.mark();
        e.u32(0);
        let begin = e.len();
        self.encode_values(e);
        e.patch_u32(mark, (e.len() - begin) as u32);
    }
}

/// Fails on attributes that cannot be used: for replies, whose sender knows the requested set.
impl Decode for Attrs {
    const MIN_BYTES: usize = 8;

    fn decode(d: &mut Decoder) -> Result<Self> {
        d.get::<Fattr>()?.0.map(|attrs| *attrs).map_err(|_| weir_xdr::Error::BadValue)
    }
}

/// A set that could not be decoded is encoded without values.
impl Encode for Fattr {
    fn encode(&self, e: &mut Encoder) {
        match &self.0 {
            Ok(attrs) => e.put(&**attrs),
            Err(error) => {
                e.put(&error.asked());
                e.u32(0);
            }
        }
    }
}

impl Decode for Fattr {
    const MIN_BYTES: usize = 8;

    fn decode(d: &mut Decoder) -> Result<Self> {
        let set: Bitmap = d.get()?;
        let values: Opaque<{ usize::MAX }> = d.get()?;
        if !set.difference(KNOWN).is_empty() {
            return Ok(Self(Err(AttrError::Unknown(set))));
        }
        let mut values = Decoder::new(values.0);
        let attrs = Attrs::decode_values(set, &mut values)
            .and_then(|attrs| values.finish().map(|()| attrs))
            .map_err(|_| AttrError::BadXdr(set));
        Ok(Self(attrs.map(Box::new)))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use weir_xdr::sample::{check, hex};

    fn decode(words: &str) -> Fattr {
        Decoder::new(hex(words)).get().unwrap()
    }

    #[test]
    fn samples() {
        check(&Attrs::default(), "00000000 00000000");
        let attrs = Attrs { size: Some(5), mode: Some(0o644), ..Attrs::default() };
        check(&attrs, "00000002 00000010 00000002 0000000c 00000000 00000005 000001a4");
        check(
            &Attrs { uncacheable_file_data: Some(true), ..Attrs::default() },
            "00000003 00000000 00000000 00800000 00000004 00000001",
        );
        let time = NfsTime { seconds: 1, nseconds: 2 };
        check(
            &Attrs {
                time_deleg_access: Some(time),
                time_deleg_modify: Some(time),
                ..Attrs::default()
            },
            "00000003 00000000 00000000 00300000 00000018
            00000000 00000001 00000002 00000000 00000001 00000002",
        );
        let arguments = OpenArguments {
            share_access: Bitmap::of(&[1, 2, 3]),
            share_deny: Bitmap::of(&[0]),
            share_access_want: Bitmap::of(&[3, 21]),
            open_claim: Bitmap::of(&[0, 4]),
            create_mode: Bitmap::EMPTY,
        };
        check(
            &Attrs { open_arguments: Some(arguments), ..Attrs::default() },
            "00000003 00000000 00000000 00400000 00000024 00000001 0000000e
            00000001 00000001 00000001 00200008 00000001 00000011 00000000",
        );
        check(
            &Attrs { rdattr_error: Some(Ok(())), ..Attrs::default() },
            "00000001 00000800 00000004 00000000",
        );
        check(
            &Attrs { time_modify_set: Some(SetTime::ToServerTime), ..Attrs::default() },
            "00000002 00000000 00400000 00000004 00000000",
        );
    }

    #[test]
    fn unusable_attributes_are_skipped_whole() {
        // 56 has no row.
        let unknown = decode("00000002 00000000 01000000 00000004 00000001");
        assert_eq!(unknown.attrs(), Err(Error::AttrNotSupp));
        assert_eq!(unknown.asked(), Bitmap::of(&[56]));
        // A size of four bytes, and one of twelve.
        for words in [
            "00000001 00000010 00000004 00000000",
            "00000001 00000010 0000000c 00000000 00000000 00000000",
        ] {
            assert_eq!(decode(words).attrs(), Err(Error::BadXdr));
        }
    }

    #[test]
    fn retain_drops_the_rest() {
        let mut attrs = Attrs { size: Some(5), mode: Some(0o644), ..Attrs::default() };
        attrs.retain(Bitmap::of(&[MODE, OWNER]));
        assert_eq!(attrs.present(), Bitmap::of(&[MODE]));
    }

    #[test]
    fn numbers_are_in_order() {
        assert!(NUMBERS.is_sorted_by(|a, b| a < b));
        assert!(NUMBERS.iter().all(|&n| name(n).is_some()));
        assert!(
            SETTABLE.difference(KNOWN).is_empty() && WRITE_ONLY.difference(SETTABLE).is_empty()
        );
    }
}
