//! What users may do with a file that their client has delegated, after the superuser has changed its mode, access
//! control list or owner: the answers of the server over NFSv4.0 to 4.2, compared with those of the kernel.
//!
//! A delegation belongs to a client, and so to all of its users. It grants none of them a right.

use super::*;
use crate::export::Durability;
use crate::kernel_rights::{Change, MayOpen, OTHER, OWNER, SQUASHED, USERS, User, set_mode};
use crate::state::ClientId;
use std::time::{SystemTime, UNIX_EPOCH};
use weir_nfs::v4::acl::AceMask;
use weir_nfs::v4::op::open::{Claim, CreateHow, Delegation, How, ShareAccess, ShareDeny};
use weir_nfs::v4::op::{
    allocate, close, commit, copy, deallocate, io_advise, lock, read, seek, setattr, write,
    write_same,
};
use weir_nfs::v4::types::{Content, LockType, NfsTime, StableHow};
use weir_nfs::v4::{Bitmap, CbOp};
use weir_stores::local::{LocalFs, LocalOptions};
use weir_vfs::{Access, Capabilities};

pub(super) const READ: Access = Access::READ;
pub(super) const WRITE: Access = Access::WRITE;
pub(super) const BOTH: Access = Access::READ.union(Access::WRITE);

/// A served directory to which all users may write.
pub(super) struct Served {
    pub(super) f: Fixture,
    pub(super) dir: tempfile::TempDir,
    pub(super) users: &'static [User],
    /// The changes of files, and what each user may do with the file then, in the order of `users`.
    pub(super) changes: Vec<(Change, Vec<MayOpen>)>,
}

impl Served {
    /// `squash`: the superuser is squashed, and is the only user.
    pub(super) async fn new(squash: bool, adjust: [fn(&mut ServerConfig); 2]) -> Self {
        let dir = tempfile::tempdir().unwrap();
        set_mode(dir.path(), 0o777);
        let store = LocalFs::open(dir.path(), LocalOptions::default()).unwrap();
        let has_lists = store.capabilities().contains(Capabilities::POSIX_ACL);
        if !has_lists {
            weir_skip::skip("the file system has no access control lists");
        }
        let users = if squash { &[SQUASHED][..] } else { &USERS };
        let changes = Change::all(has_lists).into_iter().enumerate();
        let changes = changes.map(|(number, change)| {
            let answers = change.answers(&dir.path().join(format!("kernel-{number}")), users);
            (change, answers)
        });
        let changes = changes.collect();
        std::fs::write(dir.path().join("mine"), "bytes").unwrap();
        set_mode(&dir.path().join("mine"), 0o666);
        let f = Fixture::of_with(store, adjust[usize::from(squash)]).await;
        Self { f, dir, users, changes }
    }

    pub(super) fn path(&self, name: &str) -> std::path::PathBuf {
        self.dir.path().join(name)
    }

    /// Makes a file that all users may read and write.
    pub(super) fn make(&self, name: &str) {
        let path = self.path(name);
        std::fs::write(&path, "bytes").unwrap();
        std::os::unix::fs::chown(&path, Some(OWNER), Some(OWNER)).unwrap();
        set_mode(&path, 0o666);
    }
}

/// Adjusts a server that does not squash the superuser, and one that does.
const ADJUST: [fn(&mut ServerConfig); 2] = [
    |config| {
        config.delegated_times = true;
        config.exports[0].options.durability = Durability::Relaxed;
    },
    |config| {
        config.delegated_times = true;
        config.exports[0].options.durability = Durability::Relaxed;
        config.exports[0].options.squash = Squash::Root;
    },
];

/// A client of all users of a machine, which the superuser has established.
pub(super) struct Machine {
    pub(super) c: Client,
    pub(super) client_id: u64,
    /// The number of the open owner's next request (minor version 0).
    pub(super) seqid: u32,
    /// Keeps the callback service of minor version 0.
    _calls: Option<tokio::sync::mpsc::UnboundedReceiver<CbOp>>,
}

