//! The operations of minor version 0 only: SETCLIENTID, SETCLIENTID_CONFIRM, RENEW, OPEN_CONFIRM,
//! RELEASE_LOCKOWNER (RFC 7530 sections 16.33, 16.34, 16.28, 16.18, 16.37); and the order of an
//! owner's requests.

use crate::callback::service_of;
use crate::state::{self, ClientId, LockOwner, Owner, StateError, StateKey};
use crate::v4::context::Context;
use crate::v4::owner_seqid::{LastRequest, Numbered, OwnerKind, SeqidCheck, Standing};
use crate::v4::status::of_state;
use tokio::sync::OwnedMutexGuard;
use weir_nfs::v4::Detailed;
use weir_nfs::v4::op::{open_confirm, release_lockowner, renew, setclientid, setclientid_confirm};
use weir_nfs::v4::types::NetAddr;
use weir_nfs::v4::{Error, Failure, OpCode};
use weir_xdr::{Decode, Decoder, Encode, Encoder};

pub(crate) async fn setclientid(cx: &mut Context, args: setclientid::Args) -> setclientid::Res {
    let owner = Owner { sessions: false, name: bytes::Bytes::copy_from_slice(&args.client.owner) };
    let (now, verifier, principal) = (cx.now(), args.client.verifier, cx.principal.clone());
    let (location, peer) = (&args.cb_location, cx.peer.addr().ip());
    let service = service_of(location, args.cb_program, args.callback_ident, peer);
    let introduced = {
        let mut state = cx.state();
        let introduced = state.introduce(owner, verifier, principal, service, now);
        introduced
            .and_then(|found| state.charge_address(found.0, cx.peer.address()).map(|()| found))
    };
    match introduced {
        Ok((id, confirm)) => Ok(setclientid::Introduced { client_id: id.0, confirm }),
        Err(StateError::ClientInUse) => Err(Detailed::Detail(NetAddr::default())),
        Err(error) => Err(Detailed::Plain(of_state(error))),
    }
}

pub(crate) async fn setclientid_confirm(
    cx: &mut Context,
    args: setclientid_confirm::Args,
) -> setclientid_confirm::Res {
    let id = ClientId(args.client_id);
    let now = cx.now();
    {
        let mut state = cx.state();
        let client = state.clients.get(id).map_err(of_state)?;
        if client.owner.sessions {
            return Err(Error::StaleClientId);
        }
        let introduction = client.introduction.filter(|new| new.confirmation == args.confirm);
        if introduction.is_none() && client.confirmation != Some(args.confirm) {
            return Err(Error::StaleClientId);
        }
        state.confirm(id, &cx.principal, now).map_err(|error| match error {
            StateError::NotSamePrincipal => Error::ClIdInUse,
            error => of_state(error),
        })?;
        let client = state.clients.get_mut(id).map_err(of_state)?;
        // A repeated confirmation changes nothing.
        if let Some(introduction) = introduction {
            client.callback = introduction.callback;
            client.confirmation = Some(introduction.confirmation);
            client.introduction = None;
        }
    }
    let callbacks = cx.services.callbacks.clone();
    tokio::spawn(async move { callbacks.probe_service(id).await });
    Ok(())
}

pub(crate) async fn renew(cx: &mut Context, args: renew::Args) -> renew::Res {
    let client = cx.client_of(args)?;
    let state = cx.state();
    if state.holds_delegation(client) && !state.can_call(client) {
        // The lease is renewed; the client should send SETCLIENTID with a working callback address.
        return Err(Error::CbPathDown);
    }
    Ok(())
}

pub(crate) async fn open_confirm(cx: &mut Context, args: open_confirm::Args) -> open_confirm::Res {
    let id = cx.state_of(args.open_stateid)?;
    let owner = cx.state().owner_of_open(id.key, &cx.principal).map_err(of_state)?;
    let request = (OpCode::OpenConfirm, args.seqid);
    let mut sequenced = match begin_sequenced(cx, owner, OwnerKind::Open, request).await {
        Ok(sequenced) => sequenced,
        Err(result) => return result,
    };
    let result = confirm_sequenced(cx, id);
    if result.is_ok() {
        sequenced.set_standing(Standing::Confirmed);
    }
    sequenced.done(cx, result)
}

fn confirm_sequenced(cx: &mut Context, id: state::StateId) -> open_confirm::Res {
    let (client, node) = (cx.client_of_state(id)?, cx.current()?.node);
    let id = cx.state().confirm_open(client, id, node).map_err(of_state)?;
    Ok(cx.set_stateid(id))
}

