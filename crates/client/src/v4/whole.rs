//! Small files that are written or read whole.
//!
//! ```text
//!            head                             body
//!   OPEN (temporary name, mode 0600) | WRITE, VERIFY size, SETATTR, CLOSE, RENAME to the final name
//! ```
//!
//! 1. Head and body are one compound if the server keeps the current stateid (RFC 8881 section
//!    16.2.3.1.2), else two. A server stops at the first operation that fails, so the final name is
//!    given only to a file with all of its data and attributes. VERIFY stops it after a short write.
//! 2. After any failure the file is closed and its temporary name removed: the name is used once, and by
//!    one program. The caller then takes single operations.
//! 3. A compound that a server executes again, because it lost the session, ends the same way: either
//!    the temporary name is free again, and the same data replaces itself, or OPEN fails.
//! 4. A read opens nothing. The anonymous stateid is subject to the share reservations, mandatory
//!    locks and delegations of others like an open (RFC 8881 section 8.2.3); ACCESS checks the mode, since
//!    servers let a file's owner read in any case.

use super::acl::{LIST, access_list_of};
use super::attr::{WANTED, set_attrs};
use super::client::V4;
use super::requests::{getattr, putfh};
use crate::error::{Result, Violation};
use crate::protocol::{Handle, NewEntry, Node, Protocol, broken};
use crate::v4::session::answer::Answer;
use crate::v4::state::open_state::is_state_lost;
use std::collections::HashSet;
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering::Relaxed};
use std::time::SystemTime;
use weir_base::sync::Mutex;
use weir_nfs::Data;
use weir_nfs::v4::op::access::Rights;
use weir_nfs::v4::op::open::{Claim, CreateHow, How};
use weir_nfs::v4::op::{self, close, listxattrs, read, rename, setattr, write};
use weir_nfs::v4::types::{Name, StableHow, StateId};
use weir_nfs::v4::{Attrs, Error as Nfs4Error, Op, OpCode, OpRes};
use weir_rpc::OpaqueAuth;
use weir_vfs::{Access, SetAttr, SetTime, WholeFile, WholeRead};
use weir_xdr::Bytes;

/// The mode of a file that is being written.
const MODE: u32 = 0o600;
/// Room in a message for everything but the data.
const ROOM_BYTES: usize = 4096;
/// Most runs of data in one compound, so that it stays within every server's number of operations.
const MOST_RUNS: usize = 2;
/// Most operations besides those of the runs, SEQUENCE included.
const OPERATIONS: usize = 13;
/// Failures in a row after which no more files are tried.
const MOST_FAILURES: u32 = 8;
/// Most pairs of owner and group that are remembered as refused.
const MOST_OWNERS: usize = 1024;
/// Bytes of names of extended attributes in the reply to a read; a file with more is not read whole.
const XATTR_BYTES: u32 = 1024;

/// What a server has refused.
#[derive(Default)]
pub(super) struct WholeFiles {
    /// It keeps no current stateid.
    pub(super) no_current_stateid: AtomicBool,
    /// Files in a row that the server was unable to take whole.
    failures: AtomicU32,
    /// Owners and groups that it does not let this client set.
    refused_owners: Mutex<HashSet<(u32, u32)>>,
}

impl WholeFiles {
    /// Notes a failure that tells what the server is able to do, rather than of this file.
    fn failed(&self, error: Nfs4Error) {
        use Nfs4Error::{
            BadStateId, Inval, NotSame, NotSupp, OldStateId, OpIllegal, RepTooBig,
            RepTooBigToCache, ReqTooBig, Resource, TooManyOps,
        };
        if matches!(
            error,
            BadStateId
                | Inval
                | NotSame
                | NotSupp
                | OldStateId
                | OpIllegal
                | RepTooBig
                | RepTooBigToCache
                | ReqTooBig
                | Resource
                | TooManyOps
        ) {
            self.failures.fetch_add(1, Relaxed);
        }
    }
}

/// A new file that may be open at the server.
struct New {
    handle: Handle,
    stateid: StateId,
}

impl V4 {
    /// Creates a small file whole; `None` if that is not possible.
    pub(super) async fn put_file(
        &self,
        cred: &OpaqueAuth,
        dir: &Handle,
        file: &WholeFile,
    ) -> Result<Option<Node>> {
        let Some(owner) = self.owner_to_set(file) else { return Ok(None) };
        if !self.fits(file) || self.whole.failures.load(Relaxed) >= MOST_FAILURES {
            return Ok(None);
        }
        let put = Put { v4: self, cred, dir, file, owner };
        let done = match self.has_sessions() {
            true => put.with_session().await?,
            false => put.without_session().await?,
        };
        if done.is_some() {
            self.whole.failures.store(0, Relaxed);
        }
        Ok(done)
    }