impl Machine {
    /// Establishes the client. It may reclaim until [`begin`](Self::begin).
    pub(super) async fn introduce(f: &Fixture, minor: u32) -> Self {
        let name = ["4.0", "4.1", "4.2"][minor as usize];
        let mut c = f.connect(name, minor).await;
        if minor == 0 {
            let (addr, calls, _) = callbacks::listen().await;
            let client_id = v40::introduce_at(&mut c, Some(addr)).await;
            return Self { c, client_id, seqid: 1, _calls: Some(calls) };
        }
        c.service.is_there = true;
        c.begin_session(1 << 20).await;
        Self { c, client_id: 0, seqid: 1, _calls: None }
    }

    /// Ends reclaims, and waits until the server can call the client.
    pub(super) async fn begin(f: &Fixture, minor: u32) -> Self {
        let mut machine = Self::introduce(f, minor).await;
        if minor > 0 {
            let complete = reclaim_complete::Args { one_fs: false };
            machine.c.ok(vec![Op::ReclaimComplete(complete)]).await;
            f.test_backchannel(&mut machine.c).await;
        } else {
            f.test_callback_service(ClientId(machine.client_id)).await;
        }
        machine
    }

    pub(super) fn act_as(&mut self, User { uid, gid, .. }: User) {
        self.c.cred = OpaqueAuth::from(&AuthSys { uid, gid, ..AuthSys::default() });
    }

    pub(super) async fn send(&mut self, ops: Vec<Op>) -> Reply {
        let counts = |op: &Op| matches!(op, Op::Open(_) | Op::Close(_));
        let is_counted = ops.last().is_some_and(counts);
        let locks = matches!(ops.last(), Some(Op::Lock(_)));
        let reply = match self.c.minor {
            0 => self.c.raw(ops).await,
            _ => self.c.run(ops).await,
        };
        if is_counted || (locks && reply.status.is_ok()) {
            self.seqid += 1;
        }
        reply
    }

    /// The root, and files in it.
    pub(super) async fn handles(&mut self, names: [&str; 2]) -> [FileHandle; 3] {
        self.act_as(SUPERUSER);
        let mut ops = vec![Op::Putrootfh(()), Op::Getfh(())];
        for name in names {
            ops.extend([Op::Putrootfh(()), Op::Lookup(name.into()), Op::Getfh(())]);
        }
        let reply = self.send(ops).await;
        let handles = reply.results.iter().filter_map(|result| match result {
            OpRes::Getfh(Ok(handle)) => Some(handle.clone()),
            _ => None,
        });
        let handles: Vec<FileHandle> = handles.collect();
        handles.try_into().unwrap()
    }

    /// Takes back what an OPEN has given.
    pub(super) async fn give_back(&mut self, file: &FileHandle, opened: &open::Opened) {
        self.act_as(SUPERUSER);
        let held = of_delegation(&opened.delegation).map(|(_, held)| held);
        let open = Some(opened.stateid).filter(|id| *id != StateId::ANONYMOUS);
        for (open_stateid, is_open) in
            open.map(|id| (id, true)).into_iter().chain(held.map(|id| (id, false)))
        {
            let op = match is_open {
                true => Op::Close(close::Args { seqid: self.seqid, open_stateid }),
                false => Op::Delegreturn(open_stateid),
            };
            assert_eq!(self.send(vec![Op::Putfh(file.clone()), op]).await.status, Ok(()));
        }
    }
}

/// Who establishes clients.
pub(super) const SUPERUSER: User = crate::kernel_rights::user(0, 0);

/// Whether a delegation is for writing, and its stateid. Checks that it lets users open nothing without a question.
pub(super) fn of_delegation(delegation: &Delegation) -> Option<(bool, StateId)> {
    let (writes, stateid, permissions) = match delegation {
        Delegation::Read(d) | Delegation::ReadAttrs(d) => (false, d.stateid, &d.permissions),
        Delegation::Write(d) | Delegation::WriteAttrs(d) => (true, d.stateid, &d.permissions),
        Delegation::None | Delegation::NoneExt(_) => return None,
    };
    assert_eq!(permissions.mask, AceMask::empty(), "{permissions:?}");
    Some((writes, stateid))
}

/// The result of a compound's OPEN.
pub(super) fn opened(reply: &Reply) -> Option<&open::Opened> {
    match reply.results.last() {
        Some(OpRes::Open(Ok(opened))) => Some(opened),
        _ => None,
    }
}

