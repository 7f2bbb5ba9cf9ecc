//! Locks over NFSv3: NLM version 4, found at the server's own port or by its port mapper.
//!
//! 1. This is one process, not a host: it has no status monitor. It detects a server restart by its
//!    connection, checked every [`LOOK_EVERY`] while locks are held, and then reclaims them. A lock
//!    that cannot be reclaimed is lost: the file's I/O and locks fail until its owner has released
//!    it. So is one that the server no longer has when it is in no grace period. A lock that is being
//!    released is not reclaimed: its record ends before UNLOCK is sent.
//! 2. The server frees a host's locks when the *host* restarts. A process has to release its own;
//!    one that is killed leaves them behind.
//! 3. The server calls back about a waiting request if this program is reachable
//!    ([`nlm_callback`](crate::v3::nlm_callback)); the request is resent in any case.

use super::convert::handle_of;
use super::{V3, program};
use crate::backoff::Backoff;
use crate::error::{Error, Refusal, Result};
use crate::protocol::LockWaiters;
use crate::protocol::{Handle, OpenContext, OpenLockOwner};
use crate::transport::{Connection, Counters};
use crate::v3::nlm_callback::Hearing;
use std::collections::HashMap;
use std::net::SocketAddr;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::sync::{Arc, Weak};
use std::time::Duration;
use tokio::sync::OnceCell;
use tokio::time::timeout;
use weir_base::sync::Mutex;
use weir_nfs::nlm::{
    self, Call, CancelArgs, LockArgs, Procedure, Res, Status, TestArgs, TestReply, UnlockArgs, call,
};
use weir_rpc::OpaqueAuth;
use weir_vfs::{Error as VfsError, Lock, LockRange, RangeLocks};
use weir_xdr::{Decode, Encode, Opaque};

/// How often to check the server while locks are held: much more often than its grace period.
const LOOK_EVERY: Duration = Duration::from_secs(3);

/// The lock manager of a server, and the locks held there.
#[derive(Default)]
pub(super) struct Locks {
    connection: OnceCell<Connection>,
    counters: Arc<Counters>,
    files: Mutex<HashMap<Handle, FileLocks>>,
    looking: Mutex<bool>,
    /// Shared by lock requests; exclusive while a reclaim settles what owners changed meanwhile.
    settling: tokio::sync::RwLock<()>,
    cookies: AtomicU64,
    pub(super) waiters: LockWaiters,
    hearing: OnceCell<Option<Hearing>>,
}

/// Parameters of a lock request.
#[derive(Clone, Copy)]
struct How {
    /// The server calls back when the lock is free.
    block: bool,
    /// It was held before the server restarted.
    reclaim: bool,
}

/// What became of a lock that was to be reclaimed.
enum Retaken {
    /// The server has had it all the time, as far as it tells.
    Kept,
    /// The server had lost it, and another client may have had one in between.
    Anew,
    Refused(Status),
}

struct FileLocks {
    cred: Arc<OpaqueAuth>,
    held: RangeLocks<OpenLockOwner>,
    lost: bool,
    /// The lock that is being taken again, unless it was released meanwhile.
    retaken: Option<(OpenLockOwner, LockRange)>,
}

impl Locks {
    /// The connection to the lock manager, once it exists.
    pub(super) fn connection(&self) -> Option<&Connection> {
        self.connection.get()
    }

    /// Unregisters the mount from the callback service.
    pub(super) async fn stop_hearing(&self) {
        if let Some(Some(hearing)) = self.hearing.get() {
            hearing.end().await;
        }
    }

    /// The parts of an owner's locks in a range.
    pub(super) fn held_in(
        &self,
        handle: &Handle,
        owner: OpenLockOwner,
        range: LockRange,
    ) -> Vec<Lock> {
        let files = self.files.lock();
        files.get(handle).map_or(Vec::new(), |file| file.held.within(&owner, range))
    }

