//! What a client does: it works on files and names of its own, reads those of others, and locks.

use crate::client::{Client, Failure, Handle, Outcome};
use crate::host;
use crate::oracle::{Is, bytes};
use crate::world::World;
use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;
use tokio::time::sleep;

/// The size that files have at most, in bytes.
const SIZE: u64 = 192 << 10;
/// The largest write, in bytes.
const WRITE: u64 = 24 << 10;
/// Ranges of the file that is locked.
const RANGES: u64 = 3;
/// Names that a client keeps, at most.
const NAMES: usize = 12;

/// Where things are, the same for all clients.
pub(crate) struct Places {
    /// Each client's directory.
    pub(crate) dirs: Vec<Handle>,
    /// Each client's files.
    pub(crate) files: BTreeMap<String, Handle>,
    pub(crate) lock_file: Handle,
}

pub(crate) struct Worker {
    pub(crate) client: Arc<Client>,
    pub(crate) world: Arc<World>,
    pub(crate) places: Arc<Places>,
}

impl Worker {
    /// Works until the faults have ended, and some more.
    pub(crate) async fn work(&self) {
        self.client.mount().await;
        let mut left = 15;
        while left > 0 {
            if self.world.calm.load(std::sync::atomic::Ordering::SeqCst) {
                left -= 1;
            }
            sleep(Duration::from_millis(self.world.below(80))).await;
            self.step().await;
        }
        if self.client.holds_lock() {
            self.client.give_lock_up().await;
        }
        for file in self.own() {
            self.commit_all(&file).await;
        }
        self.client.return_delegations().await;
        self.client.link.end();
        self.world.event(&format!("client {} is done", self.client.number));
    }

    fn own(&self) -> [String; 2] {
        let number = self.client.number;
        [format!("file {number}.0"), format!("file {number}.1")]
    }

    fn below(&self, limit: u64) -> u64 {
        self.world.below(limit)
    }

    async fn step(&self) {
        let file = self.own()[self.below(2) as usize].clone();
        match self.below(20) {
            0..5 => self.write(&file).await,
            5 | 6 => self.commit_some(&file).await,
            7 => {
                self.commit_all(&file).await;
                if self.below(2) == 0 {
                    self.client.close(&self.places.files[&file]).await;
                }
            }
            8 => self.truncate(&file).await,
            9..12 => {
                let files: Vec<&String> = self.places.files.keys().collect();
                let file = files[self.below(files.len() as u64) as usize].clone();
                self.read(&file).await;
                if self.below(3) == 0 {
                    self.client.close(&self.places.files[&file]).await;
                }
            }
            12 | 13 => self.make().await,
            14 => self.remove().await,
            15 | 16 => self.rename().await,
            17 => self.look_up().await,
            _ => self.lock().await,
        }
    }

    /// Notes how an operation ended that must not fail but with the disk. Returns what it gave.
    fn judge<T>(&self, what: &str, outcome: Outcome<T>) -> Option<T> {
        let number = self.client.number;
        let failure = match outcome.result {
            Ok(value) => {
                self.world.event(&format!("client {number}: {what}"));
                return Some(value);
            }
            Err(failure) => failure,
        };
        self.world.event(&format!("client {number}: {what}: {failure:?}"));
        let (io, no_space) = self.world.disk.failures();
        let caused = match failure {
            Failure::Io => io || no_space,
            Failure::NoSpace => no_space,
            // What a repetition meets that another run has done before.
            Failure::NoEnt | Failure::Exist => outcome.again,
            _ => false,
        };
        if !caused {
            let again = outcome.again;
            self.world.violation(format!("client {number}: {what}: {failure:?}, again: {again}"));
        }
        None
    }

    async fn write(&self, file: &str) {
        let calls = 1 + self.below(4);
        let stable = self.below(4) == 0;
        // Parts of the file that do not overlap.
        let part = SIZE / calls;
        let mut running = Vec::new();
        for slot in 0..calls {
            let len = 1 + self.below(WRITE.min(part - 1));
            let offset = slot * part + self.below(part - len);
            running.push(self.write_at(slot as u32, file, (offset, len as usize), None, stable));
        }
        join_all(running).await;
    }

