//! A client of any minor version that keeps account of its state.

use super::super::v40::introduce_at;
use super::*;

/// A client, and what the server has told it that it holds.
pub(super) struct Peer {
    pub(super) c: Client,
    client_id: u64,
    /// The name of its open owner, and that owner's next sequence ID (minor version 0).
    pub(super) owner: String,
    pub(super) seqid: u32,
    pub(super) opens: Vec<(FileHandle, StateId)>,
    /// Its lock, of [`LENGTH`] bytes.
    pub(super) lock: Option<StateId>,
    pub(super) is_locked: bool,
    /// The next sequence ID of its lock owner (minor version 0).
    pub(super) lock_seqid: u32,
    pub(super) delegation: Option<(FileHandle, StateId)>,
}

/// Errors after which an owner's sequence ID stays (RFC 7530 section 9.1.7).
const STAYS: [Error; 7] = [
    Error::StaleClientId,
    Error::StaleStateId,
    Error::BadStateId,
    Error::BadSeqId,
    Error::BadXdr,
    Error::Resource,
    Error::NoFilehandle,
];

fn advances<T, E: Clone + Into<Error>>(result: &Result<T, E>) -> u32 {
    u32::from(!matches!(result, Err(error) if STAYS.contains(&error.clone().into())))
}

impl Peer {
    pub(super) async fn new(f: &Fixture, name: &'static str, minor: u32) -> Self {
        let mut c = f.connect(name, minor).await;
        let mut client_id = 0;
        if minor == 0 {
            client_id = introduce_at(&mut c, None).await;
        } else {
            c.service.is_there = true;
            c.begin_session(1 << 20).await;
            f.test_backchannel(&mut c).await;
            c.ok(vec![Op::ReclaimComplete(reclaim_complete::Args { one_fs: false })]).await;
        }
        let (owner, opens, lock, delegation) = (String::new(), Vec::new(), None, None);
        let (seqid, lock_seqid, is_locked) = (0, 0, false);
        Self { c, client_id, owner, seqid, opens, lock, is_locked, lock_seqid, delegation }
    }

    pub(super) fn begin(&mut self, owner: String) {
        (self.owner, self.seqid) = (owner, 1);
    }

    pub(super) fn owner(&self) -> StateOwner {
        StateOwner { client_id: self.client_id, owner: self.owner.as_str().into() }
    }

    /// Sends a compound.
    ///
    /// # Errors
    /// The first one.
    pub(super) async fn run(&mut self, ops: Vec<Op>) -> Result<Vec<OpRes>, Error> {
        let reply = match self.c.minor {
            0 => self.c.raw(ops.clone()).await,
            _ => self.c.run(ops.clone()).await,
        };
        let mut opened = None;
        for (op, result) in ops.iter().zip(&reply.results) {
            match (op, result) {
                (_, OpRes::Open(res)) => {
                    self.seqid += advances(res);
                    opened = res.as_ref().ok();
                }
                (_, OpRes::Getfh(Ok(file))) => {
                    let Some(opened) = opened.take() else { continue };
                    self.opens.retain(|(_, held)| held.other != opened.stateid.other);
                    self.opens.push((file.clone(), opened.stateid));
                    if !matches!(
                        opened.delegation,
                        open::Delegation::None | open::Delegation::NoneExt(_)
                    ) {
                        let held = super::super::delegations::stateid(&opened.delegation);
                        self.delegation = Some((file.clone(), held));
                    }
                }
                (Op::Close(args), OpRes::Close(res)) => {
                    self.seqid += advances(res);
                    if res.is_ok() {
                        self.opens.retain(|(_, held)| held.other != args.open_stateid.other);
                        self.lock = None;
                    }
                }
                (_, OpRes::Lock(res)) => {
                    let failure = res.as_ref().map_err(|refused| match refused {
                        Detailed::Plain(error) => *error,
                        Detailed::Detail(_) => Error::Denied,
                    });
                    self.seqid += advances(&failure);
                    if let Ok(stateid) = res {
                        (self.lock, self.is_locked, self.lock_seqid) = (Some(*stateid), true, 1);
                    }
                }
                (_, OpRes::Locku(res)) => {
                    self.lock_seqid += advances(res);
                    if let Ok(stateid) = res {
                        (self.lock, self.is_locked) = (Some(*stateid), false);
                    }
                }
                (_, OpRes::Delegreturn(Ok(()))) => self.delegation = None,
                _ => {}
            }
        }
        assert!(opened.is_none(), "GETFH fails after an OPEN");
        reply.status.map(|()| reply.results)
    }

