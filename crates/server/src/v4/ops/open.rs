//! OPEN, OPEN_DOWNGRADE, CLOSE (RFC 8881 sections 18.16, 18.18, 18.2).
//!
//! The order matters. The server finds or creates the file, opens it with the caller's rights,
//! takes its share reservation, and only then truncates it: an OPEN that is refused must not
//! destroy data.

use crate::handle::Node;
use crate::operation::exclusive_create::{Exclusive, OWNERS_ALONE};
use crate::operation::set_id;
use crate::services::Services;
use crate::state::{
    self, Claim, ClientId, DelegationKind, LockOwner, OpenRequest, Share, State, StateError, Touch,
};
use crate::storage::client_tracking::SETTLE_ATTEMPTS;
use crate::v4::attrs::{self, ToSet};
use crate::v4::context::{Context, Target};
use crate::v4::open_arguments;
use crate::v4::ops::name::{check_name, current_dir};
use crate::v4::ops::opened::{OpenRights, OpenedFile, Wishes, delegate, open_file, stateid_of};
use crate::v4::ops::v40::{SequencedRequest, begin_sequenced, begin_sequenced_open};
use crate::v4::owner_seqid::{OwnerKind, Standing};
use crate::v4::status::{of_state, of_unwritten, of_vfs};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use weir_nfs::v4::op::{close, open, open_downgrade};
use weir_nfs::v4::types::{ChangeInfo, StateId};
use weir_nfs::v4::{Bitmap, Error, OpCode};
use weir_pagecache::File;
use weir_vfs::{Access, Attr, CreateMode, FileKind, SetAttr};

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
    /// The count of the open against its client's share.
    reserved: Option<Reservation>,
}

impl Found {
    /// An existing file that this OPEN does not change.
    fn there(attr: Attr, change: ChangeInfo) -> Self {
        Self {
            attr,
            by: Maker::Another,
            set: Bitmap::EMPTY,
            truncate: false,
            change,
            file: None,
            reserved: None,
        }
    }
}

/// An open that is counted against its client's share before the file is created. The count is
/// returned on drop unless the open takes it over.
struct Reservation {
    services: Arc<Services>,
    client: ClientId,
    counts: AtomicBool,
}

impl Reservation {
    /// Lets the open, which is made under the same lock, take the count over.
    fn use_in(&self, state: &mut State<File>) -> &Self {
        if self.counts.swap(false, Ordering::Relaxed) {
            state.unreserve_open(self.client);
        }
        self
    }

    /// Counts again: the open was not made, and nothing else has changed under the same lock.
    fn restore(&self, state: &mut State<File>) {
        if !self.counts.swap(true, Ordering::Relaxed) {
            state.count_reserved(self.client);
        }
    }
}

impl Drop for Reservation {
    fn drop(&mut self) {
        if *self.counts.get_mut() {
            self.services.state.lock().unreserve_open(self.client);
        }
    }
}

/// An open that this OPEN has made. Undone on drop, and so if the OPEN fails, panics or is given up, unless it is
/// [kept](Self::keep): the client does not learn of it, so the owner gets back its previous state.
struct OpenInProgress {
    services: Arc<Services>,
    id: state::StateId,
    is_kept: bool,
}

impl OpenInProgress {
    /// Keeps the open, of which the client learns now.
    fn keep(mut self, state: &mut State<File>) {
        self.is_kept = true;
        state.keep_open(self.id);
    }
}

impl Drop for OpenInProgress {
    fn drop(&mut self) {
        if !self.is_kept {
            self.services.state.lock().undo_open(self.id);
        }
    }
}

