//! What is at a destination where that decides about the copy (`-u`, `-i`): the listing that showed it may be hours
//! old.
//!
//! 1. The destination is looked up again when the turn of its file comes, and once more right before the complete copy
//!    gets its name. A small file is written whole right after the first of these: what appears in between, the time
//!    of one request, is replaced.
//! 2. A copy whose destination did not exist then replaces nothing.

use super::copier::Copier;
use super::directory::lookup;
use super::options::Overwrite;
use super::temporary::Temporary;
use crate::failure::{Asked, Failure, Result};
use crate::mounts::Place;
use std::borrow::Cow;
use weir_vfs::{Attr, Error, RenameFlags};

/// How often a name may appear and vanish again before the copy fails.
const MOST_LOOKS: usize = 3;

/// The destination of a source as it is now, if that decides about the copy. `None`: what is there stays. A stream has
/// no attributes; it is newer than any file.
///
/// # Errors
/// The destination cannot be looked up; or a file has appeared, about which the user was not asked.
pub(crate) async fn look_again<'a>(
    copier: &Copier,
    source: Option<&Attr>,
    to: &'a Place,
) -> Result<Option<Cow<'a, Place>>> {
    let options = &copier.options;
    let Some(name) = to.name.as_deref().filter(|_| options.heeds_existing()) else {
        return Ok(Some(Cow::Borrowed(to)));
    };
    let attr = lookup(to, name).await?;
    let is_newer = |there: &Attr| source.is_some_and(|source| there.mtime >= source.mtime);
    if options.overwrite == Overwrite::Update && attr.as_ref().is_some_and(is_newer) {
        return Ok(None);
    }
    if options.asks && to.attr.is_none() && attr.is_some() {
        return Err(Error::Exists).asked(|| format!("write {}", to.shown));
    }
    Ok(Some(Cow::Owned(Place { attr, ..to.clone() })))
}

/// Gives a complete copy, whose destination was `to` when it began, its final name. Returns false if what is there now
/// stays.
///
/// # Errors
/// Those of [`look_again`], and of the store.
pub(crate) async fn publish(
    copier: &Copier,
    source: Option<&Attr>,
    to: &Place,
    (temporary, name): (&Temporary<'_>, &[u8]),
) -> Result<bool> {
    let usual = copier.options.publishes();
    let failed = |error| match error {
        Error::NotFound | Error::Stale => {
            let failed = "another program took its temporary file away";
            let failure = Failure::new(format!("write {}", to.shown), failed);
            failure.advice("let one `weir cp` at a time write it")
        }
        error => Failure::of(format!("write {}", to.shown), error),
    };
    for _ in 0..MOST_LOOKS {
        let Some(now) = look_again(copier, source, to).await? else { return Ok(false) };
        let flags = match now.attr {
            None if copier.options.heeds_existing() => RenameFlags::NoReplace,
            _ => usual,
        };
        let published = match temporary.publish(name, flags).await {
            // It has appeared just now.
            Err(Error::Exists) if flags != usual => continue,
            // A server has no such rename, and its file system no hard links.
            Err(Error::NotSupported | Error::NotPermitted) if flags != usual => {
                temporary.publish(name, usual).await
            }
            published => published,
        };
        return published.map(|()| true).map_err(failed);
    }
    Err(failed(Error::Exists))
}