    async fn write_at(
        &self,
        slot: u32,
        file: &str,
        (offset, len): (u64, usize),
        tag: Option<u64>,
        stable: bool,
    ) {
        let (number, tag) = self.world.files.lock().sent(file, offset, len, tag, host::now());
        let data = bytes(tag, offset, len);
        let handle = &self.places.files[file];
        let run = self.world.run();
        let outcome = self.client.write(slot, handle, offset, data, stable).await;
        let what = format!("WRITE {file} {offset}+{len} stable {stable}");
        if let Some(written) = self.judge(&what, outcome) {
            if stable && !written.durable {
                self.world.violation(format!("{what}: the reply says that it is not"));
            }
            // By the run that was there when it was sent, if it is still there.
            let run = if run == self.world.run() { run } else { 0 };
            let acked = (host::now(), run, written.verifier);
            self.world.files.lock().acked(file, number, acked, written.durable);
        }
    }

    async fn commit_some(&self, file: &str) {
        let offset = self.below(SIZE);
        let count = 1 + self.below(SIZE) as u32;
        self.commit(file, offset, count).await;
    }

    async fn commit_all(&self, file: &str) {
        while self.commit(file, 0, 0).await {}
    }

    /// Commits a range, and makes again what the server has lost. Says whether there was something.
    async fn commit(&self, file: &str, offset: u64, count: u32) -> bool {
        let sent = host::now();
        let outcome = self.client.commit(&self.places.files[file], offset, count).await;
        let Some(verifier) = self.judge(&format!("COMMIT {file} {offset}+{count}"), outcome) else {
            return false;
        };
        let to = if count == 0 { u64::MAX } else { offset + u64::from(count) };
        let again = self.world.files.lock().committed(file, (offset, to), sent, verifier);
        let lost = !again.is_empty();
        for write in again {
            self.write_at(0, file, (write.offset, write.len), Some(write.tag), false).await;
        }
        lost
    }

    async fn truncate(&self, file: &str) {
        let size = self.below(SIZE);
        let number = self.world.files.lock().truncated(file, size, host::now());
        let outcome = self.client.truncate(&self.places.files[file], size).await;
        if self.judge(&format!("SETATTR {file} size {size}"), outcome).is_some() {
            let acked = (host::now(), self.world.run(), [0; 8]);
            self.world.files.lock().acked(file, number, acked, true);
        }
    }

    pub(crate) async fn read(&self, file: &str) {
        let offset = self.below(SIZE);
        let len = 1 + self.below(SIZE - offset);
        self.read_at(file, offset, len as usize).await;
    }

    async fn read_at(&self, file: &str, offset: u64, len: usize) {
        let (sent, run) = (host::now(), self.world.run());
        let outcome = self.client.read(&self.places.files[file], offset, len as u32).await;
        let what = format!("READ {file} {offset}+{len}");
        let Some(found) = self.judge(&what, outcome) else { return };
        // A read in pieces that a restart came between shows what each run had.
        let same = run == self.world.run();
        let failures = self.world.disk.failures();
        let at = (sent, host::now());
        let runs = (if same { run } else { 0 }, failures.0 || failures.1);
        let checked = self.world.files.lock().check(file, (offset, len), &found, at, runs);
        if let Err(why) = checked {
            self.world.violation(format!("client {}: {what}: {why}", self.client.number));
        }
    }

    fn dir(&self) -> &Handle {
        &self.places.dirs[self.client.number]
    }

    async fn make(&self) {
        let number = self.client.number;
        let name = {
            let mut names = self.world.names.lock();
            if names.of(number, |is| *is != Is::Absent).len() >= NAMES {
                return;
            }
            let name = names.new_name();
            names.begin(number, &[&name]);
            name
        };
        let is_dir = self.below(3) == 0;
        let outcome = if is_dir {
            self.client.mkdir(self.dir(), &name).await
        } else {
            let made = self.client.create(self.dir(), &name).await;
            if let Ok(file) = &made.result {
                self.client.close(file).await;
            }
            made
        };
        if let Some(handle) = self.judge(&format!("make {name}, directory: {is_dir}"), outcome) {
            let is = if is_dir { Is::Dir(handle) } else { Is::File(handle) };
            self.world.names.lock().is(number, &name, is);
        }
    }