    /// As [`run`](Self::run), and returns the last result.
    pub(super) async fn last(&mut self, ops: Vec<Op>) -> Result<OpRes, Error> {
        Ok(self.run(ops).await?.pop().unwrap())
    }

    /// Waits for a reply to another client, and returns the delegation when the server recalls it.
    pub(super) async fn serve_while<T>(&mut self, other: impl Future<Output = T>) -> T {
        let mut other = std::pin::pin!(other);
        let mut seen = [0];
        let done = loop {
            tokio::select! {
                done = &mut other => break done,
                // Takes nothing from the stream, so that no part of a call is lost.
                bytes = self.c.stream.peek(&mut seen) => assert_eq!(bytes.unwrap(), 1),
            }
            let call = self.c.called().await;
            assert!(matches!(call, CbOp::Recall(_)), "{call:?}");
            self.give_back().await;
        };
        self.c.ok(vec![]).await;
        if self.c.service.called.pop().is_some() {
            self.give_back().await;
        }
        done
    }

    async fn give_back(&mut self) {
        let (file, held) = self.delegation.clone().unwrap();
        self.run(vec![Op::Putfh(file), Op::Delegreturn(held)]).await.unwrap();
    }

    /// What it holds: opens, lock states, locked ranges and delegations.
    pub(super) fn held(&self) -> [usize; 4] {
        let locks = usize::from(self.lock.is_some());
        let ranges = usize::from(self.lock.is_some() && self.is_locked);
        [self.opens.len(), locks, ranges, usize::from(self.delegation.is_some())]
    }

    pub(super) async fn release(&mut self) {
        if self.lock.is_some() && self.is_locked {
            let file = self.opens[0].0.clone();
            self.run(vec![Op::Putfh(file), self.unlock()]).await.unwrap();
        }
        while let Some((file, open_stateid)) = self.opens.first().cloned() {
            let close = Op::Close(close::Args { seqid: self.seqid, open_stateid });
            self.run(vec![Op::Putfh(file), close]).await.unwrap();
        }
        if self.delegation.is_some() {
            self.give_back().await;
        }
    }

    pub(super) fn unlock(&self) -> Op {
        let (kind, seqid, offset) = (LockType::Write, self.lock_seqid, 0);
        let lock_stateid = self.lock.unwrap();
        Op::Locku(locku::Args { kind, seqid, lock_stateid, offset, length: LENGTH })
    }

    pub(super) fn lock(&self, name: &str) -> Op {
        let (open_seqid, open_stateid) = (self.seqid, self.opens[0].1);
        // Another owner for each request, because the one of a request that failed may have been kept.
        let owner = format!("{name} of request {open_seqid}");
        let lock_owner = StateOwner { client_id: self.client_id, owner: owner.as_str().into() };
        let locker = lock::Locker::New(lock::NewLocker {
            open_seqid,
            open_stateid,
            lock_seqid: 0,
            lock_owner,
        });
        let (kind, reclaim) = (LockType::Write, false);
        Op::Lock(lock::Args { kind, reclaim, offset: 0, length: LENGTH, locker })
    }

    pub(super) async fn lookup(
        &mut self,
        dir: &FileHandle,
        name: &str,
    ) -> Result<FileHandle, Error> {
        let ops = vec![Op::Putfh(dir.clone()), Op::Lookup(name.into()), Op::Getfh(())];
        handle(&self.run(ops).await?)
    }

    pub(super) async fn attrs(&mut self, file: &FileHandle) -> Attrs {
        let asked = Bitmap::of(&[MODE, SIZE, NUMLINKS]);
        match self.last(vec![Op::Putfh(file.clone()), Op::Getattr(asked)]).await {
            Ok(OpRes::Getattr(Ok(attrs))) => attrs,
            other => panic!("{other:?}"),
        }
    }

    /// The names in a directory.
    pub(super) async fn names(&mut self, dir: &FileHandle) -> Result<Vec<String>, Error> {
        let args = readdir::Args {
            cookie: 0,
            verifier: [0; 8],
            dir_count: 4096,
            max_count: 1 << 16,
            attrs: Bitmap::of(&[MODE]),
        };
        let OpRes::Readdir(Ok(listed)) =
            self.last(vec![Op::Putfh(dir.clone()), Op::Readdir(args)]).await?
        else {
            panic!()
        };
        assert!(listed.eof);
        let name = |e: &readdir::Entry| String::from_utf8(e.name.to_vec()).unwrap();
        let mut names: Vec<_> = listed.entries.0.iter().map(name).collect();
        names.sort();
        Ok(names)
    }
}
