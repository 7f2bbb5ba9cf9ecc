//! Compounds and sessions: SEQUENCE, slots, sizes, and operations in the wrong place (RFC 8881 sections 2.10.6,
//! 15.1, 16.2, 18.36 and 18.46).

use crate::examiner::Examiner;
use crate::raw_open::{RawClient, granted, refused};
use crate::rule::{Rule, rule};
use crate::verdict::{Result, Verdict};
use weir_client::raw;
use weir_nfs::v4::op::create::Kind;
use weir_nfs::v4::op::{create, create_session, getattr, sequence};
use weir_nfs::v4::types::Status;
use weir_nfs::v4::{Attrs, Bitmap, Error, Op, OpRes};

pub(crate) const RULES: &[Rule] = &[
    rule!(
        "an undefined minor version is refused",
        "RFC 8881 16.2.3",
        "version 4.99: MINOR_VERS_MISMATCH and no results",
        minor_version
    ),
    rule!(
        "an empty compound succeeds",
        "RFC 8881 16.2.3",
        "outside of a session: OK",
        no_operations
    ),
    rule!(
        "an operation outside of a session is refused",
        "RFC 8881 18.46.3",
        "PUTROOTFH first: OP_NOT_IN_SESSION",
        not_in_session
    ),
    rule!(
        "EXCHANGE_ID before other operations is refused",
        "RFC 8881 18.35.3",
        "outside of a session: NOT_ONLY_OP",
        exchange_id_not_only
    ),
    rule!(
        "CREATE_SESSION before other operations is refused",
        "RFC 8881 18.36.3",
        "outside of a session: NOT_ONLY_OP",
        create_session_not_only
    ),
    rule!(
        "SEQUENCE is the first operation",
        "RFC 8881 18.46.3",
        "a second SEQUENCE: SEQUENCE_POS",
        sequence_pos
    ),
    rule!(
        "SEQUENCE of an unknown session is refused",
        "RFC 8881 18.46.3",
        "BADSESSION",
        bad_session
    ),
    rule!(
        "SEQUENCE with a slot beyond those of the session is refused",
        "RFC 8881 18.46.3",
        "the number of slots: BADSLOT",
        bad_slot
    ),
    rule!(
        "the first SEQUENCE of a slot has number 1",
        "RFC 8881 18.36.3",
        "2 first: SEQ_MISORDERED",
        first_number
    ),
    rule!(
        "SEQUENCE with a number out of order is refused",
        "RFC 8881 18.46.3",
        "two ahead, and one before the last: SEQ_MISORDERED",
        misordered
    ),
    rule!(
        "a retransmitted request gets the cached reply and is not executed again",
        "RFC 8881 18.46.3",
        "CREATE with a cached reply, sent again with the same sequence number: the same results",
        replayed
    ),
    rule!(
        "a retransmitted request without a cached reply is not executed again",
        "RFC 8881 18.46.3",
        "CREATE with the same sequence number: RETRY_UNCACHED_REP, or the same results",
        not_kept
    ),
    rule!(
        "a different request with a used sequence number is not executed",
        "RFC 8881 18.46.3",
        "CREATE of another name: SEQ_FALSE_RETRY, or the first reply; the other name does not \
         exist",
        false_retry
    ),
    rule!(
        "a compound of more operations than the session allows is refused",
        "RFC 8881 18.36.3",
        "one more than granted: TOO_MANY_OPS",
        too_many_operations
    ),
    rule!(
        "a request longer than the session allows is refused",
        "RFC 8881 18.36.3",
        "a LOOKUP that exceeds a granted size of at most 1,024: REQ_TOO_BIG",
        request_too_big
    ),
    rule!(
        "a reply of exactly the granted size is sent, one byte more is refused",
        "RFC 8881 18.36.3",
        "GETATTR in sessions of the reply's size and of four bytes less: OK, REP_TOO_BIG",
        reply_size
    ),
    rule!(
        "a reply of exactly the granted cached size is cached, one byte more is refused",
        "RFC 8881 18.36.3",
        "the same with the cached size: OK, REP_TOO_BIG_TO_CACHE",
        kept_size
    ),
    rule!(
        "a session with a reply size too small for any reply is refused",
        "RFC 8881 18.36.3",
        "a size of 8: TOOSMALL",
        too_small
    ),
    rule!(
        "CREATE_SESSION raises no requested size and adds no flag",
        "RFC 8881 18.36.3",
        "sizes of 4,000 to 8,000 bytes, no flags",
        not_raised
    ),
    rule!(
        "operations that only version 4.0 has are refused",
        "RFC 8881 17",
        "RENEW and OPEN_CONFIRM: NOTSUPP",
        of_version_40
    ),
];

