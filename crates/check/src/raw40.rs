//! A client of minor version 0 and its owners, whose requests have sequence numbers.

use crate::raw_open::{PAUSE, RawOpen, ShareAccess, ShareDeny, TRIES, unexpected};
use crate::verdict::Result;
use weir_client::raw;
use weir_nfs::v4::op::{close, lock, locku, open, open_confirm, read, setclientid};
use weir_nfs::v4::op::{open_downgrade, setclientid_confirm};
use weir_nfs::v4::types::{
    ClientId, ClientOwner, FileHandle, LockType, NetAddr, StateId, StateOwner, Status, Verifier,
};
use weir_nfs::v4::{Error, Op, OpRes};

/// The server's answer to an operation.
pub(crate) type Answer<T> = std::result::Result<T, Error>;

/// A client of version 4.0, in the directory of the examination.
pub(crate) struct Raw40 {
    pub(crate) connection: raw::Connection,
    pub(crate) who: ClientOwner,
    pub(crate) id: ClientId,
    pub(crate) dir: FileHandle,
}

/// An open owner or lock owner.
pub(crate) struct Owner40 {
    pub(crate) name: String,
    /// The sequence number of its next request.
    pub(crate) seqid: u32,
}

impl Owner40 {
    /// An owner that the server does not know.
    pub(crate) fn new(purpose: &str) -> Self {
        let name = format!("{purpose} {:016x}", getrandom::u64().unwrap_or(0));
        Self { name, seqid: 5 }
    }

    /// Advances the sequence number if this answer uses it up (RFC 7530 section 9.1.7).
    pub(crate) fn count<T>(&mut self, answer: &Answer<T>) {
        let not_counted = [
            Error::StaleClientId,
            Error::StaleStateId,
            Error::BadStateId,
            Error::BadSeqId,
            Error::BadXdr,
            Error::Resource,
            Error::NoFilehandle,
            Error::Moved,
        ];
        if answer.as_ref().err().is_none_or(|error| !not_counted.contains(error)) {
            self.seqid = self.seqid.wrapping_add(1);
        }
    }
}

/// The SETCLIENTID arguments of a client without callbacks.
pub(crate) fn introduction(who: &ClientOwner) -> setclientid::Args {
    setclientid::Args {
        client: who.clone(),
        cb_program: 0,
        cb_location: NetAddr::default(),
        callback_ident: 0,
    }
}

/// SETCLIENTID. Returns the client ID and the verifier to confirm it with.
pub(crate) async fn introduce(
    connection: &raw::Connection,
    who: &ClientOwner,
) -> Result<Answer<(ClientId, Verifier)>> {
    let reply = connection.call(&[Op::Setclientid(introduction(who))]).await?;
    match (reply.status, reply.results.first()) {
        (Ok(()), Some(OpRes::Setclientid(Ok(new)))) => Ok(Ok((new.client_id, new.confirm))),
        (Err(error), _) => Ok(Err(error)),
        _ => Err(unexpected("SETCLIENTID", reply.status)),
    }
}

/// SETCLIENTID_CONFIRM.
pub(crate) async fn confirm(
    connection: &raw::Connection,
    (client_id, confirm): (ClientId, Verifier),
) -> Result<Status> {
    let args = setclientid_confirm::Args { client_id, confirm };
    Ok(connection.call(&[Op::SetclientidConfirm(args)]).await?.status)
}

impl Raw40 {
    /// Establishes a new client, or returns the server's error if it does not serve the version.
    pub(crate) async fn begin(
        connection: raw::Connection,
        path: impl Iterator<Item = &Vec<u8>>,
    ) -> Result<Answer<Self>> {
        let who = raw::new_client();
        let introduced = match introduce(&connection, &who).await? {
            Ok(introduced) => introduced,
            Err(error) => return Ok(Err(error)),
        };
        if let Err(error) = confirm(&connection, introduced).await? {
            return Ok(Err(error));
        }
        let mut ops = vec![Op::Putrootfh(())];
        ops.extend(path.map(|name| Op::Lookup(name[..].into())));
        ops.push(Op::Getfh(()));
        let mut reply = connection.call(&ops).await?;
        match (reply.status, reply.results.pop()) {
            (Ok(()), Some(OpRes::Getfh(Ok(dir)))) => {
                Ok(Ok(Self { connection, who, id: introduced.0, dir }))
            }
            (status, _) => Err(unexpected("LOOKUP", status)),
        }
    }

    /// Sends a compound, and repeats it while the server returns DELAY or GRACE.
    pub(crate) async fn call(&self, ops: &[Op]) -> Result<raw::Reply> {
        let mut reply = self.connection.call(ops).await?;
        for _ in 0..TRIES {
            if !matches!(reply.status, Err(Error::Delay | Error::Grace)) {
                break;
            }
            tokio::time::sleep(PAUSE).await;
            reply = self.connection.call(ops).await?;
        }
        Ok(reply)
    }

    /// Sends an operation on a file.
    pub(crate) async fn on(&self, file: &FileHandle, op: Op) -> Result<raw::Reply> {
        self.call(&[Op::Putfh(file.clone()), op]).await
    }

    /// The arguments of an OPEN of an existing name in the directory.
    pub(crate) fn open_args(
        &self,
        owner: &Owner40,
        name: &[u8],
        share_access: ShareAccess,
        share_deny: ShareDeny,
    ) -> open::Args {
        open::Args {
            seqid: owner.seqid,
            share_access,
            share_deny,
            owner: StateOwner { client_id: self.id, owner: owner.name.as_bytes().into() },
            how: open::How::NoCreate,
            claim: open::Claim::Null(name.into()),
        }
    }