    /// Ends the record of an owner's locks in a range.
    fn forget(&self, handle: &Handle, owner: OpenLockOwner, range: LockRange) {
        let mut files = self.files.lock();
        if let Some(file) = files.get_mut(handle) {
            file.held.unlock(&owner, range);
            file.lost &= !file.held.is_empty();
            file.retaken.take_if(|(of, part)| {
                *of == owner && part.start < range.end && range.start < part.end
            });
        }
        files.retain(|_, file| !file.held.is_empty());
    }

    /// Notes that a lock is being taken again.
    fn begin_retaking(&self, handle: &Handle, owner: OpenLockOwner, range: LockRange) {
        if let Some(file) = self.files.lock().get_mut(handle) {
            file.retaken = Some((owner, range));
        }
    }

    /// Returns whether the lock was not released meanwhile, not even to be taken again.
    fn end_retaking(&self, handle: &Handle) -> bool {
        let mut files = self.files.lock();
        files.get_mut(handle).is_some_and(|file| file.retaken.take().is_some())
    }

    /// Has I/O and locks of a file fail until its owners have released their locks.
    pub(super) fn lose(&self, handle: &Handle) {
        if let Some(file) = self.files.lock().get_mut(handle) {
            file.lost = !file.held.is_empty();
        }
    }

    /// Whether the server can call back.
    pub(super) fn are_told(&self) -> bool {
        matches!(self.hearing.get(), Some(Some(_)))
    }
}

impl V3 {
    /// Fails if owners hold locks of a file that the server has lost.
    pub(super) fn check_locks(&self, handle: &Handle) -> Result<()> {
        let files = self.locks.files.lock();
        match files.get(handle) {
            Some(file) if file.lost => Err(VfsError::Io.into()),
            _ => Ok(()),
        }
    }

    pub(super) async fn lock_range(
        &self,
        open: &OpenContext,
        owner: OpenLockOwner,
        lock: Lock,
        waits: bool,
    ) -> Result<bool> {
        self.check_locks(&open.handle)?;
        let _settled = self.locks.settling.read().await;
        let mut how = How { block: waits && self.locks.are_told(), reclaim: false };
        let mut status = self.request(&open.cred, &open.handle, owner, lock, how).await?;
        // The callback service occupies the machine's only place for it: not without need.
        if status == Status::Denied && waits && !how.block && self.hears_of_grants().await {
            how.block = true;
            status = self.request(&open.cred, &open.handle, owner, lock, how).await?;
        }
        match status {
            Status::Granted => {}
            Status::Denied | Status::Blocked => return Ok(false),
            status => return Err(self.refused("NLM LOCK", status)),
        }
        {
            let mut files = self.locks.files.lock();
            let file = files.entry(open.handle.clone()).or_insert_with(|| FileLocks {
                cred: Arc::clone(&open.cred),
                held: RangeLocks::default(),
                lost: false,
                retaken: None,
            });
            // No other owner of this mount has it, or the server would not have granted it.
            let _ = file.held.lock(&owner, lock.range, lock.exclusive);
        }
        if !std::mem::replace(&mut *self.locks.looking.lock(), true) {
            tokio::spawn(look(self.me.clone()));
        }
        Ok(true)
    }

    pub(super) async fn lock_in_the_way(
        &self,
        open: &OpenContext,
        owner: OpenLockOwner,
        lock: Lock,
    ) -> Result<Option<Lock>> {
        let mut backoff = self.backoff();
        loop {
            let args = TestArgs {
                cookie: self.cookie(),
                exclusive: lock.exclusive,
                lock: self.wire_lock(&open.cred, &open.handle, owner, lock.range),
            };
            let res = self.nlm::<call::Test>(&open.cred, &args).await?;
            return match res.reply {
                TestReply::Granted => Ok(None),
                TestReply::Denied(holder) => {
                    let range = LockRange::from_nlm(holder.offset, holder.length)
                        .ok_or_else(|| self.refused("NLM TEST", Status::Failed))?;
                    Ok(Some(Lock { range, exclusive: holder.exclusive }))
                }
                TestReply::DeniedGracePeriod if backoff.wait().await => continue,
                TestReply::StaleHandle => Err(self.refused("NLM TEST", Status::StaleHandle)),
                TestReply::DeniedGracePeriod => {
                    Err(self.refused("NLM TEST", Status::DeniedGracePeriod))
                }
                _ => Err(self.refused("NLM TEST", Status::Failed)),
            };
        }
    }

