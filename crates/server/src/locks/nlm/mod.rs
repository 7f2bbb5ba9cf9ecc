//! NFSv3's lock manager (NLM version 4): byte-range locks and share reservations, in one table with
//! NFSv4's ([`crate::state`]).
//!
//! - This module handles requests. [`callbacks`] calls hosts.
//! - [`crate::locks::nsm`] handles restarts of hosts and of the server.
//!
//! 1. A host is recorded on disk before it gets its first lock, so that after a restart the server
//!    notifies it and it may reclaim.
//! 2. State that a transition revoked is recorded on disk before it is granted to another owner; what a
//!    sweep grants to waiting owners, before the GRANTED call.
//! 3. Owners that a local user names belong to that user alone: the same name from another user is
//!    another owner. Hosts, and this machine's superuser, name the owners of all their users. A
//!    local user's request does not wait in the queue: GRANTED calls go to the machine's lock
//!    manager, not to the user.
//! 4. A repeated request gets the same answer: an owner may lock a range that it holds already, and
//!    releasing a lock that is not held succeeds.
//! 5. A reclaim waits in the server while records cannot be written, until the grace period ends:
//!    Linux's lock manager gives a lock up if its reclaim is answered DENIED_GRACE_PERIOD
//!    (`nlmclnt_call` in fs/lockd/clntproc.c).
//! 6. A request for a lock whose release has arrived meanwhile acquires nothing, and is answered
//!    DENIED_GRACE_PERIOD ([`crate::locks::in_progress`]).

mod callbacks;
#[cfg(test)]
mod tests;

pub(crate) use callbacks::HostCalls;

use crate::admission::Identity;
use crate::delegation::recall::AccessClaim;
use crate::handle::Node;
use crate::locks::in_progress::{InProgress, Wanted};
use crate::locks::nsm::Nsm1;
use crate::locks::store_locks::open_store_locks;
use crate::program::{Call, Program, ProgramId, Refusal};
use crate::services::Services;
use crate::state::{
    Conflict, Holder, LockHost, NlmError, NlmLock, NlmOwner, Range, ReplyTo, Share, State, Touch,
};
use crate::storage::client_tracking::{NotWritten, SETTLE_ATTEMPTS};
use async_trait::async_trait;
use callbacks::Route;
use std::net::IpAddr;
use std::sync::Arc;
use std::time::Duration;
use tracing::{error, info};
use weir_nfs::nlm::{
    self, CancelArgs, LockArgs, Procedure, Res, ShareArgs, ShareRes, Status, TestArgs, TestReply,
    TestRes, UnlockArgs,
};
use weir_pagecache::CachedFs;
use weir_vfs::{Access, Caller, FileKind, Permissions};
use weir_xdr::{Bytes, Decoder, Encoder, Opaque};

/// How often the server looks for hosts without locks.
const LOOK_EVERY: Duration = Duration::from_secs(10);

/// Pause before the state database is written again after a failure.
const SETTLE_AGAIN: Duration = Duration::from_secs(1);

/// NLM version 4.
pub(crate) struct Nlm4 {
    services: Arc<Services>,
    callbacks: Arc<HostCalls>,
    monitor: Arc<Nsm1>,
    /// Held while the hosts on disk and those in the state change together.
    hosts: tokio::sync::Mutex<()>,
}

/// A request and its caller.
struct NlmRequest<'a> {
    nlm: &'a Nlm4,
    identity: Identity,
    route: Route,
    /// The local user that the caller is limited to, if any.
    user: Option<u32>,
    /// Whether the caller may wait: GRANTED calls to its host reach it.
    may_wait: bool,
    /// For a request that acquires a lock or reservation.
    in_progress: Option<InProgress<'a>>,
}

impl Nlm4 {
    pub(crate) fn new(
        services: Arc<Services>,
        callbacks: Arc<HostCalls>,
        monitor: Arc<Nsm1>,
    ) -> Self {
        Self { services, callbacks, monitor, hosts: tokio::sync::Mutex::default() }
    }

