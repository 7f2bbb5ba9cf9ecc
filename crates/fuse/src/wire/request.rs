//! Requests of the kernel, decoded.
//!
//! 1. A request that is shorter than its kind requires, or whose names lack their NUL, is malformed;
//!    nothing is read past its end.
//! 2. A decoded request owns its names and values, so it can outlive the buffer. Only the data of a
//!    WRITE stays in the buffer: [`Op::Write`] says where.

use crate::wire::abi::{self, Fattr, InHeader, opcode};
use std::ops::Range;
use zerocopy::FromBytes;

/// A request.
#[derive(Debug)]
pub(crate) struct Request {
    /// Its number.
    pub(crate) unique: u64,
    /// Its kind, by the kernel's number.
    pub(crate) opcode: u32,
    /// The node that it is about.
    pub(crate) node: u64,
    /// The thread that makes it.
    pub(crate) from: Requester,
    /// What it asks for.
    pub(crate) op: Op,
}

/// The thread that makes a request.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Requester {
    pub(crate) uid: u32,
    pub(crate) gid: u32,
    /// Its number in this program's namespace; 0 if it has none there.
    pub(crate) pid: u32,
}

/// Why a request cannot be decoded.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Malformed {
    /// It has no whole header, or a wrong length.
    Header,
    /// Its arguments are too short.
    Arguments,
}

/// What a request asks for. The fields are named as in `linux/fuse.h`.
#[derive(Debug)]
pub(crate) enum Op {
    Init(abi::InitIn),
    Destroy,
    Interrupt {
        unique: u64,
    },
    Forget(Vec<abi::ForgetOne>),
    Lookup {
        name: Vec<u8>,
    },
    Getattr {
        fh: Option<u64>,
    },
    Setattr(abi::SetattrIn),
    Readlink,
    Symlink {
        name: Vec<u8>,
        target: Vec<u8>,
    },
    Mknod {
        mode: u32,
        rdev: u32,
        umask: u32,
        name: Vec<u8>,
    },
    Mkdir {
        mode: u32,
        umask: u32,
        name: Vec<u8>,
    },
    Unlink {
        name: Vec<u8>,
    },
    Rmdir {
        name: Vec<u8>,
    },
    Rename {
        name: Vec<u8>,
        newdir: u64,
        newname: Vec<u8>,
        flags: u32,
    },
    Link {
        oldnode: u64,
        name: Vec<u8>,
    },
    Open(abi::OpenIn),
    Create(abi::CreateIn, Vec<u8>),
    Tmpfile(abi::CreateIn),
    Read(abi::ReadIn),
    Write {
        args: abi::WriteIn,
        data: Range<usize>,
    },
    Flush {
        fh: u64,
        lock_owner: u64,
    },
    Release(abi::ReleaseIn),
    Fsync {
        fh: u64,
        data_only: bool,
    },
    Opendir,
    Readdir {
        args: abi::ReadIn,
        plus: bool,
    },
    Releasedir {
        fh: u64,
    },
    Fsyncdir,
    Statfs,
    Syncfs,
    Setxattr {
        name: Vec<u8>,
        value: Vec<u8>,
        flags: u32,
    },
    Getxattr {
        name: Vec<u8>,
        size: u32,
    },
    Listxattr {
        size: u32,
    },
    Removexattr {
        name: Vec<u8>,
    },
    Access {
        mask: u32,
    },
    Getlk(abi::LkIn),
    Setlk {
        args: abi::LkIn,
        wait: bool,
    },
    Fallocate(abi::FallocateIn),
    Lseek(abi::LseekIn),
    CopyFileRange {
        args: abi::CopyFileRangeIn,
        long_count: bool,
    },
    /// A kind that this server does not know.
    Unknown,
}

impl Op {
    /// Whether the kernel expects a reply.
    pub(crate) fn has_reply(&self) -> bool {
        !matches!(self, Self::Forget(_) | Self::Interrupt { .. } | Self::Destroy)
    }
}

/// The number of the request in `bytes`, for a reply to one that is malformed.
pub(crate) fn unique_of(bytes: &[u8]) -> Option<u64> {
    InHeader::read_from_prefix(bytes).ok().map(|(header, _)| header.unique)
}

impl Request {
    /// Decodes the request that a read of the device returned.
    ///
    /// # Errors
    /// The bytes are no request.
    pub(crate) fn decode(bytes: &[u8]) -> Result<Self, Malformed> {
        let (header, _) = InHeader::read_from_prefix(bytes).map_err(|_| Malformed::Header)?;
        let extensions = usize::from(header.total_extlen) * 8;
        let end = bytes.len().checked_sub(extensions).ok_or(Malformed::Header)?;
        if header.len as usize != bytes.len() || end < size_of::<InHeader>() {
            return Err(Malformed::Header);
        }
        let arguments = Arguments { rest: &bytes[..end], at: size_of::<InHeader>() };
        let op = arguments.op(&header).ok_or(Malformed::Arguments)?;
        let InHeader { unique, opcode, nodeid: node, uid, gid, pid, .. } = header;
        Ok(Self { unique, opcode, node, from: Requester { uid, gid, pid }, op })
    }
}

