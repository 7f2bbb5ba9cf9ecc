//! Clients and sessions: EXCHANGE_ID, CREATE_SESSION, BIND_CONN_TO_SESSION, SEQUENCE,
//! BACKCHANNEL_CTL, DESTROY_SESSION, DESTROY_CLIENTID, RECLAIM_COMPLETE
//! (RFC 8881 sections 18.33 to 18.37, 18.46, 18.50, 18.51).

use crate::callback;
use crate::state::{
    Channel, Client, ClientId, Owner, SequenceArgs, Sequenced, SessionId, State, StateError,
};
use crate::v4::compound;
use crate::v4::context::{Context, HeldSlot, InSession};
use crate::v4::nfs4::Nfs4;
use crate::v4::status::of_state;
use weir_nfs::v4::op::{
    backchannel_ctl, bind_conn_to_session, create_session, destroy_clientid, destroy_session,
    exchange_id, reclaim_complete, sequence,
};
use weir_nfs::v4::types::ServerOwner;
use weir_nfs::v4::{Error, OpCode};
use weir_pagecache::File;
use weir_xdr::{Decoder, Encoder, List};

/// Maximum number of slots in a session.
const SLOTS: u32 = 64;
/// Maximum size of a cached reply, in bytes.
const CACHED_BYTES: u32 = 4096;
/// Maximum number of operations in a compound.
const OPERATIONS: u32 = 64;
pub(crate) async fn exchange_id(cx: &mut Context, args: exchange_id::Args) -> exchange_id::Res {
    use weir_nfs::v4::op::exchange_id::{Exchanged, Flags, StateProtect, StateProtected};
    if !Flags::MASK_A.contains(args.flags) {
        return Err(Error::Inval);
    }
    match args.state_protect {
        StateProtect::None => {}
        // Both need RPCSEC_GSS, which the server does not support.
        StateProtect::MachCred(_) => return Err(Error::Inval),
        StateProtect::Ssv(_) => return Err(Error::EncrAlgUnsupp),
    }
    let owner = Owner { sessions: true, name: bytes::Bytes::copy_from_slice(&args.client.owner) };
    let update = args.flags.contains(Flags::UPD_CONFIRMED_REC_A);
    let (now, verifier, principal) = (cx.now(), args.client.verifier, cx.principal.clone());
    let found = {
        let mut state = cx.state();
        let found = state.exchange_id(owner, verifier, principal, update, now).map_err(of_state)?;
        state.charge_address(found.id, cx.peer.address()).map_err(of_state)?;
        found
    };
    let confirmed = if found.confirmed { Flags::CONFIRMED_R } else { Flags::empty() };
    let identity = &cx.nfs.identity[..];
    Ok(Exchanged {
        client_id: found.id.0,
        sequence_id: found.next_create,
        flags: Flags::USE_NON_PNFS | confirmed,
        state_protect: StateProtected::None,
        server_owner: ServerOwner { minor_id: 0, major_id: identity.into() },
        server_scope: identity.into(),
        impl_id: List::default(),
    })
}

pub(crate) async fn create_session(
    cx: &mut Context,
    args: create_session::Args,
) -> create_session::Res {
    if !create_session::Flags::all().contains(args.flags) {
        return Err(Error::Inval);
    }
    let id = ClientId(args.client_id);
    let now = cx.now();
    let created = {
        let mut state = cx.state();
        let client = state.clients.get(id).map_err(of_state)?;
        if !client.owner.sessions {
            return Err(Error::StaleClientId);
        }
        // This check comes first: another principal must neither get the cached reply, which names
        // a session, nor use up the sequence number.
        if client.principal != cx.principal {
            return Err(Error::ClIdInUse);
        }
        if args.sequence_id.wrapping_add(1) == client.next_create
            && let Some(reply) = client.last_create.clone()
        {
            return Decoder::new(reply).get().map_err(|_| Error::ServerFault)?;
        }
        if args.sequence_id != client.next_create {
            return Err(Error::SeqMisordered);
        }
        // Everything that can fail comes before the first change (RFC 8881 section 18.36.4).
        state.check_session(id, now).map_err(of_state)?;
        let fore = match fore(&cx.nfs).grant(from_wire(&args.fore)).map_err(of_state) {
            Ok(fore) => fore,
            Err(error) => {
                // This uses up the sequence number: a retransmission gets the same error.
                let client = state.clients.get_mut(id).map_err(of_state)?;
                executed(client, &Err(error));
                return Err(error);
            }
        };
        let back = from_wire(&args.back);
        let cred = callback::cred_of(&args.sec_parms).filter(|_| is_useful(back));
        let calls_back =
            args.flags.contains(create_session::Flags::CONN_BACK_CHAN) && cred.is_some();
        let principal = cx.principal.clone();
        state.confirm(id, &principal, now).map_err(|error| match error {
            StateError::NotSamePrincipal => Error::ClIdInUse,
            error => of_state(error),
        })?;
        let session = state.create_session(id, fore, back, cx.minor).map_err(of_state)?;
        (session.callback_program, session.callback_cred) = (args.cb_program, cred);
        let flags = if calls_back {
            create_session::Flags::CONN_BACK_CHAN
        } else {
            create_session::Flags::empty()
        };
        let created = create_session::Created {
            session: session.id.0,
            sequence_id: args.sequence_id,
            flags,
            fore: to_wire(session.slots.fore),
            back: to_wire(session.back),
        };
        let client = state.clients.get_mut(id).map_err(of_state)?;
        executed(client, &Ok(created.clone()));
        created
    };
    if created.flags.contains(create_session::Flags::CONN_BACK_CHAN) {
        cx.services.callbacks.bind(SessionId(created.session), &cx.peer);
    }
    Ok(created)
}

