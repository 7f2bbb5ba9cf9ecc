//! RENAME.

use crate::storage::retry_journal::NameChange;
use crate::v3::convert;
use crate::v3::request::{Request, durable};
use weir_nfs::v3::op::rename::{Args, Dirs, Res};
use weir_nfs::v3::{Error, Failure};
use weir_vfs::RenameFlags;

pub(in crate::v3) async fn rename(request: &Request<'_>, args: Args) -> Res {
    let from = request.target(&args.from.dir)?;
    let to = request.target(&args.to.dir)?;
    if request.made_before().is_some() {
        let committed = durable(&from, Ok(()), |()| vec![from.id(), to.id()]).await;
        let dirs = Dirs { from: from.wcc().await, to: to.wcc().await };
        return committed.map(|()| dirs.clone()).map_err(|status| Failure { status, rest: dirs });
    }
    let names = [from.named(&args.from.name), to.named(&args.to.name)];
    let way_made = from.claim_names(&names, true).await;
    let (change, before) = from.change_with(&to).await;
    let renamed = async {
        from.check_writable()?;
        from.check_grace()?;
        way_made?;
        let _claims = from.claim_names(&names, false).await?;
        if from.node.export != to.node.export {
            return Err(Error::XDev);
        }
        let (old, new) = (&args.from.name, &args.to.name);
        let flags = RenameFlags::Replace;
        let change = NameChange::Rename { from: (from.node, old), to: (to.node, new) };
        let begun = request.begin(&from, change).await;
        let renamed =
            from.fs().rename(&from.caller, from.id().entry(old), to.id().entry(new), flags).await;
        begun.end(&renamed);
        renamed.map_err(convert::error)
    };
    let renamed = renamed.await;
    to.lost_name();
    let (around_from, around_to) = change.end_both(&from, (&to, before)).await;
    let dirs = Dirs { from: around_from, to: around_to };
    match durable(&from, renamed, |()| vec![from.id(), to.id()]).await {
        Ok(()) => Ok(dirs),
        Err(status) => Err(Failure { status, rest: dirs }),
    }
}
