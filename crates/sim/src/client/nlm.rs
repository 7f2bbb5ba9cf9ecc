//! Locks of NFSv3: NLM, and NSM for restarts. A host has no lease: it keeps its lock until it gives it up or restarts.

use super::{Client, Failure, Handle, Outcome, RANGE, encoded};
use crate::host;
use crate::oracle::Holder;
use crate::world::{Host, LEASE, Plant};
use parking_lot::Mutex;
use std::sync::Arc;
use std::time::Duration;
use tokio::sync::Notify;
use tokio::time::{sleep, timeout};
use weir_nfs::nlm::{
    self, CancelArgs, LockArgs, Procedure, Res, Status, TestArgs, TestReply, TestRes, UnlockArgs,
};
use weir_nfs::nsm;
use weir_rpc::ProgramId;
use weir_xdr::{Bytes, Decoder, Opaque};

/// How long a host waits for a lock that another one holds.
const PATIENCE: Duration = Duration::from_millis(1500);

/// How often the server may ask a host to reclaim its lock later.
const REFUSALS: u32 = 10;

/// The state of a host.
pub(super) struct State {
    /// The number of its status monitor.
    number: i32,
    lock: Mutex<Option<Held>>,
    /// What it waits for.
    wanted: Mutex<Option<Wanted>>,
    granted: Notify,
    /// Held while the lock is taken, given up or reclaimed.
    turn: tokio::sync::Mutex<()>,
}

/// A lock, on one range of one file.
#[derive(Clone)]
struct Held {
    file: Handle,
    range: u64,
    /// The run of the server that has given it.
    run: u64,
}

struct Wanted {
    file: Handle,
    range: u64,
    /// The server's run that has granted it.
    granted: Option<u64>,
}

impl State {
    pub(super) fn new(boot: u32) -> Self {
        Self {
            number: (boot * 2 + 1).cast_signed(),
            lock: Mutex::default(),
            wanted: Mutex::default(),
            granted: Notify::new(),
            turn: tokio::sync::Mutex::default(),
        }
    }
}

impl Client {
    fn host_name<const N: usize>(&self) -> Opaque<N> {
        Opaque(format!("client {}", self.number).into_bytes().into())
    }

    fn nlm_lock(&self, file: &Handle, range: u64) -> nlm::Lock {
        nlm::Lock {
            caller: self.host_name(),
            file: Opaque(file.clone().into()),
            owner: "thread".into(),
            process: 1,
            offset: range * RANGE,
            length: RANGE,
        }
    }

    /// A call of the lock manager; the status, and the server's runs when it was sent and when it was answered.
    async fn call_nlm(&self, procedure: Procedure, args: &Bytes) -> (Status, (u64, u64)) {
        let which = (nlm::PROGRAM, nlm::VERSION, procedure as u32);
        let answer = self.rpc(which, args, None).await;
        match Decoder::new(answer.results).get::<Res>() {
            Ok(res) => (res.status, answer.runs),
            Err(error) => self.world.violation(format!("no reply of NLM: {error}")),
        }
    }

    /// Says that the host has restarted: its locks are free.
    pub(super) async fn notify_restart(&self) {
        let change = nsm::StatChange { name: self.host_name(), state: self.nlm.number };
        let which = (nsm::PROGRAM, nsm::VERSION, nsm::Procedure::Notify as u32);
        self.rpc(which, &encoded(&change), None).await;
    }

    pub(super) fn holds_lock3(&self) -> bool {
        self.nlm.lock.lock().is_some()
    }

    /// Asks whether a lock could be had: not while another client holds it.
    async fn test_lock3(&self, file: &Handle, range: u64) {
        let held = || self.world.locks.lock().holder(range, host::now());
        let before = held();
        let args =
            TestArgs { cookie: "cookie".into(), exclusive: true, lock: self.nlm_lock(file, range) };
        let which = (nlm::PROGRAM, nlm::VERSION, Procedure::Test as u32);
        let answer = self.rpc(which, &encoded(&args), None).await;
        let reply = match Decoder::new(answer.results).get::<TestRes>() {
            Ok(res) => res.reply,
            Err(error) => self.world.violation(format!("no reply of NLM: {error}")),
        };
        self.world.event(&format!("client {}: TEST {range}: {reply:?}", self.number));
        if let (TestReply::Granted, (Some(other), _)) = (reply, before)
            && before == held()
        {
            let number = self.number;
            self.world.violation(format!("client {number} tests the lock of {other}: it is free"));
        }
    }

