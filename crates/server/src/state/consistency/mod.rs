//! Random transitions of clients and hosts: after each, the tables agree with each other, with the counts
//! of what each holds, and with the locks in the store.

mod sessions;

use super::table::FileState;
use super::tables::nlm::QueuedLock;
use super::tests::{LEASE, client, owner, principal, ready, record, request};
use super::*;
use crate::admission;
use crate::handle::Node;
use bytes::Bytes;
use parking_lot::Mutex;
use std::collections::{HashMap, HashSet};
use std::net::IpAddr;
use std::sync::Arc;
use std::time::{Duration, SystemTime};
use weir_vfs::{Access, FileId, Lock, TO_END};

const RUNS: u64 = 150;
const STEPS: usize = 400;
/// Locks and files have few bytes, so that they meet.
const BYTES: usize = 24;
const NAMES: [&str; 4] = ["a", "b", "c", "d"];
const FILES: u64 = 3;
const HOSTS: u8 = 2;

/// The locks in the store: the mode of each byte, and one that a local program holds.
#[derive(Debug)]
struct Store {
    modes: Mutex<[Option<bool>; BYTES]>,
    program: Option<Lock>,
}

impl Store {
    fn set(&self, range: Range, mode: Option<bool>) {
        let end = range.end.min(BYTES as u64) as usize;
        let start = (range.start as usize).min(end);
        self.modes.lock()[start..end].fill(mode);
    }
}

impl StoreLocks for Store {
    fn conflict(&self, lock: Lock) -> Option<Lock> {
        let meets = |held: &Lock| {
            held.range.start < lock.range.end
                && lock.range.start < held.range.end
                && (held.exclusive || lock.exclusive)
        };
        self.program.filter(meets)
    }

    fn lock(&self, lock: Lock) -> Result<(), Lock> {
        self.conflict(lock).map_or(Ok(()), Err)?;
        self.set(lock.range, Some(lock.exclusive));
        Ok(())
    }

    fn unlock(&self, range: Range) {
        self.set(range, None);
    }
}

struct World {
    state: State<char>,
    random: u64,
    now: Duration,
    /// Stateids of opens and locks, of those that may be gone too.
    opens: Vec<(ClientId, StateId, Node)>,
    locks: Vec<(ClientId, StateId, Node)>,
    delegations: Vec<(ClientId, StateId, Node)>,
    /// OPENs in progress.
    pending: Vec<StateId>,
    /// Those of them that truncate.
    truncating: Vec<StateId>,
    reserved: Vec<ClientId>,
    /// The slots of requests in progress.
    requests: Vec<(Arc<SlotTable>, u32)>,
    /// Requests begun so far.
    executed: usize,
    grants: Vec<u64>,
    stores: HashMap<Node, Arc<Store>>,
}

impl World {
    fn new(seed: u64) -> Self {
        let limits = Limits {
            clients: 16,
            opens: 16,
            locks: 16,
            delegations: 4,
            store_locks: 4,
            nlm_hosts: 8,
            nlm_waiting: 8,
            ..Limits::default()
        };
        // In every other run the clients have state of an earlier run to reclaim.
        let earlier = NAMES.into_iter().filter(|_| seed.is_multiple_of(2));
        let earlier = earlier.map(|name| (owner(name), record(ReclaimDenied::default())));
        let state = State::new(Ids::new(1, [7; 32]), limits, Grace::new(LEASE, earlier));
        Self {
            state,
            random: seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1,
            now: Duration::from_secs(1),
            opens: Vec::new(),
            locks: Vec::new(),
            delegations: Vec::new(),
            pending: Vec::new(),
            truncating: Vec::new(),
            reserved: Vec::new(),
            requests: Vec::new(),
            executed: 0,
            grants: Vec::new(),
            stores: HashMap::new(),
        }
    }

    /// Xorshift.
    fn below(&mut self, n: usize) -> usize {
        self.random ^= self.random << 13;
        self.random ^= self.random >> 7;
        self.random ^= self.random << 17;
        (self.random % n as u64) as usize
    }

    fn coin(&mut self) -> bool {
        self.below(2) == 0
    }

    fn node(&mut self) -> Node {
        Node { export: 0, id: FileId { ino: self.below(FILES as usize) as u64, generation: 0 } }
    }

