//! REMOVE, RMDIR.

use crate::storage::retry_journal::NameChange;
use crate::v3::convert;
use crate::v3::request::{Request, Target, durable};
use weir_nfs::v3::Failure;
use weir_nfs::v3::op::{remove, rmdir};

pub(in crate::v3) async fn remove(request: &Request<'_>, args: remove::Args) -> remove::Res {
    let dir = request.target(&args.target.dir)?;
    if request.made_before().is_some() {
        return removed_before(&dir).await;
    }
    let names = [dir.named(&args.target.name)];
    let way_made = dir.claim_names(&names, true).await;
    let change = dir.change().await;
    let removed = async {
        dir.check_writable()?;
        dir.check_grace()?;
        way_made?;
        let _claims = dir.claim_names(&names, false).await?;
        let change = NameChange::Remove { dir: dir.node, name: &args.target.name };
        let begun = request.begin(&dir, change).await;
        let removed = dir.fs().unlink(&dir.caller, dir.id().entry(&args.target.name)).await;
        begun.end(&removed);
        removed.map_err(convert::error)
    };
    let removed = removed.await;
    dir.lost_name();
    let around = change.end(&dir).await;
    match durable(&dir, removed, |()| vec![dir.id()]).await {
        Ok(()) => Ok(around),
        Err(status) => Err(Failure { status, rest: around }),
    }
}

pub(in crate::v3) async fn rmdir(request: &Request<'_>, args: rmdir::Args) -> rmdir::Res {
    let dir = request.target(&args.target.dir)?;
    if request.made_before().is_some() {
        return removed_before(&dir).await;
    }
    let change = dir.change().await;
    let removed = async {
        dir.check_writable()?;
        let change = NameChange::Remove { dir: dir.node, name: &args.target.name };
        let begun = request.begin(&dir, change).await;
        let removed = dir.fs().rmdir(&dir.caller, dir.id().entry(&args.target.name)).await;
        begun.end(&removed);
        removed.map_err(convert::error)
    };
    let removed = removed.await;
    let around = change.end(&dir).await;
    match durable(&dir, removed, |()| vec![dir.id()]).await {
        Ok(()) => Ok(around),
        Err(status) => Err(Failure { status, rest: around }),
    }
}

/// The results of a call that an earlier run of the server executed.
async fn removed_before(dir: &Target<'_>) -> remove::Res {
    match durable(dir, Ok(()), |()| vec![dir.id()]).await {
        Ok(()) => Ok(dir.wcc().await),
        Err(status) => Err(Failure { status, rest: dir.wcc().await }),
    }
}