    /// Takes a lock on a range of a file, and may wait for it.
    pub(super) async fn take_lock3(&self, file: &Handle, range: u64) -> Outcome<()> {
        let _turn = self.nlm.turn.lock().await;
        if self.world.below(4) == 0 {
            self.test_lock3(file, range).await;
        }
        let block = self.world.below(2) == 0;
        let args = LockArgs {
            cookie: "cookie".into(),
            block,
            exclusive: true,
            lock: self.nlm_lock(file, range),
            reclaim: false,
            state: self.nlm.number,
        };
        let args = encoded(&args);
        if block {
            let wanted = Wanted { file: file.clone(), range, granted: None };
            *self.nlm.wanted.lock() = Some(wanted);
        }
        let mut first = None;
        loop {
            let (status, runs) = self.call_nlm(Procedure::Lock, &args).await;
            let again = *first.get_or_insert(runs.0) != runs.1;
            let result = match status {
                Status::Granted => {
                    *self.nlm.wanted.lock() = None;
                    self.got(file, range, runs.1);
                    Ok(())
                }
                Status::Blocked if block => self.wait_for(file, range).await,
                Status::DeniedGracePeriod => {
                    sleep(Duration::from_millis(300)).await;
                    continue;
                }
                // The server may hold, or wait for, what this host does not know of: a reply was lost.
                Status::Denied | Status::Deadlock => Err(Failure::Denied),
                Status::Failed => Err(Failure::Io),
                other => Err(Failure::Other(format!("{other:?}"))),
            };
            *self.nlm.wanted.lock() = None;
            if result.is_ok() && self.world.plant == Some(Plant::Notices) {
                self.notify_restart().await;
            }
            return Outcome { result, again };
        }
    }

    /// The lock is granted.
    fn got(&self, file: &Handle, range: u64, run: u64) {
        *self.nlm.lock.lock() = Some(Held { file: file.clone(), range, run });
        // A restart of the server ends it, unless it is reclaimed.
        let until = if run == self.world.run() { Duration::MAX } else { Duration::ZERO };
        let holder = Holder { client: self.number, until };
        let got = self.world.locks.lock().got(range, holder, host::now());
        if let Err(why) = got {
            self.world.violation(why);
        }
    }

    /// Waits until the server calls back; if it does not, withdraws the request.
    async fn wait_for(&self, file: &Handle, range: u64) -> Result<(), Failure> {
        // A grant that comes from here on is refused, if it has not come before.
        let _ = timeout(PATIENCE, self.nlm.granted.notified()).await;
        let granted = self.nlm.wanted.lock().take().and_then(|wanted| wanted.granted);
        if granted.is_some() {
            return Ok(());
        }
        let cancel = CancelArgs {
            cookie: "cookie".into(),
            block: true,
            exclusive: true,
            lock: self.nlm_lock(file, range),
        };
        match self.call_nlm(Procedure::Cancel, &encoded(&cancel)).await.0 {
            Status::Granted => Err(Failure::Denied),
            other => Err(Failure::Other(format!("{other:?} to CANCEL"))),
        }
    }

    pub(super) async fn give_lock_up3(&self) -> Outcome<()> {
        let _turn = self.nlm.turn.lock().await;
        let Some(held) = self.nlm.lock.lock().take() else {
            return Outcome { result: Err(Failure::LockLost), again: false };
        };
        // Others may get it before the reply comes. If it is lost, another one may have it already.
        self.world.locks.lock().given_up(held.range, self.number);
        let lock = self.nlm_lock(&held.file, held.range);
        let args = encoded(&UnlockArgs { cookie: "cookie".into(), lock });
        let (status, runs) = self.call_nlm(Procedure::Unlock, &args).await;
        let result = match status {
            Status::Granted => Ok(()),
            other => Err(Failure::Other(format!("{other:?} to UNLOCK"))),
        };
        Outcome { result, again: runs.0 != runs.1 }
    }