    /// One of the client's names that are there.
    fn pick(&self) -> Option<(String, Is)> {
        let names = self.world.names.lock().of(self.client.number, |is| *is != Is::Absent);
        let at = self.below(names.len() as u64) as usize;
        names.into_iter().nth(at)
    }

    async fn remove(&self) {
        let number = self.client.number;
        let Some((name, is)) = self.pick() else { return };
        self.world.names.lock().begin(number, &[&name]);
        let outcome = self.client.remove(self.dir(), &name, matches!(is, Is::Dir(_))).await;
        if self.judge(&format!("REMOVE {name}"), outcome).is_some() {
            self.world.names.lock().is(number, &name, Is::Absent);
        }
    }

    async fn rename(&self) {
        let number = self.client.number;
        let Some((from, is)) = self.pick() else { return };
        let onto = self.below(3) == 0 && matches!(is, Is::File(_));
        let files = self.world.names.lock().of(number, |is| matches!(is, Is::File(_)));
        let at = self.below(files.len().max(1) as u64) as usize;
        let to = match files.into_iter().nth(at) {
            Some((to, _)) if onto && to != from => to,
            _ => self.world.names.lock().new_name(),
        };
        self.world.names.lock().begin(number, &[&from, &to]);
        let outcome = self.client.rename(self.dir(), &from, &to).await;
        if self.judge(&format!("RENAME {from} {to}"), outcome).is_some() {
            let mut names = self.world.names.lock();
            names.is(number, &from, Is::Absent);
            names.is(number, &to, is);
        }
    }

    async fn look_up(&self) {
        let known = self.world.names.lock().of(self.client.number, |_| true);
        let at = self.below(known.len() as u64) as usize;
        if let Some((name, is)) = known.into_iter().nth(at) {
            self.check_name(self.client.number, &name, &is).await;
        }
    }

    async fn check_name(&self, of: usize, name: &str, is: &Is) {
        let outcome = self.client.lookup(&self.places.dirs[of], name).await;
        let found = match &outcome.result {
            Err(Failure::NoEnt) => Is::Absent,
            Ok(handle) if matches!(is, Is::Dir(_)) => Is::Dir(handle.clone()),
            Ok(handle) => Is::File(handle.clone()),
            Err(_) => {
                self.judge(&format!("LOOKUP {name}"), outcome);
                return;
            }
        };
        self.world.event(&format!("client {}: LOOKUP {name}", self.client.number));
        if found != *is {
            self.world.violation(format!("name {name} of client {of} is {found:?}, not {is:?}"));
        }
    }

    async fn lock(&self) {
        if self.client.holds_lock() {
            let outcome = self.client.give_lock_up().await;
            if !matches!(outcome.result, Err(Failure::LockLost)) {
                self.judge("LOCKU", outcome);
            }
            if self.below(4) == 0 && !self.client.holds_lock() {
                self.client.close(&self.places.lock_file).await;
            }
            return;
        }
        let range = self.below(RANGES);
        let outcome = self.client.take_lock(&self.places.lock_file, range).await;
        if outcome.result == Err(Failure::Denied) {
            self.world.event(&format!("client {}: LOCK {range}: denied", self.client.number));
            let holder = self.world.locks.lock().held.get(&range).copied();
            if holder.is_some_and(|holder| holder.client == self.client.number) {
                self.world.violation("a client's own lock is in its way".into());
            }
            return;
        }
        self.judge(&format!("LOCK {range}"), outcome);
    }

    /// Everything that was acknowledged is there.
    pub(crate) async fn check_all(&self) {
        let files = self.world.files.lock().known();
        for file in files {
            self.read_at(&file, 0, SIZE as usize + 1).await;
        }
        let known = self.world.names.lock().known.clone();
        for ((of, name), is) in known {
            self.check_name(of, &name, &is).await;
        }
    }
}

/// Runs futures at once.
async fn join_all<F: Future<Output = ()>>(futures: Vec<F>) {
    let mut running: Vec<_> = futures.into_iter().map(Box::pin).collect();
    std::future::poll_fn(move |cx| {
        running.retain_mut(|future| future.as_mut().poll(cx).is_pending());
        if running.is_empty() { std::task::Poll::Ready(()) } else { std::task::Poll::Pending }
    })
    .await;
}
