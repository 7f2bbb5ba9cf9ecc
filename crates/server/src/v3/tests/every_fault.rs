//! Each procedure that changes something, with an error at its first call of the store, its second, and so on until it
//! makes no more calls. A reply that says success is true. After an error, the same procedure succeeds, or
//! says that its work is done.

use super::*;
use crate::every_fault::at_every_call;
use crate::export::Durability;
use weir_nfs::v3::op::mknod::{self, What as Kind};
use weir_nfs::v3::op::{commit, link, read, remove, rename, rmdir, setattr, symlink, write};
use weir_nfs::v3::types::Verifier;

const SET: SetAttr = SetAttr { mode: Some(0o640), ..SetAttr::NONE };
const OLD: &[u8] = &[1; 10_000];
const NEW: &[u8] = &[2; 9000];
/// Where the new bytes go: into two pages, and past the end.
const AT: u64 = 3000;

#[derive(Clone, Copy, Debug, PartialEq)]
enum Op {
    Create,
    Mkdir,
    Symlink,
    Mknod,
    Link,
    Mode,
    Truncate,
    WriteStable,
    WriteAndCommit,
    Rename,
    Replace,
    Remove,
    Rmdir,
}

use Op::*;

const ALL: [Op; 13] = [
    Create,
    Mkdir,
    Symlink,
    Mknod,
    Link,
    Mode,
    Truncate,
    WriteStable,
    WriteAndCommit,
    Rename,
    Replace,
    Remove,
    Rmdir,
];

/// The names that one try of an operation works on.
struct Try {
    op: Op,
    /// What is there before, if the operation takes that.
    from: String,
    /// What it makes.
    to: String,
}

impl Try {
    async fn prepare(&self, c: &mut Client) {
        match self.op {
            Create | Mkdir | Symlink | Mknod => {}
            Rmdir => drop(c.dir(&self.from).await),
            _ => {
                let file = c.file(&self.from).await;
                write(c, &file, 0, OLD, write::Stability::FileSync).await.unwrap();
            }
        }
        if self.op == Replace {
            c.file(&self.to).await;
        }
    }

    async fn run(&self, c: &mut Client, file: &FileHandle) -> Result<(), Error> {
        let (file, target) = (file.clone(), c.in_root(&self.to));
        macro_rules! call {
            ($args:expr) => {
                c.call(&$args).await.map(|_| ()).map_err(|failure| failure.status)
            };
        }
        match self.op {
            Create => call!(create::Args { target, how: How::Guarded(SET) }),
            Mkdir => call!(mkdir::Args { target, set: SET }),
            Symlink => call!(symlink::Args { target, set: SET, path: "x".into() }),
            Mknod => call!(mknod::Args { target, what: Kind::Fifo(SET) }),
            Link => call!(link::Args { file, link: target }),
            Mode => call!(setattr::Args { object: file, set: SET, guard: None }),
            Truncate => {
                let set = SetAttr { size: Some(AT), ..SetAttr::NONE };
                call!(setattr::Args { object: file, set, guard: None })
            }
            WriteStable => write(c, &file, AT, NEW, write::Stability::FileSync).await.map(|_| ()),
            WriteAndCommit => {
                let written = write(c, &file, AT, NEW, write::Stability::Unstable).await?;
                let commit = commit::Args { file, offset: 0, count: 0 };
                let committed = c.call(&commit).await.map_err(|failure| failure.status)?;
                // Otherwise a client writes again (RFC 1813 section 3.3.21).
                if committed.verifier == written { Ok(()) } else { Err(Error::Io) }
            }
            Rename | Replace => call!(rename::Args { from: c.in_root(&self.from), to: target }),
            Remove => call!(remove::Args { target: c.in_root(&self.from) }),
            Rmdir => call!(rmdir::Args { target: c.in_root(&self.from) }),
        }
    }

    /// The status of a repetition after the operation was done in spite of its error.
    fn done_before(&self) -> Option<Error> {
        match self.op {
            Create | Mkdir | Symlink | Mknod | Link => Some(Error::Exist),
            Rename | Replace | Remove | Rmdir => Some(Error::NoEnt),
            Mode | Truncate | WriteStable | WriteAndCommit => None,
        }
    }

    /// The operation has had its effect.
    async fn check(&self, c: &mut Client, file: &FileHandle, what: &str) {
        let root = c.root.clone();
        let from = c.lookup(&root, &self.from).await;
        let to = c.lookup(&root, &self.to).await;
        let mut bytes = OLD.to_vec();
        match self.op {
            Create | Mkdir | Symlink | Mknod => drop(to.unwrap()),
            Link => assert_eq!((&to, c.attr(file).await.nlink), (&from, 2), "{what}"),
            Mode => assert_eq!(c.attr(file).await.mode & 0o7777, 0o640, "{what}"),
            Truncate => bytes.truncate(AT as usize),
            WriteStable | WriteAndCommit => {
                bytes.truncate(AT as usize);
                bytes.extend(NEW);
            }
            Rename | Replace => assert_eq!((from, &to), (Err(Error::NoEnt), &Ok(file.clone()))),
            Remove | Rmdir => assert_eq!(from, Err(Error::NoEnt), "{what}"),
        }
        if matches!(self.op, Link | Truncate | WriteStable | WriteAndCommit | Rename | Replace) {
            let args = read::Args { file: file.clone(), offset: 0, count: 1 << 16 };
            let found = c.call(&args).await.unwrap();
            assert!(found.data == Bytes::from(bytes).into(), "{what}: other bytes");
        }
    }
}

async fn write(
    c: &mut Client,
    file: &FileHandle,
    offset: u64,
    bytes: &'static [u8],
    stable: write::Stability,
) -> Result<Verifier, Error> {
    let (file, count, data) = (file.clone(), bytes.len() as u32, Bytes::from_static(bytes).into());
    let written = c.call(&write::Args { file, offset, count, stable, data }).await;
    let written = written.map_err(|failure| failure.status)?;
    assert_eq!(written.count, count);
    Ok(written.verifier)
}

#[tokio::test]
async fn no_acknowledged_change_is_lost_when_any_call_of_the_store_fails() {
    let (f, fault) = super::durability::fixture(Durability::Sync).await;
    let mut c = f.client().await;
    for op in ALL {
        let calls = at_every_call(&fault, async |injection| {
            let what = format!("{op:?}, {injection}");
            let name = |of: &str| injection.name(&format!("{of}-{op:?}"));
            let tried = Try { op, from: name("from"), to: name("to") };
            tried.prepare(&mut c).await;
            let root = c.root.clone();
            let file = c.lookup(&root, &tried.from).await.unwrap_or_default();
            let done = injection.during(tried.run(&mut c, &file)).await;
            if let Err(status) = done {
                assert!(injection.failed(), "{what}: {status:?} without an error of the store");
                match tried.run(&mut c, &file).await {
                    Ok(()) => {}
                    Err(status) => assert_eq!(Some(status), tried.done_before(), "{what}"),
                }
            }
            tried.check(&mut c, &file, &what).await;
        })
        .await;
        assert!(calls > 0, "{op:?} calls the store");
    }
    // What failed has left nothing behind that waits to be written.
    f.fs.cache().flush().await.unwrap();
    assert_eq!(f.fs.cache().dirty_bytes(), 0);
}