    /// The server grants a lock. Says whether the host takes it.
    fn granted(&self, lock: &nlm::Lock) -> bool {
        let is = |file: &Handle, range: u64| {
            lock.file[..] == file[..] && lock.offset == range * RANGE && lock.length == RANGE
        };
        // The reply was lost, and the server calls again.
        let has = self.nlm.lock.lock().as_ref().is_some_and(|held| is(&held.file, held.range));
        let mut wanted = self.nlm.wanted.lock();
        let Some(wanted) = wanted.as_mut().filter(|wanted| is(&wanted.file, wanted.range)) else {
            return has;
        };
        let run = self.world.run();
        if wanted.granted.is_none() {
            wanted.granted = Some(run);
            self.got(&wanted.file, wanted.range, run);
            self.nlm.granted.notify_one();
        }
        true
    }

    /// Reclaims the lock, as the server has restarted.
    async fn reclaim_lock3(&self) {
        let _turn = self.nlm.turn.lock().await;
        let Some(held) = self.nlm.lock.lock().clone() else { return };
        let run = self.world.run();
        if held.run == run {
            return;
        }
        let (_, started) = *self.world.restarted.lock();
        let is_due = || {
            held.run + 1 == self.world.run()
                && host::now() < started + LEASE - Duration::from_millis(500)
        };
        let args = LockArgs {
            cookie: "cookie".into(),
            block: false,
            exclusive: true,
            lock: self.nlm_lock(&held.file, held.range),
            reclaim: true,
            state: self.nlm.number,
        };
        let args = encoded(&args);
        // A run that it has not been told of may have given the lock to another host.
        let mut why = "the server has restarted twice".to_owned();
        let (is_early, mut refusals) = (host::now() < started + LEASE / 2, 0);
        while held.run + 1 == self.world.run() && host::now() < started + LEASE {
            let begun_due = is_due();
            let (status, (_, now)) = self.call_nlm(Procedure::Lock, &args).await;
            if status == Status::Granted && now == held.run + 1 {
                self.world.event(&format!("client {} reclaims its lock", self.number));
                self.got(&held.file, held.range, now);
                return;
            }
            why = format!("{status:?} to its reclaim");
            let excused = status == Status::Failed && self.world.disk.failures().0;
            match status {
                Status::DeniedGracePeriod if !is_early || refusals < REFUSALS => {
                    refusals += 1;
                    sleep(Duration::from_millis(300)).await;
                }
                _ if begun_due && is_due() && !excused => {
                    let number = self.number;
                    self.world.violation(format!("client {number} lost a lock: {why}"));
                }
                _ => break,
            }
        }
        self.world.event(&format!("client {} lost its lock: {why}", self.number));
        *self.nlm.lock.lock() = None;
        self.world.locks.lock().given_up(held.range, self.number);
    }
}

impl Host for Client {
    fn is_gone(&self) -> bool {
        self.link.has_ended()
    }

    fn is_cut_off(&self) -> bool {
        self.world.is_cut_off(self.number)
    }

    fn execute(self: Arc<Self>, id: ProgramId, procedure: u32, args: Bytes) -> Option<Bytes> {
        self.world.event(&format!("client {}: called, program {}", self.number, id.program));
        let mut d = Decoder::new(args);
        if id == nsm::ID && procedure == nsm::Procedure::Stat as u32 {
            let state = self.nlm.number;
            return Some(encoded(&nsm::StatRes { outcome: nsm::Outcome::Failure, state }));
        }
        if id == nsm::ID && procedure == nsm::Procedure::Notify as u32 {
            tokio::spawn(async move { self.reclaim_lock3().await });
            return Some(Bytes::new());
        }
        if id == nlm::ID && procedure == Procedure::Granted as u32 {
            let granted: TestArgs = d.get().ok()?;
            let status = if self.granted(&granted.lock) { Status::Granted } else { Status::Denied };
            return Some(encoded(&Res { cookie: granted.cookie, status }));
        }
        None
    }
}