pub(crate) async fn release_lockowner(
    cx: &mut Context,
    args: release_lockowner::Args,
) -> release_lockowner::Res {
    let owner = LockOwner { client: cx.client_of(args.client_id)?, name: args.owner.0 };
    cx.state().release_lock_owner(&owner).map_err(of_state)?;
    cx.nfs.owners.forget(&owner);
    Ok(())
}

/// A request of an owner in progress; other requests of the owner wait for it.
pub(crate) struct SequencedRequest {
    last: OwnedMutexGuard<LastRequest>,
    owner: LockOwner,
    kind: OwnerKind,
    request: Numbered,
    closed: Option<StateKey>,
}

/// Waits until no other request of an owner runs, and checks the seqid.
///
/// # Errors
/// The result to return without executing the request: the cached one of a retransmission, or an
/// error.
pub(crate) async fn begin_sequenced<T, E>(
    cx: &mut Context,
    owner: LockOwner,
    kind: OwnerKind,
    request: (OpCode, u32),
) -> Result<SequencedRequest, Result<T, E>>
where
    Result<T, E>: Decode,
    E: Failure,
{
    begin(cx, owner, kind, request, LastRequest::check_seqid).await
}

/// Like [`begin_sequenced`], for an OPEN.
///
/// # Errors
/// Those of [`begin_sequenced`].
pub(crate) async fn begin_sequenced_open<T, E>(
    cx: &mut Context,
    owner: LockOwner,
    seqid: u32,
) -> Result<SequencedRequest, Result<T, E>>
where
    Result<T, E>: Decode,
    E: Failure,
{
    begin(cx, owner, OwnerKind::Open, (OpCode::Open, seqid), LastRequest::check_open_seqid).await
}

async fn begin<T, E>(
    cx: &mut Context,
    owner: LockOwner,
    kind: OwnerKind,
    (op, seqid): (OpCode, u32),
    check: fn(&LastRequest, &Numbered) -> SeqidCheck,
) -> Result<SequencedRequest, Result<T, E>>
where
    Result<T, E>: Decode,
    E: Failure,
{
    let address = cx.state().account(owner.client).address;
    let cell = cx.nfs.owners.cell(owner.clone(), kind, address, cx.now());
    let last = cell.ok_or(Err(Error::Resource.into()))?.lock_owned().await;
    let request = Numbered { op, seqid, digest: cx.arguments_digest, current: cx.current };
    match check(&last, &request) {
        SeqidCheck::Execute => Ok(SequencedRequest { last, owner, kind, request, closed: None }),
        SeqidCheck::Misordered => Err(Err(Error::BadSeqId.into())),
        SeqidCheck::Replay(result, current) => {
            cx.current = current;
            let again = Decoder::new(result).get();
            Err(again.unwrap_or_else(|_| Err(Error::ServerFault.into())))
        }
    }
}

impl SequencedRequest {
    pub(crate) fn standing(&self) -> Standing {
        self.last.standing()
    }

    pub(crate) fn set_standing(&mut self, standing: Standing) {
        self.last.set_standing(standing);
    }

    /// Notes that this request closes an open if it succeeds.
    pub(crate) fn closes(&mut self, key: StateKey) {
        self.closed = Some(key);
    }

    /// Ends the request: caches its result unless the failure leaves the seqid unused. Returns the
    /// result.
    pub(crate) fn done<T, E>(mut self, cx: &Context, result: Result<T, E>) -> Result<T, E>
    where
        Result<T, E>: Encode,
        E: Failure,
    {
        if result.as_ref().err().is_none_or(|failure| failure.error().uses_up_seqid()) {
            let (mut e, succeeded) = (Encoder::new(), result.is_ok());
            e.put(&result);
            let result = e.finish().to_bytes();
            cx.nfs.owners.keeps(&self.owner, self.kind, result.len());
            self.last.executed(self.request, result, cx.current);
            let closed = self.closed.filter(|_| succeeded);
            let before = self.last.set_closed(closed);
            if closed.is_some() || before.is_some() {
                // Copied, because a slice would keep the whole request in memory.
                let name = bytes::Bytes::copy_from_slice(&self.owner.name);
                let by = (LockOwner { name, ..self.owner }, cx.principal.clone());
                cx.nfs.owners.closed(by, closed, before);
            }
        }
        result
    }
}