async fn minor_version(examiner: &mut Examiner) -> Result<Verdict> {
    let reply = examiner.connection(99).await?.call(&[Op::Putrootfh(())]).await?;
    let verdict = refused(reply.status, &[Error::MinorVersMismatch]);
    let none = reply.results.is_empty();
    Ok(if none { verdict } else { verdict.max(Verdict::Fail("it has results".into())) })
}

async fn no_operations(examiner: &mut Examiner) -> Result<Verdict> {
    Ok(granted(examiner.connection(2).await?.call(&[]).await?.status))
}

async fn not_in_session(examiner: &mut Examiner) -> Result<Verdict> {
    let reply = examiner.connection(2).await?.call(&[Op::Putrootfh(())]).await?;
    Ok(refused(reply.status, &[Error::OpNotInSession]))
}

async fn exchange_id_not_only(examiner: &mut Examiner) -> Result<Verdict> {
    let ops = [Op::ExchangeId(raw::exchange_id(raw::new_client())), Op::Putrootfh(())];
    let reply = examiner.connection(2).await?.call(&ops).await?;
    Ok(refused(reply.status, &[Error::NotOnlyOp]))
}

async fn create_session_not_only(examiner: &mut Examiner) -> Result<Verdict> {
    let ops = [Op::CreateSession(raw::create_session(1, 1)), Op::Putrootfh(())];
    let reply = examiner.connection(2).await?.call(&ops).await?;
    Ok(refused(reply.status, &[Error::NotOnlyOp]))
}

async fn sequence_pos(examiner: &mut Examiner) -> Result<Verdict> {
    let raw = examiner.raw().await?;
    let again = sequence::Args {
        session: raw.session.id(),
        sequence_id: 1,
        slot: 0,
        highest_slot: 0,
        cache_this: false,
    };
    Ok(refused(raw.call(&[Op::Sequence(again)]).await?.status, &[Error::SequencePos]))
}

/// Sends SEQUENCE with changed arguments.
async fn sequenced(raw: &RawClient, change: impl FnOnce(&mut sequence::Args)) -> Result<Status> {
    Ok(raw.session.compound(change, &[]).await?.status)
}

async fn bad_session(examiner: &mut Examiner) -> Result<Verdict> {
    let raw = examiner.raw().await?;
    let status = sequenced(raw, |args| args.session = [0x5a; 16]).await?;
    Ok(refused(status, &[Error::BadSession]))
}

async fn bad_slot(examiner: &mut Examiner) -> Result<Verdict> {
    let raw = examiner.raw().await?;
    let slots = raw.session.fore().max_requests;
    let change = |args: &mut sequence::Args| {
        (args.slot, args.highest_slot, args.sequence_id) = (slots, slots, 1);
    };
    Ok(refused(sequenced(raw, change).await?, &[Error::BadSlot]))
}

async fn first_number(examiner: &mut Examiner) -> Result<Verdict> {
    let raw = examiner.another_raw(|args| args.fore.max_requests = 4).await?;
    if raw.session.fore().max_requests < 2 {
        return Ok(Verdict::Note("the session has one slot".into()));
    }
    // The first slot has been used.
    let change = |args: &mut sequence::Args| {
        (args.slot, args.highest_slot, args.sequence_id) = (1, 1, 2);
    };
    let verdict = refused(sequenced(&raw, change).await?, &[Error::SeqMisordered]);
    raw.end().await;
    Ok(verdict)
}

async fn misordered(examiner: &mut Examiner) -> Result<Verdict> {
    let raw = examiner.raw().await?;
    // `sequence_id` is this request's own number.
    let ahead = sequenced(raw, |args| args.sequence_id += 1).await?;
    let behind = sequenced(raw, |args| args.sequence_id -= 2).await?;
    let expected = &[Error::SeqMisordered];
    Ok(refused(ahead, expected).max(refused(behind, expected)))
}

/// Creates a directory in the directory of the examination.
fn mkdir(raw: &RawClient, name: &[u8]) -> [Op; 2] {
    let attrs = Attrs { mode: Some(0o700), ..Attrs::default() };
    let args = create::Args { kind: Kind::Directory, name: name.into(), attrs: attrs.into() };
    [Op::Putfh(raw.dir.clone()), Op::Create(args)]
}