    fn range(&mut self) -> Range {
        let (start, len) = (self.below(BYTES - 8) as u64, 1 + self.below(8) as u64);
        let end = if self.below(8) == 0 { TO_END } else { start + len };
        Range { start, end }
    }

    fn pick<T: Clone>(&mut self, from: impl Fn(&Self) -> &Vec<T>) -> Option<T> {
        let len = from(self).len();
        if len == 0 {
            return None;
        }
        let at = self.below(len);
        Some(from(self)[at].clone())
    }

    /// A client that can be called back, made if it is not there.
    fn client(&mut self) -> ClientId {
        let number = self.below(NAMES.len());
        let now = self.now;
        if let Some(found) = self.state.clients.confirmed(&owner(NAMES[number])).map(|c| c.id) {
            self.state.clients.renew(found, now);
            if !self.state.grace.is_active() {
                // It may have sent it before.
                _ = self.state.reclaim_complete(found);
            }
            if self.state.sessions.of(found).next().is_none() {
                self.add_session(found);
            }
            return found;
        }
        let id = if self.state.grace.is_active() {
            client(&mut self.state, NAMES[number], now)
        } else {
            ready(&mut self.state, NAMES[number], now)
        };
        // Two of them share an address, and one has none.
        let address = [Some([192, 0, 2, 1]), Some([192, 0, 2, 1]), Some([192, 0, 2, 2]), None];
        let client = self.state.clients.get_mut(id).unwrap();
        client.address = address[number].map(IpAddr::from);
        self.add_session(id);
        id
    }

    /// The NLM owner, whose host is in the table.
    fn host_owner(&mut self) -> NlmOwner {
        let host = IpAddr::from([192, 0, 2, 1 + self.below(HOSTS.into()) as u8]);
        if self.state.nlm_has_room_for(host) {
            self.state.nlm_remembered(host, self.now);
        }
        NlmOwner { host, user: None, handle: Bytes::new(), process: self.below(2) as i32 }
    }

    fn store_locks(&mut self, node: Node) -> Option<OpenedStoreLocks> {
        let by = [None, Some(IpAddr::from([192, 0, 2, 1]))][self.below(2)];
        if let Some(locks) = self.state.store_locks_of(node) {
            return Some(OpenedStoreLocks { locks, by });
        }
        if !self.state.may_lock_in_store(by) {
            return None;
        }
        let (range, exclusive) = (self.range(), self.coin());
        let program = (self.below(3) == 0).then_some(Lock { range, exclusive });
        let store = Arc::new(Store { modes: Mutex::new([None; BYTES]), program });
        self.stores.insert(node, store.clone());
        Some(OpenedStoreLocks { locks: store, by })
    }

    fn share(&mut self) -> Share {
        let access = [Access::READ, Access::WRITE, Access::READ | Access::WRITE][self.below(3)];
        let deny = match self.below(12) {
            0 => Access::READ,
            1 => Access::WRITE,
            2 => Access::READ | Access::WRITE,
            _ => Access::empty(),
        };
        Share { access, deny }
    }

    fn open(&mut self) {
        let (client, node, share, now) = (self.client(), self.node(), self.share(), self.now);
        let name = ["x", "y"][self.below(2)];
        let confirm = self.below(8) == 0 && self.state.open_owners(client).all(|o| o != name);
        let truncates = self.below(4) == 0;
        let claim = match self.below(8) {
            _ if self.state.grace.is_active() => Claim::Reclaim,
            0 => Claim::Delegated,
            _ => Claim::New,
        };
        let owner = name.into();
        let opens =
            OpenRequest { node, confirm, owner, claim, truncates, ..request(client, share) };
        if let Ok(id) = self.state.open(opens, now) {
            self.opens.push((client, id, node));
            self.pending.push(id);
            self.truncating.extend(truncates.then_some(id));
        }
    }

    fn lock(&mut self) {
        let (exclusive, wait, range, now) = (self.coin(), self.coin(), self.range(), self.now);
        let under = match self.below(3) {
            0 => self.pick(|w| &w.locks).map(|(c, id, n)| (c, LockTarget::Locks(id), n)),
            1 => {
                let name = Bytes::from(["p", "q"][self.below(2)]);
                let found = self.pick(|w| &w.delegations);
                found.map(|(c, id, n)| (c, LockTarget::Open(id, name), n))
            }
            _ => {
                let name = Bytes::from(["p", "q"][self.below(2)]);
                self.pick(|w| &w.opens).map(|(c, id, n)| (c, LockTarget::Open(id, name), n))
            }
        };
        let Some((client, target, node)) = under else { return };
        self.state.clients.renew(client, now);
        let (reclaim, listens) = (self.state.grace.is_active(), true);
        let request =
            LockRequest { client, target, node, range, exclusive, reclaim, wait, listens };
        let opened = self.store_locks(node);
        let locked = self.state.with_store_locks(node, opened, |state| state.lock(request, now));
        if let Ok(id) = locked {
            self.locks.push((client, id, node));
        }
    }

