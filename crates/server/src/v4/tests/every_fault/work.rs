//! The kinds of work: how each begins, what it sends, and what must be true after it.

use super::super::delegations::{WANT_READ, write_op};
use super::*;
use weir_nfs::v4::op::open::{Claim, CreateHow, CreateVerifier, How, ShareAccess};
use weir_nfs::v4::op::{allocate, clone, commit, copy, create, deallocate, getxattr, listxattrs};
use weir_nfs::v4::op::{read, read_plus, rename, setattr, setxattr, write};
use weir_nfs::v4::types::{Blob, StableHow};

#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) enum Work {
    Create,
    CreateExclusive,
    Open,
    OpenTruncating,
    Close,
    Mkdir,
    Symlink,
    Fifo,
    Link,
    Mode,
    Truncate,
    WriteStable,
    WriteAndCommit,
    WriteAnonymous,
    Rename,
    Replace,
    Remove,
    Rmdir,
    Lock,
    Unlock,
    Read,
    Readdir,
    // From minor version 1 on.
    Delegate,
    Recall,
    Return,
    // From minor version 2 on.
    ReadPlus,
    Allocate,
    Deallocate,
    Copy,
    Clone,
    SetXattr,
    GetXattr,
    ListXattrs,
    RemoveXattr,
}

use Work::*;

pub(super) const ALL: [Work; 34] = [
    Create,
    CreateExclusive,
    Open,
    OpenTruncating,
    Close,
    Mkdir,
    Symlink,
    Fifo,
    Link,
    Mode,
    Truncate,
    WriteStable,
    WriteAndCommit,
    WriteAnonymous,
    Rename,
    Replace,
    Remove,
    Rmdir,
    Lock,
    Unlock,
    Read,
    Readdir,
    Delegate,
    Recall,
    Return,
    ReadPlus,
    Allocate,
    Deallocate,
    Copy,
    Clone,
    SetXattr,
    GetXattr,
    ListXattrs,
    RemoveXattr,
];

/// The name of what is there before.
const FROM: &str = "from";
/// The name of what is made.
const TO: &str = "to";

impl Work {
    pub(super) fn is_of(self, minor: u32) -> bool {
        let since = match self {
            Delegate | Recall | Return => 1,
            ReadPlus | Allocate | Deallocate | Copy | Clone | SetXattr | GetXattr | ListXattrs
            | RemoveXattr => 2,
            _ => 0,
        };
        minor >= since
    }

    /// Names, and the files' bytes; `None` for a directory.
    pub(super) fn begins_with(self) -> Vec<(&'static str, Option<&'static [u8]>)> {
        match self {
            Create | CreateExclusive | Mkdir | Symlink | Fifo => Vec::new(),
            Rmdir => vec![(FROM, None)],
            Replace | Copy | Clone => vec![(FROM, Some(OLD)), (TO, Some(&[]))],
            _ => vec![(FROM, Some(OLD))],
        }
    }

    fn ends_with(self) -> &'static [&'static str] {
        match self {
            Create | CreateExclusive | Mkdir | Symlink | Fifo | Rename | Replace => &[TO],
            Link | Copy | Clone => &[FROM, TO],
            Remove | Rmdir => &[],
            _ => &[FROM],
        }
    }

    /// The files that are open meanwhile.
    fn opens(self) -> &'static [&'static str] {
        match self {
            Close | Truncate | WriteStable | WriteAndCommit | Lock | Unlock | Read | ReadPlus
            | Allocate | Deallocate => &[FROM],
            Copy | Clone => &[FROM, TO],
            _ => &[],
        }
    }

    /// The status of a repetition after the operation was done in spite of its error.
    pub(super) fn done_before(self) -> Option<Error> {
        match self {
            Create | Mkdir | Symlink | Fifo | Link => Some(Error::Exist),
            Rename | Replace | Remove | Rmdir => Some(Error::NoEnt),
            RemoveXattr => Some(Error::NoXattr),
            _ => None,
        }
    }

    /// Whether the server may do it without the store.
    pub(super) fn is_state_only(self) -> bool {
        matches!(self, Close | Lock | Unlock | Return)
    }

    /// The file whose bytes it changes, or leaves as they are.
    pub(super) fn changes(self) -> &'static str {
        match self {
            Rename | Replace | Copy | Clone => TO,
            _ => FROM,
        }
    }

    pub(super) fn bytes(self) -> Vec<u8> {
        let mut bytes = OLD.to_vec();
        match self {
            OpenTruncating => bytes.clear(),
            Truncate => bytes.truncate(AT as usize),
            WriteStable | WriteAndCommit => {
                bytes.truncate(AT as usize);
                bytes.extend(NEW);
            }
            WriteAnonymous | Recall => bytes[..3].copy_from_slice(b"new"),
            Allocate => bytes.resize(16_000, 0),
            Deallocate => bytes[4096..8192].fill(0),
            _ => {}
        }
        bytes
    }

    /// Whether the bytes are in the store once the operation has succeeded.
    pub(super) fn is_durable(self) -> bool {
        matches!(
            self,
            OpenTruncating
                | Truncate
                | WriteStable
                | WriteAndCommit
                | WriteAnonymous
                | Recall
                | Allocate
                | Deallocate
                | Copy
        )
    }
}

