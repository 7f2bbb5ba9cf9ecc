//! READLINK, LINK.

use super::create::check_new;
use crate::state::Touch;
use crate::storage::retry_journal::NameChange;
use crate::v3::convert;
use crate::v3::request::{Request, durable};
use weir_nfs::v3::op::link::{self, Linked};
use weir_nfs::v3::op::readlink::{self, Link};
use weir_nfs::v3::{Error, Failure};
use weir_xdr::Opaque;

pub(in crate::v3) async fn readlink(request: &Request<'_>, args: readlink::Args) -> readlink::Res {
    let link = request.target(&args.link)?;
    let target = link.fs().readlink(&link.caller, link.id()).await;
    let attr = link.attr().await;
    match target {
        Ok(target) => Ok(Link { attr, target: Opaque(target.into()) }),
        Err(error) => Err(Failure { status: convert::error(error), rest: attr }),
    }
}

pub(in crate::v3) async fn link(request: &Request<'_>, args: link::Args) -> link::Res {
    let file = request.target(&args.file)?;
    let dir = request.target(&args.link.dir)?;
    let made_before = request.made_before().is_some();
    // Before the directory is locked, so that no other call waits for a client that does not return
    // its delegation.
    let way_made = async {
        if made_before {
            return Ok(None);
        }
        check_new(&dir, &args.link.name)?;
        if file.node.export != dir.node.export {
            return Err(Error::XDev);
        }
        file.claim(Touch::Change).await.map(Some)
    };
    let way_made = way_made.await;
    let change = dir.change().await;
    let linked = async {
        let _claim = way_made?;
        if made_before {
            return file.getattr().await;
        }
        let change = NameChange::Link { file: file.node, dir: dir.node, name: &args.link.name };
        let begun = request.begin(&dir, change).await;
        let linked = dir.fs().link(&dir.caller, file.id(), dir.id().entry(&args.link.name)).await;
        begun.end(&linked);
        linked.map_err(convert::error)
    };
    let linked = linked.await;
    let around = change.end(&dir).await;
    match durable(&dir, linked, |attr| vec![attr.id, dir.id()]).await {
        Ok(attr) => Ok(Linked { file: Some(convert::attr(&attr)), dir: around }),
        Err(status) => {
            Err(Failure { status, rest: Linked { file: file.attr().await, dir: around } })
        }
    }
}