    /// Whether a file fits in one compound. Files of an uncached mount are opened with advice.
    fn fits(&self, file: &WholeFile) -> bool {
        let bytes: usize = file.data.iter().map(|(_, run)| run.len()).sum();
        let session = self.session();
        let operations = OPERATIONS + 2 * file.data.len();
        let in_session = !self.has_sessions()
            || (bytes + ROOM_BYTES <= session.max_request
                && session.max_response >= ROOM_BYTES
                && operations <= session.max_operations);
        in_session
            && bytes <= self.limits().write
            && file.data.len() <= MOST_RUNS
            && !self.noreuse.load(Relaxed)
            && !self.delegations.any()
    }

    /// The owner to set, if any; `None` if the server does not let this client set it and the mode
    /// gives the rights of the owner.
    fn owner_to_set(&self, file: &WholeFile) -> Option<Option<(u32, u32)>> {
        match file.owner {
            Some(owner) if self.whole.refused_owners.lock().contains(&owner) => {
                (file.mode & 0o6000 == 0).then_some(None)
            }
            owner => Some(owner),
        }
    }
}

struct Put<'a> {
    v4: &'a V4,
    cred: &'a OpaqueAuth,
    dir: &'a Handle,
    file: &'a WholeFile,
    owner: Option<(u32, u32)>,
}