/// One try of some work, in its own directory.
pub(super) struct Trial {
    pub(super) work: Work,
    pub(super) dir: FileHandle,
    pub(super) name: String,
}

impl Trial {
    /// Opens, locks and sets what the work needs.
    pub(super) async fn prepare(&self, a: &mut Peer) {
        for name in self.work.opens() {
            a.run(self.open(a, ShareAccess::BOTH, name, How::NoCreate)).await.unwrap();
        }
        match self.work {
            Unlock => {
                let lock = vec![Op::Putfh(a.opens[0].0.clone()), a.lock(&self.name)];
                a.run(lock).await.unwrap();
            }
            Recall | Return => {
                a.run(self.open(a, WANT_READ, FROM, How::NoCreate)).await.unwrap();
                let (file, open_stateid) = a.opens[0].clone();
                let close = Op::Close(close::Args { seqid: a.seqid, open_stateid });
                a.run(vec![Op::Putfh(file), close]).await.unwrap();
                assert!(a.delegation.is_some());
            }
            GetXattr | ListXattrs | RemoveXattr => {
                let file = a.lookup(&self.dir, FROM).await.unwrap();
                a.run(vec![Op::Putfh(file), set_xattr()]).await.unwrap();
            }
            _ => {}
        }
    }

    fn in_dir(&self, op: Op) -> Vec<Op> {
        vec![Op::Putfh(self.dir.clone()), op]
    }

    /// OPEN and what clients ask for with it.
    fn open(&self, peer: &Peer, access: ShareAccess, name: &str, how: How) -> Vec<Op> {
        let open = Op::Open(open::Args {
            seqid: peer.seqid,
            share_access: access,
            share_deny: open::ShareDeny::empty(),
            owner: peer.owner(),
            how,
            claim: Claim::Null(name.into()),
        });
        let asked = Op::Getattr(Bitmap::of(&[MODE, SIZE, NUMLINKS]));
        [self.in_dir(open), vec![Op::Getfh(()), asked]].concat()
    }

    /// Does the work. `b` is another client, for what takes two.
    pub(super) async fn run(&self, a: &mut Peer, b: &mut Peer) -> Result<(), Error> {
        let attrs = || Attrs { mode: Some(0o640), ..Attrs::default() };
        let make = |kind| {
            let (name, attrs) = (TO.into(), attrs().into());
            self.in_dir(Op::Create(create::Args { kind, name, attrs }))
        };
        let create = |how| self.open(a, ShareAccess::BOTH, TO, How::Create(how));
        let verifier = *b"verifier";
        let ops = match self.work {
            Create => create(CreateHow::Guarded(attrs().into())),
            CreateExclusive if a.c.minor == 0 => create(CreateHow::Exclusive(verifier)),
            CreateExclusive => {
                create(CreateHow::Exclusive41(CreateVerifier { verifier, attrs: attrs().into() }))
            }
            Open => self.open(a, ShareAccess::BOTH, FROM, How::NoCreate),
            OpenTruncating => {
                let empty = Attrs { size: Some(0), ..Attrs::default() };
                let how = How::Create(CreateHow::Unchecked(empty.into()));
                self.open(a, ShareAccess::BOTH, FROM, how)
            }
            Delegate => self.open(a, WANT_READ, FROM, How::NoCreate),
            Mkdir => make(create::Kind::Directory),
            Symlink => make(create::Kind::Symlink("x".into())),
            Fifo => make(create::Kind::Fifo),
            Remove | Rmdir => self.in_dir(Op::Remove(FROM.into())),
            Rename | Replace => {
                let (from, to) = (FROM.into(), TO.into());
                let saved = self.in_dir(Op::Savefh(()));
                [saved, self.in_dir(Op::Rename(rename::Args { from, to }))].concat()
            }
            Readdir => {
                let names = a.names(&self.dir).await?;
                assert_eq!(names, [FROM]);
                return Ok(());
            }
            Recall => {
                let file = b.lookup(&self.dir, FROM).await?;
                let write = vec![Op::Putfh(file), write_op(StateId::ANONYMOUS)];
                return a.serve_while(b.run(write)).await.map(|_| ());
            }
            _ => return self.run_on_file(a).await,
        };
        a.run(ops).await.map(|_| ())
    }