/// What gives a user the right to do something with a file.
#[derive(Clone, Copy, Debug)]
pub(super) enum Needs {
    /// To do it under a stateid: the kernel's answer; or to own the file, to have created it under that state, or to
    /// execute it, for reading. The client may have opened the file before it was changed (RFC 8881 section 18.22.4).
    Under(Access),
    /// The same for SETATTR of the size. In minor version 0, the server knows the client of a delegation only if its
    /// own user calls, so that another one would recall it.
    Resizes,
    /// The same without a state, so the server knows of no creator of the file.
    Without(Access),
    /// The kernel's answer alone.
    Kernel(Access),
    /// The kernel's answer, or to execute the file, for reading.
    Opens(Access),
    /// To write under a delegation, and so to change the times.
    Times,
    /// COMMIT: to be a user of a client that writes the file, because it finishes what was written. In minor version 0
    /// the server does not know the client.
    Commits,
    /// To be a user of the client.
    Nothing,
}

/// State of a file that a client has.
pub(super) struct State {
    pub(super) minor: u32,
    pub(super) client_id: u64,
    pub(super) seqid: u32,
    pub(super) root: FileHandle,
    pub(super) name: String,
    pub(super) file: FileHandle,
    /// A file that all users may read and write.
    pub(super) mine: FileHandle,
    /// Of a delegation, or an open.
    pub(super) stateid: StateId,
    /// What it allows.
    pub(super) access: Access,
    /// The client has a delegation of the file.
    pub(super) is_delegated: bool,
    /// The client has the file open or delegated for writing.
    pub(super) writes: bool,
    /// Who created the file with it.
    pub(super) maker: Option<u32>,
}

impl State {
    /// A file in the root of which the client has no state.
    pub(super) async fn find(m: &mut Machine, name: &str) -> Self {
        let [root, file, mine] = m.handles([name, "mine"]).await;
        let (minor, client_id, seqid, name) = (m.c.minor, m.client_id, m.seqid, name.to_owned());
        Self {
            minor,
            client_id,
            seqid,
            root,
            name,
            file,
            mine,
            stateid: StateId::ANONYMOUS,
            access: BOTH,
            is_delegated: false,
            writes: false,
            maker: None,
        }
    }

    fn on_file(&self, op: Op) -> Vec<Op> {
        vec![Op::Putfh(self.file.clone()), op]
    }

    /// An OPEN of the file, for a claim by name or of the file's handle.
    pub(super) fn opens(&self, access: ShareAccess, claim: Claim) -> Vec<Op> {
        let at = match claim {
            Claim::Null(_) | Claim::DelegateCur(_) | Claim::DelegatePrev(_) => &self.root,
            _ => &self.file,
        };
        let owner = StateOwner { client_id: self.client_id, owner: "process".into() };
        let (share_deny, how) = (ShareDeny::empty(), How::NoCreate);
        let (seqid, share_access) = (self.seqid, access);
        let args = open::Args { seqid, share_access, share_deny, owner, how, claim };
        vec![Op::Putfh(at.clone()), Op::Open(args)]
    }

    fn claims(&self, access: ShareAccess) -> Vec<Op> {
        self.opens(access, Claim::DelegCurFh(self.stateid))
    }

    fn claims_by_name(&self, access: ShareAccess) -> Vec<Op> {
        let file = self.name.as_str().into();
        let current = open::DelegateCur { delegate_stateid: self.stateid, file };
        self.opens(access, Claim::DelegateCur(current))
    }

    fn sets(&self, stateid: StateId, attrs: Attrs) -> Vec<Op> {
        self.on_file(Op::Setattr(setattr::Args { stateid, attrs: attrs.into() }))
    }

    fn truncates(&self, stateid: StateId) -> Vec<Op> {
        self.sets(stateid, Attrs { size: Some(5), ..Attrs::default() })
    }

    fn reads(&self, stateid: StateId) -> Vec<Op> {
        self.on_file(Op::Read(read::Args { stateid, offset: 0, count: 1 }))
    }

    fn writes(&self, stateid: StateId) -> Vec<Op> {
        let data = weir_nfs::Data::Bytes("x".into());
        let stable = StableHow::Unstable;
        self.on_file(Op::Write(write::Args { stateid, offset: 0, stable, data }))
    }

