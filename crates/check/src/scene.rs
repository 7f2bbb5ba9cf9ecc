//! A directory, a file and a symbolic link for a rule to try operations on.

use crate::examiner::Examiner;
use crate::raw_open::{RawClient, refused, unexpected};
use crate::verdict::{Result, Verdict};
use weir_nfs::v4::types::FileHandle;
use weir_nfs::v4::{Error, Op, OpRes};
use weir_vfs::{Caller, FileSystem, SetAttr};

/// An object in the directory of the examination.
pub(crate) struct Object {
    pub(crate) name: Vec<u8>,
    pub(crate) handle: FileHandle,
}

/// Objects that no other rule uses.
pub(crate) struct Scene {
    /// The directory of the examination.
    pub(crate) top: FileHandle,
    /// An empty directory.
    pub(crate) dir: Object,
    /// An empty file.
    pub(crate) file: Object,
    pub(crate) link: Object,
    /// An unused name.
    pub(crate) free: Vec<u8>,
}

impl Scene {
    pub(crate) async fn make(examiner: &mut Examiner) -> Result<Self> {
        let (_, dir) = examiner.make_dir("dir").await?;
        let (_, file) = examiner.create("file").await?;
        let link = examiner.new_name("link");
        let set = SetAttr::default();
        examiner
            .ours
            .symlink(&Caller::Own, examiner.dir.entry(&link).with(&set), b"target")
            .await?;
        let free = examiner.new_name("free");
        let raw = examiner.raw().await?;
        Ok(Self {
            top: raw.dir.clone(),
            dir: object(raw, dir).await?,
            file: object(raw, file).await?,
            link: object(raw, link).await?,
            free,
        })
    }

    /// Makes the examination's directory the current filehandle.
    pub(crate) fn at_top(&self) -> Op {
        Op::Putfh(self.top.clone())
    }
}

impl Object {
    /// Makes this object the current filehandle.
    pub(crate) fn at(&self) -> Op {
        Op::Putfh(self.handle.clone())
    }

    pub(crate) fn named<T: for<'a> From<&'a [u8]>>(&self) -> T {
        T::from(&self.name)
    }
}

async fn object(raw: &RawClient, name: Vec<u8>) -> Result<Object> {
    let ops = [Op::Putfh(raw.dir.clone()), Op::Lookup(name[..].into()), Op::Getfh(())];
    let mut reply = raw.call(&ops).await?;
    match (reply.status, reply.results.pop()) {
        (Ok(()), Some(OpRes::Getfh(Ok(handle)))) => Ok(Object { name, handle }),
        (status, _) => Err(unexpected("LOOKUP", status)),
    }
}

/// Sends a compound on a new scene. It must fail with one of these errors; the first is preferred.
pub(crate) async fn fails(
    examiner: &mut Examiner,
    ops: impl FnOnce(&Scene) -> Vec<Op>,
    expected: &[Error],
) -> Result<Verdict> {
    let scene = Scene::make(examiner).await?;
    Ok(refused(examiner.raw().await?.call(&ops(&scene)).await?.status, expected))
}

/// Sends several compounds on one scene. Each must fail with its error.
pub(crate) async fn each_fails(
    examiner: &mut Examiner,
    tries: impl FnOnce(&Scene) -> Vec<(Vec<Op>, Error)>,
) -> Result<Verdict> {
    let scene = Scene::make(examiner).await?;
    let raw = examiner.raw().await?;
    let mut verdict = Verdict::Pass;
    for (ops, expected) in tries(&scene) {
        let last = ops.last().map(Op::code);
        let tried = refused(raw.call(&ops).await?.status, &[expected]);
        verdict = verdict.max(match (tried, last) {
            (Verdict::Fail(why), Some(code)) => Verdict::Fail(format!("{}: {why}", code.name())),
            (Verdict::Note(why), Some(code)) => Verdict::Note(format!("{}: {why}", code.name())),
            (tried, _) => tried,
        });
    }
    Ok(verdict)
}
