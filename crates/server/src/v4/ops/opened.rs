//! A file that an OPEN has opened: the rights for that, and the delegation that goes with it (RFC 8881
//! section 18.16, RFC 9754 sections 4 and 5).
//!
//! 1. A client that wants an open or a delegation, not both, gets a delegation only if that allows all
//!    that the open would: its access, and no denial to others, which a delegation does not express.
//! 2. A client answers for a file's times only with a write delegation: a time of access alone cannot
//!    be stored without a change of attributes.

use crate::handle::Node;
use crate::state::{
    self, ClientId, DelegationKind, DelegationRequest, Grant, Share, Times, Wanted, WhyNot,
};
use crate::v4::context::{Context, Target};
use crate::v4::status::of_vfs;
use weir_nfs::v4::Error;
use weir_nfs::v4::acl::{Ace, AceFlags, AceMask, AceType};
use weir_nfs::v4::op::open;
use weir_nfs::v4::types::StateId;
use weir_pagecache::File;
use weir_vfs::{Access, Attr, Caller};

/// The rights with which a file is opened.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum OpenRights {
    /// The caller's.
    Callers,
    /// The caller's, and the owner's if the caller owns the file: its permission bits may have
    /// changed since the caller opened or created it.
    CallersAgain,
    /// All rights: the caller has just created the file.
    Makers,
}

pub(super) async fn open_file(
    target: &Target<'_>,
    attr: &Attr,
    access: Access,
    rights: OpenRights,
) -> Result<File, Error> {
    let (fs, export, caller) = (target.fs(), target.export, &target.caller);
    let opened = match rights {
        OpenRights::Callers => export.open_anew(caller, attr.id, access).await,
        OpenRights::CallersAgain => export.open_for_io(caller, attr.id, access).await,
        OpenRights::Makers => fs.open(&Caller::Own, attr.id, access).await,
    };
    opened.map_err(of_vfs)
}

/// An open file.
pub(super) struct OpenedFile {
    pub(super) client: ClientId,
    pub(super) node: Node,
    pub(super) share: Share,
    pub(super) file: File,
    pub(super) attr: Attr,
    /// The OPEN created it.
    pub(super) made: bool,
    pub(super) wishes: Wishes,
}

/// What a client wants of delegations.
#[derive(Clone, Copy, Debug)]
pub(super) struct Wishes {
    want: open::Want,
    /// An open or a delegation, not both.
    pub(super) either: bool,
    /// To answer for the file's times.
    times: bool,
}

impl Wishes {
    pub(super) fn of(minor: u32, args: &open::Args) -> Self {
        let asks = |flag| minor > 1 && args.share_access.contains(flag);
        let want = if minor == 0 { None } else { args.share_access.want() };
        Self {
            want: want.unwrap_or(open::Want::NoPreference),
            either: asks(open::ShareAccess::WANT_OPEN_XOR_DELEGATION),
            times: asks(open::ShareAccess::WANT_DELEG_TIMESTAMPS),
        }
    }
}

/// The delegation to grant with an open, or the reason why there is none.
pub(super) async fn delegate(
    cx: &Context,
    opened: &OpenedFile,
    claim: &open::Claim,
) -> open::Delegation {
    let wanted = match opened.wishes.want {
        open::Want::NoPreference => Wanted::NoPreference,
        open::Want::Read => Wanted::Read,
        open::Want::Write => Wanted::Write,
        open::Want::Any => Wanted::Any,
        open::Want::None => return open::Delegation::NoneExt(open::WhyNone::NotWanted),
        open::Want::Cancel => return open::Delegation::NoneExt(open::WhyNone::Cancelled),
    };
    let given = match claim {
        open::Claim::Null(_) | open::Claim::Fh => give(cx, opened, wanted).await,
        open::Claim::Previous(kind) => give_again(cx, opened, *kind).await,
        _ => Err(WhyNot::HasOne),
    };
    let stays = |why| if wanted == Wanted::NoPreference { None } else { Some(why) };
    let why = match given {
        Ok(delegation) => return delegation,
        Err(WhyNot::Contention) => stays(open::WhyNone::Contention(false)),
        Err(WhyNot::Resource | WhyNot::NotYet) => stays(open::WhyNone::Resource(false)),
        Err(WhyNot::Upgrade) => stays(open::WhyNone::NotSuppUpgrade),
        Err(WhyNot::Downgrade) => stays(open::WhyNone::NotSuppDowngrade),
        Err(WhyNot::HasOne) => stays(open::WhyNone::NotWanted),
    };
    why.map_or(open::Delegation::None, open::Delegation::NoneExt)
}

/// The stateid of a delegation, if one was granted.
pub(super) fn stateid_of(delegation: &open::Delegation) -> Option<StateId> {
    match delegation {
        open::Delegation::Read(read) | open::Delegation::ReadAttrs(read) => Some(read.stateid),
        open::Delegation::Write(write) | open::Delegation::WriteAttrs(write) => Some(write.stateid),
        open::Delegation::None | open::Delegation::NoneExt(_) => None,
    }
}

