//! Clients of version 4.0 (RFC 7530 sections 16.28, 16.33, 16.34 and 16.37).

use crate::examiner::Examiner;
use crate::raw_open::{ShareAccess, granted, refused};
use crate::raw40::{Owner40, Raw40, confirm, introduce};
use crate::rule::{Rule, rule};
use crate::verdict::{Result, Verdict};
use weir_client::raw;
use weir_nfs::v4::op::{lock, lockt, open, sequence};
use weir_nfs::v4::types::{ClientOwner, LockType, StateOwner};
use weir_nfs::v4::{Error, Op};

pub(crate) const RULES: &[Rule] = &[
    rule!(
        "version 4.0 is served",
        "RFC 7530 16.33.5",
        "SETCLIENTID and SETCLIENTID_CONFIRM; MINOR_VERS_MISMATCH is a note and ends this part",
        served
    ),
    rule!(
        "SETCLIENTID_CONFIRM with another verifier is refused",
        "RFC 7530 16.34.5",
        "every bit changed: STALE_CLIENTID; the right one confirms after that",
        wrong_verifier
    ),
    rule!(
        "a retransmitted SETCLIENTID_CONFIRM succeeds",
        "RFC 7530 16.34.5",
        "the same request twice",
        confirmed_again
    ),
    rule!(
        "SETCLIENTID that updates the callback returns a new confirm verifier",
        "RFC 7530 16.33.5",
        "the same client and verifier again: the same client ID, another confirm verifier",
        callback_update
    ),
    rule!(
        "a confirmed callback update keeps the client's opens",
        "RFC 7530 16.34.5",
        "READ under an earlier open",
        kept_over_update
    ),
    rule!(
        "a restarted client keeps its state until SETCLIENTID_CONFIRM",
        "RFC 7530 16.33.5",
        "SETCLIENTID with another verifier, then READ under an earlier open",
        kept_until_confirmed
    ),
    rule!(
        "confirming a client's restart frees its earlier opens",
        "RFC 7530 16.34.5",
        "READ: BAD_STATEID, EXPIRED or STALE_STATEID; RENEW of the old client ID: STALE_CLIENTID \
         or EXPIRED",
        replaced
    ),
    rule!(
        "RENEW of an unknown client ID is refused",
        "RFC 7530 16.28.5",
        "STALE_CLIENTID",
        renew_unknown
    ),
    rule!(
        "RENEW of a client ID that is not confirmed is refused",
        "RFC 7530 16.28.5",
        "STALE_CLIENTID",
        renew_unconfirmed
    ),
    rule!(
        "OPEN with an unknown client ID is refused",
        "RFC 7530 9.1.1",
        "STALE_CLIENTID",
        open_stale
    ),
    rule!(
        "LOCK of a new lock owner with an unknown client ID is refused",
        "RFC 7530 16.10.5",
        "STALE_CLIENTID",
        lock_stale
    ),
    rule!(
        "LOCKT with an unknown client ID is refused",
        "RFC 7530 16.11.5",
        "STALE_CLIENTID",
        lockt_stale
    ),
    rule!(
        "RELEASE_LOCKOWNER with an unknown client ID is refused",
        "RFC 7530 16.37.4",
        "STALE_CLIENTID",
        release_stale
    ),
    rule!(
        "RELEASE_LOCKOWNER of an owner with locks is refused",
        "RFC 7530 16.37.4",
        "LOCKS_HELD; after LOCKU it succeeds",
        release_held
    ),
    rule!(
        "operations of later minor versions are illegal in 4.0",
        "RFC 7530 15.2.4",
        "SEQUENCE: OP_ILLEGAL",
        later_operation
    ),
];

/// A client ID that a server assigns only by chance.
const NEVER: u64 = 0xbad0_bad0_bad0_bad0;

async fn served(examiner: &mut Examiner) -> Result<Verdict> {
    match examiner.another_v40().await? {
        Ok(_) => Ok(Verdict::Pass),
        Err(Error::MinorVersMismatch) => Ok(Verdict::Note("not served".into())),
        Err(error) => Ok(Verdict::Fail(error.to_string())),
    }
}

