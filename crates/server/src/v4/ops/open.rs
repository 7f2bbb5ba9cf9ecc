//! OPEN, OPEN_DOWNGRADE, CLOSE (RFC 8881 sections 18.16, 18.18, 18.2).
//!
//! The order matters. The server finds or creates the file, opens it with the caller's rights,
//! takes its share reservation, and only then truncates it: an OPEN that is refused must not
//! destroy data.

use crate::handle::Node;
use crate::operation::exclusive_create::{Exclusive, OWNERS_ALONE};
use crate::operation::set_id;
use crate::state::{
    self, Claim, ClientId, DelegationKind, LockOwner, OpenRequest, Share, StateError, Touch,
};
use crate::v4::attrs::{self, ToSet};
use crate::v4::context::{Context, Target};
use crate::v4::open_arguments;
use crate::v4::ops::name::{check_name, current_dir};
use crate::v4::ops::opened::{Opened, Rights, Wishes, delegate, open_file, stateid_of};
use crate::v4::ops::v40::{InTurn, take_turn, take_turn_to_open};
use crate::v4::owner_seqid::{Kind, Standing};
use crate::v4::status::{of_state, of_vfs};
use tracing::error;
use weir_nfs::v4::op::{close, open, open_downgrade};
use weir_nfs::v4::types::{ChangeInfo, StateId};
use weir_nfs::v4::{Bitmap, Error, OpCode};
use weir_pagecache::File;
use weir_vfs::{Access, Attr, FileKind, SetAttr};

/// The bits of `share_access` that hold the access; the others are about delegations.
const SHARE_BITS: u32 = 0xff;

/// A file that an OPEN has found or created.
struct Found {
    attr: Attr,
    /// Which request created it.
    by: Maker,
    /// The attributes that this OPEN has set.
    set: Bitmap,
    /// Whether to truncate the file once it is open.
    truncate: bool,
    change: ChangeInfo,
    /// The open file, if creating it also opened it.
    file: Option<File>,
}

impl Found {
    /// An existing file that this OPEN does not change.
    fn there(attr: Attr, change: ChangeInfo) -> Self {
        Self { attr, by: Maker::Another, set: Bitmap::EMPTY, truncate: false, change, file: None }
    }
}

/// Which request created a file.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Maker {
    /// This OPEN.
    This,
    /// An earlier transmission of the same OPEN, whose reply was lost.
    ThisBefore,
    /// Any other request.
    Another,
}

pub(crate) async fn open(cx: &mut Context, args: open::Args) -> open::Res {
    let client = cx.client_of(args.owner.client_id)?;
    if cx.minor > 0 {
        return open_for(cx, client, args, false).await;
    }
    let owner = LockOwner { client, name: args.owner.owner.0.clone() };
    let mut turn = match take_turn_to_open(cx, owner, args.seqid).await {
        Ok(turn) => turn,
        Err(result) => return result,
    };
    let confirm = asks_confirmation(cx, client, &args, &mut turn);
    let mut result = open_for(cx, client, args, confirm).await;
    if confirm
        && let Ok(opened) = &mut result
        && let Ok(id) = cx.state_of(opened.stateid)
    {
        opened.flags |= open::ResultFlags::CONFIRM;
        turn.set_standing(Standing::Unconfirmed(id.key));
    }
    turn.done(cx, result)
}

/// Whether the client must confirm an OPEN (RFC 7530 sections 9.1.11 and 16.18.5). Cancels the
/// owner's previous open if the client has not confirmed it.
fn asks_confirmation(cx: &Context, client: ClientId, args: &open::Args, turn: &mut InTurn) -> bool {
    match turn.standing() {
        Standing::Confirmed => return false,
        Standing::Unconfirmed(key) => {
            cx.state().cancel_unconfirmed(key);
            turn.set_standing(Standing::New);
        }
        Standing::New => {}
    }
    let reclaims = matches!(args.claim, open::Claim::Previous(_));
    let asks = !reclaims && cx.nfs.owners.must_confirm(client);
    if !asks {
        turn.set_standing(Standing::Confirmed);
    }
    asks
}