    /// The file that the work begins with, as a client knows it.
    async fn file(&self, a: &mut Peer) -> Result<FileHandle, Error> {
        match a.opens.first().or(a.delegation.as_ref()) {
            Some((file, _)) => Ok(file.clone()),
            None => a.lookup(&self.dir, FROM).await,
        }
    }

    async fn run_on_file(&self, a: &mut Peer) -> Result<(), Error> {
        let file = self.file(a).await?;
        let put = Op::Putfh(file.clone());
        let stateid = a.opens.first().map_or(StateId::ANONYMOUS, |(_, stateid)| *stateid);
        let last = a.opens.last().cloned();
        let set = |attrs: Attrs| Op::Setattr(setattr::Args { stateid, attrs: attrs.into() });
        let write = |stable| {
            let data = Bytes::from_static(NEW).into();
            Op::Write(write::Args { stateid, offset: AT, stable, data })
        };
        let read = read::Args { stateid, offset: 0, count: 1 << 16 };
        let op = match self.work {
            Close => Op::Close(close::Args { seqid: a.seqid, open_stateid: stateid }),
            Link => {
                let saved = vec![put, Op::Savefh(())];
                let ops = [saved, self.in_dir(Op::Link(TO.into()))].concat();
                return a.run(ops).await.map(|_| ());
            }
            Mode => set(Attrs { mode: Some(0o640), ..Attrs::default() }),
            Truncate => set(Attrs { size: Some(AT), ..Attrs::default() }),
            WriteStable => write(StableHow::FileSync),
            WriteAnonymous => write_op(StateId::ANONYMOUS),
            WriteAndCommit => {
                let written = a.last(vec![put, write(StableHow::Unstable)]).await?;
                let OpRes::Write(Ok(written)) = written else { panic!("{written:?}") };
                assert_eq!(written.count as usize, NEW.len());
                return commit(a, &file, written.verifier).await;
            }
            Lock => a.lock(&self.name),
            Unlock => a.unlock(),
            Read => Op::Read(read),
            ReadPlus => Op::ReadPlus(read),
            Allocate => Op::Allocate(allocate::Args { stateid, offset: 8000, length: 8000 }),
            Deallocate => Op::Deallocate(deallocate::Args { stateid, offset: 4096, length: 4096 }),
            Copy | Clone => return self.copy(a, (&file, stateid), last.unwrap()).await,
            Return => {
                let (file, held) = a.delegation.clone().unwrap();
                return a.run(vec![Op::Putfh(file), Op::Delegreturn(held)]).await.map(|_| ());
            }
            SetXattr => set_xattr(),
            GetXattr => Op::Getxattr(getxattr::Args::from("key")),
            ListXattrs => Op::Listxattrs(listxattrs::Args { cookie: 0, max_bytes: 4096 }),
            RemoveXattr => Op::Removexattr("key".into()),
            other => unreachable!("{other:?}"),
        };
        match a.last(vec![put, op]).await? {
            OpRes::Read(Ok(read)) => assert_eq!(read.data.to_bytes(), OLD),
            OpRes::ReadPlus(Ok(read)) => {
                let [read_plus::Segment::Data(data)] = &read.segments.0[..] else { panic!() };
                assert_eq!((data.offset, &data.data.to_bytes()[..]), (0, OLD));
            }
            OpRes::Getxattr(Ok(value)) => assert_eq!(&value[..], b"value"),
            OpRes::Listxattrs(Ok(listed)) => assert_eq!(listed.names.len(), 1),
            _ => {}
        }
        Ok(())
    }