    /// Sends an OPEN without advancing the owner's sequence number. Returns the open, and whether
    /// it must be confirmed.
    pub(crate) async fn send_open(&self, args: &open::Args) -> Result<Answer<(RawOpen, bool)>> {
        let ops = [Op::Putfh(self.dir.clone()), Op::Open(args.clone()), Op::Getfh(())];
        let reply = self.call(&ops).await?;
        match (reply.status, &reply.results[..]) {
            (Ok(()), [_, OpRes::Open(Ok(opened)), OpRes::Getfh(Ok(handle))]) => {
                let open = RawOpen { handle: handle.clone(), stateid: opened.stateid };
                Ok(Ok((open, opened.flags.contains(open::ResultFlags::CONFIRM))))
            }
            (Err(error), _) => Ok(Err(error)),
            (status, _) => Err(unexpected("OPEN", status)),
        }
    }

    /// Opens a file, and confirms the open if the server asks for it.
    pub(crate) async fn open(
        &self,
        owner: &mut Owner40,
        name: &[u8],
        access: ShareAccess,
        deny: ShareDeny,
    ) -> Result<Answer<RawOpen>> {
        let sent = self.send_open(&self.open_args(owner, name, access, deny)).await?;
        owner.count(&sent);
        let mut open = match sent {
            Ok((open, false)) => return Ok(Ok(open)),
            Ok((open, true)) => open,
            Err(error) => return Ok(Err(error)),
        };
        let args = open_confirm::Args { open_stateid: open.stateid, seqid: owner.seqid };
        let confirmed = self.on(&open.handle, Op::OpenConfirm(args)).await?;
        owner.count(&confirmed.status);
        match confirmed.results.last() {
            Some(OpRes::OpenConfirm(Ok(stateid))) => open.stateid = *stateid,
            _ => return Err(unexpected("OPEN_CONFIRM", confirmed.status)),
        }
        Ok(Ok(open))
    }

    /// As [`open`](Self::open), without a deny mode. The open must succeed.
    pub(crate) async fn opened(
        &self,
        owner: &mut Owner40,
        name: &[u8],
        access: ShareAccess,
    ) -> Result<RawOpen> {
        let opened = self.open(owner, name, access, ShareDeny::empty()).await?;
        opened.map_err(|error| unexpected("OPEN", Err(error)))
    }

    pub(crate) async fn close(&self, owner: &mut Owner40, open: &RawOpen) -> Result<Status> {
        let args = close::Args { seqid: owner.seqid, open_stateid: open.stateid };
        let status = self.on(&open.handle, Op::Close(args)).await?.status;
        owner.count(&status);
        Ok(status)
    }

    pub(crate) async fn downgrade(
        &self,
        owner: &mut Owner40,
        handle: &FileHandle,
        open_stateid: StateId,
        share_access: ShareAccess,
    ) -> Result<Status> {
        let share_deny = ShareDeny::empty();
        let args =
            open_downgrade::Args { open_stateid, seqid: owner.seqid, share_access, share_deny };
        let status = self.on(handle, Op::OpenDowngrade(args)).await?.status;
        owner.count(&status);
        Ok(status)
    }

    /// Reads a byte with a stateid.
    pub(crate) async fn read(&self, handle: &FileHandle, stateid: StateId) -> Result<Status> {
        let read = Op::Read(read::Args { stateid, offset: 0, count: 1 });
        Ok(self.on(handle, read).await?.status)
    }

    /// The arguments of an exclusive LOCK of ten bytes for a new lock owner.
    pub(crate) fn lock_args(
        &self,
        owner: &Owner40,
        open: &RawOpen,
        locker: &Owner40,
    ) -> lock::Args {
        let lock_owner = StateOwner { client_id: self.id, owner: locker.name.as_bytes().into() };
        lock::Args {
            kind: LockType::Write,
            reclaim: false,
            offset: 0,
            length: 10,
            locker: lock::Locker::New(lock::NewLocker {
                open_seqid: owner.seqid,
                open_stateid: open.stateid,
                lock_seqid: locker.seqid,
                lock_owner,
            }),
        }
    }

    /// Sends that LOCK.
    pub(crate) async fn lock(
        &self,
        owner: &mut Owner40,
        open: &RawOpen,
        locker: &mut Owner40,
    ) -> Result<Answer<StateId>> {
        let args = self.lock_args(owner, open, locker);
        let reply = self.on(&open.handle, Op::Lock(args)).await?;
        owner.count(&reply.status);
        match (reply.status, reply.results.last()) {
            (Ok(()), Some(OpRes::Lock(Ok(stateid)))) => {
                locker.seqid = locker.seqid.wrapping_add(1);
                Ok(Ok(*stateid))
            }
            (Err(error), _) => Ok(Err(error)),
            (status, _) => Err(unexpected("LOCK", status)),
        }
    }

    /// The arguments of a LOCKU of the same bytes.
    pub(crate) fn unlock_args(locker: &Owner40, lock_stateid: StateId) -> locku::Args {
        let (kind, offset, length) = (LockType::Write, 0, 10);
        locku::Args { kind, seqid: locker.seqid, lock_stateid, offset, length }
    }
}
