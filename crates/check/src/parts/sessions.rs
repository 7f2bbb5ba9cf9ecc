//! Clients and their sessions (RFC 8881 sections 18.35 and 18.36).

use crate::examiner::Examiner;
use crate::raw_open::{granted, refused};
use crate::rule::{Rule, rule};
use crate::verdict::{Result, Verdict};
use weir_client::raw;
use weir_nfs::v4::op::{bind_conn_to_session, create_session, exchange_id, reclaim_complete};
use weir_nfs::v4::types::ClientOwner;
use weir_nfs::v4::{Error, Op, OpRes};

pub(crate) const RULES: &[Rule] = &[
    rule!(
        "EXCHANGE_ID with undefined flags is refused",
        "RFC 8881 18.35.3",
        "flags 8, 0x1000 and 0x0800_0000: INVAL",
        exchange_id_flags
    ),
    rule!(
        "CREATE_SESSION with undefined flags is refused",
        "RFC 8881 18.36.3",
        "flags 8 and 0x8000_0000: INVAL",
        create_session_flags
    ),
    rule!(
        "EXCHANGE_ID with the flag that only servers set is refused",
        "RFC 8881 18.35.3",
        "CONFIRMED_R: INVAL",
        confirmed_flag
    ),
    rule!(
        "EXCHANGE_ID that updates an unknown client is refused",
        "RFC 8881 18.35.4",
        "UPD_CONFIRMED_REC_A of an unknown client, and of one that is not confirmed: NOENT",
        update_unknown
    ),
    rule!(
        "EXCHANGE_ID that updates another incarnation of the client is refused",
        "RFC 8881 18.35.4",
        "UPD_CONFIRMED_REC_A with another verifier: NOT_SAME; with the right one it succeeds",
        update_other_run
    ),
    rule!(
        "EXCHANGE_ID of a confirmed client returns its client ID",
        "RFC 8881 18.35.4",
        "the same client ID, and CONFIRMED_R",
        exchanged_again
    ),
    rule!(
        "EXCHANGE_ID of a client that is not confirmed replaces its client ID",
        "RFC 8881 18.35.4",
        "another client ID; CREATE_SESSION of the first: STALE_CLIENTID",
        replaced_unconfirmed
    ),
    rule!(
        "a restarted client keeps its session until CREATE_SESSION",
        "RFC 8881 18.35.4",
        "EXCHANGE_ID with another verifier: the session works; after CREATE_SESSION: BADSESSION",
        restarted
    ),
    rule!(
        "CREATE_SESSION of a client that was replaced is refused",
        "RFC 8881 18.36.4",
        "the client ID from before the restart: STALE_CLIENTID",
        create_for_replaced
    ),
    rule!(
        "CREATE_SESSION of an unknown client ID is refused",
        "RFC 8881 18.36.4",
        "STALE_CLIENTID",
        create_unknown
    ),
    rule!(
        "a retransmitted CREATE_SESSION returns the first result",
        "RFC 8881 18.36.4",
        "the same number: the same session",
        create_again
    ),
    rule!(
        "CREATE_SESSION with a number out of order is refused",
        "RFC 8881 18.36.4",
        "two ahead: SEQ_MISORDERED",
        create_misordered
    ),
    rule!(
        "a destroyed session is refused",
        "RFC 8881 18.37.3",
        "SEQUENCE and DESTROY_SESSION: BADSESSION",
        destroyed
    ),
    rule!(
        "DESTROY_CLIENTID of a client with a session is refused",
        "RFC 8881 18.50.3",
        "CLIENTID_BUSY",
        client_busy
    ),
    rule!(
        "DESTROY_CLIENTID of an unknown client ID is refused",
        "RFC 8881 18.50.3",
        "STALE_CLIENTID",
        destroy_unknown
    ),
    rule!(
        "BIND_CONN_TO_SESSION to an unknown session is refused",
        "RFC 8881 18.34.3",
        "BADSESSION",
        bind_unknown
    ),
    rule!(
        "a second RECLAIM_COMPLETE is refused",
        "RFC 8881 18.51.3",
        "COMPLETE_ALREADY",
        complete_twice
    ),
];

async fn exchange_id_flags(examiner: &mut Examiner) -> Result<Verdict> {
    let connection = examiner.connection(2).await?;
    let mut worst = Verdict::Pass;
    for undefined in [0x8, 0x1000, 0x0800_0000] {
        let mut args = raw::exchange_id(raw::new_client());
        args.flags |= exchange_id::Flags::from_bits_retain(undefined);
        let reply = connection.call(&[Op::ExchangeId(args)]).await?;
        worst = worst.max(refused(reply.status, &[Error::Inval]));
        if let Some(OpRes::ExchangeId(Ok(exchanged))) = reply.results.first() {
            connection.call(&[Op::DestroyClientid(exchanged.client_id)]).await?;
        }
    }
    Ok(worst)
}