    /// Sends GRANTED calls for queued locks, and removes hosts without locks.
    pub(crate) async fn run(self: Arc<Self>) {
        let granted = self.services.state.lock().nlm_on_grant();
        let mut ticks = tokio::time::interval(LOOK_EVERY);
        loop {
            tokio::select! {
                () = granted.notified() => {
                    let granted = self.services.state.lock().nlm_take_granted();
                    // The locks may come from a sweep that revoked those of others.
                    while self.settle().await.is_err() {
                        tokio::time::sleep(SETTLE_AGAIN).await;
                    }
                    granted.into_iter().for_each(|g| self.callbacks.tell(&self.services, g));
                }
                _ = ticks.tick() => self.forget_idle_hosts().await,
            }
        }
    }

    /// Lists a request that acquires a lock or reservation. `None` for other requests, and for
    /// malformed ones.
    fn begin(
        &self,
        procedure: Procedure,
        mut args: Decoder,
        host: IpAddr,
        user: Option<u32>,
    ) -> Option<InProgress<'_>> {
        let (file, owner, wanted) = match procedure {
            Procedure::Lock | Procedure::NmLock | Procedure::LockMsg => {
                let LockArgs { exclusive, lock, .. } = args.get().ok()?;
                let wanted = Wanted::Lock { range: range(&lock).ok()?, exclusive };
                (lock.file.clone(), owner(host, user, &lock), wanted)
            }
            Procedure::Share => {
                let ShareArgs { share, .. } = args.get().ok()?;
                (share.file.clone(), sharer(host, user, &share), Wanted::Share)
            }
            _ => return None,
        };
        let node = self.services.exports.unseal(&file).ok()?;
        Some(self.monitor.requests.begin(owner, node, wanted))
    }

    async fn forget_idle_hosts(&self) {
        let _alone = self.hosts.lock().await;
        let now = self.services.now();
        let gone = self.services.state.lock().nlm_drop_idle(now);
        if !gone.is_empty()
            && let Err(error) = self.services.recovery.forget_hosts(gone.clone()).await
        {
            error!("cannot write the state database: {error}");
            // Until they are forgotten, they may reclaim after a restart; so it is tried again soon.
            let mut state = self.services.state.lock();
            let since = now.saturating_sub(state.limits().lease);
            gone.into_iter().for_each(|host| state.nlm_remembered(host, since));
        }
    }

    async fn remember(&self, host: LockHost) -> Result<(), Status> {
        let _alone = self.hosts.lock().await;
        let now = self.services.now();
        if !self.services.state.lock().nlm_has_room_for(host.host) {
            return Err(Status::DeniedNoLocks);
        }
        let written = self.services.recovery.remember_host(host).await;
        self.services.records.outcome(written).map_err(of_unwritten)?;
        info!("{} begins to take NLM locks", host.host);
        self.services.state.lock().nlm_remembered(host.host, now);
        Ok(())
    }

    /// Records on disk the state that a transition revoked.
    async fn settle(&self) -> Result<(), Status> {
        self.services.records.write_due().await.map_err(of_unwritten)
    }
}

/// The status if a record cannot be written. The host must retry: DENIED_GRACE_PERIOD is the only
/// status that hosts retry on.
fn of_unwritten(error: NotWritten) -> Status {
    match error {
        NotWritten::Yet => Status::DeniedGracePeriod,
        NotWritten::Anymore => Status::Failed,
    }
}