    pub(super) async fn unlock_range(
        &self,
        open: &OpenContext,
        owner: OpenLockOwner,
        range: LockRange,
    ) -> Result<()> {
        self.locks.forget(&open.handle, owner, range);
        let args = UnlockArgs {
            cookie: self.cookie(),
            lock: self.wire_lock(&open.cred, &open.handle, owner, range),
        };
        let mut backoff = self.backoff();
        let status = loop {
            let status = self.nlm::<call::Unlock>(&open.cred, &args).await?.status;
            // Linux's server releases no locks before its grace period ends.
            if status != Status::DeniedGracePeriod || !backoff.wait().await {
                break status;
            }
        };
        match status {
            Status::Granted => Ok(()),
            status => Err(self.refused("NLM UNLOCK", status)),
        }
    }

    /// Withdraws a request that waits for a callback.
    pub(super) async fn cancel(
        &self,
        open: &OpenContext,
        owner: OpenLockOwner,
        lock: Lock,
    ) -> Result<()> {
        if !self.locks.are_told() {
            return Ok(());
        }
        let args = CancelArgs {
            cookie: self.cookie(),
            block: true,
            exclusive: lock.exclusive,
            lock: self.wire_lock(&open.cred, &open.handle, owner, lock.range),
        };
        let mut backoff = self.backoff();
        // The server rejects it if there is no such request (any more).
        while self.nlm::<call::Cancel>(&open.cred, &args).await?.status == Status::DeniedGracePeriod
            && backoff.wait().await
        {}
        Ok(())
    }

    /// Whether the server's callbacks about granted locks arrive.
    async fn hears_of_grants(&self) -> bool {
        let reachable = self.peer.addrs.iter().all(SocketAddr::is_ipv4);
        let hear = async || match self.me.upgrade() {
            Some(me) if reachable => Hearing::begin(&me).await,
            _ => None,
        };
        self.locks.hearing.get_or_init(hear).await.is_some()
    }

    /// Handles NLM_GRANTED: returns the status of the reply, which says whether a request still
    /// waits for the lock. `None`: the lock owner is not one of this mount's.
    pub(super) fn granted(&self, lock: &nlm::Lock) -> Option<Status> {
        let owner = OpenLockOwner::from_bytes(lock.owner.0.strip_prefix(&self.unique)?)?;
        let range = LockRange::from_nlm(lock.offset, lock.length)?;
        let wanted = self.locks.waiters.granted(owner, range);
        tracing::debug!("{}: NLM_GRANTED; a request waits for it: {wanted}", self.server);
        Some(if wanted { Status::Granted } else { Status::Denied })
    }

    /// Sends the result of a callback that expects it as a separate call.
    pub(super) async fn answer_grant(&self, res: Res) {
        if let Err(error) = self.nlm::<call::GrantedRes>(&self.own, &res).await {
            tracing::debug!("{error}");
        }
    }

    /// Requests a lock until the server has decided.
    async fn request(
        &self,
        cred: &OpaqueAuth,
        handle: &Handle,
        owner: OpenLockOwner,
        lock: Lock,
        how: How,
    ) -> Result<Status> {
        let mut backoff = self.backoff();
        loop {
            let status = self.request_once(cred, handle, owner, lock, how).await?;
            if status != Status::DeniedGracePeriod || !backoff.wait().await {
                return Ok(status);
            }
        }
    }