    fn delegate(&mut self) {
        let Some((client, _, node)) = self.pick(|w| &w.opens) else { return };
        let (share, now) = (self.share(), self.now);
        let request = DelegationRequest { client, node, share, wanted: Wanted::Any };
        let Ok(kind) = self.state.may_delegate(request, now) else { return };
        let at = SystemTime::UNIX_EPOCH;
        let grant = Grant {
            request,
            file: 'd',
            change: 5,
            times: Times { atime: at, mtime: at },
            keeps_times: false,
            referring: None,
            by: principal(),
            made: false,
        };
        if let Ok(id) = self.state.delegate(grant, kind, now) {
            self.delegations.push((client, id, node));
        }
    }

    fn nlm(&mut self) {
        let (owner, node, range, now) = (self.host_owner(), self.node(), self.range(), self.now);
        let exclusive = self.coin();
        match self.below(10) {
            0..4 => {
                let to = ReplyTo { cookie: Bytes::new(), caller: Bytes::new(), server: owner.host };
                let wait = self.coin().then_some(to);
                let lock = NlmLock { owner, node, range, exclusive, reclaim: false, wait };
                let opened = self.store_locks(node);
                _ = self.state.with_store_locks(node, opened, |state| state.nlm_lock(lock, now));
            }
            4 | 5 => _ = self.state.nlm_unlock(&owner, node, range),
            6 => {
                let waiting = self.state.files.get(&node).and_then(|file| file.waiting.first());
                let Some(QueuedLock { owner, range, exclusive, .. }) = waiting.cloned() else {
                    return;
                };
                self.state.nlm_cancel(&owner, node, range, exclusive);
            }
            7 => {
                let share = self.share();
                _ = self.state.nlm_share(&owner, node, share, false, now);
            }
            8 => self.state.nlm_unshare(&owner, node),
            _ if self.below(8) == 0 => self.state.nlm_free(owner.host),
            _ => {
                let wants = self.coin();
                if let Some(number) = self.pick(|w| &w.grants) {
                    self.state.nlm_acknowledged(number, wants);
                }
            }
        }
        let taken = self.state.nlm_take_granted();
        self.grants.extend(taken.iter().map(|granted| granted.number));
    }

    fn step(&mut self) {
        if self.coin() {
            // Until the records are written, nothing is granted.
            self.state.write_records();
        }
        match self.below(22) {
            20.. => self.request(),
            0..3 => self.open(),
            3..7 => self.lock(),
            7..11 => self.nlm(),
            11 => self.delegate(),
            12 => {
                let (Some((client, id, node)), range) = (self.pick(|w| &w.locks), self.range())
                else {
                    return;
                };
                let id = StateId { seq: 0, ..id };
                match self.below(4) {
                    0 => _ = self.state.free_stateid(client, id),
                    _ => _ = self.state.unlock(client, id, node, range),
                }
            }
            13 => {
                let Some((client, id, node)) = self.pick(|w| &w.opens) else { return };
                let (id, share) = (StateId { seq: 0, ..id }, self.share());
                match self.below(3) {
                    0 => _ = self.state.downgrade(client, id, node, share),
                    1 => _ = self.state.confirm_open(client, id, node),
                    _ => _ = self.state.close(client, id, node),
                }
            }
            14 if self.coin() => {
                let Some(id) = self.truncating.pop() else { return };
                self.state.truncated(id);
            }
            14 => {
                let Some(id) = self.pick(|w| &w.pending) else { return };
                self.pending.retain(|other| *other != id);
                self.truncating.retain(|other| *other != id);
                match self.coin() {
                    true => self.state.keep_open(id),
                    false => self.state.undo_open(id),
                }
            }
            15 => {
                let Some((client, id, node)) = self.pick(|w| &w.delegations) else { return };
                _ = self.state.return_delegation(client, id, node);
            }
            16 => {
                let client = self.client();
                if self.coin() && self.state.reserve_open(client, self.now).is_ok() {
                    self.reserved.push(client);
                } else if let Some(client) = self.reserved.pop() {
                    self.state.unreserve_open(client);
                }
            }
            17 => {
                let node = self.node();
                let touch = if self.coin() { Touch::Read } else { Touch::Change };
                self.state.recall(node, touch, None, self.now);
            }
            18 => {
                let seconds = self.below(60) as u64;
                self.now += Duration::from_secs(seconds);
                if self.below(3) == 0 {
                    self.state.sweep(self.now);
                    self.state.nlm_drop_idle(self.now);
                }
            }
            _ => match self.below(12) {
                0 => self.state.drop_export(0),
                1 | 2 => {
                    let client = self.client();
                    self.state.purge(client);
                }
                _ => {}
            },
        }
    }