/// Counts an open before its file may be created. `None` if the client may have no new open, but
/// the file exists: the open may be an upgrade of one.
async fn reserve(
    cx: &Context,
    dir: &Target<'_>,
    name: &[u8],
    client: ClientId,
) -> Result<Option<Reservation>, Error> {
    let now = cx.now();
    let counted = cx.state().reserve_open(client, now);
    let Err(error) = counted else {
        let (services, counts) = (cx.services.clone(), AtomicBool::new(true));
        return Ok(Some(Reservation { services, client, counts }));
    };
    match dir.fs().lookup(&dir.caller, dir.node.id.entry(name)).await {
        Err(weir_vfs::Error::NotFound) => Err(of_state(error)),
        Ok(_) | Err(_) => Ok(None),
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
    let mut sequenced = match begin_sequenced_open(cx, owner, args.seqid).await {
        Ok(sequenced) => sequenced,
        Err(result) => return result,
    };
    let confirm = asks_confirmation(cx, client, &args, &mut sequenced);
    let mut result = open_for(cx, client, args, confirm).await;
    if confirm
        && let Ok(opened) = &mut result
        && let Ok(id) = cx.state_of(opened.stateid)
    {
        opened.flags |= open::ResultFlags::CONFIRM;
        sequenced.set_standing(Standing::Unconfirmed(id.key));
    }
    sequenced.done(cx, result)
}

/// Whether the client must confirm an OPEN (RFC 7530 sections 9.1.11 and 16.18.5). Cancels the
/// owner's previous open if the client has not confirmed it.
fn asks_confirmation(
    cx: &Context,
    client: ClientId,
    args: &open::Args,
    sequenced: &mut SequencedRequest,
) -> bool {
    match sequenced.standing() {
        Standing::Confirmed => return false,
        Standing::Unconfirmed(key) => {
            cx.state().cancel_unconfirmed(key);
            sequenced.set_standing(Standing::New);
        }
        Standing::New => {}
    }
    let reclaims = matches!(args.claim, open::Claim::Previous(_));
    let asks = !reclaims && cx.nfs.owners.must_confirm(client);
    if !asks {
        sequenced.set_standing(Standing::Confirmed);
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
    // Before the file is created: an OPEN that fails must not leave a new file behind.
    cx.state().check_grace(client, claim == Claim::Reclaim).map_err(of_state)?;
    if matches!(args.how, open::How::Create(_)) {
        record(cx, client).await?;
        cx.settle().await?;
    }

    let (found, node) = find_by_claim(cx, client, &args, share.access).await?;
    // The directory lock is released here, and no state exists yet that a failure would leave
    // behind.
    cx.commit_changes().await?;
    let target = cx.target(node)?;
    check_regular(cx, found.attr.kind)?;
    if share.access.contains(Access::WRITE) || found.truncate {
        target.check_writable()?;
    }
    let delegated = check_delegation(cx, client, &args.claim, (node, share.access))?;
    // A file that was open before the restart, or that a delegation's holder opened on its own, was
    // opened with the rights of that moment. Of those, the server can verify only the owner's.
    let rights = match (found.by, delegated) {
        (Maker::This, _) => OpenRights::Makers,
        (Maker::ThisBefore, _) => OpenRights::CallersAgain,
        (Maker::Another, Some(rights)) => rights,
        (Maker::Another, None) if claim == Claim::Reclaim => OpenRights::CallersAgain,
        (Maker::Another, None) => OpenRights::Callers,
    };
    let file = match found.file {
        Some(file) => file,
        None => open_file(&target, &found.attr, share.access, rights).await?,
    };
    let owner = args.owner.owner.0.clone();
    let (by, made) = (cx.principal.clone(), found.by == Maker::This);
    let request = OpenRequest {
        client,
        owner,
        node,
        share,
        claim,
        confirm,
        by,
        made,
        truncates: found.truncate,
        file: file.clone(),
    };
    let touch = if found.truncate { Touch::Change } else { share.touch() };
    let recalled = cx.services.recalls.claim(node, touch, Some(client)).await.map_err(of_vfs)?;
    let taken = take_share(cx, request, found.reserved.as_ref()).await?;
    if !cx.services.serves(node) {
        return Err(Error::Stale);
    }
    cx.services.copies.quiesce_soon(node).await?;
    if found.truncate {
        truncate(cx, &target, &file, share.access).await?;
        cx.state().truncated(taken.id);
    }
    drop(recalled);
    let wishes = Wishes::of(cx.minor, &args);
    let opened = OpenedFile { client, node, share, file, attr: found.attr, made, wishes };
    let delegation =
        if confirm { open::Delegation::None } else { delegate(cx, &opened, &args.claim).await };
    cx.set_current(node);
    let mut flags = open::ResultFlags::LOCKTYPE_POSIX;
    let stateid = match stateid_of(&delegation).filter(|_| wishes.either) {
        Some(held) => {
            // The delegation keeps the file open, and its stateid stands for the open's.
            drop(taken);
            cx.current_stateid = Some(held);
            flags |= open::ResultFlags::NO_OPEN_STATEID;
            StateId::ANONYMOUS
        }
        None => {
            let id = taken.id;
            taken.keep(&mut cx.state());
            cx.set_stateid(id)
        }
    };
    // A client that can rely on CB_NOTIFY_LOCK polls less often.
    let tells = cx.minor > 0 && cx.state().can_call(client);
    flags.set(open::ResultFlags::MAY_NOTIFY_LOCK, tells);
    Ok(open::Opened { stateid, change: found.change, flags, attrs_set: found.set, delegation })
}

/// Finds the file that an OPEN names, or creates it. The directory is locked meanwhile if the OPEN may
/// create.
async fn find_by_claim(
    cx: &mut Context,
    client: ClientId,
    args: &open::Args,
    access: Access,
) -> Result<(Found, Node), Error> {
    match &args.claim {
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
            let reserved = match &args.how {
                open::How::Create(_) => reserve(cx, &dir, name, client).await?,
                open::How::NoCreate => None,
            };
            let found = find(cx, &dir, name, (&args.how, access), before.change).await?;
            let found = Found { reserved, ..found };
            let node = Node { id: found.attr.id, ..dir.node };
            if found.by != Maker::Another {
                cx.changed(&[node, dir.node]);
            }
            Ok((found, node))
        }
        open::Claim::Fh | open::Claim::Previous(_) | open::Claim::DelegCurFh(_) => {
            let target = cx.current()?;
            let attr = target.attr().await?;
            let truncate = asks_truncation(cx, &target, &args.how).await;
            let change = ChangeInfo::default();
            let found = Found { truncate, ..Found::there(attr, change) };
            Ok((found, target.node))
        }
        open::Claim::DelegateCur(current) => {
            let (dir, before) = current_dir(cx).await?;
            check_name(&current.file)?;
            let how = (&open::How::NoCreate, access);
            let found = find(cx, &dir, &current.file, how, before.change).await?;
            let node = Node { id: found.attr.id, ..dir.node };
            Ok((found, node))
        }
        open::Claim::DelegatePrev(_) | open::Claim::DelegPrevFh => Err(Error::NotSupp),
    }
}

/// The rights to open a file with that an OPEN converts from a local open under a delegation. `None`
/// if the OPEN does not.
///
/// # Errors
/// The client does not hold that delegation, or it does not allow `access`.
fn check_delegation(
    cx: &Context,
    client: ClientId,
    claim: &open::Claim,
    (node, access): (Node, Access),
) -> Result<Option<OpenRights>, Error> {
    let delegation = match claim {
        open::Claim::DelegateCur(current) => current.delegate_stateid,
        open::Claim::DelegCurFh(delegation) => *delegation,
        _ => return Ok(None),
    };
    let id = cx.state_of(delegation)?;
    let (kind, made_by) = cx.state().delegated(client, id, node).map_err(of_state)?;
    if access.contains(Access::WRITE) && kind == DelegationKind::Read {
        return Err(Error::OpenMode);
    }
    // The holder may have created the file with the delegation.
    let made = made_by.as_ref() == Some(&cx.principal);
    Ok(Some(if made { OpenRights::Makers } else { OpenRights::CallersAgain }))
}

/// Writes a client's record, unless it is on disk.
///
/// # Errors
/// [`Error::Delay`]: it cannot be written now; [`Error::ServerFault`]: nor for longer than a lease.
async fn record(cx: &Context, client: ClientId) -> Result<(), Error> {
    if cx.state().clients.get(client).is_ok_and(|client| client.is_recorded) {
        return Ok(());
    }
    cx.services.records.record(client).await.map_err(of_unwritten)
}

/// Takes the share reservation of an open. A client that is not on disk yet is recorded first.
async fn take_share(
    cx: &Context,
    request: OpenRequest<File>,
    reserved: Option<&Reservation>,
) -> Result<OpenInProgress, Error> {
    let client = request.client;
    let take = |request: OpenRequest<File>| {
        let mut state = cx.state();
        let reserved = reserved.map(|reserved| reserved.use_in(&mut state));
        let opened = state.open(request, cx.now());
        if opened.is_err()
            && let Some(reserved) = reserved
        {
            reserved.restore(&mut state);
        }
        opened
    };
    let (mut is_recorded, mut attempts) = (false, 0);
    let id = loop {
        match take(request.clone()) {
            Err(StateError::Unrecorded) if !is_recorded => {
                is_recorded = true;
                record(cx, client).await?;
            }
            Err(StateError::Unsettled) if attempts < SETTLE_ATTEMPTS => {
                attempts += 1;
                cx.settle().await?;
            }
            opened => break opened.map_err(of_state)?,
        }
    };
    Ok(OpenInProgress { services: cx.services.clone(), id, is_kept: false })
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
        let attr = fs.lookup(caller, id.entry(name)).await.map_err(of_vfs)?;
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
        creation.store_in(set);
        // A restrictive mode until the client sets the real one in a later request.
        set.mode = set.mode.or(Some(OWNERS_ALONE));
    }
    let truncates = set.size == Some(0);
    if dir.read_only {
        return match fs.lookup(caller, id.entry(name)).await {
            Ok(_) if !matches!(how, open::CreateHow::Unchecked(_)) => Err(Error::Exist),
            Ok(attr) => {
                let change = ChangeInfo { atomic: false, before, after: before };
                Ok(Found { truncate: truncates, ..Found::there(attr, change) })
            }
            Err(weir_vfs::Error::NotFound) => Err(Error::RoFs),
            Err(error) => Err(of_vfs(error)),
        };
    }
    let mode = match how {
        open::CreateHow::Unchecked(_) => CreateMode::MayExist,
        _ => CreateMode::MustBeNew,
    };
    let made = fs.create_open(caller, id.entry(name).with(set), mode, access).await;
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
    let truncate = truncates && !is_new;
    let set = match (is_new, verifier) {
        (true, Some(_)) => done.union(attrs::VERIFIER),
        (true, None) => done,
        (false, _) if truncates => attrs::SIZE,
        (false, _) => Bitmap::EMPTY,
    };
    Ok(Found { attr, by, set, truncate, change, file, reserved: None })
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

/// Truncates a file that is being opened, unless it is empty, and makes that durable. The size is read
/// only now: a client that had to return its delegation has written back its data.
async fn truncate(
    cx: &Context,
    target: &Target<'_>,
    file: &File,
    access: Access,
) -> Result<(), Error> {
    let fs = target.fs();
    let attr = file.getattr().await.map_err(of_vfs)?;
    if attr.size == 0 {
        return Ok(());
    }
    if access.contains(Access::WRITE) {
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

/// Begins a request of an open's owner (minor version 0). Returns `None` in later versions.
async fn begin_by_open(
    cx: &mut Context,
    id: state::StateId,
    request: (OpCode, u32),
) -> Result<Option<SequencedRequest>, Result<StateId, Error>> {
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
    begin_sequenced(cx, owner, OwnerKind::Open, request).await.map(Some)
}

pub(crate) async fn open_downgrade(
    cx: &mut Context,
    args: open_downgrade::Args,
) -> open_downgrade::Res {
    let id = cx.state_of(args.open_stateid)?;
    let sequenced = match begin_by_open(cx, id, (OpCode::OpenDowngrade, args.seqid)).await {
        Ok(sequenced) => sequenced,
        Err(result) => return result,
    };
    let result = downgrade_sequenced(cx, id, &args);
    match sequenced {
        Some(sequenced) => sequenced.done(cx, result),
        None => result,
    }
}

fn downgrade_sequenced(
    cx: &mut Context,
    id: state::StateId,
    args: &open_downgrade::Args,
) -> open_downgrade::Res {
    let (client, node) = (cx.client_of_state(id)?, cx.current_to_release()?);
    let share = share(args.share_access, args.share_deny)?;
    let id = cx.state().downgrade(client, id, node, share).map_err(of_state)?;
    Ok(cx.set_stateid(id))
}

pub(crate) async fn close(cx: &mut Context, args: close::Args) -> close::Res {
    let id = cx.state_of(args.open_stateid)?;
    let sequenced = match begin_by_open(cx, id, (OpCode::Close, args.seqid)).await {
        Ok(sequenced) => sequenced,
        Err(result) => return result,
    };
    let result = close_sequenced(cx, id);
    match sequenced {
        Some(mut sequenced) => {
            sequenced.closes(id.key);
            sequenced.done(cx, result)
        }
        None => result,
    }
}

fn close_sequenced(cx: &mut Context, id: state::StateId) -> close::Res {
    let (client, node) = (cx.client_of_state(id)?, cx.current_to_release()?);
    cx.state().close(client, id, node).map_err(of_state)?;
    // There is no stateid to continue with (RFC 8881 section 18.2.4).
    cx.current_stateid = Some(StateId::INVALID);
    Ok(StateId::INVALID)
}
