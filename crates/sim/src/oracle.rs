//! What must be true: which bytes a read may return, which names there are, who holds which lock.
//!
//! 1. A write is *sure* once it is durable (FILE_SYNC or COMMIT was acknowledged), or while the server
//!    that acknowledged it runs and the disk has failed no call. A byte that is read is that of the last
//!    sure write, or of a later write that is not sure.
//! 2. A name's operation that was acknowledged is durable. One that failed with an error of the disk, or
//!    whose reply may be that of its repetition at another run of the server, leaves the name in doubt;
//!    names in doubt are not used again.
//! 3. A lock is held until its holder gives it up, or has not been heard for as long as a lease; a delegation, too.
//!    Meanwhile no other client changes a delegated file, nor reads it if the delegation is one to write.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

/// Bytes that are compared with the same writes.
const STEP: usize = 512;

/// One write, or a truncation: zeros to the end of the largest file.
#[derive(Clone, Debug)]
struct Write {
    offset: u64,
    end: u64,
    /// What its bytes are made of; `None`: zeros.
    tag: Option<u64>,
    sent: Duration,
    /// When it was acknowledged, by which run, with which verifier.
    acked: Option<(Duration, u64, [u8; 8])>,
    durable: bool,
}

/// The byte at `at` of a write with this tag; never zero.
fn byte(tag: u64, at: u64) -> u8 {
    let mixed = (tag.wrapping_mul(0x9E37_79B9_7F4A_7C15) ^ (at / 7)).wrapping_mul(0xFF51_AFD7_ED55);
    (mixed >> 24) as u8 | 1
}

/// The bytes of a write.
pub(crate) fn bytes(tag: u64, offset: u64, len: usize) -> Vec<u8> {
    (offset..offset + len as u64).map(|at| byte(tag, at)).collect()
}

/// A write to be made again.
pub(crate) struct Again {
    pub(crate) offset: u64,
    pub(crate) len: usize,
    pub(crate) tag: u64,
}

/// What is known of the files' data.
#[derive(Default)]
pub(crate) struct Files {
    writes: BTreeMap<String, Vec<Write>>,
    next_tag: u64,
}

impl Files {
    /// A write is sent; its number and tag.
    pub(crate) fn sent(
        &mut self,
        file: &str,
        offset: u64,
        len: usize,
        tag: Option<u64>,
        now: Duration,
    ) -> (usize, u64) {
        self.next_tag += 1;
        let tag = tag.unwrap_or(self.next_tag);
        let end = offset + len as u64;
        let number = self.push(
            file,
            Write { offset, end, tag: Some(tag), sent: now, acked: None, durable: false },
        );
        (number, tag)
    }

    /// A truncation is sent.
    pub(crate) fn truncated(&mut self, file: &str, offset: u64, now: Duration) -> usize {
        let (end, tag, acked) = (u64::MAX, None, None);
        self.push(file, Write { offset, end, tag, sent: now, acked, durable: false })
    }

    fn push(&mut self, file: &str, write: Write) -> usize {
        let writes = self.writes.entry(file.into()).or_default();
        writes.push(write);
        writes.len() - 1
    }

    pub(crate) fn acked(
        &mut self,
        file: &str,
        number: usize,
        (now, run, verifier): (Duration, u64, [u8; 8]),
        durable: bool,
    ) {
        if let Some(write) = self.writes.get_mut(file).and_then(|writes| writes.get_mut(number)) {
            write.acked = Some((now, run, verifier));
            write.durable |= durable;
        }
    }

    /// A COMMIT of a range, sent then, was acknowledged. Returns the writes that are to be made again.
    pub(crate) fn committed(
        &mut self,
        file: &str,
        (from, to): (u64, u64),
        sent: Duration,
        verifier: [u8; 8],
    ) -> Vec<Again> {
        let mut again = Vec::new();
        for write in self.writes.entry(file.into()).or_default() {
            let (Some((at, _, of)), Some(tag)) = (write.acked, write.tag) else { continue };
            if write.durable || at > sent || write.offset < from || write.end > to {
                continue;
            }
            if of == verifier {
                write.durable = true;
            } else {
                let len = (write.end - write.offset) as usize;
                again.push(Again { offset: write.offset, len, tag });
                // Its copy takes its place.
                write.acked = None;
            }
        }
        again
    }