/// Executes an OPEN. `confirm`: the open takes effect only once it is confirmed.
async fn open_for(
    cx: &mut Context,
    client: ClientId,
    args: open::Args,
    confirm: bool,
) -> open::Res {
    let share = share(args.share_access, args.share_deny)?;
    open_arguments::check(cx.minor, args.share_access)?;
    let claim = match args.claim {
        open::Claim::Previous(_) => Claim::Reclaim,
        open::Claim::DelegateCur(_) | open::Claim::DelegCurFh(_) => Claim::Delegated,
        _ => Claim::New,
    };
    let now = cx.now();
    // Checked before the file is created: an OPEN that fails must not leave a new file behind.
    cx.state().check_grace(client, claim == Claim::Reclaim, now).map_err(of_state)?;

    let (found, node) = match &args.claim {
        open::Claim::Null(name) => {
            let services = cx.services.clone();
            let _alone = match (&args.how, cx.current) {
                (open::How::Create(_), Some(dir)) => {
                    Some(services.exports.changes().lock(dir).await)
                }
                _ => None,
            };
            let (dir, before) = current_dir(cx).await?;
            check_name(name)?;
            let found = find(cx, &dir, name, (&args.how, share.access), before.change).await?;
            let node = Node { id: found.attr.id, ..dir.node };
            if found.by != Maker::Another {
                cx.changed(&[node, dir.node]);
            }
            (found, node)
        }
        open::Claim::Fh | open::Claim::Previous(_) | open::Claim::DelegCurFh(_) => {
            let target = cx.current()?;
            let attr = target.attr().await?;
            let truncate = asks_truncation(cx, &target, &args.how).await;
            let change = ChangeInfo::default();
            let found = Found { truncate, ..Found::there(attr, change) };
            (found, target.node)
        }
        open::Claim::DelegateCur(current) => {
            let (dir, before) = current_dir(cx).await?;
            check_name(&current.file)?;
            let how = (&open::How::NoCreate, share.access);
            let found = find(cx, &dir, &current.file, how, before.change).await?;
            let node = Node { id: found.attr.id, ..dir.node };
            (found, node)
        }
        open::Claim::DelegatePrev(_) | open::Claim::DelegPrevFh => return Err(Error::NotSupp),
    };
    // The directory lock is released here, and no state exists yet that a failure would leave
    // behind.
    cx.commit_changes().await?;
    let target = cx.target(node)?;
    check_regular(cx, found.attr.kind)?;
    if share.access.contains(Access::WRITE) || found.truncate {
        target.check_writable()?;
    }
    let delegated = match &args.claim {
        open::Claim::DelegateCur(current) => Some(current.delegate_stateid),
        open::Claim::DelegCurFh(delegation) => Some(*delegation),
        _ => None,
    };
    if let Some(delegation) = delegated {
        let id = cx.state_of(delegation)?;
        let kind = cx.state().delegated(client, id, node).map_err(of_state)?;
        if share.access.contains(Access::WRITE) && kind == DelegationKind::Read {
            return Err(Error::OpenMode);
        }
    }
    // A file that was open before the restart, or that a delegation's holder opened on its own, was
    // opened with the rights of that moment. Of those, the server can verify only the owner's.
    let goes_on = claim == Claim::Reclaim || delegated.is_some();
    let rights = match found.by {
        Maker::This => Rights::Makers,
        Maker::ThisBefore => Rights::CallersAgain,
        Maker::Another if goes_on => Rights::CallersAgain,
        Maker::Another => Rights::Callers,
    };
    let file = match found.file {
        Some(file) => file,
        None => open_file(&target, &found.attr, share.access, rights).await?,
    };
    let owner = args.owner.owner.0.clone();
    let (by, made) = (cx.principal.clone(), found.by == Maker::This);
    let request =
        OpenRequest { client, owner, node, share, claim, confirm, by, made, file: file.clone() };
    let way = if found.truncate { Touch::Change } else { share.touch() };
    let made_way = cx.services.recalls.claim(node, way, Some(client)).await.map_err(of_vfs)?;
    let take = |request: OpenRequest<File>| {
        let mut state = cx.state();
        let before = state.opened(client, &request.owner, node);
        state.open(request, now).map(|id| (id, before))
    };
    let mut opened = take(request.clone());
    if matches!(opened, Err(StateError::Unrecorded)) {
        let recorded = cx.services.records.record(client).await;
        recorded.map_err(|error| {
            error!("cannot write the state database: {error}");
            Error::ServerFault
        })?;
        opened = take(request);
    }
    let (id, before) = opened.map_err(of_state)?;
    let ready = async {
        if !cx.services.serves(node) {
            return Err(Error::Stale);
        }
        cx.services.copies.quiesce_soon(node).await?;
        if found.truncate { truncate(cx, &target, &file, share.access).await } else { Ok(()) }
    };
    if let Err(error) = ready.await {
        // The client does not learn of this open, so the owner gets back its previous state.
        cx.state().undo_open(id, before);
        return Err(error);
    }
    drop(made_way);
    let wishes = Wishes::of(cx.minor, &args);
    let opened = Opened { client, node, share, file, attr: found.attr, made, wishes };
    let delegation =
        if confirm { open::Delegation::None } else { delegate(cx, &opened, &args.claim).await };
    cx.set_current(node);
    let mut flags = open::ResultFlags::LOCKTYPE_POSIX;
    let stateid = match stateid_of(&delegation).filter(|_| wishes.either) {
        Some(held) => {
            // The delegation keeps the file open, and its stateid stands for the open's.
            cx.state().undo_open(id, before);
            cx.current_stateid = Some(held);
            flags |= open::ResultFlags::NO_OPEN_STATEID;
            StateId::ANONYMOUS
        }
        None => cx.set_stateid(id),
    };
    // A client that can rely on CB_NOTIFY_LOCK polls less often.
    let tells = cx.minor > 0 && cx.state().can_call(client);
    flags.set(open::ResultFlags::MAY_NOTIFY_LOCK, tells);
    Ok(open::Opened { stateid, change: found.change, flags, attrs_set: found.set, delegation })
}