/// Whether two replies are equal. The results of SEQUENCE may differ, because they report events
/// since then.
fn same(first: &raw::Reply, again: &raw::Reply) -> bool {
    first.status == again.status && first.results.get(1..) == again.results.get(1..)
}

async fn replayed(examiner: &mut Examiner) -> Result<Verdict> {
    let name = examiner.new_dir_name("once");
    let raw = examiner.raw().await?;
    let ops = mkdir(raw, &name);
    let first = raw.session.compound(|args| args.cache_this = true, &ops).await?;
    let again = raw.session.compound(again, &ops).await?;
    let verdict = granted(first.status);
    Ok(match same(&first, &again) {
        true => verdict,
        false => Verdict::Fail(format!("{:?} became {:?}", first.results, again.results)),
    })
}

/// The arguments of the last SEQUENCE, whose reply the server has kept.
fn again(args: &mut sequence::Args) {
    (args.sequence_id, args.cache_this) = (args.sequence_id - 1, true);
}

async fn not_kept(examiner: &mut Examiner) -> Result<Verdict> {
    let name = examiner.new_dir_name("once");
    let raw = examiner.raw().await?;
    let ops = mkdir(raw, &name);
    let first = raw.session.compound(|_| {}, &ops).await?;
    let again = raw.session.compound(|args| args.sequence_id -= 1, &ops).await?;
    let verdict = granted(first.status);
    Ok(match same(&first, &again) {
        true => verdict,
        false => verdict.max(refused(again.status, &[Error::RetryUncachedRep])),
    })
}

async fn false_retry(examiner: &mut Examiner) -> Result<Verdict> {
    let (name, other) = (examiner.new_dir_name("once"), examiner.new_dir_name("other"));
    let raw = examiner.raw().await?;
    let first = raw.session.compound(|args| args.cache_this = true, &mkdir(raw, &name)).await?;
    let second = raw.session.compound(again, &mkdir(raw, &other)).await?;
    let mut verdict = granted(first.status);
    if !same(&first, &second) {
        verdict = verdict.max(refused(second.status, &[Error::SeqFalseRetry]));
    }
    let lookup = Op::Lookup(other[..].into());
    let there = raw.call(&[Op::Putfh(raw.dir.clone()), lookup]).await?.status;
    Ok(verdict.max(refused(there, &[Error::NoEnt])))
}

async fn too_many_operations(examiner: &mut Examiner) -> Result<Verdict> {
    let raw = examiner.raw().await?;
    let most = raw.session.fore().max_operations as usize;
    // SEQUENCE counts as one.
    let fits = raw.call(&vec![Op::Putrootfh(()); most - 1]).await?.status;
    let reply = raw.session.compound(|_| {}, &vec![Op::Putrootfh(()); most]).await?;
    Ok(granted(fits).max(refused(reply.status, &[Error::TooManyOps])))
}

async fn request_too_big(examiner: &mut Examiner) -> Result<Verdict> {
    let raw = examiner.another_raw(|args| args.fore.max_request_size = 1024).await?;
    let size = raw.session.fore().max_request_size as usize;
    let ops = [Op::Putrootfh(()), Op::Lookup(vec![b'x'; size][..].into())];
    let reply = raw.session.compound(|_| {}, &ops).await?;
    let verdict = refused(reply.status, &[Error::ReqTooBig]);
    raw.end().await;
    Ok(verdict)
}

/// Type, size and mode of the root.
fn attributes() -> [Op; 2] {
    [Op::Putrootfh(()), Op::Getattr(Bitmap::of(&[1, 4, 33]) as getattr::Args)]
}

async fn reply_size(examiner: &mut Examiner) -> Result<Verdict> {
    sizes(examiner, Error::RepTooBig, false, |fore, size| fore.max_response_size = size).await
}

async fn kept_size(examiner: &mut Examiner) -> Result<Verdict> {
    let change = |fore: &mut create_session::ChannelAttrs, size| {
        fore.max_response_size_cached = size;
    };
    sizes(examiner, Error::RepTooBigToCache, true, change).await
}