    async fn request_once(
        &self,
        cred: &OpaqueAuth,
        handle: &Handle,
        owner: OpenLockOwner,
        lock: Lock,
        how: How,
    ) -> Result<Status> {
        let args = LockArgs {
            cookie: self.cookie(),
            block: how.block,
            exclusive: lock.exclusive,
            lock: self.wire_lock(cred, handle, owner, lock.range),
            reclaim: how.reclaim,
            state: 1,
        };
        Ok(self.nlm::<call::Lock>(cred, &args).await?.status)
    }

    /// All locks held.
    fn held(&self) -> Vec<(Handle, Arc<OpaqueAuth>, OpenLockOwner, Lock)> {
        let files = self.locks.files.lock();
        let of_file = |(handle, file)| {
            let FileLocks { cred, held, .. }: &FileLocks = file;
            let handle: &Handle = handle;
            held.all().map(move |(who, lock)| (handle.clone(), Arc::clone(cred), *who, lock))
        };
        files.iter().flat_map(of_file).collect()
    }

    /// Releases all locks, for the end of the mount: the server would keep them forever.
    pub(super) async fn give_up_locks(&self) {
        for (handle, cred, owner, lock) in self.held() {
            let open = OpenContext { cred, handle, state: None };
            if let Err(error) = self.unlock_range(&open, owner, lock.range).await {
                tracing::warn!(
                    "cannot unlock before unmounting; the server keeps the lock: {error}"
                );
            }
        }
    }

    async fn reclaim(&self) {
        let mut changed = Vec::new();
        for (handle, cred, owner, lock) in self.held() {
            let LockRange { start: mut from, end } = lock.range;
            let held = |range| self.locks.held_in(&handle, owner, range);
            // The owner may have released or replaced it since.
            while from < end
                && let Some(&part) = held(LockRange { start: from, end }).first()
            {
                from = part.range.end;
                self.locks.begin_retaking(&handle, owner, part.range);
                let kept = self.retake(&cred, &handle, owner, part).await;
                // Perhaps it was released or replaced before the request arrived.
                if !self.locks.end_retaking(&handle) || held(part.range) != [part] {
                    let (cred, handle) = (Arc::clone(&cred), handle.clone());
                    changed.push((OpenContext { cred, handle, state: None }, owner, part.range));
                } else {
                    match kept {
                        Ok(Retaken::Kept) => {}
                        Ok(Retaken::Anew) => self.lose(&handle, "the server had lost it"),
                        Ok(Retaken::Refused(status)) => self.lose(&handle, &format!("{status:?}")),
                        Err(error) => self.lose(&handle, &error.to_string()),
                    }
                }
            }
        }
        if !changed.is_empty()
            && let Some(me) = self.me.upgrade()
        {
            // Not here: a server may refuse it until its grace period ends, and restart before.
            tokio::spawn(async move { me.settle_reclaimed(changed).await });
        }
    }

    /// Takes a lock again from a server that may have restarted.
    async fn retake(
        &self,
        cred: &OpaqueAuth,
        handle: &Handle,
        owner: OpenLockOwner,
        lock: Lock,
    ) -> Result<Retaken> {
        let mut backoff = self.backoff();
        loop {
            let mut how = How { block: false, reclaim: true };
            let mut status = self.request_once(cred, handle, owner, lock, how).await?;
            if status == Status::Granted {
                return Ok(Retaken::Kept);
            }
            // There is no grace period: the server did not restart, and has the lock, or the grace period has passed.
            let before = self.test_as_stranger(cred, handle, owner, lock.range).await?;
            if before != TestReply::DeniedGracePeriod {
                how.reclaim = false;
                status = self.request_once(cred, handle, owner, lock, how).await?;
            }
            match (status, before) {
                (Status::Granted, TestReply::Granted) => {
                    // A server that does not tell of the lock now would not have told of it before. (Linux's does
                    // not tell of shared ones.)
                    let now = self.test_as_stranger(cred, handle, owner, lock.range).await?;
                    let is_told = matches!(now, TestReply::Denied(_));
                    return Ok(if is_told { Retaken::Anew } else { Retaken::Kept });
                }
                (Status::Granted, _) => return Ok(Retaken::Kept),
                // The server has restarted since it refused the reclaim.
                (Status::DeniedGracePeriod, _) if backoff.wait().await => {}
                (status, _) => return Ok(Retaken::Refused(status)),
            }
        }
    }