    /// Checks what a read has found, which was sent and answered then. `run`: of the server now;
    /// `failed`: the disk has failed calls.
    pub(crate) fn check(
        &self,
        file: &str,
        (offset, len): (u64, usize),
        found: &[u8],
        (sent, answered): (Duration, Duration),
        (run, failed): (u64, bool),
    ) -> Result<(), String> {
        let none = Vec::new();
        let writes = self.writes.get(file).unwrap_or(&none);
        let is_sure = |write: &Write| match write.acked {
            Some((at, by, _)) => at <= sent && (write.durable || by == run && run != 0 && !failed),
            None => false,
        };
        let end = offset + len as u64;
        for from in (offset..end).step_by(STEP) {
            let to = end.min(from + STEP as u64);
            // The last one first.
            let covering: Vec<&Write> = writes
                .iter()
                .rev()
                .filter(|write| write.sent <= answered && write.offset < to && from < write.end)
                .collect();
            for at in from..to {
                let is = found.get((at - offset) as usize).copied().unwrap_or(0);
                let mut allowed = Vec::new();
                let mut sure = false;
                let covers = |write: &&&Write| (write.offset..write.end).contains(&at);
                for write in covering.iter().filter(covers) {
                    allowed.push(write.tag.map_or(0, |tag| byte(tag, at)));
                    sure = is_sure(write);
                    if sure {
                        break;
                    }
                }
                if !sure {
                    allowed.push(0);
                }
                if !allowed.contains(&is) {
                    let last = covering.iter().find(covers);
                    return Err(format!(
                        "{file}: byte {at} is {is:#x}, one of {allowed:x?} is allowed; last write: {last:?}"
                    ));
                }
            }
        }
        Ok(())
    }

    pub(crate) fn known(&self) -> Vec<String> {
        self.writes.keys().cloned().collect()
    }
}

/// What a name is known to be.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Is {
    File(Vec<u8>),
    Dir(Vec<u8>),
    Absent,
}

/// What is known of the names in the clients' directories.
#[derive(Default)]
pub(crate) struct Names {
    pub(crate) known: BTreeMap<(usize, String), Is>,
    doubt: BTreeSet<(usize, String)>,
    next: u64,
}

impl Names {
    /// A name that was never used.
    pub(crate) fn new_name(&mut self) -> String {
        self.next += 1;
        format!("n{}", self.next)
    }

    /// An operation on these names begins: what becomes of them is in doubt until it is acknowledged.
    pub(crate) fn begin(&mut self, client: usize, names: &[&str]) {
        for name in names {
            self.known.remove(&(client, (*name).to_owned()));
            self.doubt.insert((client, (*name).to_owned()));
        }
    }

    /// It was acknowledged.
    pub(crate) fn is(&mut self, client: usize, name: &str, is: Is) {
        self.doubt.remove(&(client, name.to_owned()));
        self.known.insert((client, name.to_owned()), is);
    }

    /// The names of a client that are of a kind.
    pub(crate) fn of(&self, client: usize, wanted: impl Fn(&Is) -> bool) -> Vec<(String, Is)> {
        let mine = self.known.iter().filter(|((of, _), is)| *of == client && wanted(is));
        mine.map(|((_, name), is)| (name.clone(), is.clone())).collect()
    }
}

/// Who holds a range.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Holder {
    pub(crate) client: usize,
    /// Until when its lease is good for certain.
    pub(crate) until: Duration,
}

/// What is known of the locks.
#[derive(Default)]
pub(crate) struct Locks {
    pub(crate) held: BTreeMap<u64, Holder>,
    /// How many locks were taken.
    taken: u64,
}

impl Locks {
    /// A client gets a lock. Fails if another one holds it.
    pub(crate) fn got(&mut self, range: u64, holder: Holder, now: Duration) -> Result<(), String> {
        self.taken += 1;
        if let Some(other) = self.held.insert(range, holder)
            && other.client != holder.client
            && now < other.until
        {
            let (a, b) = (other.client, holder.client);
            return Err(format!("clients {a} and {b} both hold the lock on range {range}"));
        }
        Ok(())
    }