    fn copies(&self, from: (&FileHandle, StateId), to: (&FileHandle, StateId)) -> Vec<Op> {
        let args = copy::Args {
            source: from.1,
            destination: to.1,
            source_offset: 0,
            destination_offset: 0,
            count: 1,
            consecutive: true,
            synchronous: true,
            source_servers: List::default(),
        };
        let (from, to) = (Op::Putfh(from.0.clone()), Op::Putfh(to.0.clone()));
        vec![from, Op::Savefh(()), to, Op::Copy(args)]
    }

    fn fills(&self) -> Vec<Op> {
        let args = write_same::Args {
            stateid: self.stateid,
            stable: StableHow::Unstable,
            offset: 0,
            block_size: 1,
            block_count: 1,
            relative_number_offset: u64::MAX,
            block_number: 0,
            relative_pattern_offset: 0,
            pattern: weir_xdr::Opaque::copy_from(b"x"),
        };
        self.on_file(Op::WriteSame(args))
    }

    fn span(&self) -> allocate::Args {
        allocate::Args { stateid: self.stateid, offset: 0, length: 1 }
    }

    fn locks(&self, kind: LockType) -> Vec<Op> {
        let lock_owner = StateOwner { client_id: self.client_id, owner: "thread".into() };
        let (open_seqid, lock_seqid, open_stateid) = (self.seqid, 0, self.stateid);
        let new = lock::NewLocker { open_seqid, open_stateid, lock_seqid, lock_owner };
        let (reclaim, offset, length) = (false, 0, 1);
        let locker = lock::Locker::New(new);
        self.on_file(Op::Lock(lock::Args { kind, reclaim, offset, length, locker }))
    }

    /// The answer to a user who needs this, by what the kernel allows the user.
    pub(super) fn expected(
        &self,
        needs: Needs,
        user: User,
        (change, may): (Change, MayOpen),
    ) -> Status {
        let owns = user.acts_as.0 == change.owner;
        let again = |access| owns || may.or_executes(access);
        let (allowed, access) = match needs {
            Needs::Under(access) => (again(access) || self.maker == Some(user.uid), access),
            Needs::Times | Needs::Resizes => (again(WRITE) || self.maker == Some(user.uid), WRITE),
            Needs::Without(access) => (again(access), Access::empty()),
            Needs::Kernel(access) => (may.allows(access), Access::empty()),
            Needs::Opens(access) => (may.or_executes(access), Access::empty()),
            Needs::Commits => ((self.minor > 0 && self.writes) || again(WRITE), Access::empty()),
            Needs::Nothing => (true, Access::empty()),
        };
        match (self.access.contains(access), allowed) {
            (false, _) => Err(Error::OpenMode),
            (true, false) => Err(Error::Access),
            (true, true) => Ok(()),
        }
    }
}

/// What users try.
pub(super) struct Row {
    pub(super) name: &'static str,
    /// The first minor version that has it.
    pub(super) since: u32,
    pub(super) needs: Needs,
    pub(super) ops: fn(&State) -> Vec<Op>,
}

const fn row(name: &'static str, since: u32, needs: Needs, ops: fn(&State) -> Vec<Op>) -> Row {
    Row { name, since, needs, ops }
}

use Needs::{Commits, Kernel, Nothing, Opens, Resizes, Times, Under, Without};

/// I/O under a stateid, of an open or a delegation.
pub(super) const IO: [Row; 9] = [
    row("READ", 0, Under(READ), |s| s.reads(s.stateid)),
    row("WRITE", 0, Under(WRITE), |s| s.writes(s.stateid)),
    row("SETATTR of the size", 0, Resizes, |s| s.truncates(s.stateid)),
    row("READ_PLUS", 2, Under(READ), |s| {
        s.on_file(Op::ReadPlus(read::Args { stateid: s.stateid, offset: 0, count: 1 }))
    }),
    row("SEEK", 2, Under(READ), |s| {
        let what = Content::Hole;
        s.on_file(Op::Seek(seek::Args { stateid: s.stateid, offset: 0, what }))
    }),
    row("WRITE_SAME", 2, Under(WRITE), State::fills),
    row("ALLOCATE", 2, Under(WRITE), |s| s.on_file(Op::Allocate(s.span()))),
    row("DEALLOCATE", 2, Under(WRITE), |s| {
        let allocate::Args { stateid, offset, length } = s.span();
        s.on_file(Op::Deallocate(deallocate::Args { stateid, offset, length }))
    }),
    row("COMMIT", 0, Commits, |s| s.on_file(Op::Commit(commit::Args { offset: 0, count: 0 }))),
];