async fn create_session_flags(examiner: &mut Examiner) -> Result<Verdict> {
    let connection = examiner.connection(2).await?;
    let mut worst = Verdict::Pass;
    for undefined in [0x8, 0x8000_0000] {
        let args = raw::exchange_id(raw::new_client());
        let reply = connection.call(&[Op::ExchangeId(args)]).await?;
        let Some(OpRes::ExchangeId(Ok(exchanged))) = reply.results.first() else {
            return Err(format!("EXCHANGE_ID: {:?}", reply.status).into());
        };
        let mut args = raw::create_session(exchanged.client_id, exchanged.sequence_id);
        args.flags |= create_session::Flags::from_bits_retain(undefined);
        let reply = connection.call(&[Op::CreateSession(args)]).await?;
        worst = worst.max(refused(reply.status, &[Error::Inval]));
        if let Some(OpRes::CreateSession(Ok(created))) = reply.results.first() {
            connection.call(&[Op::DestroySession(created.session)]).await?;
        }
        connection.call(&[Op::DestroyClientid(exchanged.client_id)]).await?;
    }
    Ok(worst)
}

/// Sends EXCHANGE_ID with additional flags.
async fn exchange(
    connection: &raw::Connection,
    client: &ClientOwner,
    flags: exchange_id::Flags,
) -> Result<std::result::Result<exchange_id::Exchanged, Error>> {
    let mut args = raw::exchange_id(client.clone());
    args.flags |= flags;
    let mut reply = connection.call(&[Op::ExchangeId(args)]).await?;
    match (reply.status, reply.results.pop()) {
        (Ok(()), Some(OpRes::ExchangeId(Ok(exchanged)))) => Ok(Ok(exchanged)),
        (Err(error), _) => Ok(Err(error)),
        _ => Err("EXCHANGE_ID has another result".into()),
    }
}

/// Sends EXCHANGE_ID of a client, which must succeed.
async fn exchanged(
    connection: &raw::Connection,
    client: &ClientOwner,
) -> Result<exchange_id::Exchanged> {
    let exchanged = exchange(connection, client, exchange_id::Flags::empty()).await?;
    Ok(exchanged.map_err(|error| format!("EXCHANGE_ID: {error}"))?)
}

async fn confirmed_flag(examiner: &mut Examiner) -> Result<Verdict> {
    let connection = examiner.connection(2).await?;
    let flag = exchange_id::Flags::CONFIRMED_R;
    let exchanged = exchange(&connection, &raw::new_client(), flag).await?;
    Ok(refused(exchanged.map(drop), &[Error::Inval]))
}

async fn update_unknown(examiner: &mut Examiner) -> Result<Verdict> {
    let connection = examiner.connection(2).await?;
    let client = raw::new_client();
    let update = exchange_id::Flags::UPD_CONFIRMED_REC_A;
    let unknown = exchange(&connection, &client, update).await?.map(drop);
    exchanged(&connection, &client).await?;
    let unconfirmed = exchange(&connection, &client, update).await?.map(drop);
    let expected = &[Error::NoEnt];
    Ok(refused(unknown, expected).max(refused(unconfirmed, expected)))
}

/// A client's owner and its session.
async fn with_session(examiner: &Examiner) -> Result<(ClientOwner, raw::Session)> {
    let client = raw::new_client();
    let connection = examiner.connection(2).await?;
    let session = raw::Session::begin_as(connection, client.clone(), |_| {}).await?;
    Ok((client, session))
}

async fn update_other_run(examiner: &mut Examiner) -> Result<Verdict> {
    let (client, session) = with_session(examiner).await?;
    let update = exchange_id::Flags::UPD_CONFIRMED_REC_A;
    let connection = session.connection();
    let other = ClientOwner { verifier: *b"restart!", ..client.clone() };
    let verdict = refused(exchange(connection, &other, update).await?.map(drop), &[Error::NotSame]);
    let verdict = verdict.max(granted(exchange(connection, &client, update).await?.map(drop)));
    session.end().await?;
    Ok(verdict)
}

async fn exchanged_again(examiner: &mut Examiner) -> Result<Verdict> {
    let (client, session) = with_session(examiner).await?;
    let again = exchanged(session.connection(), &client).await?;
    let known = again.flags.contains(exchange_id::Flags::CONFIRMED_R);
    let verdict = match again.client_id == session.client_id() && known {
        true => Verdict::Pass,
        false => Verdict::Fail(format!("{:#x} became {again:?}", session.client_id())),
    };
    session.end().await?;
    Ok(verdict)
}

async fn replaced_unconfirmed(examiner: &mut Examiner) -> Result<Verdict> {
    let connection = examiner.connection(2).await?;
    let client = raw::new_client();
    let first = exchanged(&connection, &client).await?;
    let second = exchanged(&connection, &client).await?;
    if first.client_id == second.client_id {
        return Ok(Verdict::Fail("it has the same client ID".into()));
    }
    let create = raw::create_session(first.client_id, first.sequence_id);
    let status = connection.call(&[Op::CreateSession(create)]).await?.status;
    Ok(refused(status, &[Error::StaleClientId]))
}