impl Put<'_> {
    async fn with_session(&self) -> Result<Option<Node>> {
        let v4 = self.v4;
        let attrs = SetAttr { mode: Some(MODE), ..SetAttr::default() };
        let how = How::Create(CreateHow::Guarded(set_attrs(&attrs).into()));
        let claim = Claim::Null(self.file.temporary.as_slice().into());
        let open = Op::Open(v4.open_args(Access::WRITE, how, claim));
        let mut ops = vec![putfh(self.dir), Op::Savefh(()), open, Op::Getfh(())];
        let is_one = !v4.whole.no_current_stateid.load(Relaxed);
        if is_one {
            ops.extend(self.body(StateId::CURRENT, 0));
        }
        let answer = v4.exchange(self.cred, "OPEN", &ops, None).await?;
        let Some(new) = self.opened(&answer) else {
            if let Err(error) = answer.status {
                v4.whole.failed(error);
            }
            let is_open = |result: &OpRes| match result {
                OpRes::Open(Ok(opened)) => Some(opened.stateid),
                _ => None,
            };
            if let Some(stateid) = answer.results.iter().find_map(is_open) {
                let name = self.file.temporary.as_slice();
                let found = vec![putfh(self.dir), Op::Lookup(name.into())];
                self.close(found, stateid).await;
                self.remove().await;
            } else if answer.status == Err(Nfs4Error::Exist) {
                // Created by this compound before the server lost the session.
                self.remove().await;
            }
            return Ok(None);
        };
        let failed = ops.get(answer.results.len().saturating_sub(1)).map(Op::code);
        match answer.status {
            Ok(()) if is_one => return self.published(new, answer).map(Some),
            Ok(()) => {}
            Err(error) if is_one && refuses_current_stateid(failed, error) => {
                v4.whole.no_current_stateid.store(true, Relaxed);
            }
            Err(error) => return self.give_up(new, &answer, failed, error).await,
        }
        self.second(new, 0).await
    }

    async fn without_session(&self) -> Result<Option<Node>> {
        let v4 = self.v4;
        let set = SetAttr { mode: Some(MODE), ..SetAttr::default() };
        let entry = NewEntry { dir: self.dir, name: &self.file.temporary, set: &set };
        let how = How::Create(CreateHow::Guarded(set_attrs(&set).into()));
        let (state, _) = match v4.open_new_without_session(self.cred, &entry, how).await {
            Ok(opened) => opened,
            Err(error) => {
                // Created by this request, whose reply was lost, or whose open was not confirmed.
                self.remove().await;
                return match error.to_vfs() {
                    weir_vfs::Error::TimedOut => Err(error),
                    _ => Ok(None),
                };
            }
        };
        let (stateid, seqid) = {
            let known = state.known.lock();
            (known.stateid, known.seqid)
        };
        let handle = state.handle.clone();
        let node = self.second(New { handle, stateid }, seqid).await;
        match &node {
            Ok(Some(node)) => v4.found(node, self.dir, &self.file.name),
            Ok(None) | Err(_) => v4.close_new_without_session(self.cred, state).await,
        }
        node
    }

    /// The body as a compound of its own.
    async fn second(&self, new: New, seqid: u32) -> Result<Option<Node>> {
        let mut ops = vec![putfh(self.dir), Op::Savefh(()), putfh(&new.handle)];
        ops.extend(self.body(new.stateid, seqid));
        let answer = match self.v4.exchange(self.cred, "WRITE", &ops, None).await {
            Ok(answer) => answer,
            Err(error) => {
                self.close(vec![putfh(&new.handle)], new.stateid).await;
                return Err(error);
            }
        };
        let failed = ops.get(answer.results.len().saturating_sub(1)).map(Op::code);
        match answer.status {
            Ok(()) => self.published(new, answer).map(Some),
            Err(error) => self.give_up(new, &answer, failed, error).await,
        }
    }

    /// The operations after OPEN. The current filehandle is the file, the saved one its directory.
    fn body(&self, stateid: StateId, seqid: u32) -> Vec<Op> {
        let file = self.file;
        let set = |stateid, set: &SetAttr| {
            Op::Setattr(setattr::Args { stateid, attrs: set_attrs(set).into() })
        };
        let (mut ops, mut size) = (Vec::new(), 0);
        for (offset, run) in &file.data {
            let data = Data::from(Bytes::copy_from_slice(run));
            let stable = StableHow::FileSync;
            ops.push(Op::Write(write::Args { stateid, offset: *offset, stable, data }));
            size = offset + run.len() as u64;
            let attrs = Attrs { size: Some(size), ..Attrs::default() };
            ops.push(Op::Verify(attrs.into()));
        }
        if file.size > size {
            ops.push(set(stateid, &SetAttr { size: Some(file.size), ..SetAttr::default() }));
        }
        // Before the mode: a change of the owner clears bits of it.
        if let Some((uid, gid)) = self.owner {
            let owner = SetAttr { uid: Some(uid), gid: Some(gid), ..SetAttr::default() };
            ops.push(set(StateId::ANONYMOUS, &owner));
        }
        let last = SetAttr {
            mode: Some(file.mode),
            atime: file.times.map(|(atime, _)| SetTime::To(atime)),
            mtime: file.times.map(|(_, mtime)| SetTime::To(mtime)),
            ..SetAttr::default()
        };
        ops.extend([
            set(StateId::ANONYMOUS, &last),
            getattr(WANTED),
            Op::Close(close::Args { seqid, open_stateid: stateid }),
            Op::Restorefh(()),
            Op::Rename(rename::Args {
                from: file.temporary.as_slice().into(),
                to: file.name.as_slice().into(),
            }),
        ]);
        ops
    }

    fn opened(&self, answer: &Answer) -> Option<New> {
        let (mut stateid, mut handle) = (None, None);
        for result in &answer.results {
            match result {
                OpRes::Open(Ok(opened)) => stateid = Some(opened.clone()),
                OpRes::Getfh(Ok(found)) => handle = Some(Handle(found.0.clone())),
                _ => {}
            }
        }
        let (opened, handle) = (stateid?, handle?);
        self.v4.delegations.refuse(&handle, &opened.delegation);
        Some(New { handle, stateid: opened.stateid })
    }

    /// Everything was done: checks that it is durable, and returns the file.
    fn published(&self, new: New, answer: Answer) -> Result<Node> {
        let mut attrs = None;
        for result in answer.results {
            match result {
                OpRes::Write(Ok(written)) if written.committed == StableHow::Unstable => {
                    // The file has its final name already. No other file is written whole here.
                    self.v4.whole.failures.store(MOST_FAILURES, Relaxed);
                    return Err(broken(&self.v4.server, "WRITE", Violation::NotDurable));
                }
                OpRes::Getattr(Ok(found)) => attrs = Some(found),
                _ => {}
            }
        }
        let attrs = attrs.ok_or_else(|| self.v4.unexpected("GETATTR"))?;
        let node = self.v4.node_of(new.handle, &attrs, "GETATTR")?;
        match node.attr.size == self.file.size {
            true => Ok(node),
            false => Err(broken(&self.v4.server, "WRITE", Violation::WrongCount)),
        }
    }

    /// Removes what was done, after the operation `failed`.
    async fn give_up(
        &self,
        new: New,
        answer: &Answer,
        failed: Option<OpCode>,
        error: Nfs4Error,
    ) -> Result<Option<Node>> {
        let v4 = self.v4;
        tracing::debug!("{}: {failed:?}: {error}; writing the file in several calls", v4.server);
        v4.whole.failed(error);
        let is_set = |result: &&OpRes| matches!(result, OpRes::Setattr(_));
        let set_before = answer.results.iter().filter(is_set).count();
        let sets_size = usize::from(self.file.size > end_of(self.file));
        if let Some(owner) = self.owner
            && failed == Some(OpCode::Setattr)
            && set_before == sets_size + 1
            && is_no_right(error)
        {
            let mut refused = v4.whole.refused_owners.lock();
            if refused.len() >= MOST_OWNERS {
                refused.clear();
            }
            refused.insert(owner);
        }
        let is_closed = answer.results.iter().any(|result| matches!(result, OpRes::Close(Ok(_))));
        if !is_closed {
            self.close(vec![putfh(&new.handle)], new.stateid).await;
        }
        self.remove().await;
        Ok(None)
    }

    /// Closes the file that `found` makes the current filehandle, if the server has sessions. In
    /// minor version 0 the caller closes it, with the owner's next number.
    async fn close(&self, found: Vec<Op>, stateid: StateId) {
        if !self.v4.has_sessions() {
            return;
        }
        let mut ops = found;
        ops.push(Op::Close(close::Args { seqid: 0, open_stateid: stateid }));
        // If this fails, the open ends with the lease.
        if let Err(error) = self.v4.call(self.cred, "CLOSE", &ops).await {
            tracing::debug!("{error}");
        }
    }

    /// Removes the temporary name, if it exists. The failure before is the one that counts.
    async fn remove(&self) {
        let removed = self.v4.remove(self.cred, self.dir, &self.file.temporary, false).await;
        if let Err(error) = removed {
            tracing::debug!("{error}");
        }
    }
}

