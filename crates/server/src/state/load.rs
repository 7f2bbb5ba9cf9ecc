//! State of many clients, so that `tests/state_memory.rs` can measure its memory, and `benches/state.rs` what the
//! transitions cost.

use crate::handle::Node;
use crate::state::{
    Channel, Claim, ClientId, Grace, Ids, Limits, LockRequest, LockTarget, OpenRequest, Owner,
    Principal, Range, SequenceArgs, Sequenced, SessionId, Share, SlotTables, State, StateError,
    StateId,
};
use bytes::Bytes;
use parking_lot::Mutex;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;
use weir_vfs::{Access, FileId};

const NOW: Duration = Duration::ZERO;
const PRINCIPAL: Principal = Principal { flavor: 1, uid: 0 };
const BOTH: Share = Share { access: Access::READ.union(Access::WRITE), deny: Access::empty() };
const CHANNEL: Channel = Channel {
    max_request: 1 << 20,
    max_response: 1 << 20,
    max_cached: 4096,
    max_operations: 64,
    slots: 64,
};

/// A file that a client has open.
#[derive(Clone, Copy, Debug)]
pub struct LoadedFile {
    client: ClientId,
    node: Node,
    open: StateId,
    locks: Option<StateId>,
}

/// The state of many clients, with file handles of no size.
#[derive(Debug)]
pub struct StateLoad {
    state: Mutex<State<()>>,
    slot_tables: Arc<SlotTables>,
    records_due: Arc<AtomicBool>,
    clients: Vec<ClientId>,
    sessions: Vec<SessionId>,
    opens: Vec<StateId>,
}

impl Default for StateLoad {
    fn default() -> Self {
        let state = State::new(Ids::new(1, [7; 32]), Limits::default(), Grace::default());
        let (clients, sessions, opens) = (Vec::new(), Vec::new(), Vec::new());
        let slot_tables = state.sessions.slot_tables().clone();
        let records_due = state.records_due().clone();
        Self { state: Mutex::new(state), slot_tables, records_due, clients, sessions, opens }
    }
}

impl StateLoad {
    /// Adds a client with a session of 64 slots. Returns false if the state refuses it.
    pub fn add_session(&mut self) -> bool {
        self.try_add_session().is_ok()
    }

    fn try_add_session(&mut self) -> Result<(), StateError> {
        let state = self.state.get_mut();
        let name = Bytes::from(format!("Linux NFSv4.2 host{}", self.clients.len()));
        let owner = Owner { sessions: true, name };
        let id = state.clients.exchange_id(owner, [0; 8], PRINCIPAL, false, NOW)?.id;
        state.confirm(id, &PRINCIPAL, NOW)?;
        state.reclaim_complete(id)?;
        state.clients.get_mut(id)?.is_recorded = true;
        let session = state.create_session(id, CHANNEL, CHANNEL, 2)?.id;
        self.clients.push(id);
        self.sessions.push(session);
        Ok(())
    }

    /// Uses all slots of the session of client `number`. Returns false if the state refuses it.
    pub fn use_slots(&mut self, number: usize) -> bool {
        let Ok(slots) = self.slot_tables.get(self.sessions[number]) else { return false };
        (0..CHANNEL.slots).all(|slot| {
            let highest_slot = CHANNEL.slots - 1;
            let request = SequenceArgs { slot, sequence: 1, highest_slot, digest: 0, keep: false };
            let begun = slots.begin(request, NOW).is_ok();
            if begun {
                slots.finish(slot, None, NOW);
            }
            begun
        })
    }

    /// Opens the next file, each for the next client. Returns false if the state refuses it.
    pub fn open_file(&mut self) -> bool {
        let ino = self.opens.len();
        let opened = self.open(ino % self.clients.len(), ino);
        self.opens.extend(opened.map(|file| file.open));
        opened.is_some()
    }

