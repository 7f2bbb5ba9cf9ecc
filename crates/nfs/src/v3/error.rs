//! Error codes (`nfsstat3`, RFC 1813 section 2.6).

use weir_xdr::{Decode, Decoder, Encode, Encoder, Result, xdr_enum};

macro_rules! errors {
    ($($(#[$meta:meta])* $variant:ident = $value:literal, $name:literal;)*) => {
        xdr_enum! {
            /// Why a procedure failed. Success is not an error: results are `Result`s.
            pub enum Error { $($(#[$meta])* $variant = $value,)* }
        }

        impl Error {
            /// Every error, for tests of mappings.
            pub const ALL: &'static [Self] = &[$(Self::$variant,)*];

            /// The name in the RFC, `NFS3ERR_STALE` for instance.
            pub const fn name(self) -> &'static str {
                match self { $(Self::$variant => $name,)* }
            }
        }
    };
}

errors! {
    /// Only the owner may, or no user at all.
    Perm = 1, "NFS3ERR_PERM";
    /// No such file or directory.
    NoEnt = 2, "NFS3ERR_NOENT";
    /// Hard I/O error.
    Io = 5, "NFS3ERR_IO";
    /// No such device or address.
    NxIo = 6, "NFS3ERR_NXIO";
    /// Permission denied.
    Access = 13, "NFS3ERR_ACCES";
    /// File exists.
    Exist = 17, "NFS3ERR_EXIST";
    /// Across file systems.
    XDev = 18, "NFS3ERR_XDEV";
    /// No such device.
    NoDev = 19, "NFS3ERR_NODEV";
    /// Not a directory.
    NotDir = 20, "NFS3ERR_NOTDIR";
    /// A directory.
    IsDir = 21, "NFS3ERR_ISDIR";
    /// Invalid argument.
    Inval = 22, "NFS3ERR_INVAL";
    /// File too large.
    FBig = 27, "NFS3ERR_FBIG";
    /// No space left.
    NoSpc = 28, "NFS3ERR_NOSPC";
    /// Read-only file system.
    RoFs = 30, "NFS3ERR_ROFS";
    /// Too many links.
    MLink = 31, "NFS3ERR_MLINK";
    /// Name too long.
    NameTooLong = 63, "NFS3ERR_NAMETOOLONG";
    /// Directory not empty.
    NotEmpty = 66, "NFS3ERR_NOTEMPTY";
    /// Quota exceeded.
    DQuot = 69, "NFS3ERR_DQUOT";
    /// The file is gone.
    Stale = 70, "NFS3ERR_STALE";
    /// Too many levels of remote in a path.
    Remote = 71, "NFS3ERR_REMOTE";
    /// Not a filehandle of this server.
    BadHandle = 10001, "NFS3ERR_BADHANDLE";
    /// SETATTR's guard does not match.
    NotSync = 10002, "NFS3ERR_NOT_SYNC";
    /// READDIR cookie not valid.
    BadCookie = 10003, "NFS3ERR_BAD_COOKIE";
    /// Operation not supported.
    NotSupp = 10004, "NFS3ERR_NOTSUPP";
    /// Buffer or request too small.
    TooSmall = 10005, "NFS3ERR_TOOSMALL";
    /// The server failed.
    ServerFault = 10006, "NFS3ERR_SERVERFAULT";
    /// Type not supported.
    BadType = 10007, "NFS3ERR_BADTYPE";
    /// Begun, not done yet: try again later.
    Jukebox = 10008, "NFS3ERR_JUKEBOX";
}

/// A failure, with its additional results.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Failure<T> {
    /// Why.
    pub status: Error,
    /// Attributes of the objects concerned, as far as the server returned them.
    pub rest: T,
}

/// A failure without further information.
impl<T: Default> From<Error> for Failure<T> {
    fn from(status: Error) -> Self {
        Self { status, rest: T::default() }
    }
}

impl<T: Encode> Encode for Failure<T> {
    fn encode(&self, e: &mut Encoder) {
        e.put(&self.status);
        e.put(&self.rest);
    }
}

impl<T: Decode> Decode for Failure<T> {
    const MIN_BYTES: usize = 4 + T::MIN_BYTES;

    fn decode(d: &mut Decoder) -> Result<Self> {
        Ok(Self { status: d.get()?, rest: d.get()? })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use weir_xdr::sample;

    #[test]
    fn numbers_are_those_of_the_rfc() {
        sample::check(&Error::Stale, "00000046");
        sample::check(&Error::Jukebox, "00002718");
        sample::check(&Failure { status: Error::NoEnt, rest: None::<u32> }, "00000002 00000000");
        assert_eq!(Error::ALL.len(), 28);
        assert_eq!(Error::Access.name(), "NFS3ERR_ACCES");
    }
}