async fn wrong_verifier(examiner: &mut Examiner) -> Result<Verdict> {
    let connection = examiner.connection(0).await?;
    let (id, verifier) = introduced(&connection, &raw::new_client()).await?;
    let wrong = verifier.map(|byte| !byte);
    let verdict = refused(confirm(&connection, (id, wrong)).await?, &[Error::StaleClientId]);
    Ok(verdict.max(granted(confirm(&connection, (id, verifier)).await?)))
}

async fn confirmed_again(examiner: &mut Examiner) -> Result<Verdict> {
    let connection = examiner.connection(0).await?;
    let introduced = introduced(&connection, &raw::new_client()).await?;
    let first = granted(confirm(&connection, introduced).await?);
    Ok(first.max(granted(confirm(&connection, introduced).await?)))
}

async fn callback_update(examiner: &mut Examiner) -> Result<Verdict> {
    let connection = examiner.connection(0).await?;
    let who = raw::new_client();
    let first = introduced(&connection, &who).await?;
    let confirmed = granted(confirm(&connection, first).await?);
    let second = introduced(&connection, &who).await?;
    let verdict = match (first.0 == second.0, first.1 == second.1) {
        (true, false) => granted(confirm(&connection, second).await?),
        (true, true) => Verdict::Fail("the confirm verifier is the one from before".into()),
        (false, _) => Verdict::Fail("it has another client ID".into()),
    };
    Ok(verdict.max(confirmed))
}

async fn introduced(connection: &raw::Connection, who: &ClientOwner) -> Result<(u64, [u8; 8])> {
    Ok(introduce(connection, who).await?.map_err(|error| format!("SETCLIENTID: {error}"))?)
}

/// A separate client.
async fn another(examiner: &Examiner) -> Result<Raw40> {
    let client = examiner.another_v40().await?;
    Ok(client.map_err(|error| format!("SETCLIENTID: {error}"))?)
}

async fn kept_over_update(examiner: &mut Examiner) -> Result<Verdict> {
    let (_, name) = examiner.create("kept").await?;
    let client = another(examiner).await?;
    let mut owner = Owner40::new("owner");
    let open = client.opened(&mut owner, &name, ShareAccess::READ).await?;
    let update = introduced(&client.connection, &client.who).await?;
    let mut verdict = granted(confirm(&client.connection, update).await?);
    verdict = verdict.max(granted(client.read(&open.handle, open.stateid).await?));
    Ok(verdict.max(granted(client.close(&mut owner, &open).await?)))
}

/// The same client after a restart.
fn restarted(client: &Raw40) -> ClientOwner {
    ClientOwner { verifier: *b"restart!", ..client.who.clone() }
}

async fn kept_until_confirmed(examiner: &mut Examiner) -> Result<Verdict> {
    let (_, name) = examiner.create("kept").await?;
    let client = another(examiner).await?;
    let mut owner = Owner40::new("owner");
    let open = client.opened(&mut owner, &name, ShareAccess::READ).await?;
    introduced(&client.connection, &restarted(&client)).await?;
    let verdict = granted(client.read(&open.handle, open.stateid).await?);
    Ok(verdict.max(granted(client.close(&mut owner, &open).await?)))
}

async fn replaced(examiner: &mut Examiner) -> Result<Verdict> {
    let (_, name) = examiner.create("replaced").await?;
    let client = another(examiner).await?;
    let open = client.opened(&mut Owner40::new("owner"), &name, ShareAccess::READ).await?;
    let again = introduced(&client.connection, &restarted(&client)).await?;
    if let Err(error) = confirm(&client.connection, again).await? {
        return Ok(Verdict::Fail(format!("SETCLIENTID_CONFIRM: {error}")));
    }
    let read = client.read(&open.handle, open.stateid).await?;
    let verdict = refused(read, &[Error::BadStateId, Error::Expired, Error::StaleStateId]);
    let renewed = client.call(&[Op::Renew(client.id)]).await?.status;
    Ok(verdict.max(refused(renewed, &[Error::StaleClientId, Error::Expired])))
}

async fn renew_unknown(examiner: &mut Examiner) -> Result<Verdict> {
    let client = examiner.v40().await?;
    Ok(refused(client.call(&[Op::Renew(NEVER)]).await?.status, &[Error::StaleClientId]))
}