    /// What is in the way of an owner that holds nothing.
    async fn test_as_stranger(
        &self,
        cred: &OpaqueAuth,
        handle: &Handle,
        owner: OpenLockOwner,
        range: LockRange,
    ) -> Result<TestReply> {
        // The numbers of owners in use are far from this one.
        let number = owner.number.wrapping_add(1 << 30);
        let stranger = OpenLockOwner { open: 0, number, ..owner };
        let args = TestArgs {
            cookie: self.cookie(),
            exclusive: true,
            lock: self.wire_lock(cred, handle, stranger, range),
        };
        Ok(self.nlm::<call::Test>(cred, &args).await?.reply)
    }

    fn lose(&self, handle: &Handle, why: &str) {
        tracing::warn!("{}: a lock could not be reclaimed: {why}", self.server);
        self.locks.lose(handle);
    }

    /// Restores at the server what owners hold in ranges that they changed during a reclaim.
    async fn settle_reclaimed(&self, changed: Vec<(OpenContext, OpenLockOwner, LockRange)>) {
        // No request of the owner is on its way, whose lock this would replace or release.
        let _alone = self.locks.settling.write().await;
        for (open, owner, range) in changed {
            let held = |range| self.locks.held_in(&open.handle, owner, range);
            for part in held(range) {
                let how = How { block: false, reclaim: false };
                let status = self.request(&open.cred, &open.handle, owner, part, how).await;
                if !matches!(status, Ok(Status::Granted)) && !held(part.range).is_empty() {
                    self.lose(&open.handle, &format!("{status:?}"));
                }
            }
            // After that, because a part may have been released in the meantime.
            for range in range.without(&held(range)) {
                if let Err(error) = self.unlock_range(&open, owner, range).await {
                    tracing::debug!("{error}");
                }
            }
        }
    }

    fn wire_lock(
        &self,
        cred: &OpaqueAuth,
        handle: &Handle,
        owner: OpenLockOwner,
        range: LockRange,
    ) -> nlm::Lock {
        let machine = cred.auth_sys().map(|auth| auth.machine_name.0).unwrap_or_default();
        let bytes = [&self.unique[..], &owner.to_bytes()].concat();
        nlm::Lock {
            caller: Opaque(machine),
            file: Opaque(handle_of(handle).0),
            owner: Opaque::copy_from(&bytes),
            // Some servers distinguish owners by this alone.
            process: owner.number as i32 & i32::MAX,
            offset: range.start,
            length: range.nlm_length(),
        }
    }

    fn cookie(&self) -> nlm::NetObj {
        Opaque::copy_from(&self.locks.cookies.fetch_add(1, Relaxed).to_be_bytes())
    }

    fn refused(&self, operation: &'static str, status: Status) -> Error {
        Error::Status {
            server: Arc::clone(&self.server),
            operation,
            status: format!("{status:?}"),
            error: match status {
                Status::StaleHandle => VfsError::Stale,
                Status::ReadOnlyFs => VfsError::ReadOnly,
                Status::TooBig => VfsError::TooBig,
                Status::DeniedNoLocks => VfsError::OutOfMemory,
                Status::DeniedGracePeriod => VfsError::TimedOut,
                Status::Denied | Status::Blocked => VfsError::WouldBlock,
                Status::Deadlock => VfsError::Deadlock,
                Status::Granted | Status::Failed => VfsError::AccessDenied,
            },
        }
    }

    async fn nlm<C: Call>(&self, cred: &OpaqueAuth, args: &C::Args) -> Result<C::Res> {
        let connection = self.manager().await?;
        if self.has_ended() {
            connection.end();
        }
        self.call_on(connection, cred, C::PROCEDURE, args).await
    }