    /// Opens file `ino` for client `number`. Returns `None` if the state refuses it.
    pub fn open(&mut self, number: usize, ino: usize) -> Option<LoadedFile> {
        let (client, node) = (self.clients[number], node(ino));
        let request = OpenRequest {
            client,
            owner: Bytes::from(format!("open id: {ino:24}")),
            node,
            share: BOTH,
            claim: Claim::New,
            confirm: false,
            by: PRINCIPAL,
            made: false,
            truncates: false,
            file: (),
        };
        let open = self.state.get_mut().open(request, NOW).ok()?;
        self.state.get_mut().keep_open(open);
        Some(LoadedFile { client, node, open, locks: None })
    }

    /// Locks bytes of an open file. Returns false if the state refuses it.
    pub fn lock(&mut self, file: &mut LoadedFile, start: u64, end: u64, exclusive: bool) -> bool {
        let owner = Bytes::from_static(b"lock id: of one process");
        let request = LockRequest {
            client: file.client,
            target: file.locks.map_or(LockTarget::Open(file.open, owner), LockTarget::Locks),
            node: file.node,
            range: Range { start, end },
            exclusive,
            reclaim: false,
            wait: false,
            listens: false,
        };
        let locked = self.state.get_mut().lock(request, NOW).ok();
        file.locks = locked.or(file.locks);
        locked.is_some()
    }

    /// Unlocks bytes of an open file. Returns false if the state refuses it.
    pub fn unlock(&mut self, file: &mut LoadedFile, start: u64, end: u64) -> bool {
        let Some(locks) = file.locks else { return false };
        let range = Range { start, end };
        let unlocked = self.state.get_mut().unlock(file.client, locks, file.node, range).ok();
        file.locks = unlocked.or(file.locks);
        unlocked.is_some()
    }

    /// What READ asks of the state. Returns false if the state refuses it.
    pub fn read(&mut self, file: &LoadedFile) -> bool {
        self.state.get_mut().io(Some(file.client), file.open, file.node, Access::READ).is_ok()
    }

    /// What a compound of SEQUENCE and READ asks of the state, with its locks: the request `sequence`, counted from 1,
    /// in the first slot of the session of client `number`. Returns false if the state refuses it.
    pub fn read_in_session(&self, number: usize, file: &LoadedFile, sequence: u32) -> bool {
        let Ok(slots) = self.slot_tables.get(self.sessions[number]) else { return false };
        let request = SequenceArgs { slot: 0, sequence, highest_slot: 0, digest: 0, keep: false };
        let Ok(Sequenced::Execute { .. }) = slots.begin(request, NOW) else { return false };
        let has_status = slots.has_status();
        let io = self.state.lock().io(Some(file.client), file.open, file.node, Access::READ);
        let due = self.records_due.load(Ordering::Acquire);
        slots.finish(0, None, NOW);
        io.is_ok() && !has_status && !due
    }

    /// What READ of file `ino` without an open asks of the state. Returns false if the state refuses it.
    pub fn read_unopened(&mut self, ino: usize) -> bool {
        self.state.get_mut().anonymous_io(node(ino), Access::READ, NOW).is_ok()
    }

    /// Closes a file, and releases its locks. Returns false if the state refuses it.
    pub fn close(&mut self, file: LoadedFile) -> bool {
        self.state.get_mut().close(file.client, file.open, file.node).is_ok()
    }

    /// Locks range `number`; the ranges of all files do not touch, so that none are joined. Returns
    /// false if the state refuses it.
    pub fn lock_range(&mut self, number: usize) -> bool {
        let ino = number % self.opens.len();
        let start = (number / self.opens.len()) as u64 * 100;
        let request = LockRequest {
            client: self.clients[ino % self.clients.len()],
            target: LockTarget::Open(
                self.opens[ino],
                Bytes::from_static(b"lock id: of one process"),
            ),
            node: node(ino),
            range: Range { start, end: start + 10 },
            exclusive: true,
            reclaim: false,
            wait: false,
            listens: false,
        };
        self.state.get_mut().lock(request, NOW).is_ok()
    }

    /// Frees all clients and what they have. Returns whether nothing is left.
    pub fn purge(&mut self) -> bool {
        let state = self.state.get_mut();
        self.clients.drain(..).for_each(|id| state.purge(id));
        state.counts() == (0, 0)
    }
}

fn node(ino: usize) -> Node {
    Node { export: 0, id: FileId { ino: ino as u64, generation: 1 } }
}