/// What else users do with a delegated file.
const DELEGATED: [Row; 16] = [
    row("IO_ADVISE", 2, Under(READ), |s| {
        let (offset, count, hints) = (0, 0, Bitmap::EMPTY);
        s.on_file(Op::IoAdvise(io_advise::Args { stateid: s.stateid, offset, count, hints }))
    }),
    row("COPY from it", 2, Under(READ), |s| {
        s.copies((&s.file, s.stateid), (&s.mine, StateId::ANONYMOUS))
    }),
    row("COPY to it", 2, Under(WRITE), |s| {
        s.copies((&s.mine, StateId::ANONYMOUS), (&s.file, s.stateid))
    }),
    row("OPEN by name under it to read", 0, Under(READ), |s| s.claims_by_name(ShareAccess::READ)),
    row("OPEN by name under it to write", 0, Under(WRITE), |s| {
        s.claims_by_name(ShareAccess::WRITE)
    }),
    row("OPEN by name under it for both", 0, Under(BOTH), |s| s.claims_by_name(ShareAccess::BOTH)),
    row("OPEN under it to read", 1, Under(READ), |s| s.claims(ShareAccess::READ)),
    row("OPEN under it to write", 1, Under(WRITE), |s| s.claims(ShareAccess::WRITE)),
    row("OPEN under it for both", 1, Under(BOTH), |s| s.claims(ShareAccess::BOTH)),
    // The client's users need no state.
    row("READ, anonymous", 1, Without(READ), |s| s.reads(StateId::ANONYMOUS)),
    row("READ, bypassing", 1, Without(READ), |s| s.reads(StateId::READ_BYPASS)),
    row("WRITE, anonymous", 1, Without(WRITE), |s| s.writes(StateId::ANONYMOUS)),
    row("SETATTR of the size, anonymous", 1, Kernel(WRITE), |s| s.truncates(StateId::ANONYMOUS)),
    row("OPEN beside it to read", 1, Opens(READ), |s| {
        s.opens(ShareAccess::READ | ShareAccess::WANT_NO_DELEG, Claim::Fh)
    }),
    row("SETATTR of times that it keeps", 2, Times, |s| {
        let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap();
        let time = NfsTime { seconds: now.as_secs() as i64 + 1000, nseconds: 0 };
        s.sets(s.stateid, Attrs { time_deleg_modify: Some(time), ..Attrs::default() })
    }),
    // Locks exclude, and grant no right: users of a client need none.
    row("LOCK", 1, Nothing, |s| s.locks(LockType::Read)),
];

/// What of a delegation and the open that it came with a client keeps.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Keeps {
    Both,
    /// The client closes the file.
    Delegation,
    /// The client opens the file for a delegation alone (RFC 9754 section 4).
    Alone,
}

/// A delegation that a client has.
#[derive(Clone, Copy, Debug)]
struct Held {
    minor: u32,
    writes: bool,
    keeps: Keeps,
    holder: u32,
    /// The holder created the file with it.
    made: bool,
}

const fn held(minor: u32, writes: bool, keeps: Keeps, holder: u32, made: bool) -> Held {
    Held { minor, writes, keeps, holder, made }
}

const HELD: [Held; 6] = [
    held(0, false, Keeps::Delegation, OTHER, false),
    held(1, false, Keeps::Delegation, OWNER, false),
    held(1, true, Keeps::Both, OTHER, true),
    held(2, false, Keeps::Alone, OTHER, true),
    held(2, true, Keeps::Alone, OTHER, true),
    held(2, true, Keeps::Delegation, OWNER, false),
];

