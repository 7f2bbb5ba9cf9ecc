//! A client that sends raw OPENs, and verdicts about statuses.

use crate::verdict::{self, Result, Verdict};
use std::time::Duration;
use weir_client::raw;
use weir_nfs::v4::op::{close, open, open_downgrade, read};
use weir_nfs::v4::types::{FileHandle, StateId, StateOwner, Status};
use weir_nfs::v4::{Error, Op, OpRes};

pub(crate) use weir_nfs::v4::op::open::{ShareAccess, ShareDeny};

/// How often, and how long apart, a call is repeated that the server delays. In all, this is longer
/// than grace periods.
pub(crate) const TRIES: u32 = 600;
pub(crate) const PAUSE: Duration = Duration::from_millis(250);

/// A separate client, in the directory of the examination.
pub(crate) struct RawClient {
    pub(crate) session: raw::Session,
    pub(crate) dir: FileHandle,
}

/// An open file.
#[derive(Clone, Debug)]
pub(crate) struct RawOpen {
    pub(crate) handle: FileHandle,
    pub(crate) stateid: StateId,
}

impl RawClient {
    /// Looks up the directory in a session.
    pub(crate) async fn begin(
        session: raw::Session,
        path: impl Iterator<Item = &Vec<u8>>,
    ) -> Result<Self> {
        let mut client = Self { session, dir: FileHandle::copy_from(b"") };
        let mut first = Op::Putrootfh(());
        for name in std::iter::once(None).chain(path.map(Some)) {
            let lookup = name.map(|name| Op::Lookup(name[..].into()));
            let ops: Vec<_> =
                [Some(first), lookup, Some(Op::Getfh(()))].into_iter().flatten().collect();
            let mut reply = client.call(&ops).await?;
            client.dir = match reply.results.pop() {
                Some(OpRes::Getfh(Ok(handle))) => handle,
                _ => return Err(unexpected("LOOKUP", reply.status)),
            };
            first = Op::Putfh(client.dir.clone());
        }
        Ok(client)
    }

    /// Ends the client. The server may keep its open files until the lease expires.
    pub(crate) async fn end(self) {
        // A faulty server may refuse; other rules report that.
        let _ = self.session.end().await;
    }

    /// Sends a compound, and repeats it while the server returns DELAY or GRACE.
    pub(crate) async fn call(&self, ops: &[Op]) -> Result<raw::Reply> {
        let mut reply = self.session.call(ops).await?;
        for _ in 0..TRIES {
            if !matches!(reply.status, Err(Error::Delay | Error::Grace)) {
                break;
            }
            tokio::time::sleep(PAUSE).await;
            reply = self.session.call(ops).await?;
        }
        Ok(reply)
    }

    /// Opens an existing file of the directory.
    pub(crate) async fn open(
        &self,
        owner: &str,
        name: &[u8],
        share_access: ShareAccess,
        share_deny: ShareDeny,
    ) -> Result<std::result::Result<RawOpen, Error>> {
        let args = open_args(owner, name, share_access | ShareAccess::WANT_NO_DELEG, share_deny);
        Ok(self.send_open(args).await?.map(|(open, _)| open))
    }

    /// Sends an OPEN in the directory.
    pub(crate) async fn send_open(
        &self,
        args: open::Args,
    ) -> Result<std::result::Result<(RawOpen, open::Opened), Error>> {
        let ops = [Op::Putfh(self.dir.clone()), Op::Open(args), Op::Getfh(())];
        let reply = self.call(&ops).await?;
        if let Err(error) = reply.status {
            return Ok(Err(error));
        }
        match &reply.results[..] {
            [_, OpRes::Open(Ok(opened)), OpRes::Getfh(Ok(handle))] => {
                let open = RawOpen { handle: handle.clone(), stateid: opened.stateid };
                Ok(Ok((open, opened.clone())))
            }
            _ => Err(unexpected("OPEN", reply.status)),
        }
    }

    /// As [`open`](Self::open), without a deny mode. The open must succeed.
    pub(crate) async fn opened(
        &self,
        owner: &str,
        name: &[u8],
        share_access: ShareAccess,
    ) -> Result<RawOpen> {
        let opened = self.open(owner, name, share_access, ShareDeny::empty()).await?;
        opened.map_err(|error| unexpected("OPEN", Err(error)))
    }

    /// Reads a byte with a stateid.
    pub(crate) async fn read(&self, handle: &FileHandle, stateid: StateId) -> Result<Status> {
        let read = Op::Read(read::Args { stateid, offset: 0, count: 1 });
        Ok(self.call(&[Op::Putfh(handle.clone()), read]).await?.status)
    }

    pub(crate) async fn close(&self, handle: &FileHandle, stateid: StateId) -> Result<Status> {
        let close = Op::Close(close::Args { seqid: 0, open_stateid: stateid });
        Ok(self.call(&[Op::Putfh(handle.clone()), close]).await?.status)
    }

    /// Downgrades the open to read access.
    pub(crate) async fn downgrade(&self, handle: &FileHandle, stateid: StateId) -> Result<Status> {
        let downgrade = Op::OpenDowngrade(open_downgrade::Args {
            open_stateid: stateid,
            seqid: 0,
            share_access: ShareAccess::READ,
            share_deny: ShareDeny::empty(),
        });
        Ok(self.call(&[Op::Putfh(handle.clone()), downgrade]).await?.status)
    }
}

/// The arguments of an OPEN of an existing name.
pub(crate) fn open_args(
    owner: &str,
    name: &[u8],
    share_access: ShareAccess,
    share_deny: ShareDeny,
) -> open::Args {
    open::Args {
        seqid: 0,
        share_access,
        share_deny,
        owner: StateOwner { client_id: 0, owner: owner.as_bytes().into() },
        how: open::How::NoCreate,
        claim: open::Claim::Null(name.into()),
    }
}

/// The verdict where a server must refuse with one of these errors; the first is preferred.
pub(crate) fn refused(status: Status, expected: &[Error]) -> Verdict {
    match status {
        Ok(()) => Verdict::Fail("it was granted".into()),
        Err(error) if expected.contains(&error) => Verdict::Pass,
        Err(error) => Verdict::Note(format!("{error}, not {}", expected[0])),
    }
}

/// The verdict where a server must not refuse.
pub(crate) fn granted(status: Status) -> Verdict {
    status.map_or_else(|error| Verdict::Fail(error.to_string()), |()| Verdict::Pass)
}

/// The error for an operation that must succeed.
pub(crate) fn unexpected(operation: &str, status: Status) -> verdict::Error {
    match status {
        Err(error) => format!("{operation}: {error}").into(),
        Ok(()) => format!("{operation}: results of other operations").into(),
    }
}
