//! Attributes that are set (RFC 8881 section 18.30).

use crate::examiner::Examiner;
use crate::raw_open::{ShareAccess, granted, refused};
use crate::rule::{Rule, rule};
use crate::verdict::{Result, Verdict};
use weir_nfs::v4::op::setattr;
use weir_nfs::v4::types::StateId;
use weir_nfs::v4::{Attrs, Error, Op};

pub(crate) const RULES: &[Rule] = &[
    rule!(
        "SETATTR of an empty owner is refused",
        "RFC 8881 18.30",
        "owner of 0 bytes: INVAL",
        empty_owner
    ),
    rule!(
        "SETATTR of an empty group is refused",
        "RFC 8881 18.30",
        "owner_group of 0 bytes: INVAL",
        empty_group
    ),
];

async fn empty_owner(examiner: &mut Examiner) -> Result<Verdict> {
    set_refused(examiner, Attrs { owner: Some("".into()), ..Attrs::default() }).await
}

async fn empty_group(examiner: &mut Examiner) -> Result<Verdict> {
    set_refused(examiner, Attrs { owner_group: Some("".into()), ..Attrs::default() }).await
}

async fn set_refused(examiner: &mut Examiner, attrs: Attrs) -> Result<Verdict> {
    let (_, name) = examiner.create("owned").await?;
    let raw = examiner.raw().await?;
    let open = raw.opened("owner", &name, ShareAccess::BOTH).await?;
    let setattr = setattr::Args { stateid: StateId::ANONYMOUS, attrs: attrs.into() };
    let ops = [Op::Putfh(open.handle.clone()), Op::Setattr(setattr)];
    let status = raw.call(&ops).await?.status;
    let verdict = refused(status, &[Error::Inval]);
    Ok(verdict.max(granted(raw.close(&open.handle, open.stateid).await?)))
}