    /// Ends the OPENs of clients that are gone.
    fn unreserve_gone(&mut self) {
        let (state, reserved) = (&mut self.state, &mut self.reserved);
        let is_gone = |client: &mut ClientId| state.clients.get(*client).is_err();
        let gone: Vec<ClientId> = reserved.extract_if(.., is_gone).collect();
        gone.into_iter().for_each(|client| state.unreserve_open(client));
    }

    fn check(&self) {
        self.check_opens();
        self.check_locks();
        self.check_nlm();
        self.check_delegations();
        self.check_store();
        for client in self.state.clients.iter() {
            let made = |key: &StateKey| self.state.newest(*key).is_some();
            assert!(client.states.iter().all(made), "{:?}", client.states);
        }
        let is_used =
            |(node, file): (&Node, &FileState)| self.state.opens.is_open(*node) || !file.is_idle();
        assert!(self.files().all(is_used), "an idle file");
        let revoked = self.state.clients.iter().flat_map(|client| {
            client.revoked.iter().map(|revoked| (revoked.key, (client.id, revoked.why)))
        });
        assert_eq!(revoked.collect::<HashMap<_, _>>(), self.state.revoked);
        self.check_sessions();
    }

    /// The address of a client, or of an NLM host.
    fn address(&self, client: ClientId) -> Option<IpAddr> {
        self.state.clients.get(client).unwrap().address
    }

    fn check_tally(
        &self,
        tally: &Tally,
        clients: impl Iterator<Item = ClientId>,
        hosts: impl Iterator<Item = IpAddr>,
    ) {
        let (mut of_clients, mut of_addresses, mut total) = (HashMap::new(), HashMap::new(), 0);
        for client in clients {
            *of_clients.entry(client).or_insert(0) += 1;
            total += 1;
            if let Some(address) = self.address(client) {
                *of_addresses.entry(address).or_insert(0) += 1;
            }
        }
        for host in hosts {
            *of_addresses.entry(admission::host(host)).or_insert(0) += 1;
            total += 1;
        }
        assert_eq!(tally.total(), total);
        for client in self.state.clients.iter() {
            assert_eq!(tally.of(client.id), of_clients.get(&client.id).copied().unwrap_or(0));
        }
        for last in 1..=HOSTS {
            let address = IpAddr::from([192, 0, 2, last]);
            let held = of_addresses.get(&address).copied().unwrap_or(0);
            assert_eq!(tally.of_address(address), held, "{address}");
        }
    }

    fn files(&self) -> impl Iterator<Item = (&Node, &FileState)> {
        self.state.files.iter()
    }

    fn check_opens(&self) {
        let state = &self.state;
        state.opens.check();
        for (key, open) in state.opens.iter() {
            assert!(state.clients.get(open.client).unwrap().states.contains(key));
            let truncates = self.truncating.iter().any(|id| id.key == *key);
            let truncating = if truncates { Access::WRITE } else { Access::empty() };
            let is_pending = |seq| self.pending.contains(&StateId { seq, key: *key });
            assert!(open.pending.iter().all(|pending| is_pending(pending.seq)), "{open:?}");
            assert!(!open.opened.is_empty() || !open.pending.is_empty() || open.seq > 1);
            let union = open.modes().fold(Share::default(), |all, share| all.union(share));
            assert_eq!(open.share, Share { access: union.access | truncating, ..union });
            assert_eq!(open.reader.is_some(), union.access.contains(Access::READ));
            assert_eq!(open.writer.is_some(), union.access.contains(Access::WRITE));
        }
        self.check_conflicts();
        let reserved = self.reserved.iter().copied();
        let opens = state.opens.iter().map(|(_, open)| open.client).chain(reserved);
        let shares = self.files().flat_map(|(_, file)| file.shares.iter().map(|(o, _)| o.host));
        self.check_tally(&state.tallies.opens, opens, shares);
    }