/// Refuses what is not a regular file. Minor version 0 has only NFS4ERR_SYMLINK for symbolic links
/// and special files; its clients then look up the name.
fn check_regular(cx: &Context, kind: FileKind) -> Result<(), Error> {
    match kind {
        FileKind::Regular => Ok(()),
        FileKind::Directory => Err(Error::IsDir),
        FileKind::Symlink => Err(Error::Symlink),
        _ if cx.minor == 0 => Err(Error::Symlink),
        _ => Err(Error::WrongType),
    }
}

/// Decodes the share reservation of an OPEN. Ignores unknown bits for delegations.
fn share(access: open::ShareAccess, deny: open::ShareDeny) -> Result<Share, Error> {
    let access = Access::from_bits(access.bits() & SHARE_BITS).filter(|a| !a.is_empty());
    let deny = Access::from_bits(deny.bits());
    match (access, deny) {
        (Some(access), Some(deny)) => Ok(Share { access, deny }),
        _ => Err(Error::Inval),
    }
}

/// Finds a file by name for `access`, or creates it if `how` asks for that.
async fn find(
    cx: &Context,
    dir: &Target<'_>,
    name: &[u8],
    (how, access): (&open::How, Access),
    before: u64,
) -> Result<Found, Error> {
    let (fs, caller, id) = (dir.fs(), &dir.caller, dir.node.id);
    let open::How::Create(how) = how else {
        let attr = fs.lookup(caller, id, name).await.map_err(of_vfs)?;
        let change = ChangeInfo { atomic: false, before, after: before };
        return Ok(Found::there(attr, change));
    };
    let store = dir.capabilities();
    let read = async |attrs| ToSet::read_new(&cx.nfs.id_map, attrs, cx.minor, store).await;
    let (mut wanted, verifier) = match how {
        open::CreateHow::Unchecked(attrs) | open::CreateHow::Guarded(attrs) => {
            (read(attrs).await?, None)
        }
        open::CreateHow::Exclusive(verifier) => (ToSet::default(), Some(*verifier)),
        open::CreateHow::Exclusive41(create) => {
            let wanted = read(&create.attrs).await?;
            if !wanted.asked.difference(attrs::exclusive(cx.minor, store)).is_empty() {
                return Err(Error::Inval);
            }
            (wanted, Some(create.verifier))
        }
    };
    let more = wanted.more(FileKind::Regular)?;
    let (set, done) = (&mut wanted.set, wanted.asked);
    let handles = cx.services.exports.handles();
    let creation =
        verifier.map(|verifier| Exclusive { handles, dir: dir.node, name, caller, verifier });
    if let Some(creation) = &creation {
        creation.mark(set);
        // A restrictive mode until the client sets the real one in a later request.
        set.mode = set.mode.or(Some(OWNERS_ALONE));
    }
    if dir.read_only {
        return match fs.lookup(caller, id, name).await {
            Ok(_) if !matches!(how, open::CreateHow::Unchecked(_)) => Err(Error::Exist),
            Ok(attr) => {
                let change = ChangeInfo { atomic: false, before, after: before };
                Ok(Found::there(attr, change))
            }
            Err(weir_vfs::Error::NotFound) => Err(Error::RoFs),
            Err(error) => Err(of_vfs(error)),
        };
    }
    let exclusive = !matches!(how, open::CreateHow::Unchecked(_));
    let truncates = set.size == Some(0);
    let made = fs.create_open(caller, id, name, set, exclusive, access).await;
    let (attr, by, file) = match (made, &creation) {
        (Ok((made, file)), _) => {
            (made.attr, if made.created { Maker::This } else { Maker::Another }, file)
        }
        // The client sent this OPEN before, and lost the reply.
        (Err(weir_vfs::Error::Exists), Some(creation)) => {
            let made = creation.made_before(fs, set.size.unwrap_or(0)).await;
            (made.map_err(of_vfs)?, Maker::ThisBefore, None)
        }
        (Err(error), _) => return Err(of_vfs(error)),
    };
    match by {
        Maker::This => more.set_on_new(dir, name, &attr).await?,
        // The server may have stopped before it set these. The file is the caller's own.
        Maker::ThisBefore => more.set(fs, caller, attr.id).await?,
        Maker::Another => {}
    }
    let change = cx.change_info(fs, dir.node, before).await?;
    let is_new = by != Maker::Another;
    let truncate = truncates && !is_new && attr.size != 0;
    let set = match (is_new, verifier) {
        (true, Some(_)) => done.union(attrs::VERIFIER),
        (true, None) => done,
        (false, _) if truncates => attrs::SIZE,
        (false, _) => Bitmap::EMPTY,
    };
    Ok(Found { attr, by, set, truncate, change, file })
}