/// Grants a delegation if [`State::may_delegate`](crate::state::State::may_delegate) permits it.
async fn give(
    cx: &Context,
    opened: &OpenedFile,
    wanted: Wanted,
) -> Result<open::Delegation, WhyNot> {
    let &OpenedFile { client, node, share, wishes, .. } = opened;
    let request = DelegationRequest { client, node, share, wanted };
    if !cx.exports.is_disjoint(node.export) {
        return Err(WhyNot::Resource);
    }
    let now = cx.now();
    let kind = cx.state().may_delegate(request, now)?;
    check_replaces_open(wishes, share, kind)?;
    let grant = grant(cx, opened, request, kind, OpenRights::Callers).await?;
    let times = grant.keeps_times;
    let id = cx.state().delegate(grant, kind, now)?;
    if !cx.services.serves(node) {
        // The export was removed meanwhile. The client does not learn of the delegation.
        return match cx.state().return_delegation(client, id, node) {
            Ok(()) | Err(_) => Err(WhyNot::Resource),
        };
    }
    Ok(delegation(id, (kind, times), false))
}

/// Grants a delegation that the client held before the server restarted. If the export overlaps another one now, the
/// server recalls it soon ([`Recalls::look_at_files`](crate::delegation::recall::Recalls::look_at_files)).
async fn give_again(
    cx: &Context,
    opened: &OpenedFile,
    kind: open::DelegationType,
) -> Result<open::Delegation, WhyNot> {
    use open::DelegationType as Type;
    let &OpenedFile { client, node, share, wishes, .. } = opened;
    let kind = match kind {
        Type::Read => DelegationKind::Read,
        Type::ReadAttrs if cx.minor > 1 => DelegationKind::Read,
        Type::Write if cx.minor > 0 => DelegationKind::Write,
        Type::WriteAttrs if cx.minor > 1 => DelegationKind::Write,
        _ => return Err(WhyNot::HasOne),
    };
    check_replaces_open(wishes, share, kind)?;
    let request = DelegationRequest { client, node, share, wanted: Wanted::NoPreference };
    let now = cx.now();
    let grant = grant(cx, opened, request, kind, OpenRights::CallersAgain).await?;
    let times = grant.keeps_times;
    let (id, recall) = cx.state().reclaim_delegation(grant, kind, now)?;
    Ok(delegation(id, (kind, times), recall))
}

/// Refuses a delegation in the place of an open that it would not do for.
fn check_replaces_open(wishes: Wishes, share: Share, kind: DelegationKind) -> Result<(), WhyNot> {
    let does = share.deny.is_empty() && kind.access().contains(share.access);
    if does || !wishes.either { Ok(()) } else { Err(WhyNot::Resource) }
}

/// Prepares a grant: opens the file for all the access that the delegation allows.
async fn grant(
    cx: &Context,
    opened: &OpenedFile,
    request: DelegationRequest,
    kind: DelegationKind,
    rights: OpenRights,
) -> Result<Grant<File>, WhyNot> {
    let access = kind.access();
    let no = |_| WhyNot::Resource;
    if kind == DelegationKind::Write {
        // The holder answers for the file's size and times.
        cx.target(opened.node).and_then(|target| target.check_writable()).map_err(no)?;
    }
    let file = if opened.share.access.contains(access) {
        opened.file.clone()
    } else {
        let target = cx.target(opened.node).map_err(no)?;
        open_file(&target, &opened.attr, access, rights).await.map_err(no)?
    };
    let attr = file.getattr().await.map_err(|_| WhyNot::Resource)?;
    Ok(Grant {
        request,
        file,
        change: attr.change,
        times: Times { atime: attr.atime, mtime: attr.mtime },
        keeps_times: opened.wishes.times && cx.nfs.delegated_times && kind == DelegationKind::Write,
        referring: cx.referring(),
        by: cx.principal.clone(),
        made: opened.made,
    })
}

fn delegation(
    id: state::StateId,
    (kind, times): (DelegationKind, bool),
    recall: bool,
) -> open::Delegation {
    let stateid = StateId { seqid: id.seq, other: id.key.to_wire() };
    // An empty mask: the client must ask the server (ACCESS) who may open the file.
    let permissions = Ace {
        kind: AceType::Allow,
        flags: AceFlags::empty(),
        mask: AceMask::empty(),
        who: "EVERYONE@".into(),
    };
    if kind == DelegationKind::Read {
        return open::Delegation::Read(open::ReadDelegation { stateid, recall, permissions });
    }
    let write = open::WriteDelegation {
        stateid,
        recall,
        // No space is reserved, so the client must write back its data by CLOSE.
        space_limit: open::SpaceLimit::Size(0),
        permissions,
    };
    match times {
        true => open::Delegation::WriteAttrs(write),
        false => open::Delegation::Write(write),
    }
}
