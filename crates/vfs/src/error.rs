//! Protocol-neutral errors, mapped to errno and nfsstat at the edges.

/// Result of a file system operation.
pub type Result<T> = std::result::Result<T, Error>;

macro_rules! errors {
    ($($(#[$meta:meta])* $name:ident = $errno:literal, $text:literal;)*) => {
        /// Why an operation failed.
        #[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
        #[non_exhaustive]
        pub enum Error { $($(#[$meta])* $name,)* }

        impl Error {
            /// The Linux errno.
            pub const fn errno(self) -> i32 {
                match self { $(Self::$name => $errno,)* }
            }

            /// The error for a Linux errno; [`Error::Io`] for one without a variant here.
            pub const fn from_errno(errno: i32) -> Self {
                match errno { $($errno => Self::$name,)* _ => Self::Io }
            }

            /// Every error, for tests of mappings.
            pub const ALL: &'static [Self] = &[$(Self::$name,)*];
        }

        impl std::fmt::Display for Error {
            fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
                f.write_str(match self { $(Self::$name => $text,)* })
            }
        }
    };
}

errors! {
    /// EPERM: reserved to the owner, or denied to all users.
    NotPermitted = 1, "operation not permitted";
    /// ENOENT.
    NotFound = 2, "no such file or directory";
    /// EINTR.
    Interrupted = 4, "interrupted";
    /// EIO.
    Io = 5, "input/output error";
    /// ENXIO: past the end of the file (SEEK).
    NoSuchRange = 6, "no data or hole there";
    /// E2BIG: the value of an extended attribute is too long.
    TooLong = 7, "argument too long";
    /// EBADF: the file is not open for this operation.
    BadFile = 9, "file not open for this operation";
    /// EAGAIN: the operation would have to wait.
    WouldBlock = 11, "the operation would have to wait";
    /// ENOMEM.
    OutOfMemory = 12, "out of memory";
    /// EACCES.
    AccessDenied = 13, "permission denied";
    /// EBUSY.
    Busy = 16, "busy";
    /// EEXIST.
    Exists = 17, "file exists";
    /// EXDEV.
    CrossDevice = 18, "on another file system";
    /// ENODEV.
    NoDevice = 19, "no such device";
    /// ENOTDIR.
    NotDirectory = 20, "not a directory";
    /// EISDIR.
    IsDirectory = 21, "is a directory";
    /// EINVAL.
    Invalid = 22, "invalid argument";
    /// EMFILE.
    TooManyOpen = 24, "too many open files";
    /// ETXTBSY.
    TextBusy = 26, "program is running";
    /// EFBIG.
    TooBig = 27, "file too large";
    /// ENOSPC.
    NoSpace = 28, "no space left on device";
    /// EROFS.
    ReadOnly = 30, "read-only file system";
    /// EMLINK.
    TooManyLinks = 31, "too many links";
    /// ERANGE: the buffer given is too small.
    Range = 34, "result too large";
    /// EDEADLK: waiting for the lock would never end.
    Deadlock = 35, "resource deadlock avoided";
    /// ENAMETOOLONG.
    NameTooLong = 36, "name too long";
    /// ENOTEMPTY.
    NotEmpty = 39, "directory not empty";
    /// ELOOP: a symbolic link where none may be followed.
    Loop = 40, "too many symbolic links";
    /// ENODATA: no such extended attribute.
    NoAttribute = 61, "no such attribute";
    /// EOPNOTSUPP.
    NotSupported = 95, "operation not supported";
    /// ETIMEDOUT.
    TimedOut = 110, "timed out";
    /// ESTALE: the file identified is gone.
    Stale = 116, "stale file handle";
    /// EDQUOT.
    Quota = 122, "disk quota exceeded";
}

impl std::error::Error for Error {}

impl From<std::io::Error> for Error {
    fn from(error: std::io::Error) -> Self {
        match error.raw_os_error() {
            Some(errno) => Self::from_errno(errno),
            None => match error.kind() {
                std::io::ErrorKind::NotFound => Self::NotFound,
                std::io::ErrorKind::PermissionDenied => Self::AccessDenied,
                std::io::ErrorKind::AlreadyExists => Self::Exists,
                std::io::ErrorKind::InvalidInput => Self::Invalid,
                std::io::ErrorKind::TimedOut => Self::TimedOut,
                std::io::ErrorKind::WouldBlock => Self::WouldBlock,
                _ => Self::Io,
            },
        }
    }
}

impl From<Error> for std::io::Error {
    fn from(error: Error) -> Self {
        Self::from_raw_os_error(error.errno())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn errno_round_trips() {
        for &error in Error::ALL {
            assert_eq!(Error::from_errno(error.errno()), error);
            assert_eq!(Error::from(std::io::Error::from(error)), error);
        }
    }
}