async fn renew_unconfirmed(examiner: &mut Examiner) -> Result<Verdict> {
    let connection = examiner.connection(0).await?;
    let (id, _) = introduced(&connection, &raw::new_client()).await?;
    let status = connection.call(&[Op::Renew(id)]).await?.status;
    Ok(refused(status, &[Error::StaleClientId]))
}

async fn open_stale(examiner: &mut Examiner) -> Result<Verdict> {
    let (_, name) = examiner.create("stale").await?;
    let client = examiner.v40().await?;
    let owner = Owner40::new("stale");
    let args = client.open_args(&owner, &name, ShareAccess::READ, open::ShareDeny::empty());
    let owner = StateOwner { client_id: NEVER, ..args.owner.clone() };
    let sent = client.send_open(&open::Args { owner, ..args }).await?;
    Ok(refused(sent.map(drop), &[Error::StaleClientId]))
}

async fn lock_stale(examiner: &mut Examiner) -> Result<Verdict> {
    let (_, name) = examiner.create("stale").await?;
    let client = examiner.v40().await?;
    let mut owner = Owner40::new("lock with a stale client");
    let open = client.opened(&mut owner, &name, ShareAccess::BOTH).await?;
    let mut args = client.lock_args(&owner, &open, &Owner40::new("locker"));
    if let lock::Locker::New(new) = &mut args.locker {
        new.lock_owner.client_id = NEVER;
    }
    let status = client.on(&open.handle, Op::Lock(args)).await?.status;
    owner.count(&status);
    let verdict = refused(status, &[Error::StaleClientId]);
    Ok(verdict.max(granted(client.close(&mut owner, &open).await?)))
}

async fn lockt_stale(examiner: &mut Examiner) -> Result<Verdict> {
    let (_, name) = examiner.create("stale").await?;
    let client = examiner.v40().await?;
    let mut owner = Owner40::new("test with a stale client");
    let open = client.opened(&mut owner, &name, ShareAccess::BOTH).await?;
    let args = lockt::Args {
        kind: LockType::Write,
        offset: 0,
        length: 10,
        owner: StateOwner { client_id: NEVER, owner: "locker".into() },
    };
    let status = client.on(&open.handle, Op::Lockt(args)).await?.status;
    let verdict = refused(status, &[Error::StaleClientId]);
    Ok(verdict.max(granted(client.close(&mut owner, &open).await?)))
}

async fn release_stale(examiner: &mut Examiner) -> Result<Verdict> {
    let client = examiner.v40().await?;
    let args = StateOwner { client_id: NEVER, owner: "locker".into() };
    let status = client.call(&[Op::ReleaseLockowner(args)]).await?.status;
    Ok(refused(status, &[Error::StaleClientId]))
}

async fn release_held(examiner: &mut Examiner) -> Result<Verdict> {
    let (_, name) = examiner.create("locked").await?;
    let client = examiner.v40().await?;
    let (mut owner, mut locker) = (Owner40::new("released"), Owner40::new("released locker"));
    let open = client.opened(&mut owner, &name, ShareAccess::BOTH).await?;
    let locked = client.lock(&mut owner, &open, &mut locker).await?;
    let stateid = locked.map_err(|error| format!("LOCK: {error}"))?;
    let name = locker.name.as_bytes().into();
    let args = StateOwner { client_id: client.id, owner: name };
    let release = Op::ReleaseLockowner(args);
    let mut verdict =
        refused(client.call(std::slice::from_ref(&release)).await?.status, &[Error::LocksHeld]);
    let unlock = Op::Locku(Raw40::unlock_args(&locker, stateid));
    verdict = verdict.max(granted(client.on(&open.handle, unlock).await?.status));
    verdict = verdict.max(granted(client.call(&[release]).await?.status));
    Ok(verdict.max(granted(client.close(&mut owner, &open).await?)))
}

async fn later_operation(examiner: &mut Examiner) -> Result<Verdict> {
    let client = examiner.v40().await?;
    let args = sequence::Args {
        session: [0; 16],
        sequence_id: 1,
        slot: 0,
        highest_slot: 0,
        cache_this: false,
    };
    Ok(refused(client.call(&[Op::Sequence(args)]).await?.status, &[Error::OpIllegal]))
}