/// The end of the last run of data.
fn end_of(file: &WholeFile) -> u64 {
    file.data.last().map_or(0, |(offset, run)| offset + run.len() as u64)
}

/// Whether the failure is that of a server without a current stateid.
fn refuses_current_stateid(failed: Option<OpCode>, error: Nfs4Error) -> bool {
    matches!(failed, Some(OpCode::Write | OpCode::Setattr | OpCode::Close)) && is_state_lost(error)
}

fn is_no_right(error: Nfs4Error) -> bool {
    matches!(error, Nfs4Error::Perm | Nfs4Error::Access | Nfs4Error::BadOwner)
}

impl V4 {
    /// Reads a small file whole; `None` if that is not possible.
    pub(super) async fn get_file(
        &self,
        cred: &OpaqueAuth,
        handle: &Handle,
        most: usize,
        with_xattrs: bool,
    ) -> Result<Option<WholeRead>> {
        let count = match self.has_sessions() {
            true => most.min(self.session().max_response.saturating_sub(ROOM_BYTES)),
            false => most,
        };
        let count = count.min(self.limits().read);
        // A file with a delegation is read through the open that keeps it, without other requests.
        if self.noreuse.load(Relaxed) || self.grant_of(handle).is_some() {
            return Ok(None);
        }
        let asks_list = with_xattrs && self.has_lists();
        let wanted = if asks_list { WANTED.union(LIST) } else { WANTED };
        let mut ops = vec![
            putfh(handle),
            getattr(WANTED),
            Op::Access(Rights::READ),
            Op::Read(read::Args { stateid: StateId::ANONYMOUS, offset: 0, count: count as u32 }),
            getattr(wanted),
        ];
        if with_xattrs && self.minor >= 2 {
            ops.push(Op::Listxattrs(listxattrs::Args { cookie: 0, max_bytes: XATTR_BYTES }));
        }
        let began = SystemTime::now();
        let answer = self.exchange(cred, "READ", &ops, None).await?;
        let mut results = answer.results.into_iter().skip(1);
        let (
            Some(OpRes::Getattr(Ok(before))),
            Some(OpRes::Access(Ok(op::access::Granted { rights: Rights::READ, .. }))),
            Some(OpRes::Read(Ok(read))),
            Some(OpRes::Getattr(Ok(after))),
        ) = (results.next(), results.next(), results.next(), results.next())
        else {
            return Ok(None);
        };
        let access_list = asks_list.then(|| access_list_of(&after));
        let node = |attrs| self.node_of(handle.clone(), attrs, "GETATTR");
        let (before, after) = (node(&before)?.attr, node(&after)?.attr);
        let xattrs = match results.next() {
            Some(OpRes::Listxattrs(Ok(listed))) if listed.eof => {
                let full = |name: &Name| [b"user.", &name[..]].concat();
                Some(listed.names.iter().map(full).collect())
            }
            Some(OpRes::Listxattrs(Err(Nfs4Error::NotSupp))) => Some(Vec::new()),
            // Earlier versions have none.
            None if self.minor < 2 => Some(Vec::new()),
            _ => None,
        };
        if !read.eof || read.data.len() as u64 != after.size {
            return Ok(None);
        }
        let data = read.data.to_bytes().to_vec();
        Ok(Some(WholeRead { before, after, began, data, xattrs, access_list }))
    }
}