    /// The holder of a range that keeps others from it, and how many locks were taken so far.
    pub(crate) fn holder(&self, range: u64, now: Duration) -> (Option<usize>, u64) {
        let holder = self.held.get(&range).filter(|holder| now < holder.until);
        (holder.map(|holder| holder.client), self.taken)
    }

    /// A client gives its lock up, if it is not another's by now.
    pub(crate) fn given_up(&mut self, range: u64, client: usize) -> Option<Holder> {
        let is_own = self.held.get(&range).is_some_and(|holder| holder.client == client);
        is_own.then(|| self.held.remove(&range)).flatten()
    }

    /// The server restarts. Those who hold locks without a lease may reclaim them until then.
    pub(crate) fn restarted(&mut self, until: Duration) {
        let without = self.held.values_mut().filter(|holder| holder.until == Duration::MAX);
        without.for_each(|holder| holder.until = until);
    }

    /// The lease of a client is renewed. What it held when the last one was over may be another's by now.
    pub(crate) fn renewed(&mut self, client: usize, (now, until): (Duration, Duration)) {
        self.held.retain(|_, holder| holder.client != client || now <= holder.until);
        for holder in self.held.values_mut().filter(|holder| holder.client == client) {
            holder.until = until;
        }
    }
}

/// A delegation that a client has.
#[derive(Clone, Copy)]
struct Delegated {
    write: bool,
    since: Duration,
    until: Duration,
}

/// What is known of the delegations: who has one of which file.
#[derive(Default)]
pub(crate) struct Delegations {
    held: BTreeMap<(Vec<u8>, usize), Delegated>,
}

impl Delegations {
    /// A client gets one, with a lease that is good `until` then. Fails if another client has one that conflicts.
    pub(crate) fn got(
        &mut self,
        file: &[u8],
        client: usize,
        write: bool,
        (now, until): (Duration, Duration),
    ) -> Result<(), String> {
        let others = self.others(file, client, now);
        let conflicts = others.into_iter().find(|(_, other)| write || other.write);
        self.held.insert((file.to_vec(), client), Delegated { write, since: now, until });
        match conflicts {
            Some((other, _)) => {
                Err(format!("clients {other} and {client} both have a delegation of a file"))
            }
            None => Ok(()),
        }
    }

    /// A client uses its delegation no more.
    pub(crate) fn gone(&mut self, file: &[u8], client: usize) {
        self.held.remove(&(file.to_vec(), client));
    }

    /// A client has started again.
    pub(crate) fn crashed(&mut self, client: usize) {
        self.held.retain(|(_, holder), _| *holder != client);
    }

    /// The lease of a client is renewed. What it held when the last one was over may be revoked.
    pub(crate) fn renewed(&mut self, client: usize, (now, until): (Duration, Duration)) {
        self.held.retain(|(_, holder), held| *holder != client || now <= held.until);
        let of = self.held.iter_mut().filter(|((_, holder), _)| *holder == client);
        of.for_each(|(_, held)| held.until = until);
    }

    /// A client has read or changed a file, in a call that it sent at `sent`. Fails if another client had, and still
    /// has, a delegation that does not allow that.
    pub(crate) fn check(
        &self,
        file: &[u8],
        client: usize,
        changes: bool,
        (sent, now): (Duration, Duration),
    ) -> Result<(), String> {
        let others = self.others(file, client, now);
        let in_the_way =
            |(_, held): &(usize, Delegated)| held.since < sent && (changes || held.write);
        match others.into_iter().find(in_the_way) {
            Some((other, held)) => {
                let (done, kind) = (
                    if changes { "changes" } else { "reads" },
                    if held.write { "write" } else { "read" },
                );
                Err(format!(
                    "client {client} {done} a file of which client {other} has a {kind} delegation"
                ))
            }
            None => Ok(()),
        }
    }

    /// The delegations of a file that other clients have.
    fn others(&self, file: &[u8], client: usize, now: Duration) -> Vec<(usize, Delegated)> {
        let of_file = self.held.range((file.to_vec(), 0)..=(file.to_vec(), usize::MAX));
        let others = of_file.filter(|((_, holder), held)| *holder != client && now < held.until);
        others.map(|((_, holder), held)| (*holder, *held)).collect()
    }
}
