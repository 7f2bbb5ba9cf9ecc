//! What the state of clients costs in memory: each kind is bounded in number (`state::Limits`), so
//! this bounds its bytes. Handles of files are not counted; the page cache has them.

use bytes::Bytes;
use std::alloc::{GlobalAlloc, Layout, System};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;
use weir_server::handle::Node;
use weir_server::state::{
    Channel, Claim, ClientId, Grace, Ids, Limits, LockRequest, LockTarget, OpenRequest, Owner,
    Principal, Range, Share, State, StateId,
};
use weir_vfs::{Access, FileId};

struct Counting;

static IN_USE: AtomicUsize = AtomicUsize::new(0);

// SAFETY: hands everything on to the system's allocator.
unsafe impl GlobalAlloc for Counting {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        IN_USE.fetch_add(layout.size(), Ordering::Relaxed);
        // SAFETY: the caller's word.
        unsafe { System.alloc(layout) }
    }

    unsafe fn dealloc(&self, at: *mut u8, layout: Layout) {
        IN_USE.fetch_sub(layout.size(), Ordering::Relaxed);
        // SAFETY: the caller's word.
        unsafe { System.dealloc(at, layout) }
    }
}

#[global_allocator]
static ALLOCATOR: Counting = Counting;

const NOW: Duration = Duration::ZERO;
const BOTH: Share = Share { access: Access::READ.union(Access::WRITE), deny: Access::empty() };

/// Bytes that each of `count` takes.
fn each(what: &str, count: usize, mut make: impl FnMut(usize)) -> usize {
    let before = IN_USE.load(Ordering::Relaxed);
    (0..count).for_each(&mut make);
    let bytes = (IN_USE.load(Ordering::Relaxed) - before) / count;
    println!("{count} {what}: {bytes} bytes each");
    bytes
}

fn client(state: &mut State<()>, number: usize) -> ClientId {
    let owner = Owner { sessions: true, name: Bytes::from(format!("Linux NFSv4.2 host{number}")) };
    let principal = Principal { flavor: 1, uid: 0 };
    let clients = &mut state.clients;
    let id = clients.exchange_id(owner, [0; 8], principal.clone(), false, NOW).unwrap().id;
    state.confirm(id, &principal, NOW).unwrap();
    state.reclaim_complete(id).unwrap();
    state.clients.get_mut(id).unwrap().is_recorded = true;
    id
}

fn node(ino: usize) -> Node {
    Node { export: 0, id: FileId { ino: ino as u64, generation: 1 } }
}

fn open(state: &mut State<()>, client: ClientId, ino: usize) -> StateId {
    let owner = Bytes::from(format!("open id: {ino:24}"));
    let request = OpenRequest {
        client,
        owner,
        node: node(ino),
        share: BOTH,
        claim: Claim::New,
        confirm: false,
        by: Principal { flavor: 1, uid: 0 },
        made: false,
        file: (),
    };
    state.open(request, NOW).unwrap()
}

#[test]
fn ten_thousand_files_a_thousand_sessions_a_hundred_thousand_locks_fit_in_their_bounds() {
    let mut state: State<()> =
        State::new(Ids::new(1, [7; 32]), Limits::default(), Grace::default());
    let channel = Channel {
        max_request: 1 << 20,
        max_response: 1 << 20,
        max_cached: 4096,
        max_operations: 64,
        slots: 64,
    };
    let mut clients = Vec::new();
    let session = each("sessions, a client each, 64 slots", 1000, |number| {
        let id = client(&mut state, number);
        state.sessions.create(id, channel, channel, 2).unwrap();
        clients.push(id);
    });
    let mut opens = Vec::new();
    let file = each("open files", 10_000, |ino| {
        opens.push(open(&mut state, clients[ino % 1000], ino));
    });
    let lock = each("locked ranges", 100_000, |number| {
        let ino = number % 10_000;
        // Ranges that do not touch, so that none are joined.
        let start = (number / 10_000) as u64 * 100;
        let request = LockRequest {
            client: clients[ino % 1000],
            target: LockTarget::Open(opens[ino], Bytes::from_static(b"lock id: of one process")),
            node: node(ino),
            range: Range { start, end: start + 10 },
            exclusive: true,
            reclaim: false,
            wait: false,
            listens: false,
        };
        state.lock(request, NOW).unwrap();
    });
    assert!(session < 12 << 10, "{session} bytes for a session and its client");
    assert!(file < 1500, "{file} bytes for an open file");
    assert!(lock < 250, "{lock} bytes for a locked range");
    clients.iter().for_each(|&id| state.purge(id));
    assert_eq!(state.counts(), (0, 0));
}