/// Caches the result of a client's CREATE_SESSION, and advances the sequence number.
fn executed(client: &mut Client, result: &create_session::Res) {
    client.next_create = client.next_create.wrapping_add(1);
    let mut e = Encoder::new();
    e.put(result);
    client.last_create = Some(e.finish().to_bytes());
}

/// Whether a backchannel is large enough for callbacks: CB_SEQUENCE with one more operation, and
/// their results.
fn is_useful(back: Channel) -> bool {
    const LEAST_BYTES: u32 = 512;
    back.max_operations >= 2 && back.max_request.min(back.max_response) >= LEAST_BYTES
}

/// The fore channel that the server offers.
fn fore(nfs: &Nfs4) -> Channel {
    Channel {
        max_request: nfs.record_bytes as u32,
        max_response: nfs.record_bytes as u32,
        max_cached: CACHED_BYTES,
        max_operations: OPERATIONS,
        slots: SLOTS,
    }
}

fn from_wire(wire: &create_session::ChannelAttrs) -> Channel {
    Channel {
        max_request: wire.max_request_size,
        max_response: wire.max_response_size,
        max_cached: wire.max_response_size_cached,
        max_operations: wire.max_operations,
        slots: wire.max_requests,
    }
}

fn to_wire(channel: Channel) -> create_session::ChannelAttrs {
    create_session::ChannelAttrs {
        header_pad_size: 0,
        max_request_size: channel.max_request,
        max_response_size: channel.max_response,
        max_response_size_cached: channel.max_cached,
        max_operations: channel.max_operations,
        max_requests: channel.slots,
        rdma_ird: List::default(),
    }
}

pub(crate) async fn sequence(cx: &mut Context, args: sequence::Args) -> sequence::Res {
    let id = SessionId(args.session);
    let now = cx.now();
    let table = cx.services.slot_tables.get(id).map_err(of_state)?;
    let fore = table.fore;
    if cx.request_bytes > fore.max_request as usize {
        return Err(Error::ReqTooBig);
    }
    if cx.operations > fore.max_operations as usize {
        return Err(Error::TooManyOps);
    }
    if args.slot > args.highest_slot {
        return Err(Error::BadHighSlot);
    }
    // The tag alone may make every reply too long, or too long to cache.
    // There must also be room for the next operation to fail.
    let failure = if cx.operations > 1 { compound::FAILURE_BYTES } else { 0 };
    let least = cx.used_bytes + OpCode::Sequence.reply_bound().fixed_bytes() + failure;
    if least > fore.max_response as usize {
        return Err(Error::RepTooBig);
    }
    if args.cache_this && least > fore.max_cached as usize {
        return Err(Error::RepTooBigToCache);
    }
    let request = SequenceArgs {
        slot: args.slot,
        sequence: args.sequence_id,
        highest_slot: args.highest_slot,
        digest: cx.digest,
        keep: args.cache_this,
    };
    let target_slots = match table.begin(request, now).map_err(of_state)? {
        Sequenced::Replay(reply) => {
            cx.replay = Some(reply);
            return Err(Error::SeqFalseRetry);
        }
        Sequenced::Execute { target_slots } => target_slots,
    };
    cx.slot = Some(HeldSlot::new(cx.services.clone(), table.clone(), args.slot));
    cx.uses = table.uses();
    cx.session = Some(InSession {
        id,
        slot: args.slot,
        sequence: args.sequence_id,
        client: table.client(),
        fore,
        keep: args.cache_this,
    });
    let has_status = table.has_status();
    let none = sequence::StatusFlags::empty();
    Ok(sequence::Sequenced {
        session: args.session,
        sequence_id: args.sequence_id,
        slot: args.slot,
        highest_slot: fore.slots - 1,
        target_highest_slot: target_slots - 1,
        status_flags: if has_status { status_flags(&cx.state(), id) } else { none },
    })
}

