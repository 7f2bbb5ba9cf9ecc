//! Calls of NFSv3.

use super::{Client, Failure, Handle, Outcome, Written, encoded};
use std::time::Duration;
use tokio::time::sleep;
use weir_nfs::mount;
use weir_nfs::v3::op::create::How;
use weir_nfs::v3::op::write::Stability;
use weir_nfs::v3::op::{
    commit, create, lookup, mkdir, read, remove, rename, rmdir, setattr, write,
};
use weir_nfs::v3::types::{DirOp, FileHandle, SetAttr};
use weir_nfs::v3::{self, Error};
use weir_xdr::{Bytes, Decode, Opaque};

fn handle(handle: &Handle) -> FileHandle {
    Opaque(handle.clone().into())
}

fn of(handle: &FileHandle) -> Handle {
    handle.0.to_vec()
}

fn entry(dir: &Handle, name: &str) -> DirOp {
    DirOp::new(handle(dir), name.as_bytes().to_vec())
}

fn failure(error: Error) -> Failure {
    match error {
        Error::NoEnt => Failure::NoEnt,
        Error::Exist => Failure::Exist,
        Error::NotEmpty => Failure::NotEmpty,
        Error::Io => Failure::Io,
        Error::NoSpc => Failure::NoSpace,
        other => Failure::Other(format!("{other:?}")),
    }
}

impl Client {
    /// A call, made again as long as the server says that it is not the time for it.
    async fn call3<C, T, R>(&self, args: &C) -> Outcome<T>
    where
        C: v3::Call<Res = Result<T, v3::Failure<R>>>,
        Result<T, v3::Failure<R>>: Decode,
    {
        let args_on_wire = encoded(args);
        let mut first = None;
        loop {
            let which = (v3::PROGRAM, v3::VERSION, C::PROCEDURE as u32);
            let answer = self.rpc(which, &args_on_wire, None).await;
            let first = *first.get_or_insert(answer.runs.0);
            let again = first != answer.runs.1;
            match weir_xdr::Decoder::new(answer.results).get::<C::Res>() {
                Ok(Ok(value)) => return Outcome { result: Ok(value), again },
                Ok(Err(v3::Failure { status: Error::Jukebox, .. })) => {
                    sleep(Duration::from_millis(300)).await;
                }
                Ok(Err(failed)) => return Outcome { result: Err(failure(failed.status)), again },
                Err(error) => {
                    let result = Err(Failure::Other(format!("no reply of NFSv3: {error}")));
                    return Outcome { result, again };
                }
            }
        }
    }

    pub(super) async fn mount3(&self) -> Handle {
        let args = encoded(&mount::Mnt { path: "/".into() });
        let which = (mount::PROGRAM, mount::VERSION, mount::Procedure::Mnt as u32);
        loop {
            let answer = self.rpc(which, &args, None).await;
            match weir_xdr::Decoder::new(answer.results).get::<mount::MntRes>() {
                Ok(Ok(mounted)) => return mounted.handle.0.to_vec(),
                Ok(Err(mount::Error::Io)) if self.world.disk.failures().0 => {
                    sleep(Duration::from_millis(300)).await;
                }
                other => {
                    self.world.violation(format!("the export cannot be mounted: {other:?}"));
                }
            }
        }
    }

    pub(super) async fn lookup3(&self, dir: &Handle, name: &str) -> Outcome<Handle> {
        let found = self.call3(&lookup::Args { what: entry(dir, name) }).await;
        found.map(|found| of(&found.object))
    }

    pub(super) async fn create3(&self, dir: &Handle, name: &str) -> Outcome<Handle> {
        let set = SetAttr { mode: Some(0o644), ..SetAttr::NONE };
        let args = create::Args { target: entry(dir, name), how: How::Guarded(set) };
        self.call3(&args).await.map(|made| made.handle.as_ref().map(of).unwrap_or_default())
    }

    pub(super) async fn mkdir3(&self, dir: &Handle, name: &str) -> Outcome<Handle> {
        let set = SetAttr { mode: Some(0o755), ..SetAttr::NONE };
        let made = self.call3(&mkdir::Args { target: entry(dir, name), set }).await;
        made.map(|made| made.handle.as_ref().map(of).unwrap_or_default())
    }

    pub(super) async fn remove3(&self, dir: &Handle, name: &str, is_dir: bool) -> Outcome<()> {
        let target = entry(dir, name);
        if is_dir {
            self.call3(&rmdir::Args { target }).await.map(drop)
        } else {
            self.call3(&remove::Args { target }).await.map(drop)
        }
    }

    pub(super) async fn rename3(&self, dir: &Handle, from: &str, to: &str) -> Outcome<()> {
        let args = rename::Args { from: entry(dir, from), to: entry(dir, to) };
        self.call3(&args).await.map(drop)
    }

    pub(super) async fn write3(
        &self,
        file: &Handle,
        offset: u64,
        data: Vec<u8>,
        stable: bool,
    ) -> Outcome<Written> {
        let stable = if stable { Stability::FileSync } else { Stability::Unstable };
        let (count, data) = (data.len() as u32, Bytes::from(data).into());
        let args = write::Args { file: handle(file), offset, count, stable, data };
        let mut outcome = self.call3(&args).await;
        if let Ok(written) = &outcome.result
            && written.count != count
        {
            let why = format!("{} of {count} bytes are written", written.count);
            outcome.result = Err(Failure::Other(why));
        }
        outcome.map(|written| Written {
            durable: written.committed == Stability::FileSync,
            verifier: written.verifier,
        })
    }

    pub(super) async fn commit3(&self, file: &Handle, offset: u64, count: u32) -> Outcome<[u8; 8]> {
        let args = commit::Args { file: handle(file), offset, count };
        self.call3(&args).await.map(|committed| committed.verifier)
    }

    pub(super) async fn read3(&self, file: &Handle, offset: u64, count: u32) -> Outcome<Vec<u8>> {
        let mut bytes = Vec::new();
        loop {
            let (offset, count) = (offset + bytes.len() as u64, count - bytes.len() as u32);
            let outcome = self.call3(&read::Args { file: handle(file), offset, count }).await;
            let again = outcome.again;
            match outcome.result {
                Ok(read) => {
                    bytes.extend_from_slice(&read.data.to_bytes());
                    if read.eof || read.data.is_empty() || read.data.len() == count as usize {
                        return Outcome { result: Ok(bytes), again };
                    }
                }
                Err(error) => return Outcome { result: Err(error), again },
            }
        }
    }

    pub(super) async fn truncate3(&self, file: &Handle, size: u64) -> Outcome<()> {
        let set = SetAttr { size: Some(size), ..SetAttr::NONE };
        let args = setattr::Args { object: handle(file), set, guard: None };
        self.call3(&args).await.map(drop)
    }
}