    /// What the counters and indices answer, as the opens of each file answer it.
    fn check_conflicts(&self) {
        let opens = &self.state.opens;
        let modes = (0..16).map(|bits| Share {
            access: Access::from_bits_truncate(bits),
            deny: Access::from_bits_truncate(bits >> 2),
        });
        let modes: Vec<Share> = modes.collect();
        for ino in 0..FILES {
            let node = Node { export: 0, id: FileId { ino, generation: 0 } };
            let all = opens.iter().filter(|(_, open)| open.node == node);
            let all: Vec<_> = all.map(|(key, open)| (*key, open)).collect();
            assert_eq!(opens.is_open(node), !all.is_empty());
            assert_eq!(opens.of_file(node).count(), all.len());
            let writes = all.iter().any(|(_, open)| open.share.access.contains(Access::WRITE));
            assert_eq!(opens.is_open_to_write(node), writes);
            let clients = self.state.clients.iter().map(|client| client.id);
            for client in clients {
                let own = all.iter().filter(|(_, open)| open.client == client).count();
                assert_eq!(opens.of_client(client, node).count(), own);
                assert_eq!(opens.is_open_by_others(client, node), own < all.len());
            }
            let owners = all.iter().map(|(_, open)| Some((open.client, &open.owner)));
            for by in owners.chain([None]) {
                for &mode in &modes {
                    let mut others = all.iter().filter(|(_, o)| by != Some((o.client, &o.owner)));
                    let conflicts = others.any(|(_, o)| o.share.conflicts(mode));
                    assert_eq!(opens.are_in_conflict(node, by, mode), conflicts, "{by:?} {mode:?}");
                }
            }
        }
    }

    fn check_locks(&self) {
        let state = &self.state;
        state.locks.check();
        for (key, lock) in state.locks.iter() {
            assert!(state.clients.get(lock.owner.client).unwrap().states.contains(key));
            let open = state.opens.get(lock.open).expect("locks are under an open");
            assert_eq!((open.client, open.node), (lock.owner.client, lock.node));
        }
        let owners = state.locks.iter().map(|(_, lock)| lock.owner.client);
        self.check_tally(&state.tallies.lock_states, owners, [].into_iter());
        let (mut clients, mut hosts) = (Vec::new(), Vec::new());
        for (node, file) in self.files() {
            for (holder, lock) in file.ranges.all() {
                let conflict = file.ranges.conflict(holder, lock.range, lock.exclusive);
                assert_eq!(conflict, None, "{node:?}");
                match holder {
                    Holder::V4(owner) => {
                        assert!(state.locks.of_owner(owner, *node).is_some());
                        clients.push(owner.client);
                    }
                    Holder::Nlm(owner) => hosts.push(owner.host),
                    Holder::LocalProgram => unreachable!("it is never in the table"),
                }
            }
        }
        let logs = state.nlm.logs.iter();
        hosts.extend(logs.flat_map(|((owner, _), log)| (0..log.counted()).map(|_| owner.host)));
        let granting = state.nlm.granting.values().map(|g| (g.owner.clone(), g.node));
        assert_eq!(granting.collect::<HashSet<_>>(), state.nlm.logs.keys().cloned().collect());
        self.check_tally(&state.tallies.ranges, clients.into_iter(), hosts.into_iter());
        let waits = &state.lock_waiters;
        assert_eq!(waits.listed, waits.files.values().map(Vec::len).sum::<usize>());
        assert!(waits.files.values().all(|waits| !waits.is_empty()));
    }