impl NlmRequest<'_> {
    fn host(&self) -> IpAddr {
        self.route.host
    }

    fn owner(&self, lock: &nlm::Lock) -> NlmOwner {
        owner(self.host(), self.user, lock)
    }

    /// Checks that what the request acquires has not been released meanwhile. A caller that
    /// acquires it then holds the lock of the state.
    fn check_wanted(&self) -> Result<(), NlmError> {
        let is_overtaken = self.in_progress.as_ref().is_some_and(InProgress::is_overtaken);
        if is_overtaken { Err(NlmError::Overtaken) } else { Ok(()) }
    }

    /// The file that a handle names, if the caller has any access to it.
    async fn find(&self, handle: &nlm::FileHandle, writes: bool) -> Result<Node, Status> {
        let exports = &self.nlm.services.exports;
        let node = self.node(handle)?;
        let table = exports.table();
        let export = table.mountable(node.export).map_err(|_| Status::StaleHandle)?;
        let admitted = export.admit(&self.identity, self.host()).ok_or(Status::Failed)?;
        let of_vfs = |error| match error {
            weir_vfs::Error::NotFound | weir_vfs::Error::Stale => Status::StaleHandle,
            _ => Status::Failed,
        };
        let attr = export.fs().getattr(node.id).await.map_err(of_vfs)?;
        if attr.nlink == 0 {
            return Err(Status::StaleHandle);
        }
        if attr.kind != FileKind::Regular {
            return Err(Status::Failed);
        }
        if writes && admitted.read_only {
            return Err(Status::ReadOnlyFs);
        }
        // The owner may have the file open against its mode: it created the file, or changed the
        // mode.
        let owns = match &admitted.caller {
            Caller::Own => true,
            Caller::As(cred) => cred.uid == attr.uid,
        };
        let wanted = Permissions::READ | Permissions::WRITE;
        let may = export.fs().access(&admitted.caller, node.id, wanted).await;
        if !owns && may.map_err(of_vfs)?.is_empty() {
            return Err(Status::Failed);
        }
        Ok(node)
    }

    /// The file system of a file.
    fn fs(&self, node: Node) -> Result<CachedFs, Status> {
        let table = self.nlm.services.exports.table();
        let export = table.mountable(node.export).map_err(|_| Status::StaleHandle)?;
        Ok(export.fs().clone())
    }

    /// The file that a handle names. The file may be gone: its locks can still be released.
    fn node(&self, handle: &nlm::FileHandle) -> Result<Node, Status> {
        self.nlm.services.exports.unseal(handle).map_err(|_| Status::StaleHandle)
    }

    async fn test(&self, args: TestArgs) -> TestRes {
        let reply = match self.test_checked(&args).await {
            Ok(None) => TestReply::Granted,
            Ok(Some(conflict)) => TestReply::Denied(holder(conflict)),
            Err(status) => status.into(),
        };
        TestRes { cookie: args.cookie, reply }
    }

    async fn test_checked(&self, args: &TestArgs) -> Result<Option<Conflict<Holder>>, Status> {
        let node = self.find(&args.lock.file, false).await?;
        let (owner, range) = (self.owner(&args.lock), range(&args.lock)?);
        let touch = if args.exclusive { Touch::Change } else { Touch::Read };
        let _claim = self.claim(node, touch).await?;
        let (services, now) = (&self.nlm.services, self.nlm.services.now());
        let locks =
            open_store_locks(&services.state, &self.fs(node)?, node, Some(self.host())).await;
        let found = services.state.lock().with_store_locks(node, locks, |state| {
            state.nlm_test(&owner, node, range, args.exclusive, now)
        });
        self.nlm.settle().await?;
        found.map_err(status)
    }

    async fn lock(&self, args: LockArgs) -> Res {
        let cookie = args.cookie.clone();
        Res { cookie, status: self.lock_checked(args).await.err().unwrap_or(Status::Granted) }
    }

    async fn lock_checked(&self, args: LockArgs) -> Result<(), Status> {
        let LockArgs { cookie, block, exclusive, lock, reclaim, .. } = args;
        let node = self.find(&lock.file, exclusive).await?;
        // Copied, because slices would keep the whole request in memory.
        let own = Bytes::copy_from_slice;
        let to =
            ReplyTo { cookie: own(&cookie), caller: own(&lock.caller), server: self.route.server };
        let request = NlmLock {
            owner: self.owner(&lock),
            node,
            range: range(&lock)?,
            exclusive,
            reclaim,
            wait: (block && self.may_wait).then_some(to),
        };
        let touch = if exclusive { Touch::Change } else { Touch::Read };
        let (services, fs) = (&self.nlm.services, self.fs(node)?);
        let locks = open_store_locks(&services.state, &fs, node, Some(self.host())).await;
        let lock = || {
            let (request, now) = (request.clone(), services.now());
            let lock = |state: &mut State<_>| {
                self.check_wanted()?;
                state.nlm_lock(request, now)
            };
            services.state.lock().with_store_locks(node, locks.clone(), lock)
        };
        self.take(node, touch, reclaim, lock).await
    }

    /// Recalls conflicting delegations of NFSv4 clients, which may hold locks under them that the
    /// server does not know. If that takes long, the host must retry; DENIED_GRACE_PERIOD is the
    /// only status that hosts retry on.
    async fn claim(&self, node: Node, touch: Touch) -> Result<AccessClaim, Status> {
        let claimed = self.nlm.services.recalls.claim(node, touch, None).await;
        claimed.map_err(|error| match error {
            weir_vfs::Error::WouldBlock => Status::DeniedGracePeriod,
            _ => Status::Failed,
        })
    }

    /// Executes a transition that acquires a lock or reservation ([`try_take`](Self::try_take)). A
    /// reclaim that cannot be granted for want of a record is tried again until its release arrives.
    async fn take(
        &self,
        node: Node,
        touch: Touch,
        reclaim: bool,
        transition: impl Fn() -> Result<(), NlmError>,
    ) -> Result<(), Status> {
        let services = &self.nlm.services;
        loop {
            let taken = self.try_take(node, touch, &transition).await;
            let waits = reclaim
                && taken == Err(Status::DeniedGracePeriod)
                && services.records.is_failing()
                && services.state.lock().grace.is_active()
                && self.check_wanted().is_ok();
            if !waits {
                return taken;
            }
            tokio::time::sleep(SETTLE_AGAIN).await;
        }
    }

    /// Executes a transition that acquires a lock or reservation. The host and what was revoked must
    /// be on disk before, and conflicting delegations recalled. A new delegation may be granted until
    /// the transition succeeds, so this may take several attempts.
    async fn try_take(
        &self,
        node: Node,
        touch: Touch,
        transition: impl Fn() -> Result<(), NlmError>,
    ) -> Result<(), Status> {
        let mut _claim = self.claim(node, touch).await?;
        let services = &self.nlm.services;
        let (mut settled, mut attempts) = (false, 0);
        let done = loop {
            match transition() {
                Err(NlmError::Doubted) if !settled => {
                    settled = true;
                    self.nlm.monitor.settle(self.host()).await;
                }
                Err(NlmError::Unknown) => {
                    let Route { host, server } = self.route;
                    self.nlm.remember(LockHost { host, server }).await?;
                }
                Err(NlmError::Delegated) => _claim = self.claim(node, touch).await?,
                Err(NlmError::Unsettled) if attempts < SETTLE_ATTEMPTS => {
                    attempts += 1;
                    self.nlm.settle().await?;
                }
                done => break done,
            }
        };
        if !services.serves(node) {
            services.state.lock().nlm_drop_export(node.export);
            return Err(Status::StaleHandle);
        }
        services.copies.quiesce(node).await;
        self.nlm.monitor.learn(self.host());
        done.map_err(status)
    }

    fn cancel(&self, args: CancelArgs) -> Res {
        let CancelArgs { cookie, exclusive, lock, .. } = args;
        let cancelled = self.node(&lock.file).and_then(|node| {
            let (owner, range) = (self.owner(&lock), range(&lock)?);
            let cancelled = Wanted::Lock { range, exclusive };
            self.nlm.monitor.requests.overtake(&owner, node, |wanted| wanted == cancelled);
            self.nlm.services.state.lock().nlm_cancel(&owner, node, range, exclusive);
            Ok(())
        });
        Res { cookie, status: cancelled.err().unwrap_or(Status::Granted) }
    }

    fn unlock(&self, args: UnlockArgs) -> Res {
        let UnlockArgs { cookie, lock } = args;
        let unlocked = self.node(&lock.file).and_then(|node| {
            let (owner, range) = (self.owner(&lock), range(&lock)?);
            self.nlm.monitor.requests.overtake(&owner, node, |wanted| match wanted {
                Wanted::Lock { range: of, .. } => of.start < range.end && range.start < of.end,
                Wanted::Share => false,
            });
            self.nlm.services.state.lock().nlm_unlock(&owner, node, range).map_err(status)
        });
        Res { cookie, status: unlocked.err().unwrap_or(Status::Granted) }
    }

    async fn share(&self, args: ShareArgs) -> ShareRes {
        let cookie = args.cookie.clone();
        let status = self.share_checked(args).await.err().unwrap_or(Status::Granted);
        ShareRes { cookie, status, sequence: 0 }
    }

    async fn share_checked(&self, args: ShareArgs) -> Result<(), Status> {
        let ShareArgs { share: wire, reclaim, .. } = args;
        let share = Share {
            access: Access::from_bits_truncate(wire.access as u32),
            deny: Access::from_bits_truncate(wire.mode as u32),
        };
        let node = self.find(&wire.file, share.access.contains(Access::WRITE)).await?;
        let owner = self.sharer(&wire);
        let services = &self.nlm.services;
        let transition = || {
            let (mut state, now) = (services.state.lock(), services.now());
            self.check_wanted()?;
            state.nlm_share(&owner, node, share, reclaim, now)
        };
        self.take(node, share.touch(), reclaim, transition).await
    }

    fn unshare(&self, args: ShareArgs) -> ShareRes {
        let unshared = self.node(&args.share.file).map(|node| {
            let owner = self.sharer(&args.share);
            self.nlm.monitor.requests.overtake(&owner, node, |wanted| wanted == Wanted::Share);
            self.nlm.services.state.lock().nlm_unshare(&owner, node);
        });
        let status = unshared.err().unwrap_or(Status::Granted);
        ShareRes { cookie: args.cookie, status, sequence: 0 }
    }

    fn sharer(&self, share: &nlm::Share) -> NlmOwner {
        sharer(self.host(), self.user, share)
    }
}

