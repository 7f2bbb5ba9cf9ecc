//! Clients and their sessions (RFC 8881 sections 18.35 and 18.36).

use crate::examiner::Examiner;
use crate::raw_open::refused;
use crate::rule::{Rule, rule};
use crate::verdict::{Result, Verdict};
use weir_client::raw;
use weir_nfs::v4::op::{create_session, exchange_id};
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
];

async fn exchange_id_flags(examiner: &mut Examiner) -> Result<Verdict> {
    let connection = examiner.connection().await?;
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
    let connection = examiner.connection().await?;
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