    fn check_nlm(&self) {
        let state = &self.state;
        let mut waits: HashMap<(NlmOwner, Node), usize> = HashMap::new();
        for (node, file) in self.files() {
            assert_eq!(state.nlm.queues.contains(node), !file.waiting.is_empty());
            for waiting in &file.waiting {
                *waits.entry((waiting.owner.clone(), *node)).or_default() += 1;
            }
            let of_nlm = file.ranges.owners().filter_map(|holder| match holder {
                Holder::Nlm(owner) => Some(owner.host),
                _ => None,
            });
            let sharing = file.shares.iter().map(|(owner, _)| owner.host);
            let waiting = file.waiting.iter().map(|waiting| waiting.owner.host);
            let nlm_ranges =
                file.ranges.all().filter(|(holder, _)| matches!(holder, Holder::Nlm(_)));
            assert_eq!(file.nlm_ranges, nlm_ranges.count());
            for host in of_nlm.chain(sharing).chain(waiting) {
                assert!(state.nlm.hosts[&host].files.contains(node), "{host} {node:?}");
            }
        }
        let listed = state.nlm.waits.iter().flat_map(|(owner, files)| {
            files.iter().map(|(node, locks)| ((owner.clone(), *node), *locks))
        });
        assert_eq!(listed.collect::<HashMap<_, _>>(), waits);
        let queued = self.files().flat_map(|(_, file)| file.waiting.iter().map(|w| w.owner.host));
        let waiting = queued.chain(state.nlm.granting.values().map(|g| g.owner.host));
        self.check_tally(&state.tallies.nlm_waiting, [].into_iter(), waiting);
        let hosts = state.nlm.hosts.keys().copied();
        self.check_tally(&state.tallies.nlm_hosts, [].into_iter(), hosts);
    }

    fn check_delegations(&self) {
        let state = &self.state;
        for (key, held) in &state.delegations.by_key {
            assert_eq!(state.delegations.by_node[&(held.node, held.kind, held.client)], *key);
            assert!(state.clients.get(held.client).unwrap().states.contains(key));
            assert!(held.stand_in.is_none_or(|open| {
                state.opens.get(open).is_none_or(|open| open.node == held.node)
            }));
        }
        let listed = state.delegations.by_node.len();
        assert_eq!(listed, state.delegations.by_key.len());
        assert_eq!(state.filter().any(), listed > 0);
        let clients = state.delegations.by_key.values().map(|held| held.client);
        self.check_tally(&state.tallies.delegations, clients, [].into_iter());
    }

    fn check_store(&self) {
        let state = &self.state;
        assert_eq!(state.tallies.store_locks.total(), state.locked_in_store.len());
        let attached = self.files().filter(|(_, file)| file.store_locks.is_some());
        let mut seen = HashSet::new();
        for (node, file) in attached {
            assert!(state.locked_in_store.contains_key(node), "not counted");
            seen.insert(*node);
            let mut expected = [None; BYTES];
            for (_, Lock { range, exclusive }) in file.ranges.all() {
                let end = range.end.min(BYTES as u64) as usize;
                for byte in &mut expected[(range.start as usize).min(end)..end] {
                    *byte = Some(byte.unwrap_or(false) || exclusive);
                }
            }
            let store = &self.stores[node];
            // A file may be locked there after some of its ranges; those that conflict stay unlocked.
            if store.program.is_none() {
                assert_eq!(*store.modes.lock(), expected, "{node:?}");
            }
        }
    }

    /// Everything goes. Returns how many requests were executed.
    fn end(mut self) -> usize {
        while let Some(client) = self.reserved.pop() {
            self.state.unreserve_open(client);
        }
        for last in 1..=HOSTS {
            self.state.nlm_free(IpAddr::from([192, 0, 2, last]));
        }
        let clients: Vec<ClientId> = self.state.clients.iter().map(|client| client.id).collect();
        clients.into_iter().for_each(|client| self.state.purge(client));
        self.state.detach_all_unlocked();
        self.check();
        assert!(self.state.files.is_empty(), "{:?}", self.state.files);
        assert!(self.state.locked_in_store.is_empty() && !self.state.filter().any());
        assert!(self.state.lock_waiters.owners.is_empty());
        self.end_requests()
    }
}

#[test]
fn tables_counts_and_store_agree_after_random_transitions() {
    let mut executed = 0;
    for seed in 1..=RUNS {
        let mut world = World::new(seed);
        for number in 0..STEPS {
            let begun = world.random;
            world.step();
            world.unreserve_gone();
            let agrees = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| world.check()));
            assert!(agrees.is_ok(), "seed {seed}, step {number}, random {begun}");
        }
        executed += world.end();
    }
    assert!(executed > 10 * RUNS as usize, "{executed} requests");
}