async fn asks_truncation(cx: &Context, target: &Target<'_>, how: &open::How) -> bool {
    match how {
        open::How::Create(open::CreateHow::Unchecked(attrs)) => {
            let wanted = ToSet::read(&cx.nfs.id_map, attrs, cx.minor, target.capabilities()).await;
            wanted.is_ok_and(|wanted| wanted.set.size == Some(0))
        }
        _ => false,
    }
}

/// Truncates a file that is being opened, and makes that durable.
async fn truncate(
    cx: &Context,
    target: &Target<'_>,
    file: &File,
    access: Access,
) -> Result<(), Error> {
    let fs = target.fs();
    if access.contains(Access::WRITE) {
        let attr = file.getattr().await.map_err(of_vfs)?;
        set_id::clear(fs, &target.caller, &attr).await.map_err(of_vfs)?;
        file.truncate_async(0).await.map_err(of_vfs)?;
    } else {
        // The file is open for reading only, so the store checks whether the caller may truncate
        // it.
        let set = SetAttr { size: Some(0), ..SetAttr::default() };
        let attr = fs.setattr(&target.caller, target.node.id, &set).await.map_err(of_vfs)?;
        set_id::clear(fs, &target.caller, &attr).await.map_err(of_vfs)?;
    }
    cx.changed(&[target.node]);
    cx.commit_changes().await
}

/// Waits for the turn of an open's owner (minor version 0). Returns `None` in later versions.
async fn turn_of_open(
    cx: &mut Context,
    id: state::StateId,
    request: (OpCode, u32),
) -> Result<Option<InTurn>, Result<StateId, Error>> {
    if cx.minor > 0 {
        return Ok(None);
    }
    let owner = cx.state().owner_of_open(id.key, &cx.principal);
    let owner = match owner {
        Err(StateError::BadStateId) => {
            // Perhaps a retransmitted CLOSE whose reply was lost.
            let closed = cx.nfs.owners.closed_by(id.key).ok_or(Err(Error::BadStateId))?;
            let (owner, by) = closed;
            let state = cx.state();
            let client = state.clients.get(owner.client);
            let is_its = client.is_ok_and(|client| client.principal == cx.principal);
            if by == cx.principal || is_its { owner } else { return Err(Err(Error::BadStateId)) }
        }
        owner => owner.map_err(|error| Err(of_state(error)))?,
    };
    take_turn(cx, owner, Kind::Open, request).await.map(Some)
}

pub(crate) async fn open_downgrade(
    cx: &mut Context,
    args: open_downgrade::Args,
) -> open_downgrade::Res {
    let id = cx.state_of(args.open_stateid)?;
    let turn = match turn_of_open(cx, id, (OpCode::OpenDowngrade, args.seqid)).await {
        Ok(turn) => turn,
        Err(result) => return result,
    };
    let result = downgrade_in_turn(cx, id, &args);
    match turn {
        Some(turn) => turn.done(cx, result),
        None => result,
    }
}

fn downgrade_in_turn(
    cx: &mut Context,
    id: state::StateId,
    args: &open_downgrade::Args,
) -> open_downgrade::Res {
    let (client, node) = (cx.client_of_state(id)?, cx.current()?.node);
    let share = share(args.share_access, args.share_deny)?;
    let id = cx.state().downgrade(client, id, node, share).map_err(of_state)?;
    Ok(cx.set_stateid(id))
}

pub(crate) async fn close(cx: &mut Context, args: close::Args) -> close::Res {
    let id = cx.state_of(args.open_stateid)?;
    let turn = match turn_of_open(cx, id, (OpCode::Close, args.seqid)).await {
        Ok(turn) => turn,
        Err(result) => return result,
    };
    let result = close_in_turn(cx, id);
    match turn {
        Some(mut turn) => {
            turn.closes(id.key);
            turn.done(cx, result)
        }
        None => result,
    }
}

fn close_in_turn(cx: &mut Context, id: state::StateId) -> close::Res {
    let (client, node) = (cx.client_of_state(id)?, cx.current()?.node);
    cx.state().close(client, id, node).map_err(of_state)?;
    // There is no stateid to continue with (RFC 8881 section 18.2.4).
    cx.current_stateid = Some(StateId::INVALID);
    Ok(StateId::INVALID)
}