/// The status flags of a SEQUENCE reply (RFC 8881 section 18.46.3).
fn status_flags(state: &State<File>, id: SessionId) -> sequence::StatusFlags {
    use sequence::StatusFlags;
    let mut flags = StatusFlags::empty();
    let Ok(session) = state.sessions.get(id) else { return flags };
    if session.lost_backchannel() {
        flags |= StatusFlags::CB_PATH_DOWN_SESSION;
        let elsewhere = state.sessions.of(session.client).any(|s| s.has_backchannel());
        flags.set(StatusFlags::CB_PATH_DOWN, !elsewhere);
    }
    let Ok(client) = state.clients.get(session.client) else { return flags };
    flags.set(StatusFlags::RECALLABLE_STATE_REVOKED, client.has_revoked_delegation());
    flags
}

pub(crate) async fn bind_conn_to_session(
    cx: &mut Context,
    args: bind_conn_to_session::Args,
) -> bind_conn_to_session::Res {
    use weir_nfs::v4::op::bind_conn_to_session::{Bound, DirFromClient, DirFromServer};
    let id = SessionId(args.session);
    let (has_service, had_backchannel) = {
        let state = cx.state();
        let session = state.sessions.get(id).map_err(of_state)?;
        (session.callback_cred.is_some(), session.had_backchannel())
    };
    // Any connection may carry requests; only callbacks need a bound one.
    let dir = match args.dir {
        DirFromClient::Fore => DirFromServer::Fore,
        DirFromClient::ForeOrBoth if has_service && had_backchannel => DirFromServer::Both,
        DirFromClient::ForeOrBoth => DirFromServer::Fore,
        DirFromClient::Back => DirFromServer::Back,
        DirFromClient::BackOrBoth => DirFromServer::Both,
    };
    if dir != DirFromServer::Fore {
        cx.services.callbacks.bind(id, &cx.peer);
    }
    Ok(Bound { session: args.session, dir, use_rdma: false })
}

pub(crate) async fn backchannel_ctl(
    cx: &mut Context,
    args: backchannel_ctl::Args,
) -> backchannel_ctl::Res {
    let id = cx.session.ok_or(Error::OpNotInSession)?.id;
    // The server has no RPCSEC_GSS contexts, so there must be another flavor that it supports.
    let cred = callback::cred_of(&args.sec_parms).ok_or(Error::NoEnt)?;
    let mut state = cx.state();
    let session = state.sessions.get_mut(id).map_err(of_state)?;
    (session.callback_program, session.callback_cred) = (args.cb_program, Some(cred));
    Ok(())
}

pub(crate) async fn destroy_session(
    cx: &mut Context,
    args: destroy_session::Args,
) -> destroy_session::Res {
    let id = SessionId(args);
    let own_slot = cx.session.filter(|s| s.id == id).map(|s| s.slot);
    cx.state().destroy_session(id, own_slot).map_err(of_state)?;
    // Try to remove the client's record before the reply, so that no restart waits for the client.
    cx.services.write_records().await;
    Ok(())
}

pub(crate) async fn destroy_clientid(
    cx: &mut Context,
    args: destroy_clientid::Args,
) -> destroy_clientid::Res {
    cx.state().destroy_client(ClientId(args)).map_err(of_state)
}

pub(crate) async fn reclaim_complete(
    cx: &mut Context,
    args: reclaim_complete::Args,
) -> reclaim_complete::Res {
    let client = cx.client()?;
    if args.one_fs {
        // This concerns migrated file systems, which the server does not have.
        return cx.current().map(|_| ());
    }
    cx.state().reclaim_complete(client).map_err(of_state)
}