    /// The connection to the lock manager. A hard mount waits for a server that is down until the
    /// mount ends.
    async fn manager(&self) -> Result<&Connection> {
        let found = self.locks.connection.get_or_try_init(|| async {
            let ended = self.ended.notified();
            if self.has_ended() {
                return Err(VfsError::Io.into());
            }
            tokio::select! {
                found = self.find_manager() => found,
                () = ended => Err(VfsError::Io.into()),
            }
        });
        if self.hard {
            return found.await;
        }
        // Not a time-out of the request: nothing was sent that the server may have executed.
        let late = |_| Error::NoAnswer { server: Arc::clone(&self.server) };
        timeout(self.patience.limit(), found).await.map_err(late)?
    }

    fn has_ended(&self) -> bool {
        self.connections.iter().any(Connection::has_ended)
    }

    /// Many servers have both programs on one port. A hard mount tries again as long as nothing answers there,
    /// or at the port that the mapper reports. It also waits for the mapper if that has answered before:
    /// other servers may have none.
    async fn find_manager(&self) -> Result<Connection> {
        let mut backoff = Backoff::to_connect();
        loop {
            let waits = match self.manager_at_own_port().await {
                Err(Error::Refused { refusal: Refusal::ProgramUnavailable, .. }) => {
                    match self.mapped_manager().await {
                        Err(error) if is_silence(&error) && self.has_mapper.load(Relaxed) => error,
                        outcome => return outcome,
                    }
                }
                Err(error) if is_silence(&error) => error,
                outcome => return outcome,
            };
            if !self.hard {
                return Err(waits);
            }
            tracing::debug!("{waits}; trying again");
            backoff.wait().await;
        }
    }

    async fn manager_at_own_port(&self) -> Result<Connection> {
        let own = self.connect_at(self.peer.port(), &self.locks.counters).await?;
        self.call_on::<()>(&own, &self.own, Procedure::Null, &()).await?;
        Ok(own)
    }

    async fn mapped_manager(&self) -> Result<Connection> {
        let mapped = self.connect_to_program(nlm::ID, "NLM", &self.locks.counters).await?;
        // Once it has answered, calls wait for it while it is down.
        self.call_on::<()>(&mapped, &self.own, Procedure::Null, &()).await?;
        Ok(mapped)
    }

    async fn call_on<T: Decode>(
        &self,
        connection: &Connection,
        cred: &OpaqueAuth,
        procedure: Procedure,
        args: &impl Encode,
    ) -> Result<T> {
        let which = (nlm::PROGRAM, nlm::VERSION, procedure as u32);
        program::call(connection, cred, which, procedure.name(), args).await
    }
}

/// Whether nothing answers: the server may be down.
fn is_silence(error: &Error) -> bool {
    matches!(error, Error::Connect { .. } | Error::NoAnswer { .. })
}

/// Checks for server restarts as long as locks are held.
async fn look(mount: Weak<V3>) {
    let mut reconnects = None;
    loop {
        let Some(v3) = mount.upgrade() else { return };
        {
            let mut looking = v3.locks.looking.lock();
            if v3.locks.files.lock().is_empty() {
                *looking = false;
                return;
            }
        }
        let before = reconnects.unwrap_or_else(|| v3.locks.counters.reconnects.load(Relaxed));
        match v3.nlm::<call::Null>(&v3.own, &()).await {
            Ok(()) => {
                let now = v3.locks.counters.reconnects.load(Relaxed);
                reconnects = Some(now);
                if now != before {
                    v3.reclaim().await;
                }
            }
            Err(_) if v3.locks.connection().is_some_and(Connection::has_ended) => return,
            Err(error) => {
                reconnects = Some(before);
                tracing::debug!("{error}");
            }
        }
        drop(v3);
        tokio::time::sleep(LOOK_EVERY).await;
    }
}