/// The arguments of a request, from `at` on.
struct Arguments<'a> {
    rest: &'a [u8],
    at: usize,
}

impl Arguments<'_> {
    /// The next structure.
    fn take<T: FromBytes>(&mut self) -> Option<T> {
        let (value, _) = T::read_from_prefix(&self.rest[self.at..]).ok()?;
        self.at += size_of::<T>();
        Some(value)
    }

    /// The next name, without its NUL.
    fn name(&mut self) -> Option<Vec<u8>> {
        let rest = &self.rest[self.at..];
        let len = rest.iter().position(|&byte| byte == 0)?;
        self.at += len + 1;
        Some(rest[..len].to_vec())
    }

    /// The next `len` bytes, and their place in the request.
    fn bytes(&mut self, len: usize) -> Option<Range<usize>> {
        let range = self.at..self.at.checked_add(len)?;
        self.rest.get(range.clone())?;
        self.at = range.end;
        Some(range)
    }

    fn op(mut self, header: &InHeader) -> Option<Op> {
        Some(match header.opcode {
            opcode::LOOKUP => Op::Lookup { name: self.name()? },
            opcode::FORGET => {
                let nlookup = self.take::<abi::ForgetIn>()?.nlookup;
                Op::Forget(vec![abi::ForgetOne { nodeid: header.nodeid, nlookup }])
            }
            opcode::BATCH_FORGET => {
                let count = self.take::<abi::BatchForgetIn>()?.count as usize;
                let room = (self.rest.len() - self.at) / size_of::<abi::ForgetOne>();
                let all = (0..count.min(room)).map(|_| self.take()).collect::<Option<_>>()?;
                Op::Forget(all)
            }
            opcode::GETATTR => {
                let args: abi::GetattrIn = self.take()?;
                Op::Getattr { fh: (args.getattr_flags & abi::GETATTR_FH != 0).then_some(args.fh) }
            }
            opcode::SETATTR => Op::Setattr(self.take()?),
            opcode::READLINK => Op::Readlink,
            opcode::SYMLINK => Op::Symlink { name: self.name()?, target: self.name()? },
            opcode::MKNOD => {
                let abi::MknodIn { mode, rdev, umask, .. } = self.take()?;
                Op::Mknod { mode, rdev, umask, name: self.name()? }
            }
            opcode::MKDIR => {
                let abi::MkdirIn { mode, umask } = self.take()?;
                Op::Mkdir { mode, umask, name: self.name()? }
            }
            opcode::UNLINK => Op::Unlink { name: self.name()? },
            opcode::RMDIR => Op::Rmdir { name: self.name()? },
            opcode::RENAME => {
                let newdir = self.take::<abi::RenameIn>()?.newdir;
                Op::Rename { newdir, flags: 0, name: self.name()?, newname: self.name()? }
            }
            opcode::RENAME2 => {
                let abi::Rename2In { newdir, flags, .. } = self.take()?;
                Op::Rename { newdir, flags, name: self.name()?, newname: self.name()? }
            }
            opcode::LINK => {
                let oldnode = self.take::<abi::LinkIn>()?.oldnodeid;
                Op::Link { oldnode, name: self.name()? }
            }
            opcode::OPEN => Op::Open(self.take()?),
            opcode::OPENDIR => Op::Opendir,
            opcode::CREATE => Op::Create(self.take()?, self.name()?),
            opcode::TMPFILE => Op::Tmpfile(self.take()?),
            opcode::READ => Op::Read(self.take()?),
            opcode::WRITE => {
                let args: abi::WriteIn = self.take()?;
                Op::Write { data: self.bytes(args.size as usize)?, args }
            }
            other => return self.other_op(other),
        })
    }

    fn other_op(mut self, opcode: u32) -> Option<Op> {
        Some(match opcode {
            opcode::FLUSH => {
                let abi::FlushIn { fh, lock_owner, .. } = self.take()?;
                Op::Flush { fh, lock_owner }
            }
            opcode::RELEASE => Op::Release(self.take()?),
            opcode::FSYNC => {
                let abi::FsyncIn { fh, fsync_flags, .. } = self.take()?;
                Op::Fsync { fh, data_only: fsync_flags & abi::FSYNC_FDATASYNC != 0 }
            }
            opcode::READDIR => Op::Readdir { args: self.take()?, plus: false },
            opcode::READDIRPLUS => Op::Readdir { args: self.take()?, plus: true },
            opcode::RELEASEDIR => Op::Releasedir { fh: self.take::<abi::ReleaseIn>()?.fh },
            opcode::FSYNCDIR => Op::Fsyncdir,
            opcode::STATFS => Op::Statfs,
            opcode::SYNCFS => Op::Syncfs,
            opcode::SETXATTR => {
                let abi::SetxattrIn { size, flags } = self.take()?;
                let name = self.name()?;
                let value = self.bytes(size as usize)?;
                Op::Setxattr { name, value: self.rest[value].to_vec(), flags }
            }
            opcode::GETXATTR => {
                let size = self.take::<abi::GetxattrIn>()?.size;
                Op::Getxattr { size, name: self.name()? }
            }
            opcode::LISTXATTR => Op::Listxattr { size: self.take::<abi::GetxattrIn>()?.size },
            opcode::REMOVEXATTR => Op::Removexattr { name: self.name()? },
            opcode::ACCESS => Op::Access { mask: self.take::<abi::AccessIn>()?.mask },
            opcode::GETLK => Op::Getlk(self.take()?),
            opcode::SETLK => Op::Setlk { args: self.take()?, wait: false },
            opcode::SETLKW => Op::Setlk { args: self.take()?, wait: true },
            opcode::FALLOCATE => Op::Fallocate(self.take()?),
            opcode::LSEEK => Op::Lseek(self.take()?),
            opcode::COPY_FILE_RANGE => Op::CopyFileRange { args: self.take()?, long_count: false },
            opcode::COPY_FILE_RANGE_64 => {
                Op::CopyFileRange { args: self.take()?, long_count: true }
            }
            opcode::INTERRUPT => Op::Interrupt { unique: self.take::<abi::InterruptIn>()?.unique },
            opcode::INIT => Op::Init(self.init()?),
            opcode::DESTROY => Op::Destroy,
            _ => Op::Unknown,
        })
    }

    /// INIT's arguments, which are shorter in old kernels.
    fn init(&mut self) -> Option<abi::InitIn> {
        let mut whole = [0; size_of::<abi::InitIn>()];
        let given = self.rest.get(self.at..)?;
        let len = given.len().min(whole.len());
        if len < 16 {
            return None;
        }
        whole[..len].copy_from_slice(&given[..len]);
        abi::InitIn::read_from_bytes(&whole).ok()
    }
}