    async fn copy(
        &self,
        a: &mut Peer,
        (from, source): (&FileHandle, StateId),
        (to, destination): (FileHandle, StateId),
    ) -> Result<(), Error> {
        let (source_offset, destination_offset, count) = (0, 0, 0);
        let files = vec![Op::Putfh(from.clone()), Op::Savefh(()), Op::Putfh(to.clone())];
        if self.work == Clone {
            let args =
                clone::Args { source, destination, source_offset, destination_offset, count };
            return a.run([files, vec![Op::Clone(args)]].concat()).await.map(|_| ());
        }
        let copy = Op::Copy(copy::Args {
            source,
            destination,
            source_offset,
            destination_offset,
            count,
            consecutive: true,
            synchronous: true,
            source_servers: List::default(),
        });
        let copied = a.last([files, vec![copy]].concat()).await?;
        let OpRes::Copy(Ok(copied)) = copied else { panic!("{copied:?}") };
        if copied.response.count < OLD.len() as u64 {
            // A client continues there, and meets the error.
            return Err(Error::Io);
        }
        commit(a, &to, copied.response.verifier).await
    }

    /// The work has had its effect, as another client sees it.
    pub(super) async fn check(&self, b: &mut Peer, what: &str) {
        assert_eq!(b.names(&self.dir).await.unwrap(), self.work.ends_with(), "{what}");
        if let Some(&name) = self.work.ends_with().last() {
            let file = b.lookup(&self.dir, name).await.unwrap();
            let attrs = b.attrs(&file).await;
            match self.work {
                Create | Mkdir | Fifo | Mode => assert_eq!(attrs.mode, Some(0o640), "{what}"),
                CreateExclusive if b.c.minor > 0 => assert_eq!(attrs.mode, Some(0o640), "{what}"),
                Link => assert_eq!(attrs.numlinks, Some(2), "{what}"),
                _ => {}
            }
        }
        if self.work.ends_with().contains(&self.work.changes()) && self.work != Mkdir {
            let file = b.lookup(&self.dir, self.work.changes()).await.unwrap();
            let read = read::Args { stateid: StateId::ANONYMOUS, offset: 0, count: 1 << 16 };
            match b.last(vec![Op::Putfh(file), Op::Read(read)]).await.unwrap() {
                OpRes::Read(Ok(read)) => {
                    assert!(read.data.to_bytes() == self.work.bytes(), "{what}: other bytes");
                }
                other => panic!("{other:?}"),
            }
        }
        if matches!(self.work, SetXattr | RemoveXattr) {
            let file = b.lookup(&self.dir, FROM).await.unwrap();
            let read = b.last(vec![Op::Putfh(file), Op::Getxattr("key".into())]).await;
            match read {
                Ok(OpRes::Getxattr(Ok(value))) if self.work == SetXattr => {
                    assert_eq!(&value[..], b"value");
                }
                other => assert_eq!((other, self.work), (Err(Error::NoXattr), RemoveXattr)),
            }
        }
    }
}

fn set_xattr() -> Op {
    let (mode, value) = (setxattr::Mode::Either, Blob::copy_from(b"value"));
    Op::Setxattr(setxattr::Args { mode, name: "key".into(), value })
}

/// Makes what was written durable.
///
/// # Errors
/// It was lost: the client writes again.
async fn commit(a: &mut Peer, file: &FileHandle, verifier: [u8; 8]) -> Result<(), Error> {
    let commit = Op::Commit(commit::Args { offset: 0, count: 0 });
    match a.last(vec![Op::Putfh(file.clone()), commit]).await? {
        OpRes::Commit(Ok(committed)) if committed == verifier => Ok(()),
        OpRes::Commit(Ok(_)) => Err(Error::Io),
        other => panic!("{other:?}"),
    }
}
