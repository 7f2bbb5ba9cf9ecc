//! State as many clients leave it, so that `tests/state_memory.rs` can measure its memory.

use crate::handle::Node;
use crate::state::{
    Channel, Claim, ClientId, Grace, Ids, Limits, LockRequest, LockTarget, OpenRequest, Owner,
    Principal, Range, SequenceArgs, Share, State, StateError, StateId,
};
use bytes::Bytes;
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

/// The state of many clients, with file handles of no size.
#[derive(Debug)]
pub struct StateLoad {
    state: State<()>,
    clients: Vec<ClientId>,
    opens: Vec<StateId>,
}

impl Default for StateLoad {
    fn default() -> Self {
        let state = State::new(Ids::new(1, [7; 32]), Limits::default(), Grace::default());
        Self { state, clients: Vec::new(), opens: Vec::new() }
    }
}

impl StateLoad {
    /// Adds a client with a session of 64 slots. Returns false if the state refuses it.
    pub fn add_session(&mut self) -> bool {
        self.try_add_session().is_ok()
    }

    fn try_add_session(&mut self) -> Result<(), StateError> {
        let state = &mut self.state;
        let name = Bytes::from(format!("Linux NFSv4.2 host{}", self.clients.len()));
        let owner = Owner { sessions: true, name };
        let id = state.clients.exchange_id(owner, [0; 8], PRINCIPAL, false, NOW)?.id;
        state.confirm(id, &PRINCIPAL, NOW)?;
        state.reclaim_complete(id)?;
        state.clients.get_mut(id)?.is_recorded = true;
        state.create_session(id, CHANNEL, CHANNEL, 2)?;
        self.clients.push(id);
        Ok(())
    }

    /// Uses all slots of the session of client `number`. Returns false if the state refuses it.
    pub fn use_slots(&mut self, number: usize) -> bool {
        let sessions = &mut self.state.sessions;
        let Some(id) = sessions.of(self.clients[number]).next().map(|session| session.id) else {
            return false;
        };
        (0..CHANNEL.slots).all(|slot| {
            let highest_slot = CHANNEL.slots - 1;
            let request = SequenceArgs { slot, sequence: 1, highest_slot, digest: 0, keep: false };
            let begun = sessions.begin(id, request);
            sessions.finish(id, slot, None);
            begun.is_ok()
        })
    }

    /// Opens the next file, each for the next client. Returns false if the state refuses it.
    pub fn open_file(&mut self) -> bool {
        let ino = self.opens.len();
        let request = OpenRequest {
            client: self.clients[ino % self.clients.len()],
            owner: Bytes::from(format!("open id: {ino:24}")),
            node: node(ino),
            share: BOTH,
            claim: Claim::New,
            confirm: false,
            by: PRINCIPAL,
            made: false,
            truncates: false,
            file: (),
        };
        let opened = self.state.open(request, NOW);
        self.opens.extend(opened);
        opened.is_ok()
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
        self.state.lock(request, NOW).is_ok()
    }

    /// Frees all clients and what they have. Returns whether nothing is left.
    pub fn purge(&mut self) -> bool {
        self.clients.drain(..).for_each(|id| self.state.purge(id));
        self.state.counts() == (0, 0)
    }
}

fn node(ino: usize) -> Node {
    Node { export: 0, id: FileId { ino: ino as u64, generation: 1 } }
}