/// Sends a request in a session whose limit its reply just fits, and in one whose limit it exceeds.
/// The latter must fail with `error`.
async fn sizes(
    examiner: &mut Examiner,
    error: Error,
    keep: bool,
    change: fn(&mut create_session::ChannelAttrs, u32),
) -> Result<Verdict> {
    let ops = attributes();
    let size = examiner.raw().await?.session.compound(|_| {}, &ops).await?.bytes as u32;
    let mut verdict = Verdict::Pass;
    for (limit, fits) in [(size, true), (size - 4, false)] {
        let connection = examiner.connection(2).await?;
        let client = raw::new_client();
        let begun = raw::Session::begin_as(connection, client, |args| {
            change(&mut args.fore, limit);
        });
        let session = match begun.await {
            Ok(session) => session,
            // A server may refuse a session this small.
            Err(error) => return Ok(Verdict::Note(format!("a session of {limit} bytes: {error}"))),
        };
        let status = session.compound(|args| args.cache_this = keep, &ops).await?.status;
        let what = if fits { granted(status) } else { refused(status, &[error]) };
        verdict = verdict.max(match what {
            Verdict::Fail(why) => Verdict::Fail(format!("{limit} bytes: {why}")),
            what => what,
        });
        // The reply to that may not fit a session this small.
        let _ = session.end().await;
    }
    Ok(verdict)
}

async fn too_small(examiner: &mut Examiner) -> Result<Verdict> {
    let connection = examiner.connection(2).await?;
    let reply = connection.call(&[Op::ExchangeId(raw::exchange_id(raw::new_client()))]).await?;
    let Some(OpRes::ExchangeId(Ok(exchanged))) = reply.results.first() else {
        return Err(format!("EXCHANGE_ID: {:?}", reply.status).into());
    };
    let mut args = raw::create_session(exchanged.client_id, exchanged.sequence_id);
    args.fore.max_response_size = 8;
    let status = connection.call(&[Op::CreateSession(args)]).await?.status;
    Ok(refused(status, &[Error::TooSmall]))
}

async fn not_raised(examiner: &mut Examiner) -> Result<Verdict> {
    let connection = examiner.connection(2).await?;
    let reply = connection.call(&[Op::ExchangeId(raw::exchange_id(raw::new_client()))]).await?;
    let Some(OpRes::ExchangeId(Ok(exchanged))) = reply.results.first() else {
        return Err(format!("EXCHANGE_ID: {:?}", reply.status).into());
    };
    let mut args = raw::create_session(exchanged.client_id, exchanged.sequence_id);
    for channel in [&mut args.fore, &mut args.back] {
        (channel.max_request_size, channel.max_response_size) = (8000, 6000);
        (channel.max_response_size_cached, channel.header_pad_size) = (4000, 0);
    }
    let reply = connection.call(&[Op::CreateSession(args.clone())]).await?;
    let Some(OpRes::CreateSession(Ok(created))) = reply.results.first() else {
        return Ok(Verdict::Fail(format!("CREATE_SESSION: {:?}", reply.status)));
    };
    let sizes = |channel: &create_session::ChannelAttrs| {
        [
            channel.max_request_size,
            channel.max_response_size,
            channel.max_response_size_cached,
            channel.header_pad_size,
        ]
    };
    let mut verdict = Verdict::Pass;
    for (asked, got) in [(&args.fore, &created.fore), (&args.back, &created.back)] {
        if sizes(asked).iter().zip(sizes(got)).any(|(asked, got)| got > *asked) {
            verdict = Verdict::Fail(format!("{asked:?} became {got:?}"));
        }
    }
    if !created.flags.is_empty() {
        verdict = verdict.max(Verdict::Fail(format!("flags {:?}", created.flags)));
    }
    connection.call(&[Op::DestroySession(created.session)]).await?;
    connection.call(&[Op::DestroyClientid(exchanged.client_id)]).await?;
    Ok(verdict)
}

async fn of_version_40(examiner: &mut Examiner) -> Result<Verdict> {
    let raw = examiner.raw().await?;
    let confirm = weir_nfs::v4::op::open_confirm::Args {
        open_stateid: weir_nfs::v4::types::StateId::ANONYMOUS,
        seqid: 1,
    };
    let mut verdict = refused(raw.call(&[Op::Renew(1)]).await?.status, &[Error::NotSupp]);
    let ops = [Op::Putrootfh(()), Op::OpenConfirm(confirm)];
    verdict = verdict.max(refused(raw.call(&ops).await?.status, &[Error::NotSupp]));
    Ok(verdict)
}