impl Held {
    /// OPEN that gets it.
    fn op(self, name: &str, (client_id, seqid): (u64, u32)) -> Op {
        let (share, want) = match self.writes {
            true => (ShareAccess::BOTH, ShareAccess::WANT_WRITE_DELEG),
            false => (ShareAccess::READ, ShareAccess::WANT_READ_DELEG),
        };
        let mut share_access = if self.minor > 0 { share | want } else { share };
        if self.keeps == Keeps::Alone {
            share_access |= ShareAccess::WANT_OPEN_XOR_DELEGATION;
        }
        if self.minor == 2 && self.writes {
            share_access |= ShareAccess::WANT_DELEG_TIMESTAMPS;
        }
        let attrs = Attrs { mode: Some(0o444), size: Some(5), ..Attrs::default() };
        let how = match self.made {
            true => How::Create(CreateHow::Guarded(attrs.into())),
            false => How::NoCreate,
        };
        // Minor version 0 has one owner, whose requests are numbered.
        let owner = if self.minor > 0 { "holder" } else { "process" };
        let owner = StateOwner { client_id, owner: owner.into() };
        let (share_deny, claim) = (ShareDeny::empty(), Claim::Null(name.into()));
        Op::Open(open::Args { seqid, share_access, share_deny, owner, how, claim })
    }

    async fn get(self, served: &Served, m: &mut Machine, name: &str) -> State {
        if !self.made {
            served.make(name);
        }
        let group = if self.holder == OWNER { OWNER } else { OTHER };
        m.act_as(crate::kernel_rights::user(self.holder, group));
        let mut last = None;
        // Without a want, a client gets a delegation with its second open.
        for _ in 0..2 {
            let ops = vec![Op::Putrootfh(()), self.op(name, (m.client_id, m.seqid))];
            let reply = m.send(ops).await;
            assert_eq!(reply.status, Ok(()), "{self:?}");
            last = opened(&reply).cloned();
            if last.as_ref().is_some_and(|last| of_delegation(&last.delegation).is_some()) {
                break;
            }
        }
        let last = last.unwrap();
        let (writes, stateid) = of_delegation(&last.delegation).unwrap();
        assert_eq!(writes, self.writes);
        assert_eq!(last.stateid == StateId::ANONYMOUS, self.keeps == Keeps::Alone);
        let mut state = State::find(m, name).await;
        if self.keeps == Keeps::Delegation {
            let opened = open::Opened { delegation: Delegation::None, ..last };
            m.give_back(&state.file, &opened).await;
        }
        (state.stateid, state.access) = (stateid, if writes { BOTH } else { READ });
        (state.writes, state.maker) = (writes, self.made.then_some(self.holder));
        state.is_delegated = true;
        state
    }
}

/// Has each user try some rows. Returns the wrong answers.
pub(super) async fn try_rows<'a>(
    m: &mut Machine,
    state: &mut State,
    rows: impl Iterator<Item = &'a Row> + Clone,
    (users, (change, answers)): (&[User], &(Change, Vec<MayOpen>)),
) -> Vec<String> {
    let mut wrong = Vec::new();
    for (&user, &may) in users.iter().zip(answers) {
        for row in rows.clone().filter(|row| row.since <= state.minor) {
            if state.minor == 0 && state.is_delegated && matches!(row.needs, Resizes) {
                continue;
            }
            state.seqid = m.seqid;
            m.act_as(user);
            let reply = m.send((row.ops)(state)).await;
            if let Some(opened) = opened(&reply).cloned() {
                assert_eq!(of_delegation(&opened.delegation), None);
                m.give_back(&state.file, &opened).await;
            }
            let expected = state.expected(row.needs, user, (*change, may));
            if reply.status != expected {
                let (name, minor, access, maker) =
                    (row.name, state.minor, state.access, state.maker);
                wrong.push(format!(
                    "{name} by {user:?} over 4.{minor}, state for {access:?}, made by {maker:?}, \
                     {change:?}: {:?}, not {expected:?}",
                    reply.status
                ));
            }
        }
    }
    wrong
}

pub(super) fn report(wrong: &[String]) {
    assert!(wrong.is_empty(), "{} differences:\n{}", wrong.len(), wrong.join("\n"));
}