/// The owner of a lock.
fn owner(host: IpAddr, user: Option<u32>, lock: &nlm::Lock) -> NlmOwner {
    // Copied, because a slice would keep the whole request in memory.
    let handle = Bytes::copy_from_slice(&lock.owner);
    NlmOwner { host, user, handle, process: lock.process }
}

/// The owner of a reservation. The request names no process.
fn sharer(host: IpAddr, user: Option<u32>, share: &nlm::Share) -> NlmOwner {
    // Copied, because a slice would keep the whole request in memory.
    let handle = Bytes::copy_from_slice(&share.owner);
    NlmOwner { host, user, handle, process: 0 }
}

fn range(lock: &nlm::Lock) -> Result<Range, Status> {
    Range::from_nlm(lock.offset, lock.length).ok_or(Status::TooBig)
}

fn holder(conflict: Conflict<Holder>) -> nlm::Holder {
    let Conflict { owner, range, exclusive } = conflict;
    let (process, owner) = match owner {
        Holder::Nlm(owner) => (owner.process, owner.handle),
        // NFSv4 owners have no process number.
        Holder::V4(owner) => (0, owner.name),
        Holder::LocalProgram => (0, Bytes::from_static(b"a program of the server's machine")),
    };
    let (offset, length) = (range.start, range.nlm_length());
    nlm::Holder { exclusive, process, owner: Opaque(owner), offset, length }
}