/// Restarts a client. Returns the session of the new instance.
async fn restart(examiner: &Examiner, client: &ClientOwner) -> Result<raw::Session> {
    let again = ClientOwner { verifier: *b"restart!", ..client.clone() };
    Ok(raw::Session::begin_as(examiner.connection(2).await?, again, |_| {}).await?)
}

async fn restarted(examiner: &mut Examiner) -> Result<Verdict> {
    let (client, session) = with_session(examiner).await?;
    let again = ClientOwner { verifier: *b"restart!", ..client.clone() };
    exchanged(session.connection(), &again).await?;
    let before = granted(session.compound(|_| {}, &[]).await?.status);
    let new = restart(examiner, &client).await?;
    let after = refused(session.compound(|_| {}, &[]).await?.status, &[Error::BadSession]);
    new.end().await?;
    Ok(before.max(after))
}

async fn create_for_replaced(examiner: &mut Examiner) -> Result<Verdict> {
    let (client, session) = with_session(examiner).await?;
    let new = restart(examiner, &client).await?;
    let create = raw::create_session(session.client_id(), 2);
    let status = session.connection().call(&[Op::CreateSession(create)]).await?.status;
    new.end().await?;
    Ok(refused(status, &[Error::StaleClientId]))
}

/// A client ID that a server assigns only by chance.
const NEVER: u64 = 0xbad0_bad0_bad0_bad0;

async fn create_unknown(examiner: &mut Examiner) -> Result<Verdict> {
    let create = Op::CreateSession(raw::create_session(NEVER, 1));
    let status = examiner.connection(2).await?.call(&[create]).await?.status;
    Ok(refused(status, &[Error::StaleClientId]))
}

async fn create_again(examiner: &mut Examiner) -> Result<Verdict> {
    let connection = examiner.connection(2).await?;
    let client = exchanged(&connection, &raw::new_client()).await?;
    let create = Op::CreateSession(raw::create_session(client.client_id, client.sequence_id));
    let first = connection.call(std::slice::from_ref(&create)).await?;
    let again = connection.call(&[create]).await?;
    let verdict = match first.results == again.results {
        true => granted(first.status),
        false => Verdict::Fail(format!("{:?} became {:?}", first.results, again.results)),
    };
    if let Some(OpRes::CreateSession(Ok(created))) = first.results.first() {
        connection.call(&[Op::DestroySession(created.session)]).await?;
        connection.call(&[Op::DestroyClientid(client.client_id)]).await?;
    }
    Ok(verdict)
}

async fn create_misordered(examiner: &mut Examiner) -> Result<Verdict> {
    let connection = examiner.connection(2).await?;
    let client = exchanged(&connection, &raw::new_client()).await?;
    let number = client.sequence_id.wrapping_add(2);
    let create = Op::CreateSession(raw::create_session(client.client_id, number));
    Ok(refused(connection.call(&[create]).await?.status, &[Error::SeqMisordered]))
}

async fn destroyed(examiner: &mut Examiner) -> Result<Verdict> {
    let (_, session) = with_session(examiner).await?;
    let (client, destroy) = (session.client_id(), Op::DestroySession(session.id()));
    let connection = session.connection();
    let mut verdict = granted(connection.call(std::slice::from_ref(&destroy)).await?.status);
    let expected = &[Error::BadSession];
    verdict = verdict.max(refused(session.compound(|_| {}, &[]).await?.status, expected));
    verdict = verdict.max(refused(connection.call(&[destroy]).await?.status, expected));
    Ok(verdict.max(granted(connection.call(&[Op::DestroyClientid(client)]).await?.status)))
}

async fn client_busy(examiner: &mut Examiner) -> Result<Verdict> {
    let (_, session) = with_session(examiner).await?;
    let destroy = Op::DestroyClientid(session.client_id());
    let status = session.connection().call(&[destroy]).await?.status;
    session.end().await?;
    Ok(refused(status, &[Error::ClientIdBusy]))
}

async fn destroy_unknown(examiner: &mut Examiner) -> Result<Verdict> {
    let status = examiner.connection(2).await?.call(&[Op::DestroyClientid(NEVER)]).await?.status;
    Ok(refused(status, &[Error::StaleClientId]))
}

async fn bind_unknown(examiner: &mut Examiner) -> Result<Verdict> {
    let args = bind_conn_to_session::Args {
        session: [0x5a; 16],
        dir: bind_conn_to_session::DirFromClient::Fore,
        use_rdma: false,
    };
    let status = examiner.connection(2).await?.call(&[Op::BindConnToSession(args)]).await?.status;
    Ok(refused(status, &[Error::BadSession]))
}

async fn complete_twice(examiner: &mut Examiner) -> Result<Verdict> {
    let raw = examiner.raw().await?;
    // The session sent RECLAIM_COMPLETE when it began.
    let complete = Op::ReclaimComplete(reclaim_complete::Args { one_fs: false });
    Ok(refused(raw.call(&[complete]).await?.status, &[Error::CompleteAlready]))
}