#[tokio::test]
async fn a_delegation_grants_no_user_a_right() {
    if !weir_skip::is_root("it runs processes of several users") {
        return;
    }
    let mut wrong = Vec::new();
    for squash in [false, true] {
        let served = Served::new(squash, ADJUST).await;
        for minor in 0..3 {
            let mut m = Machine::begin(&served.f, minor).await;
            for (number, held) in HELD.into_iter().enumerate().filter(|(_, h)| h.minor == minor) {
                let times = minor == 2 && held.writes;
                let rows = IO.iter().chain(&DELEGATED);
                let rows = rows.filter(|row| times || !matches!(row.needs, Needs::Times));
                for (at, change) in served.changes.iter().enumerate() {
                    let name = format!("file-{number}-{at}");
                    let mut state = held.get(&served, &mut m, &name).await;
                    change.0.make(&served.path(&name));
                    let found =
                        try_rows(&mut m, &mut state, rows.clone(), (served.users, change)).await;
                    wrong.extend(found.into_iter().map(|one| format!("{held:?}: {one}")));
                    m.act_as(SUPERUSER);
                    let returns = state.on_file(Op::Delegreturn(state.stateid));
                    assert_eq!(m.send(returns).await.status, Ok(()));
                }
            }
        }
    }
    report(&wrong);
}

/// An OPEN that may be granted a delegation: what it is for, what it wants, and which delegation that is.
const WANTS: [(ShareAccess, ShareAccess, bool); 5] = [
    (ShareAccess::READ, ShareAccess::WANT_READ_DELEG, false),
    (ShareAccess::READ, ShareAccess::WANT_WRITE_DELEG, true),
    (ShareAccess::WRITE, ShareAccess::WANT_WRITE_DELEG, true),
    (ShareAccess::WRITE, ShareAccess::WANT_ANY_DELEG, true),
    (ShareAccess::BOTH, ShareAccess::WANT_WRITE_DELEG, true),
];

/// The access of a share reservation.
pub(super) fn access_of(share: ShareAccess) -> Access {
    Access::from_bits_truncate(share.bits() & 3)
}

#[tokio::test]
async fn an_open_gets_a_delegation_only_for_what_its_user_may_do() {
    if !weir_skip::is_root("it runs processes of several users") {
        return;
    }
    let mut wrong = Vec::new();
    for squash in [false, true] {
        let served = Served::new(squash, ADJUST).await;
        for minor in 0..3 {
            let mut m = Machine::begin(&served.f, minor).await;
            let either = ShareAccess::WANT_OPEN_XOR_DELEGATION;
            let extra = [ShareAccess::empty(), either];
            let wants = extra[..if minor == 2 { 2 } else { 1 }].iter().flat_map(|&extra| {
                WANTS.into_iter().map(move |(share, want, writes)| match minor {
                    0 => (share, writes),
                    _ => (share | want | extra, writes),
                })
            });
            // Minor version 0 has no write delegations.
            let wants = wants.filter(|(_, writes)| minor > 0 || !writes);
            for (at, (change, answers)) in served.changes.iter().enumerate() {
                let name = format!("file-{minor}-{at}");
                served.make(&name);
                let mut state = State::find(&mut m, &name).await;
                change.make(&served.path(&name));
                for (&user, may) in served.users.iter().zip(answers) {
                    for (share, writes) in wants.clone() {
                        let access = access_of(share);
                        let opens = may.or_executes(access);
                        let delegates = opens && may.or_executes(if writes { BOTH } else { READ });
                        let expected = (opens, delegates.then_some(writes));
                        let mut got = (false, None);
                        // Without a want, a client gets a delegation with its second open.
                        for _ in 0..2 {
                            m.act_as(user);
                            state.seqid = m.seqid;
                            let reply = m.send(state.opens(share, open_claim(&state))).await;
                            let res = opened(&reply).cloned();
                            let given = res.as_ref().and_then(|o| of_delegation(&o.delegation));
                            got = (res.is_some(), given.map(|(writes, _)| writes));
                            if let Some(res) = res {
                                m.give_back(&state.file, &res).await;
                            }
                            if minor > 0 || given.is_some() {
                                break;
                            }
                        }
                        if got != expected {
                            wrong.push(format!(
                                "{share:?} by {user:?} over 4.{minor}, {change:?}: {got:?}, not \
                                 {expected:?}"
                            ));
                        }
                    }
                }
            }
        }
    }
    report(&wrong);
}

fn open_claim(state: &State) -> Claim {
    if state.minor == 0 { Claim::Null(state.name.as_str().into()) } else { Claim::Fh }
}