impl abi::SetattrIn {
    /// Which attributes it sets.
    pub(crate) fn sets(&self) -> Fattr {
        Fattr::from_bits_truncate(self.valid)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use zerocopy::IntoBytes;

    /// A request's bytes.
    fn request(opcode: u32, arguments: &[&[u8]]) -> Vec<u8> {
        let arguments = arguments.concat();
        let len = (size_of::<InHeader>() + arguments.len()) as u32;
        let header = InHeader { len, opcode, unique: 7, nodeid: 1, uid: 3, ..InHeader::default() };
        [header.as_bytes(), &arguments].concat()
    }

    #[test]
    fn names_and_values_are_decoded() {
        let rename = abi::Rename2In { newdir: 9, flags: 2, padding: 0 };
        let bytes = request(opcode::RENAME2, &[rename.as_bytes(), b"from\0to\0"]);
        let decoded = Request::decode(&bytes).unwrap();
        assert_eq!((decoded.unique, decoded.node, decoded.from.uid), (7, 1, 3));
        let Op::Rename { name, newdir: 9, newname, flags: 2 } = decoded.op else { panic!() };
        assert_eq!((&name[..], &newname[..]), (&b"from"[..], &b"to"[..]));

        let write = abi::WriteIn { size: 3, offset: 5, ..abi::WriteIn::default() };
        let bytes = request(opcode::WRITE, &[write.as_bytes(), b"abc"]);
        let Op::Write { args, data } = Request::decode(&bytes).unwrap().op else { panic!() };
        assert_eq!((args.offset, &bytes[data]), (5, &b"abc"[..]));
    }

    #[test]
    fn short_requests_are_malformed_at_every_length() {
        let write = abi::WriteIn { size: 3, ..abi::WriteIn::default() };
        let set = abi::SetxattrIn { size: 2, flags: 0 };
        let forget = abi::BatchForgetIn { count: u32::MAX, dummy: 0 };
        let requests = [
            request(opcode::WRITE, &[write.as_bytes(), b"abc"]),
            request(opcode::SETXATTR, &[set.as_bytes(), b"user.a\0vv"]),
            request(opcode::SYMLINK, &[b"name\0target\0"]),
            request(opcode::LOOKUP, &[b"name\0"]),
        ];
        for whole in requests {
            assert!(Request::decode(&whole).is_ok());
            for len in 0..whole.len() {
                let mut short = whole[..len].to_vec();
                assert_eq!(Request::decode(&short).unwrap_err(), Malformed::Header);
                if len >= size_of::<InHeader>() {
                    short[..4].copy_from_slice(&(len as u32).to_ne_bytes());
                    assert_eq!(Request::decode(&short).unwrap_err(), Malformed::Arguments, "{len}");
                }
            }
        }
        // A count says nothing about what is there.
        let bytes = request(opcode::BATCH_FORGET, &[forget.as_bytes()]);
        assert!(matches!(Request::decode(&bytes).unwrap().op, Op::Forget(all) if all.is_empty()));
    }
}