fn status(error: NlmError) -> Status {
    match error {
        NlmError::Denied(_) | NlmError::ShareDenied => Status::Denied,
        NlmError::Blocked => Status::Blocked,
        NlmError::Deadlock => Status::Deadlock,
        // The only status on which hosts retry.
        NlmError::Grace
        | NlmError::NoGrace
        | NlmError::Delegated
        | NlmError::Doubted
        | NlmError::Unsettled
        | NlmError::Overtaken => Status::DeniedGracePeriod,
        NlmError::TooMany | NlmError::Unknown => Status::DeniedNoLocks,
    }
}

/// Whether a procedure only gives up what its host has.
fn releases(procedure: Procedure) -> bool {
    use Procedure as P;
    matches!(
        procedure,
        P::Unlock | P::UnlockMsg | P::Cancel | P::CancelMsg | P::Unshare | P::FreeAll
    )
}

#[async_trait]
impl Program for Nlm4 {
    fn id(&self) -> ProgramId {
        nlm::ID
    }

    async fn call(self: Arc<Self>, call: Call, mut reply: Encoder) -> Result<Encoder, Refusal> {
        let procedure = Procedure::from_number(call.header.procedure);
        let procedure = procedure.ok_or(Refusal::NoSuchProcedure)?;
        if let Procedure::Null = procedure {
            // NULL needs no credential (RFC 5531 section 11.1).
            return Ok(reply);
        }
        let ends = [call.peer.addr(), call.peer.local_addr()];
        let [host, server] = ends.map(|addr| addr.ip().to_canonical());
        let (route, user) = (Route { host, server }, call.peer.origin().only_user());
        let in_progress = self.begin(procedure, call.args.clone(), host, user);
        // What a host has is its own to release, also after its last export was closed to it: NLM has no leases.
        let identity = if releases(procedure) && self.monitor.may_release(host) {
            call.identify().await?
        } else {
            self.services.exports.identify(&call).await?
        };
        let Call { mut args, peer, .. } = call;
        let may_wait = peer.origin().speaks_for_machine() || peer.origin().is_privileged();
        let request = NlmRequest { nlm: &self, identity, route, user, may_wait, in_progress };
        // Sends the results of an asynchronous procedure.
        let answer = |procedure, results: Bytes| {
            self.callbacks.answer(&self.services, request.route, procedure, results);
        };
        match procedure {
            Procedure::Null => {}
            Procedure::Test => reply.put(&request.test(args.get()?).await),
            Procedure::Lock | Procedure::NmLock => reply.put(&request.lock(args.get()?).await),
            Procedure::Cancel => reply.put(&request.cancel(args.get()?)),
            Procedure::Unlock => reply.put(&request.unlock(args.get()?)),
            Procedure::Share => reply.put(&request.share(args.get()?).await),
            Procedure::Unshare => reply.put(&request.unshare(args.get()?)),
            Procedure::FreeAll => {
                let _: nlm::Notify = args.get()?;
                self.monitor.noticed_by_connection(&peer, "needs none of its locks");
            }
            Procedure::TestMsg => {
                answer(Procedure::TestRes, wire(&request.test(args.get()?).await));
            }
            Procedure::LockMsg => {
                answer(Procedure::LockRes, wire(&request.lock(args.get()?).await));
            }
            Procedure::CancelMsg => {
                answer(Procedure::CancelRes, wire(&request.cancel(args.get()?)));
            }
            Procedure::UnlockMsg => {
                answer(Procedure::UnlockRes, wire(&request.unlock(args.get()?)));
            }
            // This server requests no locks from hosts, so no grant is for it.
            Procedure::Granted => {
                let TestArgs { cookie, .. } = args.get()?;
                reply.put(&Res { cookie, status: Status::Denied });
            }
            Procedure::GrantedMsg => {
                let TestArgs { cookie, .. } = args.get()?;
                answer(Procedure::GrantedRes, wire(&Res { cookie, status: Status::Denied }));
            }
            Procedure::TestRes => drop(args.get::<TestRes>()?),
            Procedure::LockRes
            | Procedure::CancelRes
            | Procedure::UnlockRes
            | Procedure::GrantedRes => drop(args.get::<Res>()?),
        }
        Ok(reply)
    }
}

fn wire(results: &impl weir_xdr::Encode) -> Bytes {
    let mut e = Encoder::new();
    e.put(results);
    e.finish().to_bytes()
}
