//! Leases (RFC 8881 sections 8.3 and 8.4): the locks of a client that stops renewing its lease, and
//! of one that does not.

use super::locks::{ONE, exclusive};
use crate::examiner::{Examiner, Silence, Silence40};
use crate::raw_open::{RawOpen, ShareAccess, ShareDeny, refused};
use crate::raw40::{Owner40, Raw40};
use crate::rule::{Rule, rule};
use crate::verdict::{Result, Verdict};
use std::sync::Arc;
use std::time::{Duration, Instant};
use weir_client::{NfsFs, raw};
use weir_nfs::v4::types::StateId;
use weir_nfs::v4::{Error as Status, Op};
use weir_vfs::{Error, Lock, OpenFile};

pub(crate) const RULES: &[Rule] = &[
    rule!(
        "a client that was silent for a lease blocks no other client",
        "RFC 8881 8.4.3",
        "another client gets its lock after one lease and within three",
        in_the_way
    ),
    rule!(
        "a client that renews its lease keeps its locks",
        "RFC 8881 8.3",
        "during the same test, with SEQUENCE",
        kept
    ),
    rule!(
        "a stateid from before the lease expired is refused",
        "RFC 8881 8.2.4",
        "EXPIRED, BAD_STATEID or STALE_STATEID when the silent client returns",
        stateid
    ),
    rule!(
        "a lock that another client has obtained is not given back",
        "RFC 8881 9.11",
        "the silent client requests it again, and reclaims after the grace period",
        given_back
    ),
    rule!(
        "in 4.0, RENEW of a client that lost its lease is refused",
        "RFC 7530 16.28.5",
        "a silent client of 4.0 whose lock another client got: EXPIRED or STALE_CLIENTID",
        renew40
    ),
    rule!(
        "in 4.0, stateids of a client that lost its lease are refused",
        "RFC 7530 9.6.3",
        "its READ, LOCKU and CLOSE: EXPIRED",
        stateids40
    ),
    rule!(
        "in 4.0, OPEN of a client that lost its lease is refused",
        "RFC 7530 9.6.3",
        "EXPIRED or STALE_CLIENTID",
        open40
    ),
];

/// Interval at which another client requests the silent client's lock.
const ASK_AGAIN: Duration = Duration::from_millis(500);
/// Maximum time, in leases, for which a silent client's lock may block other clients.
const PATIENCE_LEASES: u32 = 3;

async fn in_the_way(examiner: &mut Examiner) -> Result<Verdict> {
    Ok(examiner.silence().await?.in_the_way.clone())
}

async fn kept(examiner: &mut Examiner) -> Result<Verdict> {
    Ok(examiner.silence().await?.kept.clone())
}

async fn stateid(examiner: &mut Examiner) -> Result<Verdict> {
    Ok(examiner.silence().await?.stateid.clone())
}

async fn given_back(examiner: &mut Examiner) -> Result<Verdict> {
    Ok(examiner.silence().await?.given_back.clone())
}

async fn renew40(examiner: &mut Examiner) -> Result<Verdict> {
    Ok(examiner.silence().await?.v40.renew.clone())
}

async fn stateids40(examiner: &mut Examiner) -> Result<Verdict> {
    Ok(examiner.silence().await?.v40.stateids.clone())
}

async fn open40(examiner: &mut Examiner) -> Result<Verdict> {
    Ok(examiner.silence().await?.v40.open.clone())
}

impl Examiner {
    /// Runs the test that the rules of this part judge. It runs once, because it takes a lease.
    async fn silence(&mut self) -> Result<&Silence> {
        let silence = match self.silence.take() {
            Some(silence) => silence,
            None => {
                let silent = self.another().await?;
                let silence = self.fall_silent(&silent).await;
                silent.unmount().await;
                silence?
            }
        };
        Ok(self.silence.insert(silence))
    }

    async fn fall_silent(&mut self, silent: &Arc<NfsFs>) -> Result<Silence> {
        let known = self.make("leased", &[(true, 1000)]).await?;
        let theirs = self.opened_by(&self.theirs, &known.name).await?;
        let gone = self.opened_by(silent, &known.name).await?;
        let old = Silent40::begin(self).await?;
        let lease = raw::fall_silent(silent, true)?;
        let (kept, lost) = (exclusive(0, 100), exclusive(200, 300));
        known.file.lock(ONE, kept, false).await?;
        gone.file.lock(ONE, lost, false).await?;
        let begun = Instant::now();
        let before = gone.stateid()?;
        let free_after = loop {
            let asked = begun.elapsed();
            match theirs.file.lock(ONE, lost, false).await {
                Ok(()) => break Some(asked),
                Err(Error::WouldBlock) if asked < lease * PATIENCE_LEASES => {
                    tokio::time::sleep(ASK_AGAIN).await;
                }
                Err(Error::WouldBlock) => break None,
                Err(error) => return Err(error.into()),
            }
        };
        let v40 = match old {
            Ok(old) => old.judge(&self.theirs, self, begun, lease).await?,
            Err(error) => {
                let untried = || Verdict::Note(format!("not tried: {error}"));
                Silence40 { renew: untried(), stateids: untried(), open: untried() }
            }
        };
        let waited = |time: Duration| format!("after {time:.0?} of a lease of {lease:.0?}");
        // The reply that granted the lock may have arrived just as the lease ended.
        let early = |time: Duration| time + ASK_AGAIN * 2 < lease;
        let in_the_way = match free_after {
            Some(time) if early(time) => {
                Verdict::Fail(format!("its lock went to another {}", waited(time)))
            }
            Some(_) => Verdict::Pass,
            None => Verdict::Fail(format!("its lock holds {}", waited(begun.elapsed()))),
        };
        let kept = match theirs.file.lock(ONE, kept, false).await {
            Err(Error::WouldBlock) => Verdict::Pass,
            Err(error) => Verdict::Fail(error.to_string()),
            Ok(()) => Verdict::Fail(format!("its lock is gone {}", waited(begun.elapsed()))),
        };
        raw::fall_silent(silent, false)?;
        let (stateid, given_back) = match free_after {
            Some(_) => {
                let refused = ["NFS4ERR_EXPIRED", "NFS4ERR_BAD_STATEID", "NFS4ERR_STALE_STATEID"];
                let stateid = gone.read_under(before, Some(&refused)).await;
                (stateid, again(&*gone.file, lost).await)
            }
            None => {
                let untried = || Verdict::Note("not tried: the lease has not ended".into());
                (untried(), untried())
            }
        };
        Ok(Silence { in_the_way, kept, stateid, given_back, v40 })
    }
}

/// A client of version 4.0 that has a lock and stops renewing its lease.
struct Silent40 {
    client: Raw40,
    owner: Owner40,
    locker: Owner40,
    name: Vec<u8>,
    open: RawOpen,
    lock: StateId,
}

impl Silent40 {
    /// Creates the client, or returns the server's error if it does not serve the version.
    async fn begin(examiner: &mut Examiner) -> Result<std::result::Result<Self, Status>> {
        let (_, name) = examiner.create("leased").await?;
        let client = match examiner.another_v40().await? {
            Ok(client) => client,
            Err(error) => return Ok(Err(error)),
        };
        let (mut owner, mut locker) = (Owner40::new("silent"), Owner40::new("silent, too"));
        let open = client.opened(&mut owner, &name, ShareAccess::BOTH).await?;
        let lock = client.lock(&mut owner, &open, &mut locker).await?;
        let lock = lock.map_err(|error| format!("LOCK: {error}"))?;
        Ok(Ok(Self { client, owner, locker, name, open, lock }))
    }

    /// The answers that the client gets once another client has its lock.
    async fn judge(
        mut self,
        theirs: &NfsFs,
        examiner: &Examiner,
        begun: Instant,
        lease: Duration,
    ) -> Result<Silence40> {
        let theirs = examiner.opened_by(theirs, &self.name).await?;
        while let Err(error) = theirs.file.lock(ONE, exclusive(0, 10), false).await {
            if error != Error::WouldBlock {
                return Err(error.into());
            }
            if begun.elapsed() > lease * PATIENCE_LEASES {
                let untried = || Verdict::Note("not tried: the lease has not ended".into());
                return Ok(Silence40 { renew: untried(), stateids: untried(), open: untried() });
            }
            tokio::time::sleep(ASK_AGAIN).await;
        }
        let client = &self.client;
        let renewed = client.call(&[Op::Renew(client.id)]).await?.status;
        let gone = &[Status::Expired, Status::StaleClientId];
        let file = &self.open.handle;
        let expired = &[Status::Expired];
        let read = refused(client.read(file, self.open.stateid).await?, expired);
        let unlock = Op::Locku(Raw40::unlock_args(&self.locker, self.lock));
        let unlocked = refused(client.on(file, unlock).await?.status, expired);
        let closed = refused(client.close(&mut self.owner, &self.open).await?, expired);
        let opened =
            client.open(&mut self.owner, &self.name, ShareAccess::READ, ShareDeny::empty()).await?;
        Ok(Silence40 {
            renew: refused(renewed, gone),
            stateids: read.max(unlocked).max(closed),
            open: refused(opened.map(drop), gone),
        })
    }
}

/// Checks that the server refuses the client a lock that another client has since acquired.
async fn again(file: &dyn OpenFile, lost: Lock) -> Verdict {
    match file.lock(ONE, lost, false).await {
        // The client itself fails the call if the server has reported the lock lost.
        Err(Error::WouldBlock | Error::Io) => Verdict::Pass,
        Err(error) => Verdict::Fail(error.to_string()),
        Ok(()) => Verdict::Fail("two clients have it".into()),
    }
}
